"""The exercises of lesson 04: nan-rows and masked-softmax."""

import random
from collections.abc import Callable

import torch
from torch import Tensor

from qwenlab.engine.masks import combined_mask
from qwenlab.engine.padding import left_pad
from qwenlab.exercises import Cases, Exercise, random_numbers
from qwenlab.model.softmax import masked_softmax

EXERCISES: dict[str, Exercise] = {}

# --- nan-rows: attention_mask (B, T) bool -> (B, T) bool, True where a query sees nothing ---


def nan_rows(attention_mask: Tensor) -> Tensor:
    """The queries that see nothing under the combined mask: those before the first real token."""
    return ~combined_mask(attention_mask).any(-1)[:, 0]  # (B, 1, T, T) -> (B, T)


def _masks() -> Cases:
    yield (
        "pads inside and on each side",
        (torch.tensor([[True, False, True, False], [False, False, True, True]]),),
    )
    yield "pads on the left", (torch.tensor([[False, False, True, True], [True] * 4]),)
    yield "pads on the right", (torch.tensor([[True, True, False, False], [True] * 4]),)
    yield "a pad inside", (torch.tensor([[False, True, False, True]]),)
    yield "no pads", (torch.ones(2, 3, dtype=torch.bool),)
    yield "a row of pads only", (torch.tensor([[False] * 3, [True] * 3]),)
    draw = random.Random(6)
    for _ in range(20):
        count = draw.randint(1, 4)
        width = draw.randint(1, 7)
        real = [draw.random() < 0.5 for _ in range(count * width)]
        yield "random patterns", (torch.tensor(real).view(count, width),)  # (B, T)


def _bool_per_query(answer: Tensor) -> str | None:
    if answer.dtype != torch.bool:
        return "answer with bool: True = this query sees nothing."
    if answer.ndim != 2:
        return "one answer for each query: shape (B, T)."


EXERCISES["nan-rows"] = Exercise(
    nan_rows,
    results=("nan_rows",),
    cases=_masks,
    mistakes=(
        (
            lambda m: ~m,
            "not every pad: a pad on the right or inside still sees the real tokens before it.",
        ),
        (lambda m: m.cumsum(0) == 0, "you counted down the columns. Count along each row, dim=1."),
        (lambda m: ~nan_rows(m), "inverted: True means that the query sees nothing."),
        (
            lambda m: (~m).any(1, keepdim=True).expand(m.shape),
            "not the whole row: the others become NaN only one layer later.",
        ),
        (
            lambda m: (~m).cumsum(1) == 0,
            "you looked for the first pad. Look for the first real token.",
        ),
        (lambda m: m.cumsum(1) - m.long() == 0, "off by one: a query may see its own key."),
        (
            lambda m: nan_rows(m.flip(1)).flip(1),
            "wrong direction: a query sees what is before it, not after.",
        ),
        (
            lambda m: torch.arange(m.shape[1]) < m.int().argmax(1, keepdim=True),
            "a row of pads only has no first real token, and argmax then returns 0. None of its "
            "queries sees anything.",
        ),
        (
            torch.zeros_like,
            "you found none. A pad in front of its row's first real token sees nothing.",
        ),
    ),
    rules=(("nan_rows", _bool_per_query),),
)

# --- masked-softmax: (scores (..., Q, K), mask, bool and broadcastable) -> weights ---
#     A row that sees nothing gets zeros.


def _scores() -> Cases:
    noise = torch.Generator().manual_seed(7)
    hidden_first = torch.tensor([[False, False, False], [False, True, False], [False, True, True]])
    yield (
        "a query that sees nothing",
        (torch.tensor([[1.0, 2.0, 0.0], [3.0, 1.0, 2.0], [0.0, 2.0, 1.0]]), hidden_first),
    )
    yield (
        "all may be seen",
        (torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]]), torch.ones(2, 3, dtype=torch.bool)),
    )
    large = torch.tensor([[300.0, 299.0, 0.0], [-300.0, -300.0, -301.0]])
    yield "scores of 300", (large, torch.ones(2, 3, dtype=torch.bool))
    yield (
        "a hidden score far above",
        (torch.tensor([[900.0, 2.0, 1.0]]), torch.tensor([[False, True, True]])),
    )
    draw = random.Random(7)
    for _ in range(20):
        lengths = random_numbers(draw, 3, 5)
        mask = left_pad([[1] * length for length in lengths], 0)[1]
        queries = draw.randint(1, mask.shape[1])
        scores = 3 * torch.randn(len(mask), 2, queries, mask.shape[1], generator=noise)
        yield "random batches", (scores, combined_mask(mask, queries))


def _filled(value: float, dim: int = -1) -> Callable:
    return lambda scores, mask: scores.masked_fill(~mask, value).softmax(dim)


def _by_hand(highest: Callable) -> Callable:
    def weights(scores: Tensor, mask: Tensor) -> Tensor:
        terms = (scores - highest(scores)).exp() * mask
        return terms / terms.sum(-1, keepdim=True).clamp(min=torch.finfo(scores.dtype).tiny)

    return weights


def _exp_only(scores: Tensor, mask: Tensor) -> Tensor:
    """exp(score - maximum), not divided by the sum."""
    weights = masked_softmax(scores, mask)
    return weights / weights.amax(-1, keepdim=True).clamp(min=1e-30)


_LEAK = (
    "a row that sees nothing became the mean of hidden keys: its scores are all equal, so its "
    "weights are too. Give zeros."
)
_AXIS = (
    "wrong axis: the weights of each query, over its keys, must add up to 1. That is the last "
    "dimension."
)

EXERCISES["masked-softmax"] = Exercise(
    masked_softmax,
    results=("weights",),
    cases=_scores,
    mistakes=(
        (_filled(-torch.inf), "a row that sees nothing is NaN: 0 / 0. Give it zeros."),
        (lambda s, m: _filled(-torch.inf, -2)(s, m).nan_to_num(0.0), _AXIS),
        (_filled(-torch.inf, -2), _AXIS),
        (lambda s, m: s.softmax(-2) * m, _AXIS),
        (_filled(-1e9), _LEAK),
        (
            _by_hand(lambda s: s.amax(-1, keepdim=True)),
            "you took the maximum over hidden keys too, and far below it every exp is 0. Take it "
            "over the visible keys.",
        ),
        (
            _by_hand(torch.amax),
            "one maximum for all rows: far below it every exp is 0. Take the maximum of each row.",
        ),
        (
            lambda s, m: s.softmax(-1) * m,
            "you masked after the softmax, so the remaining weights do not add up to 1.",
        ),
        (
            _exp_only,
            "exp is not the last step: divide by the row's sum, so that the weights add up to 1.",
        ),
        (_filled(0.0), "a score of 0 is not hidden: exp(0) is 1."),
        (
            lambda s, m: masked_softmax(s, ~m),
            "inverted: True means may see. You kept what should be hidden.",
        ),
        (lambda s, m: s.softmax(-1), "nothing is hidden: the mask is not used."),
        (
            _by_hand(torch.zeros_like),
            "exp of a large score is infinite. Subtract the maximum of the row first.",
        ),
        (
            lambda s, m: masked_softmax(s, m, "pads-see-themselves"),
            "a row that sees nothing attends to itself here. Give zeros.",
        ),
    ),
)
