"""The whole model: token ids in, logits out, for rows of unequal length."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qwenlab.model.attention import BY_NAME, Attention
from qwenlab.model.batch import ForwardBatch
from qwenlab.model.config import Config
from qwenlab.model.deltanet import DeltaNet
from qwenlab.model.layers import MLP, RMSNorm, Rotary
from qwenlab.model.state import Slots, State


class Layer(nn.Module):
    """Attention or DeltaNet, then MLP, each on a normed input and added to what came in."""

    def __init__(self, config: Config, number: int):
        super().__init__()
        self.is_linear = config.layer_types[number] == "linear_attention"
        norm = (config.hidden_size, config.rms_norm_eps, config.is_qwen3_5)
        self.input_layernorm = RMSNorm(*norm)
        if self.is_linear:
            self.linear_attn = DeltaNet(config, number)
        else:
            self.self_attn = Attention(config, number)
        self.post_attention_layernorm = RMSNorm(*norm)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, batch: ForwardBatch, cos: Tensor, sin: Tensor) -> Tensor:
        normed = self.input_layernorm(x)
        if self.is_linear:
            x = x + self.linear_attn(normed, batch)
        else:
            x = x + self.self_attn(normed, batch, cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """Embedding, layers, final norm: a batch's ids (B, W) to hidden (B, W, hidden).

    The norm is left to `Model.logits`, so that it is computed for the wanted positions only.
    """

    def __init__(self, config: Config):
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.rotary = Rotary(config)
        self.layers = nn.ModuleList(Layer(config, n) for n in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, config.is_qwen3_5)

    def forward(self, batch: ForwardBatch) -> Tensor:
        x = self.embed_tokens(batch.input_ids)  # (B, W, hidden)
        cos, sin = self.rotary(batch, x.dtype)
        for layer in self.layers:
            x = layer(x, batch, cos, sin)
        return x


class Model(nn.Module):
    """A dense Qwen3 (arXiv:2505.09388) or the language model of a Qwen3.5, as its config says.

    It computes what the reference implementations compute, with parameters named as published.
    `config` is its shape, `stop_ids` a frozenset of the ids that end an answer. `attention` is
    "sdpa", "eager" or a function attention(q, k, v, mask, scale) with the shapes of
    `qwenlab.model.attention.eager`; it always gets a mask.
    """

    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        self.stop_ids = frozenset(config.eos_token_id)
        self.model = Decoder(config)
        self.attention = "sdpa"
        self.lm_head: nn.Linear | None = None  # None: the embedding's weights are used again
        if not config.tie_word_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=config.initializer_range)

    @property
    def attention(self) -> str | Callable:
        return self._attention

    @attention.setter
    def attention(self, value: str | Callable) -> None:
        if not callable(value) and value not in BY_NAME:
            raise ValueError(
                f"attention is {value!r}, expected 'sdpa', 'eager' or a function "
                "(q, k, v, mask, scale)"
            )
        self._attention = value
        for module in self.modules():
            if isinstance(module, Attention):
                module.function = value if callable(value) else BY_NAME[value]

    @property
    def dtype(self) -> torch.dtype:
        return self.model.embed_tokens.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.model.embed_tokens.weight.device

    def new_state(self, batch_size: int, capacity: int | None = None) -> State:
        """An empty state of `batch_size` slots for `capacity` tokens each (None = it grows)."""
        return State(self.config, batch_size, capacity, self.dtype, self.device)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        state: State | None = None,
        *,
        rows: Slots | None = None,
        position_ids: Tensor | None = None,
        last_only: bool = False,
        hidden_only: bool = False,
    ) -> Tensor:
        """Logits for the next token after each real token of this call.

        input_ids (B, T) int64; attention_mask (B, T) bool marks the real tokens of this call only
        (True = real; pads left, right or inside), None = all real. Returns (B, T, vocab) float32
        with zeros at pads, or with `last_only` (B, vocab) of each row's last real token.

        With a `state` each row sees the earlier tokens of its slot and adds this call's to them;
        `rows` (B,) gives for each row its slot (None = all, in order). The slot of a row without a
        real token stays as it is, and the row's logits are 0. A state is for inference: no
        gradients are kept, and inside torch.autocast the call computes in the model's own dtype.

        Without a state, `attention_mask` may also be a custom (B, 1, T, T) bool mask, True = may
        attend. Then nothing is moved: the rectangle is computed as given, pads included, at
        `position_ids` (B, T) int64 (default 0..T-1), and `last_only` means the last column. Linear
        attention has no use for such a mask.

        `hidden_only` returns what `logits` is computed from, (B, T, hidden) or (B, hidden), so that
        a caller who wants the logits of a few positions never holds all of them.

        Raises ValueError for ids outside the vocabulary, a mask of another shape or type, a row
        without a real token and without a state, a row longer than the state's capacity, a slot
        that an interrupted call left invalid, and a state made for another model, dtype or device.
        """
        custom_mask = check_call(input_ids, attention_mask, state, rows, position_ids)
        if custom_mask and "linear_attention" in self.config.layer_types:
            raise ValueError(
                "linear attention takes no (B, 1, T, T) mask: give the (B, T) mask of real tokens"
            )
        input_ids = input_ids.to(self.device)
        if attention_mask is not None:
            attention_mask = attention_mask.to(self.device)
        if custom_mask:
            if position_ids is None:
                position_ids = torch.arange(input_ids.shape[1])[None]
            position_ids = position_ids.to(self.device)
            batch = ForwardBatch.from_rectangle(input_ids, attention_mask, position_ids)
        else:
            batch = ForwardBatch.from_mask(input_ids, attention_mask, state, rows)
        if state is None and 0 in batch.num_new_tokens:
            empty = list(batch.num_new_tokens).index(0)
            raise ValueError(f"row {empty} has no real token and there is no state")
        if batch.input_ids.is_cpu or batch.width > 1:  # a GPU's decode step must not wait for it
            check_ids(batch.input_ids, self.config.vocab_size)
        return self.compute(batch, last_only, hidden_only)

    def compute(
        self, batch: ForwardBatch, last_only: bool = False, hidden_only: bool = False
    ) -> Tensor:
        """One forward pass over `batch`, whose state it writes. Returns what `forward` returns.

        Raises ValueError for a row longer than the state's capacity and for a state that was made
        for another model, dtype or device.
        """
        if batch.state is None:
            return self.outputs(batch, last_only, hidden_only)
        batch.state.check_made_for(self.config, self.dtype, self.device)
        if max(batch.num_new_tokens) == 0:  # no real tokens: skip the forward pass
            size = self.config.hidden_size if hidden_only else self.config.vocab_size
            nothing = torch.zeros(*batch.input_ids.shape, size, device=self.device)
            return nothing[:, 0] if last_only else batch.to_caller(nothing)
        batch.make_room()
        # A state is for inference, in the model's own dtype.
        with for_inference(self.device.type):
            batch.state.begin(batch.slots)
            out = self.outputs(batch, last_only, hidden_only)
            batch.state.commit(batch.slots, batch.num_new_tokens)  # last: see State's rule
        return out

    def outputs(self, batch: ForwardBatch, last_only: bool, hidden_only: bool) -> Tensor:
        hidden = self.model(batch)  # (B, W, hidden)
        if last_only:
            hidden = batch.last_token(hidden)  # (B, hidden)
        out = hidden if hidden_only else self.logits(hidden)
        return batch.hide_empty_rows(out) if last_only else batch.to_caller(out)

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., hidden), as `hidden_only` returns it, to (..., vocab) float32."""
        normed = self.model.norm(hidden)
        if self.lm_head is None:
            return F.linear(normed, self.model.embed_tokens.weight).float()
        return self.lm_head(normed).float()


@contextmanager
def no_gradients_no_autocast(device_type: str) -> Iterator[None]:
    with torch.no_grad(), torch.autocast(device_type, enabled=False):
        yield


def for_inference(device_type: str) -> AbstractContextManager:
    """A context without gradients, in which torch.autocast changes no dtype."""
    if torch.is_grad_enabled() or torch.is_autocast_enabled(device_type):
        return no_gradients_no_autocast(device_type)
    return nullcontext()


def check_call(
    input_ids: Tensor,
    attention_mask: Tensor | None,
    state: State | None,
    rows: Slots | None,
    position_ids: Tensor | None,
) -> bool:
    """Whether the mask is a custom one. Raises ValueError, in one line, for arguments that
    don't fit each other."""
    given = (
        ("input_ids", input_ids),
        ("attention_mask", attention_mask),
        ("position_ids", position_ids),
    )
    for name, value in given:
        if not isinstance(value, Tensor) and (value is not None or name == "input_ids"):
            raise ValueError(f"{name} is a {type(value).__name__}, expected a tensor")
    custom_mask = attention_mask is not None and attention_mask.dim() == 4
    if input_ids.dim() != 2 or input_ids.dtype != torch.int64 or 0 in input_ids.shape:
        raise ValueError(
            f"input_ids is {tuple(input_ids.shape)} {input_ids.dtype}, "
            "expected (B, T) int64, T >= 1"
        )
    batch, width = input_ids.shape
    if attention_mask is not None:
        expected = (batch, 1, width, width) if custom_mask else (batch, width)
        if tuple(attention_mask.shape) != expected or attention_mask.dtype != torch.bool:
            raise ValueError(
                f"attention_mask is {tuple(attention_mask.shape)} {attention_mask.dtype}, expected "
                f"{expected} bool: True at the real tokens of this call"
            )
    if custom_mask and state is not None:
        raise ValueError(
            "a (B, 1, T, T) mask works without a state only: a state hides pads by itself"
        )
    if position_ids is not None:
        if not custom_mask:
            raise ValueError("position_ids needs a (B, 1, T, T) mask beside it")
        if (
            tuple(position_ids.shape) not in ((batch, width), (1, width))
            or position_ids.dtype != torch.int64
        ):
            raise ValueError(
                f"position_ids is {tuple(position_ids.shape)} {position_ids.dtype}, "
                f"expected {(batch, width)} int64"
            )
    if rows is not None and state is None:
        raise ValueError("rows names slots of a state, but there is no state")
    return custom_mask


def check_ids(ids: Tensor, vocab_size: int) -> None:
    """Raises ValueError naming the first id outside the vocabulary, by its row."""
    wrong = (ids < 0) | (ids >= vocab_size)
    if wrong.any():
        row, column = wrong.nonzero()[0].tolist()
        token_id = int(ids[row, column])
        raise ValueError(
            f"row {row}: token id {token_id} is outside the vocabulary (0 to {vocab_size - 1})"
        )
