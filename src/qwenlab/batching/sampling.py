"""From logits to the next id of every row at once: penalty, temperature, top-k, top-p, inverse CDF.

One uniform number a row decides, drawn from the request's own stream, and ids are laid along the line in id order.
So what a row says depends on its own logits and its own stream, not on its neighbours or their settings.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from qwenlab.batching.request import Request


def sample(logits: Tensor, requests: Sequence[Request]) -> Tensor:
    """The default sampler. logits (R, V) float32, one request a row; returns ids (R,) int64.

    Temperature 0 takes the highest logit. Otherwise: top-k, then top-p over what is left (Holtzman et al.,
    arXiv:1904.09751), then a draw.
    """
    greedy = logits.max(-1).indices  # the first of equals; many times faster than argmax on a CPU
    sampled = [row for row, request in enumerate(requests) if request.temperature > 0]
    if not sampled:
        return greedy
    drawing = [requests[row] for row in sampled]
    index = torch.tensor(sampled, device=logits.device)
    scaled = scale(logits[index], drawing)
    if any(request.top_k or request.top_p < 1 for request in drawing):
        scaled = scaled.masked_fill(~most_probable(scaled, drawing), float("-inf"))
    uniform = torch.tensor([request.next_uniform() for request in drawing], dtype=torch.float64)
    greedy[index] = inverse_cdf(scaled.softmax(-1), uniform).to(logits.device)
    return greedy


def checked(sampler: Callable) -> Callable:
    """A reader's own sampler, given a copy of the logits, and held to ids (R,) int64 within the vocabulary."""

    def sample_and_check(logits: Tensor, requests: Sequence[Request]) -> Tensor:
        with torch.inference_mode(False), torch.no_grad():  # what it keeps, it may change afterwards
            ids = sampler(logits.clone(), requests)
        rows, vocabulary = logits.shape
        fits = isinstance(ids, Tensor) and ids.shape == (rows,) and ids.dtype == torch.int64
        if not fits or ids.min() < 0 or ids.max() >= vocabulary:
            got = " ".join(repr(ids).split())
            raise ValueError(f"the sampler gave {got}, expected ids ({rows},) int64 within 0..{vocabulary - 1}")
        return ids

    return sample_and_check


def penalise(logits: Tensor, requests: Sequence[Request]) -> Tensor:
    """Divides positive logits of ids already seen by the row's repetition penalty, multiplies negative ones.

    (Keskar et al., arXiv:1909.05858.) Prompt and generated ids count, pads never. (R, V) to (R, V).
    """
    rows = [row for row, r in enumerate(requests) if r.repetition_penalty != 1 and r.finish_reason is None]
    if not rows:
        return logits
    index = torch.tensor(rows, device=logits.device)
    penalty = column([requests[row].repetition_penalty for row in rows], logits)
    seen = torch.stack([requests[row].seen_ids(logits.shape[1], logits.device) for row in rows])  # (P, V)
    theirs = logits[index]
    punished = torch.where(theirs > 0, theirs / penalty, theirs * penalty)
    return logits.index_copy(0, index, torch.where(seen, punished, theirs))


def logprobs_of(logits: Tensor, ids: Tensor, requests: Sequence[Request]) -> Tensor:
    """Log-probability (R,) of each row's id under softmax(logits / temperature), temperature 1 where greedy."""
    if any(request.temperature > 0 for request in requests):
        logits = scale(logits, requests)
    return F.cross_entropy(logits, ids, reduction="none").neg()


def scale(logits: Tensor, requests: Sequence[Request]) -> Tensor:
    """(logits - their maximum) / temperature. Shifted first, so that a tiny temperature can't make the highest inf."""
    temperature = column([request.temperature or 1.0 for request in requests], logits)
    return (logits - logits.amax(-1, keepdim=True)) / temperature.clamp(min=torch.finfo(logits.dtype).tiny)


def most_probable(scaled: Tensor, requests: Sequence[Request]) -> Tensor:
    """(R, V) bool, True at the ids that top-k and top-p keep: the n highest of a row, the lower id first in a tie."""
    vocabulary = scaled.shape[1]
    wanted = [min(request.top_k or vocabulary, vocabulary) for request in requests]
    top_k, top_p = column(wanted, scaled), column([request.top_p for request in requests], scaled)
    values = scaled.topk(max(wanted), dim=-1).values  # (R, max k), highest first
    inside = torch.arange(values.shape[1], device=scaled.device) < top_k
    probabilities = values.masked_fill(~inside, float("-inf")).softmax(-1)
    before = probabilities.cumsum(-1) - probabilities  # what the ids above hold together
    count = (inside & ((before < top_p) | (top_p >= 1))).sum(-1, keepdim=True).clamp(min=1)  # (R, 1)
    threshold = values.gather(1, count - 1)
    above, level = scaled > threshold, scaled == threshold
    return above | (level & (level.cumsum(-1) <= count - above.sum(-1, keepdim=True)))


def inverse_cdf(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """The id in whose stretch of the line [0, total) the row's number falls. (R, V) and (R,) in [0, 1) to (R,).

    Added up in float64, which not every device has (Apple's doesn't): on the host, but for NVIDIA's and AMD's.
    """
    if probabilities.device.type != "cuda":
        probabilities = probabilities.cpu()
    line = probabilities.cumsum(-1, dtype=torch.float64)
    total = line[:, -1:]
    point = torch.minimum(uniform.to(line.device)[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
    # The first id whose end lies beyond the point: an id of probability 0 has no stretch and is never it.
    # NaN falls beyond the last, and is named by whoever looks at the log-probabilities.
    return torch.searchsorted(line, point, right=True)[:, 0].clamp(max=line.shape[1] - 1)


def column(values: list[float], like: Tensor) -> Tensor:
    """One number a row as (R, 1), to stand against (R, V)."""
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]
