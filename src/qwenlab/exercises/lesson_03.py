"""The exercises of lesson 03: combined-mask and packed-mask."""

import random

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


# --- combined-mask: (attention_mask (B, K) bool, queries) -> (B, 1, Q, K) bool ---


def _batches() -> Cases:
    short = left_pad([[1, 2, 3], [1, 2, 3, 4, 5]], 0)[1]
    yield "a prefill of two rows", (short, 5)
    yield "a cached step of two tokens", (short, 2)
    yield "one new token", (short, 1)
    yield "no pads", (torch.ones(2, 4, dtype=torch.bool), 4)
    yield "a pad inside", (torch.tensor([[True, False, True, True]]), 4)
    yield "pads on the right", (torch.tensor([[True, True, False], [True, True, True]]), 2)
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


def _wrong_shift(mask: Tensor, queries: int) -> Tensor:
    keys = mask.shape[1]
    triangle = torch.ones(queries, keys, dtype=torch.bool).tril(queries - keys)
    return triangle & mask[:, None, None, :]


def _by_positions(position: Tensor, mask: Tensor, queries: int) -> Tensor:
    """Compares the positions of queries and keys, both (B, K)."""
    own = position[:, -queries:, None]  # (B, Q, 1)
    return ((position[:, None, :] <= own) & mask[:, None, :])[:, None]


def _columns_with_positions(mask: Tensor, queries: int) -> Tensor:
    own = (mask.cumsum(1) - 1)[:, -queries:, None]  # (B, Q, 1)
    return ((torch.arange(mask.shape[1]) <= own) & mask[:, None, :])[:, None]


def _from_column(first: Tensor, mask: Tensor, queries: int) -> Tensor:
    """As if all keys from column `first` (B,) on were real."""
    real = torch.arange(mask.shape[1]) >= first[:, None]  # (B, K)
    return _causal(mask, queries) & real[:, None, None, :]


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
        (
            _columns_with_positions,
            "you compare a key's column with the query's position. With pads in front of it, a "
            "token's position is smaller than its column: compare columns with columns.",
        ),
        (
            lambda m, q: _by_positions(m.cumsum(0) - 1, m, q),
            "you counted down the columns. A token's position is counted along its row, dim=1.",
        ),
        (
            _wrong_shift,
            "your shift has the wrong sign: the triangle moves right by the number of cached "
            "tokens, keys - queries.",
        ),
        (
            lambda m, q: _from_column((~m).sum(1), m, q),
            "you counted the pads and hid that many columns on the left, but pads may stand "
            "anywhere. Use the mask itself.",
        ),
        (
            lambda m, q: _from_column(m.int().argmax(1), m, q),
            "you hid what stands before the first real token, but a pad may also come later. Use "
            "the mask itself.",
        ),
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

# --- packed-mask: text_ids (B, L) int64, 0 = pad -> (B, 1, L, L) bool ---


def packed_mask(text_ids: Tensor) -> Tensor:
    """A token sees itself and the earlier tokens of its own text; nobody sees a pad, number 0."""
    same = text_ids[:, :, None] == text_ids[:, None, :]  # (B, L, L)
    real = (text_ids != 0)[:, None, :]  # (B, 1, L)
    return (same & real & causal_mask(text_ids.shape[1], text_ids.shape[1]))[:, None]


def _packed() -> Cases:
    yield "two texts and a pad", (torch.tensor([[1, 1, 2, 2, 0]]),)
    yield "pads on the left", (torch.tensor([[0, 0, 1, 1, 2], [1, 2, 2, 3, 3]]),)
    yield "numbers in any order", (torch.tensor([[7, 7, 2, 5, 5]]),)
    yield "one text", (torch.ones(2, 4, dtype=torch.int64),)
    draw = random.Random(11)
    for _ in range(20):
        width = draw.randint(2, 8)
        rows = []
        for _ in range(draw.randint(1, 3)):
            pads = draw.randint(0, width - 1)
            cuts = sorted(draw.choices(range(1, 4), k=width - pads))
            rows.append(draw.choice([cuts + [0] * pads, [0] * pads + cuts]))
        yield "random rows", (torch.tensor(rows),)


def _texts(text_ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The three conditions: same text (B, L, L), real key (B, 1, L), not later (L, L)."""
    same = text_ids[:, :, None] == text_ids[:, None, :]
    return same, (text_ids != 0)[:, None, :], causal_mask(text_ids.shape[1], text_ids.shape[1])


def _pads_see_pads(text_ids: Tensor) -> Tensor:
    same, _, earlier = _texts(text_ids)
    return (same & earlier)[:, None]


def _future_seen(text_ids: Tensor) -> Tensor:
    same, real, _ = _texts(text_ids)
    return (same & real)[:, None]


def _other_texts_seen(text_ids: Tensor) -> Tensor:
    return combined_mask(text_ids != 0)


def _up_to_own_number(text_ids: Tensor) -> Tensor:
    _, real, earlier = _texts(text_ids)
    up_to = text_ids[:, None, :] <= text_ids[:, :, None]
    return (up_to & real & earlier)[:, None]


def _one_square(text_ids: Tensor) -> Tensor:
    return packed_mask(text_ids[:1]).expand(len(text_ids), -1, -1, -1)


def _not_itself(text_ids: Tensor) -> Tensor:
    return packed_mask(text_ids) & ~torch.eye(text_ids.shape[1], dtype=torch.bool)


EXERCISES["packed-mask"] = Exercise(
    packed_mask,
    results=("mask",),
    cases=_packed,
    mistakes=(
        (
            _pads_see_pads,
            "two pads have the same number, so yours see each other. Nobody may see a pad.",
        ),
        (_future_seen, "the texts are apart, but a token sees what comes after it in its own."),
        (
            _other_texts_seen,
            "order and padding are right, but a token still sees the texts before its own.",
        ),
        (
            _up_to_own_number,
            "the numbers are names, not an order: compare them with ==, not with <=.",
        ),
        (lambda t: ~packed_mask(t), _INVERTED),
        (
            lambda t: packed_mask(t).mT.contiguous(),
            "transposed: the last two dimensions are queries, keys.",
        ),
        (_not_itself, "a token sees itself too. Yours sees only what stands before it."),
        (_one_square, "you return one square for all rows, but each row has texts of its own."),
        (lambda t: _as_scores(packed_mask(t)), _FLOAT),
    ),
    rules=(("mask", _bool_with_heads),),
)
