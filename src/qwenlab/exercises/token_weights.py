"""Lesson 14: the exercise token-mean."""

import random

import torch

from qwenlab.teach.checking import exercise

# --- token-mean: (losses, masks), a pair (B, T) for each micro-batch -> parts (N,) ---


def token_mean(losses, masks):
    """What each micro-batch adds to the mean over all tokens that count: its sum over the tokens of all of them."""
    total = sum(int(mask.sum()) for mask in masks)
    return torch.stack([loss[mask].sum() / total for loss, mask in zip(losses, masks, strict=True)])


def _micro_batches():
    def one(loss, width, real):
        return torch.full((1, width), float(loss)), torch.arange(width)[None] < real

    def split(*pairs):
        return [list(things) for things in zip(*pairs, strict=True)]

    yield "1 token of loss 4, 3 tokens of loss 1", tuple(split(one(4, 1, 1), one(1, 3, 3)))
    yield "1 token of loss 4, 3 tokens of loss 0", tuple(split(one(4, 1, 1), one(0, 3, 3)))
    yield "pads beside the tokens", tuple(split(one(2, 4, 1), one(1, 5, 5)))
    yield "a micro-batch where nothing counts", tuple(split(one(3, 2, 2), one(5, 3, 0)))
    draw, source = random.Random(16), torch.Generator().manual_seed(16)
    for _ in range(20):
        shapes = [(draw.randint(1, 3), draw.randint(2, 5)) for _ in range(draw.randint(2, 4))]
        losses = [torch.rand(shape, generator=source) for shape in shapes]
        masks = [torch.rand(shape, generator=source) < 0.6 for shape in shapes]
        masks[0][0, 0] = True
        yield "random micro-batches", (losses, masks)


def _each(part):
    """A mistaken part: part(loss, mask, masks)."""
    return lambda losses, masks: torch.stack([part(*pair, masks) for pair in zip(losses, masks, strict=True)])


def _own(loss, mask):
    return loss[mask].sum() / mask.sum().clamp(min=1)


exercise(
    "token-mean",
    token_mean,
    results=("parts",),
    cases=_micro_batches,
    mistakes=(
        (
            _each(lambda loss, mask, masks: _own(loss, mask) / len(masks)),
            "that is the mean of the means: a token in a small micro-batch counts for more than one in a large.",
        ),
        (
            _each(lambda loss, mask, masks: _own(loss, mask)),
            "each part is a mean by itself: with N of them N times it.",
        ),
        (_each(lambda loss, mask, masks: loss[mask].sum()), "these are sums. Divide by the tokens of all of them."),
        (
            _each(lambda loss, mask, masks: loss[mask].sum() / sum(map(len, masks))),
            "you divide by rows. Long answers then make a larger loss.",
        ),
        (
            _each(lambda loss, mask, masks: loss[mask].sum() / sum(one.numel() for one in masks)),
            "you divide by all places, those that do not count as well.",
        ),
        (
            _each(lambda loss, mask, masks: loss.sum() / sum(int(one.sum()) for one in masks)),
            "the losses of places that do not count are in your sum.",
        ),
    ),
    rules=(
        (
            "parts",
            lambda value: "0/0 is NaN: a micro-batch where nothing counts adds 0." if value.isnan().any() else None,
        ),
        ("parts", lambda value: "parts has one number a micro-batch: (N,)." if value.ndim != 1 else None),
    ),
)
