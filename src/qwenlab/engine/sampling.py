"""From logits to the next id of every row at once: penalty, temperature, top-k, top-p, inverse CDF.

One uniform number per row decides. It comes from the request's own random stream, and the CDF is
taken in id order, so a row's token depends on its own logits and stream, not on its neighbours or
their options.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from qwenlab.engine.request import Request

BLOCK = 64  # uniform numbers drawn at a time


def sample(logits: Tensor, requests: Sequence[Request]) -> Tensor:
    """The default sampler. logits (R, V) float32, one request per row; returns ids (R,) int64.

    Temperature 0 takes the highest logit. Otherwise: top-k, then top-p over what is left (Holtzman
    et al., arXiv:1904.09751), then a draw.
    """
    greedy = logits.max(-1).indices  # the first of equals; much faster than argmax on a CPU
    rows = []
    drawing = []
    for row, request in enumerate(requests):
        if request.params.temperature > 0:
            rows.append(row)
            drawing.append(request)
    if not rows:
        return greedy
    index = torch.tensor(rows, device=logits.device)
    scaled = scale(logits[index], drawing)
    if any(request.params.top_k or request.params.top_p < 1 for request in drawing):
        scaled = scaled.masked_fill(~most_probable(scaled, drawing), float("-inf"))
    numbers = [uniform(request.rng_key, len(request.logprobs)) for request in drawing]
    numbers = torch.tensor(numbers, dtype=torch.float64)
    greedy[index] = inverse_cdf(scaled.softmax(-1), numbers).to(logits.device)
    return greedy


def uniform(rng_key: tuple[int, int, int], place: int) -> float:
    """The number in [0, 1) that decides token `place` of an answer.

    `rng_key` is (seed, request, sample). The number belongs to the token's place, so an interrupted
    step uses none up.
    """
    return uniforms(rng_key, place // BLOCK)[place % BLOCK]


@lru_cache(maxsize=1024)
def uniforms(rng_key: tuple[int, int, int], block: int) -> list[float]:
    """Block number `block` of a stream's numbers, BLOCK of them."""
    seed, *spawn_key = rng_key
    bits = np.random.PCG64(np.random.SeedSequence(seed, spawn_key=spawn_key))
    return np.random.Generator(bits.advance(block * BLOCK)).random(BLOCK).tolist()


def checked(sampler: Callable) -> Callable:
    """A custom sampler, given a copy of the logits. What it returns is checked."""

    def sample_and_check(logits: Tensor, requests: Sequence[Request]) -> Tensor:
        with torch.inference_mode(False), torch.no_grad():  # it may keep the logits and change them
            ids = sampler(logits.clone(), requests)
        rows, vocabulary = logits.shape
        fits = isinstance(ids, Tensor) and ids.shape == (rows,) and ids.dtype == torch.int64
        if not fits or ids.min() < 0 or ids.max() >= vocabulary:
            got = " ".join(repr(ids).split())
            expected = f"ids ({rows},) int64 within 0..{vocabulary - 1}"
            raise ValueError(f"the sampler gave {got}, expected {expected}")
        return ids.to(logits.device)

    return sample_and_check


def penalise(logits: Tensor, requests: Sequence[Request]) -> Tensor:
    """Divides positive logits of ids already seen by the row's penalty, multiplies negative ones.

    (Keskar et al., arXiv:1909.05858.) Prompt and generated ids count, pads never. (R, V) to (R, V).
    """
    rows = []
    seen = []
    penalties = []
    for row, request in enumerate(requests):
        if request.params.repetition_penalty != 1 and request.finish_reason is None:
            rows.append(row)
            seen.append(request.prompt + request.token_ids)
            penalties.append(request.params.repetition_penalty)
    if not rows:
        return logits
    width = max(map(len, seen))
    # A short row is padded with its own first id, which has been seen anyway.
    seen = [ids + ids[:1] * (width - len(ids)) for ids in seen]
    index = torch.tensor(rows, device=logits.device)[:, None]  # (P, 1)
    seen = torch.tensor(seen, device=logits.device)  # (P, W)
    penalty = column(penalties, logits)  # (P, 1)
    before = logits[index, seen]  # (P, W)
    after = torch.where(before > 0, before / penalty, before * penalty)
    return logits.index_put((index, seen), after)


def logprobs_of(logits: Tensor, ids: Tensor, requests: Sequence[Request]) -> Tensor:
    """Log-probability (R,) of each row's id under softmax(logits / temperature), 1 where greedy."""
    if any(request.params.temperature > 0 for request in requests):
        logits = scale(logits, requests)
    return F.cross_entropy(logits, ids, reduction="none").neg()


def scale(logits: Tensor, requests: Sequence[Request]) -> Tensor:
    """(logits - their maximum) / temperature.

    The maximum goes first, so that a tiny temperature can't make the highest logit infinite.
    """
    temperature = column([request.params.temperature or 1.0 for request in requests], logits)
    smallest = torch.finfo(logits.dtype).tiny
    return (logits - logits.amax(-1, keepdim=True)) / temperature.clamp(min=smallest)


def most_probable(scaled: Tensor, requests: Sequence[Request]) -> Tensor:
    """(R, V) bool, True at the ids that top-k and top-p keep; in a tie the lower id comes first."""
    vocabulary = scaled.shape[1]
    top_ks = [min(request.params.top_k or vocabulary, vocabulary) for request in requests]
    top_k = column(top_ks, scaled)
    top_p = column([request.params.top_p for request in requests], scaled)
    values = scaled.topk(max(top_ks), dim=-1).values  # (R, max k), highest first
    inside = torch.arange(values.shape[1], device=scaled.device) < top_k
    probabilities = values.masked_fill(~inside, float("-inf")).softmax(-1)
    before = probabilities.cumsum(-1) - probabilities  # total of the more probable ids
    kept = inside & ((before < top_p) | (top_p >= 1))
    count = kept.sum(-1, keepdim=True).clamp(min=1)  # (R, 1)
    threshold = values.gather(1, count - 1)
    above = scaled > threshold
    tied = scaled == threshold
    return above | (tied & (tied.cumsum(-1) <= count - above.sum(-1, keepdim=True)))


def inverse_cdf(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """The first id whose cumulative probability exceeds the row's number times their total.

    probabilities (R, V), uniform (R,) in [0, 1); returns ids (R,). Summed in float64, on the host
    unless the device is "cuda", because others may lack that type.
    """
    if probabilities.device.type != "cuda":
        probabilities = probabilities.cpu()
    uniform = uniform.to(probabilities.device)
    cdf = probabilities.cumsum(-1, dtype=torch.float64)
    total = cdf[:, -1:]
    point = torch.minimum(uniform[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
    # An id of probability 0 is never chosen: the id before it exceeds the point already, or neither
    # does. With NaN no id does, so the last is chosen; its log-probability is NaN.
    return torch.searchsorted(cdf, point, right=True)[:, 0].clamp(max=cdf.shape[1] - 1)


def column(values: list[float], like: Tensor) -> Tensor:
    """One number per row as (R, 1), which broadcasts against (R, V)."""
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]
