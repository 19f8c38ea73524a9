"""Softmax over the keys that may be seen, in the variants that lesson 04 compares.

A query that may see nothing has no softmax: the sum over an empty set is 0, and 0 / 0 is NaN. Each
variant fills that row in its own way; on every other row all four agree.
"""

import torch
from torch import Tensor

VARIANTS = ("-inf", "finfo.min", "log-sum-exp", "pads-see-themselves")


def masked_softmax(scores: Tensor, mask: Tensor | None, how: str = "log-sum-exp") -> Tensor:
    """Weights of each query over its keys.

    scores (..., Q, K) float; mask broadcastable to it, bool, True = may attend, None = all may.
    Returns (..., Q, K) of the scores' dtype; the rows sum to 1. A row that may see nothing becomes,
    by `how`:

    - "-inf": NaN. The textbook way: hidden scores are -inf, and -inf minus their own maximum is
    NaN.
    - "finfo.min": 1 / K everywhere, hidden keys included. No NaN, but the row now averages what it
    must not see.
    - "log-sum-exp": zeros. Hidden keys are left out of maximum, exponent and sum; an empty sum
    divides as 1.
    - "pads-see-themselves": 1 at the query's own key (the diagonal that ends bottom-right), 0
    elsewhere.

    Raises ValueError for an unknown `how`.
    """
    if how not in VARIANTS:
        raise ValueError(f"how is {how!r}, expected one of {', '.join(VARIANTS)}")
    if mask is None:
        return scores.softmax(-1)
    if how == "-inf":
        return scores.masked_fill(~mask, float("-inf")).softmax(-1)
    if how == "finfo.min":
        return scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1)
    if how == "pads-see-themselves":
        return scores.masked_fill(~let_empty_rows_see_themselves(mask), float("-inf")).softmax(-1)
    # The maximum only guards against overflow, so any finite number does for a row without keys.
    highest = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).amax(-1, keepdim=True)
    weights = (scores - highest).masked_fill(~mask, float("-inf")).exp()
    total = weights.sum(-1, keepdim=True)  # (..., Q, 1): at least 1 where a key is seen, else 0
    return weights / total.masked_fill(total == 0, 1)


def let_empty_rows_see_themselves(mask: Tensor) -> Tensor:
    """mask (..., Q, K) bool with the query's own key opened in each row that may see nothing (needs
    Q <= K)."""
    queries, keys = mask.shape[-2:]
    itself = (
        torch.ones(queries, keys, dtype=torch.bool, device=mask.device)
        .triu(keys - queries)
        .tril(keys - queries)
    )
    return mask | (itself & ~mask.any(-1, keepdim=True))
