"""Compares each output with the one that its prompt gets alone: the ids, then the logits of a
second pass; and the speed of both."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from tqdm import tqdm

from qwenlab.engine.padding import left_pad
from qwenlab.engine.request import RequestOutput
from qwenlab.engine.results import Result
from qwenlab.model.model import Model

LOGITS_BYTES = 256 * 2**20  # at most, for the logits of one rectangle
ENOUGH_SECONDS = 2.0  # of measuring, after which no further turn begins
MOST_TURNS = 7


def difference(a: Tensor, b: Tensor) -> float:
    """max|a - b| / max(1, max|b|), the measure behind every tolerance of this project; `b` is the
    reference."""
    return float((a - b).abs().max() / b.abs().max().clamp(min=1))


def in_turns(ways: Sequence[Callable[[], Result]]) -> list[list[Result]]:
    """Calls each way once and, as long as that takes no more than ENOUGH_SECONDS in all, again, in
    alternating order: a single short run says little about speed. Returns the results of each."""
    results: list[list[Result]] = [[] for _ in ways]
    turn = 0
    while turn == 0 or (turn < MOST_TURNS and seconds_of(results) < ENOUGH_SECONDS):
        places = range(len(ways))
        for place in places if turn % 2 == 0 else reversed(places):
            results[place].append(ways[place]())
        turn += 1
    return results


def seconds_of(results: Sequence[Sequence[Result]]) -> float:
    return sum(result.stats.seconds for way in results for result in way)


@dataclass(frozen=True)
class Comparison:
    """One prompt in the batch and alone.

    same: equal ids and the same end. pads: its left pads in the rectangle. difference: of the
    logits at every token of prompt and answer, in a second pass. logprobs: the largest difference
    between the two runs' log-probabilities of the new tokens, as long as the ids agree. parted: the
    first new token that differs (None if none does). margin: by how much the lone row's best logit
    leads its second there; a tiny lead is a tie that rounding may decide.
    """

    same: bool
    pads: int
    difference: float
    logprobs: float
    parted: int | None = None
    margin: float | None = None


def compare_alone(
    model: Model,
    prompts: Sequence[list[int]],
    batch: Result,
    alone: Result,
    progress: bool = False,
) -> list[Comparison]:
    """Compares two results of `generate` on the same prompts, `batch` and `alone`, prompt by
    prompt.

    For the logits, each prompt with its batch answer goes through the model twice: in a left-padded
    rectangle as wide as the longest (few rows at a time, so that the logits fit in memory), and by
    itself without padding.
    """
    rows = []
    for prompt, request in zip(prompts, batch, strict=True):
        rows.append([*prompt, *request.token_ids])
    input_ids, attention_mask = left_pad(rows, pad_id=0)  # (B, T)
    at_once = max(1, LOGITS_BYTES // (4 * input_ids.shape[1] * model.config.vocab_size))
    comparisons = []
    with tqdm(total=len(rows), unit="row", disable=not progress) as bar, torch.no_grad():
        for start in range(0, len(rows), at_once):
            part = slice(start, start + at_once)
            together = model(input_ids[part], attention_mask[part])  # (at most at_once, T, V)
            for i, padded in enumerate(together, start):
                by_itself = model(torch.tensor([rows[i]]))[0]  # (T of the row, V)
                pads = len(padded) - len(by_itself)
                ours = sampled_ids(batch[i])
                theirs = sampled_ids(alone[i])
                same = ours == theirs and batch[i].stop_id == alone[i].stop_id
                place, margin = where_they_part(ours, theirs, by_itself[len(prompts[i]) - 1 :])
                logprobs = 0.0
                for a, b in zip(batch[i].logprobs[:place], alone[i].logprobs, strict=False):
                    logprobs = max(logprobs, abs(a - b))
                gap = difference(padded[pads:], by_itself)
                comparisons.append(Comparison(same, pads, gap, logprobs, place, margin))
                bar.update()
    return comparisons


def sampled_ids(request: RequestOutput) -> list[int]:
    """Every sampled id, the stop id included."""
    return request.token_ids + ([] if request.stop_id is None else [request.stop_id])


def where_they_part(
    ours: list[int], theirs: list[int], logits: Tensor
) -> tuple[int | None, float | None]:
    """The first position where two answers differ, and the margin there; logits[p] decide token p
    of the answer."""
    for place, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        if a != b:
            best, second = logits[place].topk(2).values.tolist()
            return place, best - second
    return None, None
