"""Random models, and the two comparisons that the whole suite uses."""

import os
import random
import re
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

import psutil
import pytest
import torch

from qwenlab.fast import optimize
from qwenlab.model.attention import repeat_heads
from qwenlab.model.config import Config
from qwenlab.model.model import Model
from qwenlab.model.softmax import masked_softmax

FULL = os.environ.get("QWENLAB_FULL") == "1"
WITHOUT = os.environ.get("QWENLAB_WITHOUT", "").split(",")
needs_float64 = pytest.mark.skipif("float64" in WITHOUT, reason="has a model compute in float64")

SHAPE = {
    "model_type": "qwen3",
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "initializer_range": 0.2,
    "eos_token_id": [300, 301],
}
# three linear layers and a full one, more value than key heads, keys of another size than values
HYBRID = {
    **SHAPE,
    "model_type": "qwen3_5_text",
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "linear_conv_kernel_dim": 4,
    # a norm of next to nothing, as a head may say it, enlarges rounding by as much
    "rms_norm_eps": 1e-3,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
    },
}
PAD = 301  # also a stop id, as Qwen3's <|endoftext|> is


def count(reduced: int, full: int) -> int:
    """How many random cases to run: `make test` or `make test-all`."""
    return full if FULL else reduced


def random_config(**changes) -> Config:
    return Config.from_dict({**SHAPE, **changes})


def random_model(
    seed: int = 0, dtype: torch.dtype = torch.float32, fast: bool = True, **changes
) -> Model:
    """As `load` gives one: fast, unless the plain reference is asked for."""
    torch.manual_seed(seed)
    model = Model(random_config(**changes)).to(dtype).eval().requires_grad_(False)
    return optimize(model) if fast else model


def random_hybrid(
    seed: int = 0, dtype: torch.dtype = torch.float32, fast: bool = True, **changes
) -> Model:
    return random_model(seed, dtype, fast, **{**HYBRID, **changes})


FAMILIES = {"dense": random_model, "hybrid": random_hybrid}


def random_prompts(
    rng: random.Random, rows: int, longest: int, vocab: int = 300
) -> list[list[int]]:
    return [[rng.randrange(vocab) for _ in range(rng.randint(1, longest))] for _ in range(rows)]


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    """max|a - b| / max(1, max|b|): what every tolerance of this project is about."""
    assert a.shape == b.shape, f"{tuple(a.shape)} against {tuple(b.shape)}"
    return float((a.double() - b.double()).abs().max() / max(1.0, float(b.double().abs().max())))


@contextmanager
def plainly(model: Model) -> Iterator[None]:
    """Inside, the model runs its plain code as for training, because all its weights ask for a
    gradient."""
    asked = {weight: weight.requires_grad for weight in model.parameters()}
    model.requires_grad_(True)
    try:
        with torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        for weight, before in asked.items():
            weight.requires_grad_(before)


@contextmanager
def watched(model: Model, variant: str) -> Iterator[tuple[list, list]]:
    """Inside, a dense model attends under that variant of the softmax. Two lists fill with every
    layer's attention weights (B, H, Q, K), and with what is finite (B, T) after the embedding and
    after each layer."""
    weights = []
    finite = []

    def attend(q, k, v, mask, scale):
        groups = q.shape[1] // k.shape[1]
        scores = q @ repeat_heads(k, groups).mT * scale
        weights.append(masked_softmax(scores, mask, variant))
        return weights[-1] @ repeat_heads(v, groups)

    def note(module, inputs, output):
        finite.append(output.isfinite().all(-1))

    parts = [model.model.embed_tokens, *model.model.layers]
    hooks = [part.register_forward_hook(note) for part in parts]
    model.attention = attend
    try:
        yield weights, finite
    finally:
        model.attention = "sdpa"
        for hook in hooks:
            hook.remove()


def alone_logits(model: Model, ids: list[int]) -> torch.Tensor:
    """(T, V): the row by itself, no state, no padding, no neighbours, by the plain code."""
    with plainly(model):
        return model(torch.tensor([ids]))[0].detach()


def alone_greedy(model: Model, prompt: list[int], steps: int) -> list[int]:
    """The slow obvious path: every token reads the whole row again."""
    ids = list(prompt)
    for _ in range(steps):
        ids.append(int(alone_logits(model, ids)[-1].argmax()))
    return ids[len(prompt) :]


def rectangle(
    rows: list[list[int]], width: int, side: str, pad: int, rng: random.Random | None = None
):
    """ids and mask with the pads on the "left", the "right" or "inner" (anywhere)."""
    ids, mask = [], []
    for row in rows:
        places = list(range(width))
        if side == "left":
            places = places[width - len(row) :]
        elif side == "right":
            places = places[: len(row)]
        else:
            places = sorted((rng or random).sample(places, len(row)))
        line = [pad] * width
        for place, token_id in zip(places, row, strict=True):
            line[place] = token_id
        ids.append(line)
        mask.append([place in places for place in range(width)])
    return torch.tensor(ids), torch.tensor(mask)


def with_marks(tokenizer, text: str) -> list[int]:
    """The ids of a text whose <think> and </think> are the control tokens, as a chat template
    writes them."""
    parts = re.split(r"(</?think>)", text)
    return [
        i
        for p in parts
        for i in ([tokenizer.control[p]] if p in tokenizer.control else tokenizer.encode(p))
    ]


def hear_ctrl_c():
    """For a process that a test starts: a shell's background jobs ignore Ctrl-C, and so would all
    that they start."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def gone(processes: Iterable[psutil.Process]) -> bool:
    """Whether all end, within as many minutes as a busy machine may need; one that only waits to be
    asked for its status has ended."""
    deadline = time.monotonic() + 300
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            while process.status() != psutil.STATUS_ZOMBIE:
                if time.monotonic() > deadline:
                    return False
                time.sleep(0.01)
    return True
