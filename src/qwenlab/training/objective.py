"""GRPO's formulas, one a function: what an answer is worth, which tokens count, the loss and its
averages."""

import math

import torch
from torch import Tensor

EPSILON = 1e-4  # added to a group's deviation
STEEPEST = 20.0  # nats: beyond, e^x goes on along its tangent
AVERAGES = ("token", "sequence", "fixed")


def advantages(rewards: Tensor) -> Tensor:
    """How much better than its group each answer did: (reward - mean) / (sample deviation + 1e-4),
    group by group.

    rewards (prompts, rollouts) to the same. A group whose rewards are all equal, or that has one
    answer only, teaches nothing: exactly 0. Means over the whole batch would reward easy problems,
    not good answers.
    """
    rewards = rewards.double()  # so that the mean of equal rewards is just that
    spread = rewards.amax(1, keepdim=True) > rewards.amin(1, keepdim=True)
    deviation = rewards.std(1, correction=min(1, rewards.shape[1] - 1), keepdim=True)
    return (
        ((rewards - rewards.mean(1, keepdim=True)) / (deviation + EPSILON))
        .masked_fill(~spread, 0)
        .float()
    )


def completion_mask(ids: Tensor, stop_ids) -> Tensor:
    """Which tokens of completions (B, T) count: all up to and including the first stop id of each
    row. (B, T) bool.

    The pad may be a stop id, as with Qwen3: of several in a row the first one counts. Only where
    lengths aren't known: a row that was cut off and then padded can't be told from one that
    stopped.
    """
    stops = torch.isin(ids, torch.tensor(sorted(stop_ids), device=ids.device)).long()
    return stops.cumsum(1) == stops  # no stop id before


def clipped_loss(logprobs: Tensor, kept: Tensor, advantage: Tensor, clip_ratio: float) -> Tensor:
    """-min(r A, clip(r, 1 - c, 1 + c) A) for each token, r = exp(logprobs - kept) (Schulman et al.,
    arXiv:1707.06347).

    logprobs, kept (B, T) under the model now and when it sampled; advantage (B,). Returns (B, T). A
    token that became much likelier (with A > 0; less likely with A < 0) has no gradient left.
    """
    ratio = bounded_exp(logprobs - kept)
    advantage = advantage[:, None]
    return -torch.minimum(
        ratio * advantage, ratio.clamp(1 - clip_ratio, 1 + clip_ratio) * advantage
    )


def divergence(logprobs: Tensor, reference: Tensor) -> Tensor:
    """KL(model || reference) estimated at each sampled token: e^d - d - 1, d = reference -
    logprobs; never negative.

    (Schulman's third estimator, http://joschu.net/blog/kl-approx.html, as in GRPO's paper.) A token
    so unlikely that d is beyond 20 would outweigh all others, and overflow from 89 on: there see
    `bounded_exp`.
    """
    apart = reference - logprobs
    return bounded_exp(apart) - apart - 1


def bounded_exp(x: Tensor) -> Tensor:
    """e^x up to x = 20 and its tangent there beyond: finite in float32, and so are its gradient,
    sums of many and the square in a gradient's norm."""
    return x.clamp(max=STEEPEST).exp() + (x - STEEPEST).relu() * math.exp(STEEPEST)


def average(loss: Tensor, mask: Tensor, how: str, *, tokens=None, rows=None, cap=None) -> Tensor:
    """One number of loss (B, T) where mask (B, T) is True. For a micro-batch name the `tokens` or
    `rows` of the whole batch (None: those here): its parts then add up to the whole's mean, and so
    do their gradients.

    - "token": every token counts alike, so a long answer counts more (DAPO, arXiv:2503.14476).
    - "sequence": every answer counts alike, so a token in a long one counts less (GRPO as
    published).
    - "fixed": the sum over rows * cap, whatever the lengths: a token always counts alike (Dr. GRPO,
    arXiv:2503.20783).
    """
    loss = loss.masked_fill(~mask, 0)
    rows = rows or len(mask)
    if how == "sequence":
        return (loss.sum(1) / mask.sum(1)).sum() / rows
    return loss.sum() / (rows * cap if how == "fixed" else tokens or mask.sum())
