"""The small parts in bfloat16: what must be worked out in float32 is, and only then rounded."""

import pytest
import torch
from helpers import random_config

from qwenlab.fast import attention as fast
from qwenlab.model import attention, layers
from qwenlab.model.softmax import masked_softmax

BF16 = torch.bfloat16


def test_the_norm_is_worked_out_in_float32():
    norm, x = layers.RMSNorm(64, 1e-6), (torch.randn(50, 64) * 30).to(BF16)
    assert torch.equal(norm.to(BF16)(x), norm.float()(x.float()).to(BF16))


def test_eps_keeps_a_row_of_zeros_finite_and_counts():
    norm = layers.RMSNorm(4, 1e-2)
    assert not norm(torch.zeros(1, 4)).any()
    assert torch.allclose(
        norm(torch.full((1, 4), 0.1)), torch.full((1, 4), 0.1 / (0.01 + 1e-2) ** 0.5)
    )


def test_angles_are_worked_out_in_float32():
    """In bfloat16 position 1001 would be 1000."""
    positions = torch.tensor([[0, 1, 1001, 40_000]])
    rotary = layers.Rotary(random_config(head_dim=8, rope_theta=1e6))
    wide = rotary.angles(positions, torch.float32)
    exact = torch.cos(1001 * 1e6 ** (-torch.arange(0, 8, 2) / 8))
    assert torch.allclose(wide[0][0, 2, 0, :4], exact, atol=1e-3)
    for narrow, exact in zip(rotary.angles(positions, BF16), wide, strict=True):
        assert torch.equal(narrow, exact.to(BF16))


def test_eager_softmax_is_float32_whatever_the_dtype(monkeypatch):
    seen = []

    def recorded(scores, mask):
        seen.append(scores.dtype)
        return masked_softmax(scores, mask)

    monkeypatch.setattr(attention, "masked_softmax", recorded)
    q, k = torch.randn(1, 4, 3, 8).to(BF16), torch.randn(1, 2, 3, 8).to(BF16)
    mask = attention.causal_mask(3, 3)[None, None]
    assert attention.eager(q, k, k, mask, 0.3).dtype == BF16 and seen == [torch.float32]


@pytest.mark.parametrize("few", [fast.GROUP_ABOVE, 0], ids=["head by head", "grouped"])
def test_the_fast_step_and_sdpa_compute_what_eager_does(few, monkeypatch):
    """One query after five keys, or three, each seeing its own past; a step also without a mask."""
    monkeypatch.setattr(fast, "GROUP_ABOVE", few)
    for batch, queries in [(2, 1), (2, 3), (2, 5), (20, 1)]:
        k, q = torch.randn(batch, 2, 5, 8), torch.randn(batch, 4, queries, 8)
        mask = attention.causal_mask(queries, 5)[None, None]
        expected = attention.eager(q, k, k, mask, 0.3)
        assert torch.allclose(attention.sdpa(q, k, k, mask, 0.3), expected, atol=1e-6)
        if queries == 1:
            assert torch.allclose(fast.one_query(q, k, k, None, 0.3), expected, atol=1e-6)
            # what `sdpa` computes on a GPU
            assert torch.allclose(attention.grouped_sdpa(q, k, k, mask, 0.3), expected, atol=1e-6)
