"""An exercise of lesson 13: group-advantages."""

import random

import torch

from qwenlab.tasks import objective
from qwenlab.teach.checking import exercise

# --- group-advantages: rewards (P, N) -> advantages (P, N) ---


def _rewards():
    yield "a hard problem", (torch.tensor([[1.0, 0, 0, 0]]),)
    yield "a hard and an easy problem", (torch.tensor([[1.0, 0, 0, 0], [1, 1, 1, 1]]),)
    yield "groups of one answer", (torch.tensor([[1.0], [0.0]]),)
    yield "rewards that aren't 0 or 1", (torch.tensor([[0.35] * 7 + [0.95], [0.1] * 8]),)
    draw = random.Random(13)
    for _ in range(20):
        rewards = torch.tensor(draw.choices([0.0, 0.5, 1.0], k=24))
        yield "random rewards", (rewards.view(draw.choice([2, 3, 6]), -1),)  # (P, N) with P * N = 24


def _measured(centre, scale):
    """(reward - centre) / scale, 0 where that is no number."""

    def measured(rewards):
        return ((rewards - centre(rewards)) / scale(rewards)).nan_to_num(0, 0, 0)

    return measured


def _mean(rewards):
    return rewards.mean(1, keepdim=True)


def _deviation(rewards, correction=1):
    return rewards.std(1, correction=min(correction, rewards.shape[1] - 1), keepdim=True) + objective.EPSILON


def _down(rewards):
    rewards = rewards.T
    return _measured(_mean, _deviation)(rewards).T


exercise(
    "group-advantages",
    objective.advantages,
    results=("advantages",),
    cases=_rewards,
    mistakes=(
        (
            _measured(_mean, lambda rewards: _deviation(rewards, 0)),
            "your deviation divides by n. A sample's divides by n - 1: a small group looks closer than it is.",
        ),
        (
            _measured(torch.mean, lambda rewards: rewards.std() + objective.EPSILON),
            "you took mean and deviation of the whole batch. Each row is a group with its own: dim=1.",
        ),
        (
            _measured(torch.mean, _deviation),
            "you took the mean of the whole batch. An easy problem would be rewarded for being easy.",
        ),
        (_down, "you compared down the columns. A group is a row, dim=1: the answers to one problem."),
        (
            _measured(_mean, torch.ones_like),
            "you took the mean away and did not divide. That is Dr. GRPO's choice; here divide by the deviation.",
        ),
        (
            _measured(
                _mean, lambda rewards: _deviation(rewards, 1).sub(objective.EPSILON).square() + objective.EPSILON
            ),
            "you divided by the variance. The deviation is its root.",
        ),
        (_measured(torch.zeros_like, _deviation), "you did not take the mean away: all rewards push up, none down."),
        (
            _measured(_mean, _deviation),
            "a group in which all agree gets exactly 0. The mean of equal numbers may be off in its last bit, and "
            "dividing by 1e-4 makes that large: compare the lowest reward with the highest.",
        ),
        (
            lambda rewards: -objective.advantages(rewards),
            "the sign is turned round: the good answers would become rarer.",
        ),
    ),
    rules=(
        (
            "advantages",
            lambda value: (
                "NaN: a deviation of 0 was divided by, or that of one answer, 0 / 0. Such groups get exactly 0."
                if value.isnan().any()
                else None
            ),
        ),
    ),
)
