"""Causal and padding mask in one explicit tensor: the reference that lessons and tests use."""

from torch import Tensor

from qwenlab.model.attention import causal_mask

__all__ = ["causal_mask", "combined_mask"]


def combined_mask(attention_mask: Tensor, queries: int | None = None) -> Tensor:
    """Causal and padding mask in one: a query sees the real keys up to its own position.

    attention_mask (B, K) bool covers all keys, True = real; the queries are the last `queries`
    columns (None = all). Returns (B, 1, Q, K) bool, True = may attend; the 1 stands for the heads.
    The row of a left pad is all False. Raises ValueError if `queries` isn't within 1..K.
    """
    keys = attention_mask.shape[1]
    queries = keys if queries is None else queries
    if not 1 <= queries <= keys:
        raise ValueError(f"queries is {queries}, expected 1 to {keys}")
    causal = causal_mask(queries, keys, attention_mask.device)  # (Q, K)
    return causal & attention_mask[:, None, None, :]
