"""Who may see whom, as one rectangle of booleans: the explicit path that lessons and tests compare with."""

from torch import Tensor

from qwenlab.model.attention import causal_mask

__all__ = ["causal_mask", "combined_mask"]


def combined_mask(attention_mask: Tensor, queries: int | None = None) -> Tensor:
    """Causal and padding in one: a query sees a key that is real and not after it.

    attention_mask (B, K) bool over all keys, True = real; `queries` = how many of the last columns ask (None = all).
    Returns (B, 1, Q, K) bool, True = may attend; the 1 stands for the heads. A left pad's own row is all False.
    Raises ValueError if `queries` isn't within 1..K.
    """
    keys = attention_mask.shape[1]
    queries = keys if queries is None else queries
    if not 1 <= queries <= keys:
        raise ValueError(f"queries is {queries}, expected 1 to {keys}")
    causal = causal_mask(queries, keys, attention_mask.device)  # (Q, K)
    return causal & attention_mask[:, None, None, :]
