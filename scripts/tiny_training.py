"""Batches, optimisers and the loop that trains a tiny model on traces; the seed determines
everything."""

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from tiny_examples import Segment, examples
from tiny_tokenizer import PAD
from tiny_traces import Dials
from tokenizers import Tokenizer
from torch import Tensor, nn
from tqdm import tqdm

from qwenlab.engine.padding import right_pad
from qwenlab.model.config import Config
from qwenlab.model.deltanet import DeltaNet
from qwenlab.model.model import Model
from qwenlab.orders import seeded

TOKENS_A_BATCH = 1600
# The rows of a batch should be equally long, so this many batches are filled at once from rows
# sorted by length.
POOL = 64
WARM_UP = 60
NO_TARGET = -100  # ignored by cross_entropy
# Tokens that linear attention takes at once: the fastest choice at these lengths.
CHUNK = 16


@dataclass(frozen=True)
class Recipe:
    """How a tiny model is made. The schedule spans `steps`, so a shorter recipe decays too."""

    shape: dict
    steps: int
    seed: int = 1
    muon_lr: float = 0.02
    adam_lr: float = 4e-3
    constant_until: float = 0.4
    last_lr: float = 0.02
    dials: Dials = field(default_factory=Dials)

    @property
    def hybrid(self) -> bool:
        """Whether most layers are Qwen3.5's linear attention."""
        return "layer_types" in self.shape

    @property
    def architecture(self) -> str:
        return "Qwen3_5ForCausalLM" if self.hybrid else "Qwen3ForCausalLM"


@dataclass
class Outcome:
    """What a run took: real tokens (prompts included), the share of pads, seconds of CPU time, and
    the mean loss of the last 50 steps."""

    steps: int
    tokens: int
    padded: float
    seconds: float
    loss: float


class Row(NamedTuple):
    """A conversation as ids, and for each of them whether the loss counts it."""

    ids: list[int]
    taught: list[bool]


def rows(tokenizer: Tokenizer, seed: int, dials: Dials) -> Iterator[Row]:
    """Training conversations without end."""
    for example in examples(seed, dials):
        yield row_of(tokenizer, example)


def row_of(tokenizer: Tokenizer, example: list[Segment]) -> Row:
    ids: list[int] = []
    taught: list[bool] = []
    for text, counts in example:
        # Apart, as at inference: no token may span the end of a prompt.
        piece = tokenizer.encode(text).ids
        ids += piece
        taught += [counts] * len(piece)
    return Row(ids, taught)


def batches(stream: Iterator[Row], seed: int) -> Iterator[list[Row]]:
    """Rows of nearly one length, about TOKENS_A_BATCH tokens with pads; the batches of a pool in
    random order."""
    rng = seeded("batches", seed)
    while True:
        pool = []
        size = 0
        while size < POOL * TOKENS_A_BATCH:
            pool.append(next(stream))
            size += len(pool[-1].ids)
        pool.sort(key=lambda row: len(row.ids))
        cut = []
        batch = []
        for row in pool:
            if (len(batch) + 1) * len(row.ids) > TOKENS_A_BATCH and batch:
                cut.append(batch)
                batch = []
            batch.append(row)
        cut.append(batch)
        rng.shuffle(cut)
        yield from cut


def tensors(batch: list[Row], pad_id: int) -> tuple[Tensor, Tensor, Tensor]:
    """ids (B, T) int64 padded on the right, mask (B, T) bool, and targets (B, T) int64: at each
    place the next id where it is taught (an answer's stop token included), else -100."""
    ids_of = []
    wanted = []
    for ids, taught in batch:
        ids_of.append(ids)
        following = zip(ids[1:], taught[1:], strict=True)
        wanted.append([id if counts else NO_TARGET for id, counts in following] + [NO_TARGET])
    input_ids = right_pad(ids_of, pad_id)
    targets = right_pad(wanted, NO_TARGET)
    lengths = torch.tensor(list(map(len, ids_of)))
    mask = torch.arange(input_ids.shape[1]) < lengths[:, None]  # (B, T)
    return input_ids, mask, targets


def optimisers(model: Model, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the layers (Jordan et al. 2024), AdamW for the embedding and the
    norms."""
    hidden = []
    others = []
    for name, parameter in model.named_parameters():
        inside = parameter.ndim == 2 and "embed_tokens" not in name
        (hidden if inside else others).append(parameter)
    return [
        torch.optim.Muon(hidden, lr=recipe.muon_lr, momentum=0.95, weight_decay=0.0),
        torch.optim.AdamW(others, lr=recipe.adam_lr, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def schedule(step: int, recipe: Recipe) -> float:
    """The factor of the learning rates: rising over WARM_UP steps, constant, then falling linearly
    to `last_lr` at the end."""
    if step < WARM_UP:
        return (step + 1) / WARM_UP
    done = step / recipe.steps
    if done < recipe.constant_until:
        return 1.0
    return 1 - (1 - recipe.last_lr) * (done - recipe.constant_until) / (1 - recipe.constant_until)


def train(recipe: Recipe, tokenizer: Tokenizer) -> tuple[Model, Outcome]:
    """A freshly trained float32 model. With one thread, the same seed gives the same weights on the
    same machine."""
    torch.manual_seed(recipe.seed)
    model = Model(Config.from_dict(recipe.shape))
    for module in model.modules():
        if isinstance(module, DeltaNet):
            module.chunk_size = CHUNK
    optims = optimisers(model, recipe)
    stream = batches(rows(tokenizer, recipe.seed, recipe.dials), recipe.seed)
    pad_id = tokenizer.token_to_id(PAD)
    tokens = places = 0
    losses: list[float] = []
    started = time.process_time()
    bar = tqdm(range(recipe.steps), unit="step", file=sys.stdout, mininterval=2.0)
    for step in bar:
        input_ids, mask, targets = tensors(next(stream), pad_id)
        for optim in optims:
            base = recipe.muon_lr if isinstance(optim, torch.optim.Muon) else recipe.adam_lr
            optim.param_groups[0]["lr"] = base * schedule(step, recipe)
        hidden = model(input_ids, None if mask.all() else mask, hidden_only=True)
        taught = targets != NO_TARGET
        logits = model.logits(hidden[taught])  # (targets, V)
        loss = nn.functional.cross_entropy(logits, targets[taught])
        loss.backward()
        for optim in optims:
            optim.step()
            optim.zero_grad()
        tokens += int(mask.sum())
        places += mask.numel()
        losses = [*losses[-49:], loss.item()]
        bar.set_postfix(
            loss=f"{sum(losses) / len(losses):.4f}", tokens=f"{tokens / 1e6:.2f}M", refresh=False
        )
    seconds = time.process_time() - started
    return model.eval(), Outcome(
        recipe.steps, tokens, 1 - tokens / places, seconds, sum(losses) / len(losses)
    )
