"""How many rows fit into a device's memory, and what each of them takes."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from qwenlab.engine.footprint import (
    CHUNK,
    RowBytes,
    bytes_per_row,
    cache_bytes_per_token,
    recurrent_bytes,
)
from qwenlab.errors import flags, whole
from qwenlab.loading import Dtype, choose_dtype, find_checkpoint
from qwenlab.model.config import Config
from qwenlab.model.model import Model
from qwenlab.model.weights import dtype_of, without_storage

UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


@dataclass(frozen=True, repr=False)
class MemoryPlan:
    """What a batch of a model takes, in bytes, and the `rows` that fit. `print(plan)` prints a
    table.

    `weights` are there once, whatever the batch. Of each row: `kv_bytes_per_token`, keys and values
    of one token in all layers; `recurrent`, conv_state and recurrent_state of the layers of linear
    attention; and `row`, a RowBytes: state, growth, activations of prefill and decode, logits, and
    the peak, which decides.
    """

    weights: int
    kv_bytes_per_token: int
    recurrent: int
    row: RowBytes
    device_bytes: int
    dtype: str
    context: int
    prompt_tokens: int | None
    chunk: int
    grows: bool

    @property
    def rows(self) -> int:
        """How many rows fit beside the weights: 0 if not even one, or not even the weights."""
        return max(0, self.device_bytes - self.weights) // self.row.peak

    def bytes(self, rows: int) -> int:
        """All that is held at the worst moment of a batch of that many rows."""
        return self.weights + whole(rows, "rows", 0) * self.row.peak

    def __repr__(self) -> str:
        row = self.row
        prompt = "prompts of any length"
        if self.prompt_tokens is not None:
            prompt = f"{self.prompt_tokens} of them the prompt"
        table = {"weights, once": self.weights}
        if self.kv_bytes_per_token:
            table["keys and values of a token"] = self.kv_bytes_per_token
        if self.recurrent:
            table["conv_state and recurrent_state"] = self.recurrent
        grown = "a row's state, grown by doubling"
        table[grown if self.grows else "a row's state, made for all tokens"] = row.state
        if self.grows:
            table["  beside it: the old one, when copied"] = row.growth
        table[f"  beside it: {self.chunk} tokens of prefill"] = row.prefill
        table["  beside it: a decode step"] = row.decode
        table["  beside it: logits and sampling"] = row.logits
        table["a row at its worst moment"] = row.peak
        lines = [f"{self.dtype}, {self.context} tokens a row, {prompt}"]
        for what, amount in table.items():
            lines.append(f"{what:40}{shown(amount):>10}")
        device = shown(self.device_bytes)
        if self.device_bytes < self.weights:
            lines.append(
                f"rows: 0 in {device}, because the weights alone need {shown(self.weights)}"
            )
        elif not self.rows:
            one = shown(self.bytes(1))
            lines.append(f"rows: 0 in {device}, because the weights and one row need {one}")
        else:
            lines.append(
                f"rows: {self.rows} in {device}, which take {shown(self.bytes(self.rows))}"
            )
        return "\n".join(lines)


def shown(amount: int) -> str:
    """Bytes in the largest unit that leaves a number of at least 1, to three digits: "1.19 GiB"."""
    for size, unit in UNITS:
        if amount >= size:
            number = amount / size
            digits = 0 if number >= 100 else 1 if number >= 10 else 2
            return f"{number:.{digits}f} {unit}"
    return f"{amount} bytes"


def memory_plan(
    model_or_config: Model | Config | str | Path,
    device_bytes: int,
    context: int,
    dtype: Dtype = None,
    *,
    prompt_tokens: int | None = None,
    chunk: int = CHUNK,
    grows: bool = True,
    draws: bool = False,
) -> MemoryPlan:
    """Works out, without running anything, what a batch takes and how many rows fit.

    model_or_config: a loaded model, a Config, or a checkpoint as `load` names it, of which only
    config.json is read (a hub id is downloaded first). device_bytes: the memory there is. context:
    tokens of a row, prompt and answer together. dtype: None = the model's own, float32 for a Config
    or a checkpoint.

    prompt_tokens: how many of the context are the prompt, if all rows are alike and start together:
    the plan then is what such a run takes. None: prompts of any length come and go, and the plan is
    a bound. chunk: the tokens of a prompt that a slot prefills per step, as in Engine; strategies
    other than "continuous" prefill prompts whole. grows: False for a state made with a capacity of
    `context` tokens, which is never copied. draws: whether tokens are drawn at a temperature rather
    than the most probable taken.

    Rows are those of Engine with a model that `load` made for a CPU; `qwenlab.engine.footprint` has
    the formulas, and says what they leave out.

    Raises ValueError, in one line, for a context below 2 tokens or beyond the model's limit, a
    dtype that `load` doesn't know, a name that is no checkpoint, and a wrong option.
    """
    device_bytes = whole(device_bytes, "device_bytes", 1)
    flags(grows=grows, draws=draws)
    given = model_or_config
    if isinstance(given, Model):
        config = given.config
    else:
        config = given if isinstance(given, Config) else Config.from_folder(find_checkpoint(given))
    if isinstance(given, Model) and dtype is None:
        kept = given.dtype
        weights = sum(parameter.nbytes for parameter in given.parameters())
    else:
        kept = choose_dtype(dtype, torch.device("cpu"))
        weights = weight_bytes(config, kept)
    context = whole(context, "context", 2)
    if context > config.max_position_embeddings:
        raise ValueError(
            f"context is {context}, expected at most the model's max_position_embeddings of "
            f"{config.max_position_embeddings}"
        )
    if prompt_tokens is not None:
        prompt_tokens = whole(prompt_tokens, "prompt_tokens", 1, context - 1)
    chunk = whole(chunk, "chunk", 1)
    row = bytes_per_row(config, kept, context, prompt_tokens, chunk=chunk, grows=grows, draws=draws)
    return MemoryPlan(
        weights=weights,
        kv_bytes_per_token=cache_bytes_per_token(config, kept),
        recurrent=recurrent_bytes(config, kept),
        row=row,
        device_bytes=device_bytes,
        dtype=str(kept).removeprefix("torch."),
        context=context,
        prompt_tokens=prompt_tokens,
        chunk=chunk,
        grows=grows,
    )


@cache
def weight_bytes(config: Config, dtype: torch.dtype) -> int:
    """All weights of such a model in `dtype`. A tied lm_head is the embedding, and a fused
    projection is the memory of those that it stands for, so each counts once."""
    with without_storage():
        model = Model(config)
    total = 0
    for name, parameter in model.named_parameters():
        total += parameter.numel() * dtype_of(name, dtype).itemsize
    return total
