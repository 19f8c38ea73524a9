"""The exercises of lesson 13: group-advantages, completion-mask and average-loss."""

import random
from collections.abc import Callable

import torch
from torch import Tensor

from qwenlab.exercises import Cases, Exercise, random_numbers
from qwenlab.training import objective

EXERCISES: dict[str, Exercise] = {}

# --- group-advantages: rewards (P, N) -> advantages (P, N) ---


def _rewards() -> Cases:
    yield "a hard problem", (torch.tensor([[1.0, 0, 0, 0]]),)
    yield "a hard and an easy problem", (torch.tensor([[1.0, 0, 0, 0], [1, 1, 1, 1]]),)
    yield "groups of one answer", (torch.tensor([[1.0], [0.0]]),)
    yield "rewards that aren't 0 or 1", (torch.tensor([[0.35] * 7 + [0.95], [0.1] * 8]),)
    draw = random.Random(13)
    for _ in range(20):
        rewards = torch.tensor(draw.choices([0.0, 0.5, 1.0], k=24))
        rewards = rewards.view(draw.choice([2, 3, 6]), -1)  # (P, N) with P * N = 24
        yield "random rewards", (rewards,)


def _measured(centre: Callable, scale: Callable) -> Callable:
    """(reward - centre) / scale, 0 where that is no number."""

    def measured(rewards: Tensor) -> Tensor:
        return ((rewards - centre(rewards)) / scale(rewards)).nan_to_num(0, 0, 0)

    return measured


def _mean(rewards: Tensor) -> Tensor:
    return rewards.mean(1, keepdim=True)


def _deviation(rewards: Tensor, correction: int = 1) -> Tensor:
    correction = min(correction, rewards.shape[1] - 1)
    return rewards.std(1, correction=correction, keepdim=True) + objective.EPSILON


def _small_epsilon(rewards: Tensor) -> Tensor:
    apart = rewards - _mean(rewards)
    measured = apart / (_deviation(rewards) - objective.EPSILON + 1e-8)
    return measured.masked_fill(rewards.amin(1, keepdim=True) == rewards.amax(1, keepdim=True), 0)


def _variance(rewards: Tensor) -> Tensor:
    return (_deviation(rewards) - objective.EPSILON).square() + objective.EPSILON


def _down(rewards: Tensor) -> Tensor:
    rewards = rewards.T
    return _measured(_mean, _deviation)(rewards).T


EXERCISES["group-advantages"] = Exercise(
    objective.advantages,
    results=("advantages",),
    cases=_rewards,
    mistakes=(
        (
            _measured(_mean, lambda rewards: _deviation(rewards, 0)),
            "your standard deviation divides by n. That of a sample divides by n - 1; otherwise "
            "a small group looks less spread out than it is.",
        ),
        (
            _measured(torch.mean, lambda rewards: rewards.std() + objective.EPSILON),
            "you took the mean and standard deviation of the whole batch. Each row is a group of "
            "its own: dim=1.",
        ),
        (
            _measured(torch.mean, _deviation),
            "you took the mean of the whole batch. An easy problem would be rewarded for being "
            "easy.",
        ),
        (
            _down,
            "you compared down the columns. A group is a row, dim=1: the answers to one problem.",
        ),
        (
            _small_epsilon,
            f"add {objective.EPSILON:g} to the standard deviation: it keeps a group that hardly "
            "differs from being blown up.",
        ),
        (
            _measured(_mean, torch.ones_like),
            "you subtracted the mean but did not divide. That is Dr. GRPO's choice; here divide "
            "by the standard deviation.",
        ),
        (
            _measured(_mean, _variance),
            "you divided by the variance. The standard deviation is its square root.",
        ),
        (
            _measured(torch.zeros_like, _deviation),
            "you did not subtract the mean: every reward pushes up and none down.",
        ),
        (
            _measured(_mean, _deviation),
            "a zero-variance group gets exactly 0. The mean of equal numbers may be off in its "
            "last bit, and dividing by 1e-4 makes that large: compare the lowest reward with "
            "the highest.",
        ),
        (
            lambda rewards: -objective.advantages(rewards),
            "the sign is reversed: good answers would become rarer.",
        ),
    ),
    rules=(
        (
            "advantages",
            lambda value: (
                "NaN: you divided by a standard deviation of 0, or by that of one answer, which "
                "is 0 / 0. Such groups get exactly 0."
                if value.isnan().any()
                else None
            ),
        ),
    ),
)

# --- completion-mask: (ids (B, T), width, stop_ids) -> (B, T) bool ---


def _rectangles() -> Cases:
    yield "two answers", (torch.tensor([[3, 4, 5, 6, 9, 0], [3, 4, 9, 5, 9, 0]]), 2, [9])
    yield (
        "two stop ids, one of them the pad",
        (torch.tensor([[0, 3, 5, 9, 0, 0], [3, 4, 5, 6, 7, 0]]), 2, [9, 0]),
    )
    yield (
        "an answer that was cut off",
        (torch.tensor([[3, 4, 5, 6, 7], [3, 4, 9, 0, 0]]), 2, [9, 0]),
    )
    yield (
        "a stop id in the prompt",
        (torch.tensor([[3, 9, 4, 5, 6, 9, 0], [0, 9, 4, 6, 6, 6, 9]]), 3, [9, 0]),
    )
    end = 151645
    pad = 151643
    rows = [[7, 1, 2, end, pad, pad], [7, 1, 2, pad, pad, pad], [7, 1, 2, 3, 4, 5]]
    yield "Qwen's ids", (torch.tensor(rows), 1, [end, pad])
    draw = random.Random(14)
    for _ in range(20):
        ids = torch.tensor(draw.choices(range(10), k=24))
        ids = ids.view(draw.choice([1, 2, 3]), -1)  # (B, T) with B * T = 24
        yield "random batches", (ids, draw.randint(1, 5), draw.sample(range(10), 2))


def completion_mask(ids: Tensor, width: int, stop_ids: list[int]) -> Tensor:
    mask = objective.completion_mask(ids, stop_ids)
    mask[:, width:] = objective.completion_mask(ids[:, width:], stop_ids)
    return mask & (torch.arange(ids.shape[1]) >= width)


def _masked(keep: Callable) -> Callable:
    """Keeps keep(stops) of the answers, where stops (B, C) is 1 at every stop id."""

    def masked(ids: Tensor, width: int, stop_ids: list[int]) -> Tensor:
        stops = torch.isin(ids[:, width:], torch.tensor(stop_ids)).long()
        return torch.cat([torch.zeros(len(ids), width, dtype=torch.bool), keep(stops)], 1)

    return masked


def _whole_row(ids: Tensor, width: int, stop_ids: list[int]) -> Tensor:
    return objective.completion_mask(ids, stop_ids) & (torch.arange(ids.shape[1]) >= width)


def _prompt_too(ids: Tensor, width: int, stop_ids: list[int]) -> Tensor:
    return completion_mask(ids, width, stop_ids) | (torch.arange(ids.shape[1]) < width)


def _whole_width(mask: Tensor) -> str | None:
    if mask.ndim != 2:
        return "the mask is (B, T), prompts included."


_ONE_ID = "you test only one of the stop ids. A Qwen checkpoint has two, and either ends an answer."

EXERCISES["completion-mask"] = Exercise(
    completion_mask,
    results=("mask",),
    cases=_rectangles,
    mistakes=(
        (
            _masked(lambda stops: stops.cumsum(1) == 0),
            "the stop id itself is left out. Stopping was the model's choice too, so it counts.",
        ),
        (lambda ids, width, stop_ids: completion_mask(ids, width, stop_ids[:1]), _ONE_ID),
        (lambda ids, width, stop_ids: completion_mask(ids, width, stop_ids[-1:]), _ONE_ID),
        (
            _whole_row,
            "you count stop ids from the start of the row. A chat prompt contains stop ids: "
            "begin at width.",
        ),
        (
            _prompt_too,
            "the prompt is included. The model did not choose it, and would be rewarded for the "
            "question.",
        ),
        (
            _masked(lambda stops: stops == 0),
            "only the stop ids are gone. What follows the first one no longer counts.",
        ),
        (
            _masked(lambda stops: torch.arange(stops.shape[1]) <= stops.argmax(1, keepdim=True)),
            "argmax is 0 where a row has no stop id, so an answer that was cut off loses all but "
            "its first token.",
        ),
        (
            _masked(lambda stops: torch.ones_like(stops, dtype=torch.bool)),
            "all of the answer's columns count. What follows the first stop id is padding.",
        ),
        (
            _masked(lambda stops: stops.cumsum(1) > 0),
            "your mask is inverted: True marks what counts.",
        ),
        (
            _masked(lambda stops: stops.cumsum(0) == stops),
            "you counted down the columns. Count along each row, dim=1.",
        ),
        (
            _masked(lambda stops: stops.cumsum(1) < 2),
            "you continue to the second stop id. The first one ends the answer.",
        ),
        (
            _masked(lambda stops: stops.flip(1).cumsum(1).flip(1) > 0),
            "you continue to the last stop id, and a row without one gets nothing. The first one "
            "ends the answer.",
        ),
    ),
    rules=(
        (
            "mask",
            lambda value: (
                "the mask is bool: one True or False per token."
                if value.dtype != torch.bool
                else None
            ),
        ),
        ("mask", _whole_width),
    ),
)

# --- average-loss: (mask (B, T) bool, how, tokens, rows, cap) -> weights (B, T) float32 ---


def _batches() -> Cases:
    one_and_three = torch.tensor([[True, False, False], [True, True, True]])
    for how in objective.AVERAGES:
        yield f"a whole batch, {how}", (one_and_three, how, 4, 2, 8)
    for how in objective.AVERAGES:
        yield f"a part of a batch, {how}", (one_and_three[:1], how, 4, 2, 8)
    draw = random.Random(15)
    for _ in range(20):
        lengths = random_numbers(draw, 5, 6)
        mask = torch.arange(6) < torch.tensor(lengths)[:, None]  # (B, T)
        more = draw.randint(0, 3)  # rows of the other parts, of 4 tokens each
        how = draw.choice(objective.AVERAGES)
        yield (
            "random parts",
            (mask, how, sum(lengths) + 4 * more, len(lengths) + more, draw.randint(6, 9)),
        )


def average_loss(mask: Tensor, how: str, tokens: int, rows: int, cap: int) -> Tensor:
    losses = torch.ones(mask.shape, requires_grad=True)
    objective.average(losses, mask, how, tokens=tokens, rows=rows, cap=cap).backward()
    return losses.grad


def _named(other: dict) -> Callable:
    return lambda mask, how, *counts: average_loss(mask, other.get(how, how), *counts)


def _no_mask(mask: Tensor, how: str, tokens: int, rows: int, cap: int) -> Tensor:
    if how == "sequence":
        return torch.ones(mask.shape) / mask.sum(1, keepdim=True) / rows
    return torch.ones(mask.shape) / (tokens if how == "token" else rows * cap)


def _by_width(mask: Tensor, how: str, tokens: int, rows: int, cap: int) -> Tensor:
    weights = average_loss(mask, how, tokens, rows, cap)
    return mask.float() / (mask.shape[1] * rows) if how == "sequence" else weights


EXERCISES["average-loss"] = Exercise(
    average_loss,
    results=("weights",),
    cases=_batches,
    mistakes=(
        (
            lambda mask, how, tokens, rows, cap: average_loss(
                mask, how, int(mask.sum()), rows, cap
            ),
            "you divide by the tokens of this part alone, which gives a mean of means. Divide by "
            "`tokens`, those of the whole batch.",
        ),
        (
            lambda mask, how, tokens, rows, cap: average_loss(mask, how, tokens, len(mask), cap),
            "you divide by the rows of this part alone. Divide by `rows`, the whole batch's.",
        ),
        (
            lambda mask, how, tokens, rows, cap: average_loss(
                mask, how, tokens, rows, mask.shape[1]
            ),
            '"fixed" divides by cap, not by the width of this part. The width changes with the '
            "answers.",
        ),
        (
            _named({"sequence": "token"}),
            '"sequence" weighs every answer equally: divide by the row\'s own tokens too.',
        ),
        (_named({"token": "sequence", "sequence": "token"}), '"token" and "sequence" are swapped.'),
        (
            _by_width,
            '"sequence" divides a row by its own tokens, not by the width of the rectangle.',
        ),
        (_no_mask, "what the mask leaves out must have weight 0. Start from mask.float()."),
    ),
    rules=(
        (
            "weights",
            lambda value: (
                "one weight per token: (B, T), like the mask." if value.ndim != 2 else None
            ),
        ),
        (
            "weights",
            lambda value: "weights are float32." if value.dtype != torch.float32 else None,
        ),
    ),
)
