"""GRPO's formulas on numbers worked by hand."""

import math

import pytest
import torch

from qwenlab.training.objective import (
    AVERAGES,
    advantages,
    average,
    clipped_loss,
    completion_mask,
    divergence,
)

IM_END, END_OF_TEXT = 151645, 151643


def test_advantages_by_hand():
    found = advantages(torch.tensor([[1.0, 0, 0, 0], [1, 1, 1, 1]]))
    # Mean 1/4; squares 9/16 + 3/16 over 3 make 1/4, so the deviation is 1/2, and 1e-4 is added to
    # it.
    expected = torch.tensor([0.75, -0.25, -0.25, -0.25]) / 0.5001
    assert torch.allclose(found[0], expected, atol=1e-6) and torch.equal(found[1], torch.zeros(4))


@pytest.mark.parametrize("rewards", [[[0.35] * 7 + [0.95]], [[1.0]], [[0.1] * 8], [[1e-9, 0.0]]])
def test_advantages_are_finite_and_exactly_zero_without_spread(rewards):
    found = advantages(torch.tensor(rewards))
    assert torch.isfinite(found).all() and found.shape == (1, len(rewards[0]))
    assert bool(found.any()) == (max(rewards[0]) > min(rewards[0]))


def test_advantages_are_a_group_s_own():
    """Among prompts of another difficulty a group is worth what it is worth by itself."""
    groups = torch.tensor([[1.0, 0, 0, 1], [1, 1, 1, 0], [0, 0, 0, 1]])
    alone = torch.cat([advantages(group[None]) for group in groups])
    assert torch.equal(advantages(groups), alone)


def test_the_mask_ends_with_the_first_stop_id():
    """Ends in one stop id, in the other, in neither; the pad is itself a stop id."""
    ids = torch.tensor(
        [
            [5, 6, IM_END, END_OF_TEXT, END_OF_TEXT, END_OF_TEXT],
            [5, 6, 7, 8, END_OF_TEXT, END_OF_TEXT],
            [5, 6, 7, 8, 9, 10],
            [IM_END, 6, 7, 8, END_OF_TEXT, 9],
        ]
    )
    mask = completion_mask(ids, {IM_END, END_OF_TEXT})
    assert mask.dtype == torch.bool
    assert mask.long().tolist() == [
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 1, 0],
        [1] * 6,
        [1, 0, 0, 0, 0, 0],
    ]


def test_the_clipped_loss_by_hand():
    """Ratios 2, 1/2, 1.1 with a good answer and with a bad one, clipped at 0.2."""
    ratios = torch.tensor([2.0, 0.5, 1.1])
    logprobs = ratios.log().repeat(2, 1).requires_grad_(True)
    loss = clipped_loss(logprobs, torch.zeros(2, 3), torch.tensor([3.0, -1.0]), 0.2)
    assert torch.allclose(loss, torch.tensor([[-3.6, -1.5, -3.3], [2.0, 0.8, 1.1]]), atol=1e-6)
    loss.sum().backward()
    # Where clipping holds, nothing is left to gain; elsewhere d(-r A)/d(log r) = -r A.
    assert torch.allclose(logprobs.grad, torch.tensor([[0, -1.5, -3.3], [2.0, 0, 1.1]]), atol=1e-6)


def test_the_divergence_by_hand():
    found = divergence(torch.tensor([-1.0, -1.0, -2.0]), torch.tensor([-1.0, -2.0, -1.0]))
    assert torch.allclose(found, torch.tensor([0.0, math.exp(-1), math.e - 2]), atol=1e-6)


@pytest.mark.parametrize("apart", [21.0, 89.0, 800.0, 1e4])
def test_no_distance_overflows(apart):
    """Neither the divergence nor the clipped loss, nor their gradients, nor those gradients'
    norm."""
    for frozen, ours in ((-1.0, -1.0 - apart), (-1.0 - apart, -1.0)):
        logprobs = torch.full((1, 1000), ours, requires_grad=True)
        reference = torch.full((1, 1000), frozen)
        estimate = divergence(logprobs, reference)
        estimate.sum().backward()
        assert (
            estimate.isfinite().all() and (estimate > 0).all() and logprobs.grad.norm().isfinite()
        )
        assert (logprobs.grad.sign() == (1 if ours > frozen else -1)).all()  # towards the reference
        for score in (1.0, -1.0):
            logprobs.grad = None
            clipped_loss(logprobs, reference, torch.tensor([score]), 0.2).sum().backward()
            assert logprobs.grad.norm().isfinite()


def test_the_divergence_is_its_formula_as_far_as_numbers_are_sane():
    apart = torch.linspace(-50, 20, 71, dtype=torch.float64, requires_grad=True)
    estimate = divergence(-apart, torch.zeros_like(apart))
    estimate.sum().backward()
    assert torch.equal(estimate, apart.exp() - apart - 1)
    assert torch.allclose(apart.grad, apart.exp() - 1, rtol=1e-12, atol=0)


def test_three_averages_by_hand():
    loss = torch.tensor([[4.0, 99, 99, 99], [1, 2, 3, 99], [5, 5, 5, 5]])
    mask = torch.tensor([[1, 0, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]).bool()
    assert average(loss, mask, "token").item() == pytest.approx(30 / 8)
    assert average(loss, mask, "sequence").item() == pytest.approx((4 + 2 + 5) / 3)
    assert average(loss, mask, "fixed", cap=10).item() == pytest.approx(30 / 30)


def test_micro_batches_add_up():
    """1 token with loss 4 and 3 tokens with loss 0 have the mean 1, not 2."""
    first = average(torch.tensor([[4.0]]), torch.tensor([[True]]), "token", tokens=4)
    second = average(torch.zeros(1, 3), torch.ones(1, 3, dtype=torch.bool), "token", tokens=4)
    assert (first + second).item() == 1.0


@pytest.mark.parametrize("how", AVERAGES)
def test_every_cut_of_the_batch_gives_the_same(how):
    torch.manual_seed(1)
    loss, lengths = torch.randn(7, 5), torch.tensor([1, 5, 2, 3, 5, 4, 1])
    mask = torch.arange(5) < lengths[:, None]
    whole = average(loss, mask, how, cap=5)
    for size in range(1, 8):
        parts = zip(loss.split(size), mask.split(size), strict=True)
        added = sum(average(*part, how, tokens=int(lengths.sum()), rows=7, cap=5) for part in parts)
        assert added.item() == pytest.approx(whole.item(), abs=1e-6)


def test_a_nan_beside_the_mask_stays_out():
    loss = torch.tensor([[1.0, float("nan")]])
    for how in AVERAGES:
        assert average(loss, torch.tensor([[True, False]]), how, cap=1).item() == 1.0
