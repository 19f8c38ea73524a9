"""Masks and the masked softmax, in the variants that lesson 04 compares."""

import math

import pytest
import torch
from helpers import difference

import qwenlab
from qwenlab.model.softmax import VARIANTS


def slow_combined(attention_mask, queries):
    """The definition, pair by pair."""
    batch, keys = attention_mask.shape
    out = torch.zeros(batch, 1, queries, keys, dtype=torch.bool)
    for b in range(batch):
        for q in range(queries):
            for k in range(keys):
                out[b, 0, q, k] = bool(attention_mask[b, k]) and k <= q + keys - queries
    return out


@pytest.mark.parametrize("queries", [1, 3, 7])
def test_combined_mask_is_the_definition(queries):
    mask = torch.rand(4, 7) < 0.6
    assert torch.equal(qwenlab.combined_mask(mask, queries), slow_combined(mask, queries))
    assert torch.equal(qwenlab.combined_mask(mask), slow_combined(mask, 7))


def test_a_cached_step_is_anchored_bottom_right():
    assert qwenlab.causal_mask(1, 4).tolist() == [[True] * 4]
    assert qwenlab.causal_mask(2, 4).tolist() == [[True, True, True, False], [True] * 4]
    with pytest.raises(ValueError, match="queries is 5, expected 1 to 4"):
        qwenlab.combined_mask(torch.ones(1, 4, dtype=torch.bool), 5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_variants_agree_where_something_is_seen(dtype):
    scores = (torch.randn(2, 3, 5, 5) * 4).to(dtype)
    mask = qwenlab.causal_mask(5, 5)
    expected = scores.masked_fill(~mask, float("-inf")).softmax(-1)
    for how in VARIANTS:
        assert difference(qwenlab.masked_softmax(scores, mask, how), expected) < (
            1e-6 if dtype == torch.float32 else 1e-2
        )
    assert torch.equal(qwenlab.masked_softmax(scores, None), scores.softmax(-1))


def test_variants_on_a_row_with_nothing_to_see():
    scores = torch.randn(1, 1, 3, 3)
    mask = torch.tensor([[False] * 3, [False, True, False], [False, True, True]])
    rows = {how: qwenlab.masked_softmax(scores, mask, how)[0, 0, 0].tolist() for how in VARIANTS}
    assert all(math.isnan(x) for x in rows["-inf"])
    assert rows["finfo.min"] == pytest.approx([1 / 3] * 3)
    assert rows["log-sum-exp"] == [0, 0, 0]
    assert rows["pads-see-themselves"] == [1, 0, 0]
    with pytest.raises(ValueError, match="'finfo'"):
        qwenlab.masked_softmax(scores, mask, "finfo")


def test_scores_far_apart_stay_finite():
    """What is masked may be the largest score of all: it must not push the rest to 0 / 0."""
    scores = torch.tensor([[3e38, -1e4, -1e4 - 1]])
    mask = torch.tensor([[False, True, True]])
    expected = torch.tensor([[0.0, 1 / (1 + math.exp(-1)), math.exp(-1) / (1 + math.exp(-1))]])
    assert difference(qwenlab.masked_softmax(scores, mask), expected) < 1e-3
    assert torch.isfinite(
        qwenlab.masked_softmax(torch.full((1, 2), -3e38), torch.tensor([[True, True]]))
    ).all()


def test_nan_rows_poison_the_next_layer_only_where_the_reader_earns_it(dense):
    """The textbook softmax on an explicit mask: NaN everywhere one layer later. The library's own
    ways: none."""

    def textbook(q, k, v, mask, scale):
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
        return qwenlab.masked_softmax(q @ k.transpose(-1, -2) * scale, mask, "-inf") @ v

    ids, mask = qwenlab.left_pad([[3, 1, 4], [2, 7, 1, 8, 2]], 0)
    explicit = qwenlab.combined_mask(mask)
    try:
        dense.attention = textbook
        poisoned = dense(ids, explicit)
    finally:
        dense.attention = "sdpa"
    assert torch.isnan(poisoned[0]).all() and torch.isfinite(poisoned[1]).all()
    assert torch.isfinite(dense(ids, explicit)).all()
