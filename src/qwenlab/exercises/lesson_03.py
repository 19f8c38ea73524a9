"""The exercises of lesson 03: cached-mask and combined-mask."""

import random
from collections.abc import Callable

import torch
from torch import Tensor

from qwenlab.engine.masks import causal_mask, combined_mask
from qwenlab.engine.padding import left_pad
from qwenlab.exercises import Cases, Exercise, random_numbers

EXERCISES: dict[str, Exercise] = {}

_INVERTED = "your mask is inverted: True means may see."
_TOP_LEFT = (
    "your mask is anchored top-left. The queries are the LAST tokens, so the last one sees up "
    "to the last key."
)
_SQUARE = "that is the whole square. Keep its last rows, one for each query."
_FLOAT = "this is a float mask, to be added to scores. Return the bool one: True = may see."


def _bool_with_heads(mask: Tensor) -> str | None:
    if mask.dtype != torch.bool:
        return "a mask is bool: True = may see. With numbers 0 and 1, ~mask would not swap them."
    if mask.ndim == 3:
        return (
            "the dimension for the heads is missing: (B, Q, K) would broadcast its rows against "
            "the heads."
        )


def _as_scores(mask: Tensor) -> Tensor:
    return torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)


# --- cached-mask: (queries, keys) -> (Q, K) bool ---


def _sizes() -> Cases:
    yield "3 new tokens after 5 cached ones", (3, 8)
    yield "one new token", (1, 5)
    yield "a prefill", (4, 4)
    draw = random.Random(4)
    for _ in range(20):
        queries = draw.randint(1, 6)
        yield "random sizes", (queries, queries + draw.randint(0, 6))


def _diagonal(shift: Callable) -> Callable:
    return lambda queries, keys: torch.ones(queries, keys, dtype=torch.bool).tril(
        shift(queries, keys)
    )


EXERCISES["cached-mask"] = Exercise(
    causal_mask,
    results=("mask",),
    cases=_sizes,
    mistakes=(
        (_diagonal(lambda q, k: 0), _TOP_LEFT),
        (
            _diagonal(lambda q, k: k - q - 1),
            "off by one: a query sees its own key too. Yours stops one short.",
        ),
        (
            _diagonal(lambda q, k: k - q + 1),
            "off by one: your queries see one key after themselves.",
        ),
        (
            _diagonal(lambda q, k: q),
            "shift tril by the number of cached tokens: keys - queries, not queries.",
        ),
        (
            _diagonal(lambda q, k: k),
            "nothing is hidden: an earlier new token must not see a later one.",
        ),
        (lambda q, k: ~causal_mask(q, k), _INVERTED),
        (
            lambda q, k: causal_mask(q, k).T.contiguous(),
            "transposed: rows are queries, columns are keys.",
        ),
        (lambda q, k: causal_mask(k, k), _SQUARE),
        (
            lambda q, k: ~_diagonal(lambda q, k: k - q - 1)(q, k),
            "your queries see what comes after, not before.",
        ),
        (lambda q, k: _as_scores(causal_mask(q, k)), _FLOAT),
    ),
    rules=(("mask", _bool_with_heads),),
)

# --- combined-mask: (attention_mask (B, K) bool, queries) -> (B, 1, Q, K) bool ---


def _batches() -> Cases:
    short = left_pad([[1, 2, 3], [1, 2, 3, 4, 5]], 0)[1]
    yield "a prefill of two rows", (short, 5)
    yield "a cached step of two tokens", (short, 2)
    yield "one new token", (short, 1)
    yield "no pads", (torch.ones(2, 4, dtype=torch.bool), 4)
    yield "a pad inside", (torch.tensor([[True, False, True, True]]), 4)
    draw = random.Random(5)
    for _ in range(20):
        lengths = random_numbers(draw, 4, 7)
        mask = left_pad([[1] * length for length in lengths], 0)[1]
        yield "random batches", (mask, draw.randint(1, mask.shape[1]))


def _causal(mask: Tensor, queries: int) -> Tensor:
    return causal_mask(queries, mask.shape[1])


def _on_queries(mask: Tensor, queries: int) -> Tensor:
    return _causal(mask, queries) & mask[:, None, -queries:, None]


def _pads_shown(mask: Tensor, queries: int) -> Tensor:
    return _causal(mask, queries) & ~mask[:, None, None, :]


def _anchored_top_left(mask: Tensor, queries: int) -> Tensor:
    return causal_mask(mask.shape[1], mask.shape[1])[:queries] & mask[:, None, None, :]


def _without_padding(mask: Tensor, queries: int) -> Tensor:
    return _causal(mask, queries).repeat(len(mask), 1, 1, 1)


def _without_order(mask: Tensor, queries: int) -> Tensor:
    return mask[:, None, None, :].repeat(1, 1, queries, 1)


def _either(mask: Tensor, queries: int) -> Tensor:
    return _causal(mask, queries) | mask[:, None, None, :]


EXERCISES["combined-mask"] = Exercise(
    combined_mask,
    results=("mask",),
    cases=_batches,
    mistakes=(
        (
            _on_queries,
            "you put the padding on the queries. It belongs on the keys: columns, not rows.",
        ),
        (
            lambda m, q: combined_mask(m, q) & m[:, None, -q:, None],
            "you put the padding on the keys and on the queries too. Leave the queries alone.",
        ),
        (lambda m, q: ~combined_mask(m, q), _INVERTED),
        (
            lambda m, q: combined_mask(m, q).mT.contiguous(),
            "transposed: the last two dimensions are queries, keys.",
        ),
        (lambda m, q: combined_mask(m), _SQUARE),
        (_pads_shown, "your padding is inverted: these queries see pads and nothing else."),
        (_anchored_top_left, _TOP_LEFT),
        (_without_padding, "the order is right, but pads can be seen. Hide them from every query."),
        (_without_order, "pads are hidden, but your queries see what comes after them."),
        (
            _either,
            "you allow a pair if either condition holds. It needs both: not later AND not a pad.",
        ),
        (
            lambda m, q: combined_mask(m[:1], q),
            "you return one matrix for all rows, but each row has pads of its own.",
        ),
        (lambda m, q: _as_scores(combined_mask(m, q)), _FLOAT),
    ),
    rules=(("mask", _bool_with_heads),),
)
