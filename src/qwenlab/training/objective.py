"""GRPO's formulas, one per function: advantages, completion mask, loss and its averages."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor

EPSILON = 1e-4  # added to a group's standard deviation
STEEPEST = 20.0  # nats, beyond which e^x is replaced by its tangent
AVERAGES = ("token", "sequence", "fixed")


def advantages(rewards: Tensor) -> Tensor:
    """Each answer's reward relative to its group: (reward - mean) / (sample standard deviation +
    1e-4), group by group.

    rewards (prompts, rollouts); returns the same shape in float32, on the same device. Exactly 0 in
    a zero-variance group (one answer, or equal rewards). Means over the whole batch would reward
    easy problems, not good answers.
    """
    device = rewards.device
    # In float64, so that the mean of equal rewards is exact; on the host, because not every device
    # has that type.
    rewards = rewards.cpu().double()
    spread = rewards.amax(1, keepdim=True) > rewards.amin(1, keepdim=True)
    deviation = rewards.std(1, correction=min(1, rewards.shape[1] - 1), keepdim=True)
    advantage = (rewards - rewards.mean(1, keepdim=True)) / (deviation + EPSILON)
    return advantage.masked_fill(~spread, 0).float().to(device)


def completion_mask(ids: Tensor, stop_ids: Iterable[int]) -> Tensor:
    """Which tokens of completions (B, T) count: those up to and including each row's first stop id.
    Returns (B, T) bool.

    The pad id may itself be a stop id, as with Qwen3; only the first one counts. Use lengths where
    they are known: this can't tell a row that was cut off and then padded from one that stopped.
    """
    stops = torch.isin(ids, torch.tensor(sorted(stop_ids), device=ids.device)).long()
    return stops.cumsum(1) == stops  # no stop id before


def clipped_loss(
    logprobs: Tensor, old_logprobs: Tensor, advantage: Tensor, clip_ratio: float
) -> Tensor:
    """-min(r A, clip(r, 1 - c, 1 + c) A) for each token, with the ratio r = exp(logprobs -
    old_logprobs) (Schulman et al., arXiv:1707.06347).

    logprobs, old_logprobs (B, T): under the model now, and when it sampled; advantage (B,). Returns
    (B, T). A token that is already much likelier (if A > 0; less likely if A < 0) gets no gradient.
    """
    ratio = bounded_exp(logprobs - old_logprobs)
    clipped = ratio.clamp(1 - clip_ratio, 1 + clip_ratio)
    advantage = advantage[:, None]
    return -torch.minimum(ratio * advantage, clipped * advantage)


def divergence(logprobs: Tensor, reference: Tensor) -> Tensor:
    """KL(model || reference) estimated at each sampled token: e^d - d - 1 with d = reference -
    logprobs, never negative.

    Schulman's third estimator (http://joschu.net/blog/kl-approx.html), as in GRPO's paper. A token
    so unlikely that d exceeds 20 would outweigh all others, and e^d would overflow from 89 on:
    hence `bounded_exp`.
    """
    difference = reference - logprobs
    return bounded_exp(difference) - difference - 1


def bounded_exp(x: Tensor) -> Tensor:
    """e^x up to x = 20, and beyond it the tangent there. Finite in float32, and so are its
    gradient, sums of many values and the squares in a gradient's norm."""
    return x.clamp(max=STEEPEST).exp() + (x - STEEPEST).relu() * math.exp(STEEPEST)


def average(
    loss: Tensor,
    mask: Tensor,
    how: str,
    *,
    tokens: int | None = None,
    rows: int | None = None,
    cap: int | None = None,
) -> Tensor:
    """The average, a scalar, of loss (B, T) where mask (B, T) is True. For a micro-batch give the
    `tokens` or `rows` of the whole batch (None: those here); the results, and so their gradients,
    then add up to those of the whole batch.

    - "token": all tokens have equal weight, so a long answer weighs more (DAPO, arXiv:2503.14476).
    - "sequence": all answers have equal weight, so a token in a long one weighs less (GRPO as
      published).
    - "fixed": the sum divided by rows * cap, so a token's weight never depends on lengths (Dr.
      GRPO, arXiv:2503.20783).
    """
    loss = loss.masked_fill(~mask, 0)
    rows = rows or len(mask)
    if how == "sequence":
        return (loss.sum(1) / mask.sum(1)).sum() / rows
    if how == "fixed":
        return loss.sum() / (rows * cap)
    return loss.sum() / (tokens or mask.sum())
