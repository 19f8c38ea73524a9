"""Distillation: a student learns from a teacher's traces, the answers' tokens only, or from its
probabilities there.

The loss is the mean over answer tokens, so every token counts the same however a batch is cut. A
mean of micro-batches' means is another number wherever their lengths differ; widely used trainers
took that for the same until October 2024 (https://huggingface.co/blog/gradient_accumulation). Two
ways to learn: the teacher's token as the one right answer (sequence-level distillation, Kim and
Rush 2016, arXiv:1606.07947), or the teacher's whole distribution at that place (Hinton et al. 2015,
arXiv:1503.02531).
"""

from collections.abc import Sequence
from contextlib import nullcontext
from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from qwenlab.engine.padding import right_pad
from qwenlab.errors import flags, number, whole
from qwenlab.orders import seeded, seeded_order
from qwenlab.run_folder import RunFolder
from qwenlab.training.traces import Row, Trace, TraceError, answer_rows
from qwenlab.training.trainer import (
    COLDEST,
    HOTTEST,
    LARGE,
    LARGEST_LR,
    LOGITS,
    MOST_STEPS,
    Training,
    TrainingError,
    run_settings,
    token_logprobs,
)

# rows of a batch should be of one length: so many batches are cut at once from rows sorted by
# length
POOL = 50
WARM_UP = 20  # steps
CHECK_EVERY = SAVE_EVERY = 50  # steps
MOST_EPOCHS = 1e6


class Distilled(NamedTuple):
    """What a run did. `losses` are the held-out ones, in nats a token, by the number of steps
    before each; `dropped` the numbers of the traces without an answer token; `padded` the share of
    pads; `metrics` a record a step."""

    losses: dict[int, float]
    dropped: list[int]
    padded: float
    metrics: list[dict]


def distill(
    model,
    tokenizer,
    problems: Sequence[Trace],
    *,
    epochs: float = 1,
    minutes: float | None = None,
    batch_size: int = 8,
    micro_batch: int | None = None,
    max_length: int | None = None,
    lr: float = 1e-5,
    held_out: int = 64,
    teacher=None,
    temperature: float = 1.0,
    plain: bool = False,
    seed: int = 0,
    folder=None,
    progress: bool = False,
) -> Distilled:
    """Trains `model` (float32, in place) on `problems`, which are traces (`load_traces`,
    `make_traces`).

    A step takes `batch_size` rows of nearly one length, `micro_batch` of them at a time (None =
    all), which changes memory and not the gradient. It ends after so many `epochs`, or between two
    steps once `minutes` are over. The rate rises over the first steps to `lr` and falls straight to
    0 at the end, whichever comes first. max_length: tokens of prompt, answer and stop id together
    (None: the model's context); see `answer_rows`. `held_out` traces are kept apart, and their loss
    is taken before, every so many steps, and after.

    teacher: a (model, tokenizer) as `load` gives it. Then the loss is KL(teacher || student) at the
    answers' tokens, of softmax(logits / temperature), times temperature^2. It must have the
    student's vocabulary.

    folder: a run that was killed goes on there and ends with the same weights, bit by bit; not so
    with `minutes`, since no two runs take the same time. Raises TraceError, TrainingError,
    RunFolderError, and ValueError for an option.
    """
    number(epochs, "epochs", most=MOST_EPOCHS)
    number(lr, "lr", most=LARGEST_LR)
    number(temperature, "temperature", above=COLDEST, most=HOTTEST)
    if minutes is not None:
        number(minutes, "minutes", most=LARGE)
    whole(batch_size, "batch_size", 1, MOST_STEPS)
    micro_batch = whole(batch_size if micro_batch is None else micro_batch, "micro_batch", 1)
    whole(held_out, "held_out", 0)
    whole(seed, "seed", 0)
    flags(plain=plain, progress=progress)
    if teacher is not None and not (isinstance(teacher, tuple | list) and len(teacher) == 2):
        raise ValueError(f"teacher is a {type(teacher).__name__}, expected (model, tokenizer)")
    limit = model.config.max_position_embeddings
    limit = limit if max_length is None else min(limit, whole(max_length, "max_length", 1))
    rows, dropped = answer_rows(model, tokenizer, problems, limit, plain)
    if len(rows) <= held_out:
        raise TraceError(
            f"{len(rows)} traces are of use, expected more than the {held_out} that are held out"
        )
    if teacher:
        check_teacher(model, tokenizer, *teacher)
    rows = [rows[place] for place in seeded_order(len(rows), "held out", seed)]
    apart = sorted(rows[:held_out], key=lambda row: len(row.ids))
    rows = rows[held_out:]
    batches_an_epoch = -(-len(rows) // batch_size)
    steps = max(1, round(epochs * batches_an_epoch))
    options = {
        "steps": steps,
        "minutes": minutes,
        "batch_size": batch_size,
        "micro_batch": micro_batch,
        "lr": lr,
    }
    options |= {
        "seed": seed,
        "teacher": teacher and run_settings(teacher[0], [])["model"],
        "temperature": temperature,
    }
    settings = run_settings(model, [apart, rows], task="distill", **options)
    lengths = tuple(len(row.ids) for row in rows)

    def loss_of(parts: list) -> float:
        return mean_loss(model, parts, tokenizer.pad_id, teacher and teacher[0], temperature)

    def held_out_loss() -> float:
        with torch.no_grad():
            return loss_of(cut(apart, micro_batch))

    def one_step(step: int) -> dict:
        measured = {}
        if apart:
            fresh = step % CHECK_EVERY == 0
            measured = {
                "held_out_loss": held_out_loss() if fresh else training.metrics[-1]["held_out_loss"]
            }
        epoch, place = divmod(step, batches_an_epoch)
        batch = [rows[i] for i in batches(lengths, batch_size, seed, epoch)[place]]
        parts = cut(batch, micro_batch)
        loss = loss_of(parts)
        spent = training.spent / (60 * minutes) if minutes else 0
        rate = lr * min((step + 1) / WARM_UP, 1 - max(step / steps, spent))
        norm = training.update(rate)
        tokens = sum(len(row.ids) for row in batch)
        padded = 0
        for part in parts:
            padded += len(part) * max(len(row.ids) for row in part)
        return {
            "loss": loss,
            **measured,
            "lr": rate,
            "gradient_norm": norm,
            "tokens": tokens,
            "pads": padded - tokens,
        }

    with RunFolder(folder, settings) if folder else nullcontext() as run:
        training = Training(model, run, lr=lr)
        limits = {"steps": steps, "minutes": minutes, "save_every": SAVE_EVERY}
        metrics = training.run(one_step, **limits, progress=progress, show=("loss",))
    losses = {}
    if apart:
        losses = {record["step"]: record["held_out_loss"] for record in metrics[::CHECK_EVERY]}
        losses[training.step] = held_out_loss()
    pads = sum(record["pads"] for record in metrics)
    tokens = sum(record["tokens"] for record in metrics)
    return Distilled(losses, dropped, pads / (pads + tokens), metrics)


def mean_loss(
    model, parts: Sequence[Sequence[Row]], pad_id: int, teacher=None, temperature: float = 1.0
) -> float:
    """Mean loss over all answer tokens of `parts`, however they are cut; its gradient is added to
    the parameters', unless gradients are off.

    Each part's sum is divided by the tokens of all parts: in a mean of their means a token in a
    small part counts more.
    """
    targets = sum(len(row.ids) - row.prompt for part in parts for row in part)
    total = 0.0
    for part in parts:
        loss = loss_sum(model, part, pad_id, teacher, temperature) / targets
        if loss.requires_grad:
            loss.backward()
        total += loss.item()
    return total


def loss_sum(
    model, rows: Sequence[Row], pad_id: int, teacher=None, temperature: float = 1.0
) -> Tensor:
    """Sum over answer tokens of -log p(token), or with a teacher of temperature^2 KL(teacher ||
    student), in nats."""
    input_ids, mask, wanted = rectangle(rows, pad_id)
    if teacher is None:
        return -token_logprobs(model, input_ids, mask, wanted).sum()

    def divergence(ours: Tensor, theirs: Tensor) -> Tensor:
        q, p = (
            (m.logits(x) / temperature).log_softmax(-1)
            for m, x in ((model, ours), (teacher, theirs))
        )
        return temperature**2 * F.kl_div(q, p, reduction="sum", log_target=True)

    # The teacher's parameters ask for no gradients, so none are kept of it.
    hidden = [
        m(input_ids, mask, hidden_only=True)[:, :-1][wanted[:, 1:].to(m.device)]
        for m in (model, teacher)
    ]
    pieces = zip(*(x.split(max(1, LOGITS // model.config.vocab_size)) for x in hidden), strict=True)
    return sum(checkpoint(divergence, *piece, use_reentrant=False) for piece in pieces)


def check_teacher(model, tokenizer, teacher, its_tokenizer) -> None:
    """Raises TrainingError where an id isn't the same token to teacher and student."""
    ours, theirs = tokenizer.text_of, its_tokenizer.text_of
    differing = {id for id, _ in ours.items() ^ theirs.items()}
    if differing or model.config.vocab_size != teacher.config.vocab_size:
        id = min(differing, default=min(model.config.vocab_size, teacher.config.vocab_size))
        raise TrainingError(
            f"a teacher's logits need the student's vocabulary: id {id} is {theirs.get(id)!r} to "
            f"the teacher, {ours.get(id)!r} to the student; train on its traces alone"
        )


@lru_cache(maxsize=1)  # asked once a step, new once an epoch
def batches(lengths: tuple[int, ...], batch_size: int, seed: int, epoch: int) -> list[list[int]]:
    """The rows of each batch of an epoch, by their places in `lengths`: every row once, neighbours
    of one length.

    It follows from the arguments alone, so that a run which goes on needs nothing but its step.
    """
    rng = seeded("batches", seed, epoch)
    filled = []
    for pool in cut(rng.sample(range(len(lengths)), len(lengths)), POOL * batch_size):
        filled += cut(sorted(pool, key=lengths.__getitem__), batch_size)
    rng.shuffle(filled)
    return filled


def cut(things: list, size: int) -> list[list]:
    return [things[start : start + size] for start in range(0, len(things), size)]


def rectangle(rows: Sequence[Row], pad_id: int) -> tuple[Tensor, Tensor, Tensor]:
    """input_ids (B, T) int64 padded on the right, attention_mask (B, T) bool, and (B, T) bool which
    ids are answers, their stop ids included. All from lengths: an answer may end in the pad id, or
    hold it."""
    input_ids = right_pad([row.ids for row in rows], pad_id)
    columns = torch.arange(input_ids.shape[1])
    mask = columns < torch.tensor([len(row.ids) for row in rows])[:, None]  # (B, T)
    return input_ids, mask, mask & (columns >= torch.tensor([row.prompt for row in rows])[:, None])
