"""The exercises of lesson 13: silent-groups, completion-mask and average-loss."""

import random
from collections.abc import Callable

import torch
from torch import Tensor

from qwenlab.exercises import Cases, Exercise, random_numbers
from qwenlab.training import objective

EXERCISES: dict[str, Exercise] = {}

# --- silent-groups: (rates, n) -> the share of silent groups ---


def silent_groups(rates: list[float], n: int) -> float:
    """The share of groups of n answers in which all agree, on average over the problems."""
    return sum(p**n + (1 - p) ** n for p in rates) / len(rates)


def _rates() -> Cases:
    yield "never solved, always solved, and in between", ([0.0, 1.0, 0.3], 3)
    yield "a problem solved half of the time", ([0.5], 2)
    yield "groups of three", ([0.5], 3)
    yield "a hard problem", ([0.1], 8)
    yield "groups of one answer", ([0.2, 0.7], 1)
    yield "a hard and an easy problem", ([0.1, 0.9], 4)
    draw = random.Random(13)
    for _ in range(20):
        rates = [draw.randint(0, 16) / 16 for _ in range(draw.randint(1, 6))]
        yield "random problems", (rates, draw.choice([2, 4, 8]))


def _each(share: Callable) -> Callable:
    """The mean over the problems of share(p, n)."""
    return lambda rates, n: sum(share(p, n) for p in rates) / len(rates)


def _of_the_mean(rates: list[float], n: int) -> float:
    return silent_groups([sum(rates) / len(rates)], n)


EXERCISES["silent-groups"] = Exercise(
    silent_groups,
    results=("share",),
    cases=_rates,
    mistakes=(
        (
            _each(lambda p, n: p**n),
            "you count the groups in which all are right. A group in which all are wrong is "
            "silent too.",
        ),
        (
            _each(lambda p, n: (1 - p) ** n),
            "you count the groups in which all are wrong. A group in which all are right is "
            "silent too.",
        ),
        (
            _each(lambda p, n: 1 - p**n - (1 - p) ** n),
            "that is the share of groups that teach. The silent ones are the rest.",
        ),
        (
            _of_the_mean,
            "you took the mean of the rates first. A never solved and an always solved problem "
            "are silent, and their mean looks like a problem that is not: take the mean last.",
        ),
        (
            _each(lambda p, n: p ** (n - 1) + (1 - p) ** (n - 1)),
            "the first answer of a group counts as well: n answers agree, so the power is n.",
        ),
        (
            _each(lambda p, n: float(p in (0.0, 1.0))),
            "a problem that is sometimes solved has silent groups too, by chance.",
        ),
        (
            _each(lambda p, n: p**n * (1 - p) ** n),
            "all right and all wrong exclude each other, so their chances are added.",
        ),
        (
            lambda rates, n: 2 * 0.5**n,
            "this is for problems that are solved half of the time. Use each problem's own rate.",
        ),
        (
            lambda rates, n: sum(p**n + (1 - p) ** n for p in rates),
            "that is a sum over the problems. Divide it by their number.",
        ),
        (
            _each(lambda p, n: n * (p + (1 - p))),
            "n things that happen together: multiply their chances, do not add them.",
        ),
    ),
    rules=(
        (
            "share",
            lambda value: "a share is a number from 0 to 1." if float(value) > 1 else None,
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


def _of_targets(ids: Tensor, width: int, stop_ids: list[int]) -> Tensor:
    """Moved to where each token is predicted."""
    moved = completion_mask(ids, width, stop_ids).roll(-1, 1)
    moved[:, -1] = False
    return moved


def _no_cut_answers(ids: Tensor, width: int, stop_ids: list[int]) -> Tensor:
    ended = torch.isin(ids[:, width:], torch.tensor(stop_ids)).any(1, keepdim=True)
    return completion_mask(ids, width, stop_ids) & ended


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
            _of_targets,
            "the mask marks tokens, where they stand. The shift by one comes later.",
        ),
        (
            lambda ids, width, stop_ids: completion_mask(ids, width, stop_ids)[:, width:],
            "this is the mask of the answers alone. Put the prompts' columns in front, all False.",
        ),
        (
            _no_cut_answers,
            "an answer without a stop id was cut off, and all of it counts.",
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


def _times(factor: Callable, kind: str) -> Callable:
    """The right weights, those of `kind` times factor(tokens, rows, cap)."""

    def wrong(mask: Tensor, how: str, tokens: int, rows: int, cap: int) -> Tensor:
        weights = average_loss(mask, how, tokens, rows, cap)
        return weights * factor(tokens, rows, cap) if how == kind else weights

    return wrong


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
            _times(lambda tokens, rows, cap: rows, "sequence"),
            '"sequence" is a mean over the answers too: divide by `rows` as well.',
        ),
        (
            _times(lambda tokens, rows, cap: rows, "fixed"),
            '"fixed" divides by rows * cap. By cap alone it would be a sum over the answers.',
        ),
        (
            _times(lambda tokens, rows, cap: rows / tokens, "fixed"),
            '"fixed" divides by rows * cap, whatever the answers\' tokens are.',
        ),
        (
            _times(lambda tokens, rows, cap: 1 / rows, "token"),
            '"token" divides by `tokens` alone: these are all rows\' tokens already.',
        ),
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
