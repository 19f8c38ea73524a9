"""An exercise of lesson 13: completion-mask."""

import random

import torch

from qwenlab.tasks import objective
from qwenlab.teach.checking import exercise

# --- completion-mask: (ids (B, T), width, stop_ids) -> (B, T) bool ---


def _rectangles():
    yield "two answers", (torch.tensor([[3, 4, 5, 6, 9, 0], [3, 4, 9, 5, 9, 0]]), 2, [9])
    yield "two stop ids, one of them the pad", (torch.tensor([[0, 3, 5, 9, 0, 0], [3, 4, 5, 6, 7, 0]]), 2, [9, 0])
    yield "an answer that was cut off", (torch.tensor([[3, 4, 5, 6, 7], [3, 4, 9, 0, 0]]), 2, [9, 0])
    yield "a stop id in the prompt", (torch.tensor([[3, 9, 4, 5, 6, 9, 0], [0, 9, 4, 6, 6, 6, 9]]), 3, [9, 0])
    end, pad = 151645, 151643
    rows = [[7, 1, 2, end, pad, pad], [7, 1, 2, pad, pad, pad], [7, 1, 2, 3, 4, 5]]
    yield "Qwen's ids", (torch.tensor(rows), 1, [end, pad])
    draw = random.Random(14)
    for _ in range(20):
        ids = torch.tensor(draw.choices(range(10), k=24)).view(draw.choice([1, 2, 3]), -1)  # (B, T) with B * T = 24
        yield "random batches", (ids, draw.randint(1, 5), draw.sample(range(10), 2))


def completion_mask(ids, width, stop_ids):
    mask = objective.completion_mask(ids, stop_ids)
    mask[:, width:] = objective.completion_mask(ids[:, width:], stop_ids)
    return mask & (torch.arange(ids.shape[1]) >= width)


def _masked(keep):
    """Keeps keep(stops) of the answers, where stops (B, C) is 1 at every stop id."""

    def masked(ids, width, stop_ids):
        stops = torch.isin(ids[:, width:], torch.tensor(stop_ids)).long()
        return torch.cat([torch.zeros(len(ids), width, dtype=torch.bool), keep(stops)], 1)

    return masked


def _whole_row(ids, width, stop_ids):
    return objective.completion_mask(ids, stop_ids) & (torch.arange(ids.shape[1]) >= width)


def _prompt_too(ids, width, stop_ids):
    return completion_mask(ids, width, stop_ids) | (torch.arange(ids.shape[1]) < width)


_ONE_ID = "you test one of the stop ids only. A Qwen checkpoint has two, and either ends an answer."

exercise(
    "completion-mask",
    completion_mask,
    results=("mask",),
    cases=_rectangles,
    mistakes=(
        (
            _masked(lambda stops: stops.cumsum(1) == 0),
            "the stop id itself is left out. To stop was the model's choice too: it counts.",
        ),
        (lambda ids, width, stop_ids: completion_mask(ids, width, stop_ids[:1]), _ONE_ID),
        (lambda ids, width, stop_ids: completion_mask(ids, width, stop_ids[-1:]), _ONE_ID),
        (_whole_row, "you count stop ids from the start of the row. A chat prompt has stop ids in it: begin at width."),
        (_prompt_too, "the prompt is in. The model did not choose it, and would be rewarded for the question."),
        (_masked(lambda stops: stops == 0), "only the stop ids are gone. What follows the first one counts no more."),
        (_masked(lambda stops: stops.cumsum(1) > 0), "your mask is inverted: True is what counts."),
        (_masked(lambda stops: stops.cumsum(0) == stops), "you counted down the columns. Count along each row, dim=1."),
        (_masked(lambda stops: stops.cumsum(1) < 2), "you go on to the second stop id. The first one ends the answer."),
        (
            _masked(lambda stops: stops.flip(1).cumsum(1).flip(1) > 0),
            "you go on to the last stop id, and a row without one gets nothing. The first one ends the answer.",
        ),
    ),
    rules=(
        ("mask", lambda value: "the mask is bool: True or False a token." if value.dtype != torch.bool else None),
        ("mask", lambda value: "the mask is (B, T), prompts included." if value.ndim != 2 else None),
    ),
)
