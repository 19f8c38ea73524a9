"""An exercise of lesson 12: pass-at-k."""

import random
from math import comb

from qwenlab.teach.checking import exercise

# --- pass-at-k: (n, c, k) -> the chance that k of n samples, c of them right, hold a right one ---


def pass_at_k(n, c, k):
    """The estimator of Chen et al., "Evaluating Large Language Models Trained on Code" (2021)."""
    return 1 - comb(n - c, k) / comb(n, k)


def _draws():
    yield "one of four", (4, 1, 2)
    yield "one drawn", (8, 3, 1)
    yield "none is right", (5, 0, 3)
    yield "too few wrong ones to fill k", (5, 4, 2)
    yield "all drawn", (6, 2, 6)
    draw = random.Random(17)
    for _ in range(20):
        n = draw.randint(1, 20)
        yield "random counts", (n, draw.randint(0, n), draw.randint(1, n))


exercise(
    "pass-at-k",
    pass_at_k,
    results=("chance",),
    cases=_draws,
    mistakes=(
        (
            lambda n, c, k: 1 - (1 - c / n) ** k,
            "this puts each sample back before the next is drawn. Count draws without putting back: math.comb.",
        ),
        (lambda n, c, k: min(1.0, k * c / n), "chances of k samples do not add up: two of them may be right at once."),
        (lambda n, c, k: comb(c, k) / comb(n, k), "this is the chance that all k are right. One is enough."),
        (lambda n, c, k: comb(n - c, k) / comb(n, k), "this is the chance that all k are wrong. Take it from 1."),
        (lambda n, c, k: c / n, "this is one sample's chance. It should grow with k."),
        (
            lambda n, c, k: c * comb(n - c, k - 1) / comb(n, k),
            "this is the chance of exactly one right sample. More than one is also fine.",
        ),
    ),
)
