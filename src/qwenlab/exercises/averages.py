"""An exercise of lesson 13: average-loss."""

import random

import torch

from qwenlab.tasks import objective
from qwenlab.teach.checking import exercise

# --- average-loss: (mask (B, T) bool, how, tokens, rows, cap) -> weights (B, T) float32 ---


def _batches():
    one_and_three = torch.tensor([[True, False, False], [True, True, True]])
    for how in objective.AVERAGES:
        yield f"a whole batch, {how}", (one_and_three, how, 4, 2, 8)
    for how in objective.AVERAGES:
        yield f"a part of a batch, {how}", (one_and_three[:1], how, 4, 2, 8)
    draw = random.Random(15)
    for _ in range(20):
        lengths = [draw.randint(1, 6) for _ in range(draw.randint(1, 5))]
        mask = torch.arange(6) < torch.tensor(lengths)[:, None]  # (B, T)
        more = draw.randint(0, 3)  # rows of the other parts, of 4 tokens each
        how = draw.choice(objective.AVERAGES)
        yield "random parts", (mask, how, sum(lengths) + 4 * more, len(lengths) + more, draw.randint(6, 9))


def average_loss(mask, how, tokens, rows, cap):
    losses = torch.ones(mask.shape, requires_grad=True)
    objective.average(losses, mask, how, tokens=tokens, rows=rows, cap=cap).backward()
    return losses.grad


def _named(other):
    return lambda mask, how, *counts: average_loss(mask, other.get(how, how), *counts)


def _no_mask(mask, how, tokens, rows, cap):
    if how == "sequence":
        return torch.ones(mask.shape) / mask.sum(1, keepdim=True) / rows
    return torch.ones(mask.shape) / (tokens if how == "token" else rows * cap)


def _by_width(mask, how, tokens, rows, cap):
    weights = average_loss(mask, how, tokens, rows, cap)
    return mask.float() / (mask.shape[1] * rows) if how == "sequence" else weights


exercise(
    "average-loss",
    average_loss,
    results=("weights",),
    cases=_batches,
    mistakes=(
        (
            lambda mask, how, tokens, rows, cap: average_loss(mask, how, int(mask.sum()), rows, cap),
            "you divide by the tokens of your own part. That makes a mean of means: take tokens, the whole batch's.",
        ),
        (
            lambda mask, how, tokens, rows, cap: average_loss(mask, how, tokens, len(mask), cap),
            "you divide by the rows of your own part. Take rows, the whole batch's.",
        ),
        (
            lambda mask, how, tokens, rows, cap: average_loss(mask, how, tokens, rows, mask.shape[1]),
            '"fixed" divides by cap, not by the width of this part. The width changes with the answers.',
        ),
        (_named({"sequence": "token"}), '"sequence" counts each answer alike: divide by the row\'s own tokens too.'),
        (_named({"token": "sequence", "sequence": "token"}), '"token" and "sequence" are swapped.'),
        (_by_width, '"sequence" divides a row by its own tokens, not by the width of the rectangle.'),
        (_no_mask, "what the mask leaves out must count 0. Start from mask.float()."),
    ),
    rules=(
        (
            "weights",
            lambda value: "one weight a token: (B, T), as the mask." if value.ndim != 2 else None,
        ),
        (
            "weights",
            lambda value: "weights are float32." if value.dtype != torch.float32 else None,
        ),
    ),
)
