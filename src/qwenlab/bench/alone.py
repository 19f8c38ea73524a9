"""Is a row's answer the one it gives alone? Ids are compared, then logits, read again
side by side."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from tqdm import tqdm

from qwenlab.engine.padding import left_pad

LOGITS_BYTES = 256 * 2**20  # how large the logits of one rectangle may become


def difference(a: Tensor, b: Tensor) -> float:
    """max|a - b| / max(1, max|b|): what every tolerance of this project is about. `b` is the
    reference."""
    return float((a - b).abs().max() / b.abs().max().clamp(min=1))


@dataclass(frozen=True)
class Comparison:
    """One prompt in the batch and alone.

    same: the same ids and the same end. pads: left pads beside it in the rectangle. difference: of
    the logits, at every token of prompt and answer, read again. logprobs: the largest difference of
    the two runs' log-probabilities of the new tokens, as long as they agree. parted: the first new
    token that differs (None if none does), and margin: by how much the lone row's best logit leads
    its second there; a tiny lead is a tie that rounding may turn.
    """

    same: bool
    pads: int
    difference: float
    logprobs: float
    parted: int | None = None
    margin: float | None = None


def compare_alone(
    model, prompts: Sequence[list[int]], batch, alone, progress: bool = False
) -> list[Comparison]:
    """Compares two results of `generate` on the same prompts, `batch` and `alone`, prompt by
    prompt.

    For the logits, each prompt with its batch answer is read twice: in a left-padded rectangle as
    wide as the longest (few rows at a time, so that the logits fit in memory), and by itself
    without padding.
    """
    rows = [[*prompt, *request.token_ids] for prompt, request in zip(prompts, batch, strict=True)]
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
                same = (batch[i].token_ids, batch[i].stop_id) == (
                    alone[i].token_ids,
                    alone[i].stop_id,
                )
                parting = where_they_part(
                    said(batch[i]), said(alone[i]), by_itself[len(prompts[i]) - 1 :]
                )
                agreed = zip(batch[i].logprobs[: parting[0]], alone[i].logprobs, strict=False)
                logprobs = max((abs(a - b) for a, b in agreed), default=0.0)
                comparisons.append(
                    Comparison(same, pads, difference(padded[pads:], by_itself), logprobs, *parting)
                )
                bar.update()
    return comparisons


def said(request) -> list[int]:
    """Every id that was sampled, the stop id included."""
    return request.token_ids + ([] if request.stop_id is None else [request.stop_id])


def where_they_part(
    ours: list[int], theirs: list[int], logits: Tensor
) -> tuple[int | None, float | None]:
    """The first place where two answers differ, and the margin there; logits[p] decide token p of
    the answer."""
    for place, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        if a != b:
            best, second = logits[place].topk(2).values.tolist()
            return place, best - second
    return None, None
