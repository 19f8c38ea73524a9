"""The head through the fastest kernel for that many rows."""

from torch import Tensor

from qwenlab.fast.fused import apply_linear, runs_plain
from qwenlab.fast.layers import norm
from qwenlab.fast.linear import product
from qwenlab.model.model import Model


class FastModel(Model):
    def logits(self, hidden: Tensor) -> Tensor:
        if runs_plain(hidden, Model):
            return super().logits(hidden)
        normed = norm(self.model.norm, hidden)  # (..., hidden)
        if self.lm_head is not None:
            return apply_linear(self.lm_head, normed).float()
        return product(normed, self.model.embed_tokens.weight).float()
