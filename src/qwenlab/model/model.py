"""The whole model: token ids in, logits out, for a rectangle of rows of unequal length."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from qwenlab.model.attention import Attention
from qwenlab.model.call import Call, close_up, plan
from qwenlab.model.config import Config
from qwenlab.model.deltanet import DeltaNet
from qwenlab.model.joined import Joined
from qwenlab.model.kernels import BY_NAME
from qwenlab.model.layers import MLP, RMSNorm, Rotary
from qwenlab.model.linear import product
from qwenlab.model.state import State


class Layer(nn.Module):
    """Attention or DeltaNet, then MLP, each on a normed input and added to what came in (pre-norm residual)."""

    def __init__(self, config: Config, kind: str):
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, config.is_qwen3_5)
        if kind == "linear_attention":
            self.linear_attn = DeltaNet(config)
        else:
            self.self_attn = Attention(config)
        self.mixer = "linear_attn" if kind == "linear_attention" else "self_attn"
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, config.is_qwen3_5)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, call: Call, number: int) -> Tensor:
        parts = self._modules  # a plain dictionary: quicker than attributes, once a layer and token
        x = x + parts[self.mixer](parts["input_layernorm"](x), call, number)
        return x + parts["mlp"](parts["post_attention_layernorm"](x))


class Decoder(nn.Module):
    """Embedding, layers, final norm: ids (B, W) to hidden (B * W, hidden), one line a token."""

    def __init__(self, config: Config):
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, kind) for kind in config.layer_types)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, config.is_qwen3_5)

    def forward(self, input_ids: Tensor, call: Call) -> Tensor:
        x = self.embed_tokens(input_ids.flatten())
        if call.state is not None:
            call.state.begin(call.rows)  # only now: ids outside the vocabulary are refused and change nothing
        for number, layer in enumerate(self.layers):
            x = layer(x, call, number)
        return x


class Model(nn.Module):
    """A dense Qwen3 (arXiv:2505.09388) or the language model of a Qwen3.5, by the layer list of its config.

    Equal to the reference implementations, parameters named as published. `config` is its shape, `stop_ids` a
    frozenset of the ids that end an answer. `attention` is "sdpa", "eager" or a function
    attention(q, k, v, mask, scale) with the shapes of `qwenlab.model.kernels.eager`. `chunk` is how many tokens
    DeltaNet takes at a time; 16 trains short texts faster.
    """

    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        self.stop_ids = frozenset(config.eos_token_id)
        self.attention, self.chunk = "sdpa", 64
        self.rotary = Rotary(config.head_dim, config.rope_theta, config.rotary_dim)
        self.model = Decoder(config)
        if not config.tie_word_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
            self.head = Joined("lm_head")
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=config.initializer_range)

    @property
    def attention(self) -> str | Callable:
        return self._attention

    @attention.setter
    def attention(self, value: str | Callable) -> None:
        if not callable(value) and value not in BY_NAME:
            raise ValueError(f"attention is {value!r}, expected 'sdpa', 'eager' or a function (q, k, v, mask, scale)")
        self._attention = value

    @property
    def embedding(self) -> Tensor:
        """(vocab, hidden): one line an id. Asked for several times a step, so it is found in plain dictionaries."""
        return self._modules["model"]._modules["embed_tokens"]._parameters["weight"]

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    def new_state(self, batch_size: int, capacity: int | None = None) -> State:
        """An empty state for `batch_size` rows of `capacity` tokens each (None = it grows by doubling)."""
        return State(self.config, batch_size, capacity, self.dtype, self.device)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        state: State | None = None,
        *,
        rows=None,
        position_ids: Tensor | None = None,
        last_only: bool = False,
        hidden_only: bool = False,
    ) -> Tensor:
        """Logits for the next token after each real token of this call.

        input_ids (B, T) int64; attention_mask (B, T) bool marks the real tokens of this call only (True = real;
        pads left, right or inside), None = all real. Returns (B, T, vocab) float32 with zeros at pads, or with
        `last_only` (B, vocab) of each row's last real token.

        With a `state` the row's earlier tokens are seen and this call's are added; `rows` (B,) names the state's
        rows (None = all, in order). A row without a real token stays as it is, its logits are 0. A state is for
        inference: no gradients are kept, and inside torch.autocast the call computes in the model's own dtype.

        Without a state, `attention_mask` may also be the reader's own (B, 1, T, T) bool mask, True = may attend.
        Then nothing is closed up: the rectangle is computed as given, pads included, at `position_ids` (B, T)
        int64 (default 0..T-1), and `last_only` means the last column. Linear attention has no use for such a mask.

        `hidden_only` returns what `logits` is computed from, (B, T, hidden) or (B, hidden), so that who wants the
        logits of some positions only, or of a few at a time, never holds all of them.

        Raises ValueError for ids outside the vocabulary, a mask of another shape or type, a row without a real
        token and without a state, a row longer than the state's capacity, a row that an earlier call left invalid when
        it broke off, a state made for another model, dtype or device.
        """
        kind = self.device.type
        if state is not None and (torch.is_grad_enabled() or torch.is_autocast_enabled(kind)):
            with torch.no_grad(), torch.autocast(kind, enabled=False):
                options = {"position_ids": position_ids, "last_only": last_only, "hidden_only": hidden_only}
                return self.forward(input_ids, attention_mask, state, rows=rows, **options)
        own_mask = check_call(input_ids, attention_mask, state, rows, position_ids)
        if own_mask and "linear_attention" in self.config.layer_types:
            raise ValueError("linear attention takes no (B, 1, T, T) mask: give the (B, T) mask of real tokens")
        device = self.device
        input_ids = input_ids.to(device)
        if attention_mask is not None:
            attention_mask = attention_mask.to(device)
        if own_mask:
            return self._as_given(input_ids, attention_mask, position_ids, last_only, hidden_only)
        return self._closed_up(input_ids, attention_mask, state, rows, last_only, hidden_only)

    def compute(self, batch, last_only: bool = True) -> Tensor:
        """A stand-in: see `qwenlab.model.batch`."""
        options = {"rows": batch.rows, "last_only": last_only}
        return self.forward(batch.input_ids, batch.attention_mask, batch.state, **options)

    def _closed_up(self, input_ids, attention_mask, state, rows, last_only, hidden_only) -> Tensor:
        ids, counts, real = close_up(input_ids, attention_mask)
        if real is not None and state is None and not bool((counts > 0).all()):
            raise ValueError(f"row {int((counts == 0).nonzero()[0])} has no real token and there is no state")
        call = plan(self, ids.shape[1], counts, real, state, rows)
        if real is not None and not bool(real.any()):  # nobody says anything: no pass, nothing changes
            size = self.config.hidden_size if hidden_only else self.config.vocab_size
            return torch.zeros(*input_ids.shape[: 1 if last_only else 2], size, device=self.device)
        hidden = self._hidden(ids, call)  # (B * W, hidden)
        if last_only and ids.shape[1] > 1:
            ends = torch.arange(len(ids)) * ids.shape[1] + (counts - 1).clamp(min=0)
            hidden = hidden[ends.to(self.device)]  # (B, hidden)
        logits = hidden if hidden_only else self.logits(hidden)  # (B, vocab) or (B * W, vocab)
        if not last_only:
            logits = logits.view(*ids.shape, -1)  # (B, W, vocab)
        if real is not None and last_only:
            logits = logits.masked_fill((counts == 0).to(self.device)[:, None], 0)
        elif real is not None:
            out = logits.new_zeros(*input_ids.shape, logits.shape[-1])  # (B, T, vocab)
            out[attention_mask] = logits[real]  # both list the real tokens row by row, in order
            logits = out
        if state is not None:
            state.advance(call.rows, counts)  # last: a call that broke off has added no token
        return logits

    def _hidden(self, ids: Tensor, call: Call) -> Tensor:
        """(B, W) to (B * W, hidden). Raises ValueError naming the first id outside the vocabulary."""
        if ids.device.type != "cpu" and ids.shape[1] > 1:  # a GPU would crash; its decode step isn't made to wait
            check_ids(ids, self.config.vocab_size)
        try:
            return self.model(ids, call)
        except IndexError:
            check_ids(ids, self.config.vocab_size)  # most likely the embedding's, whose own words don't name the row
            raise

    def _as_given(self, input_ids, mask, position_ids, last_only, hidden_only) -> Tensor:
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1])[None]
        cos, sin = self.rotary.angles(position_ids.to(self.device), self.dtype)
        hidden = self._hidden(input_ids, Call(self.attention_function, len(input_ids), cos, sin, mask))
        hidden = hidden.view(*input_ids.shape, -1)  # (B, T, hidden)
        hidden = hidden[:, -1:] if last_only else hidden
        out = hidden if hidden_only else self.logits(hidden.flatten(0, 1)).view(*hidden.shape[:2], -1)  # (B, T, vocab)
        return out[:, 0] if last_only else out

    @property
    def attention_function(self) -> Callable:
        """What `attention` stands for, as a function."""
        return BY_NAME[self._attention] if isinstance(self._attention, str) else self._attention

    def logits(self, hidden: Tensor) -> Tensor:
        """(N, hidden), as `hidden_only` returns it, to (N, vocab) float32."""
        hidden = self.model.norm(hidden)
        if self.config.tie_word_embeddings:
            return product(hidden, self.embedding).float()
        return self.head(self, hidden).float()


def check_call(input_ids, attention_mask, state, rows, position_ids) -> bool:
    """Whether the mask is the reader's own. Raises ValueError, in one line, for arguments that don't fit each other."""
    given = (("input_ids", input_ids), ("attention_mask", attention_mask), ("position_ids", position_ids))
    for name, value in given:
        if not isinstance(value, Tensor) and (value is not None or name == "input_ids"):
            raise ValueError(f"{name} is a {type(value).__name__}, expected a tensor")
    own_mask = attention_mask is not None and attention_mask.dim() == 4
    if input_ids.dim() != 2 or input_ids.dtype != torch.int64 or 0 in input_ids.shape:
        raise ValueError(f"input_ids is {tuple(input_ids.shape)} {input_ids.dtype}, expected (B, T) int64, T >= 1")
    batch, width = input_ids.shape
    if attention_mask is not None:
        expected = (batch, 1, width, width) if own_mask else (batch, width)
        if tuple(attention_mask.shape) != expected or attention_mask.dtype != torch.bool:
            raise ValueError(
                f"attention_mask is {tuple(attention_mask.shape)} {attention_mask.dtype}, expected {expected} bool: "
                "True at the real tokens of this call"
            )
    if own_mask and state is not None:
        raise ValueError("a (B, 1, T, T) mask works without a state only: a state hides pads by itself")
    if position_ids is not None:
        if not own_mask:
            raise ValueError("position_ids needs a (B, 1, T, T) mask beside it")
        if tuple(position_ids.shape) not in ((batch, width), (1, width)) or position_ids.dtype != torch.int64:
            raise ValueError(
                f"position_ids is {tuple(position_ids.shape)} {position_ids.dtype}, expected {(batch, width)} int64"
            )
    if rows is not None and state is None:
        raise ValueError("rows names rows of a state, but there is no state")
    return own_mask


def check_ids(ids: Tensor, vocab_size: int) -> None:
    """Raises ValueError naming the first id outside the vocabulary, by its row."""
    wrong = (ids < 0) | (ids >= vocab_size)
    if wrong.any():
        row, column = wrong.nonzero()[0].tolist()
        token_id = int(ids[row, column])
        raise ValueError(f"row {row}: token id {token_id} is outside the vocabulary (0 to {vocab_size - 1})")
