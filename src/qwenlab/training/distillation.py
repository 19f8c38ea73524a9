"""Distillation: a student learns from a teacher's traces, either from the answers' tokens or from
the teacher's probabilities there.

The loss is the mean over answer tokens, so every token has the same weight however a batch is split
into micro-batches. A mean of the micro-batches' means is a different number if their lengths
differ; widely used trainers confused the two until October 2024
(https://huggingface.co/blog/gradient_accumulation). The target is either the teacher's token
(sequence-level distillation, Kim and Rush 2016, arXiv:1606.07947) or the teacher's whole
distribution at that position (Hinton et al. 2015, arXiv:1503.02531).
"""

import json
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from qwenlab.engine.padding import right_pad
from qwenlab.errors import flags, number, read_json, whole
from qwenlab.files import write_whole
from qwenlab.model.model import Model
from qwenlab.orders import seeded, seeded_order
from qwenlab.run_folder import NUMBER, WHOLE, RunFolderError, check_record
from qwenlab.scale import ranks
from qwenlab.text.tokenizer import Tokenizer
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
    open_run,
    rate_factor,
    run_settings,
    token_logprobs,
)

# The rows of so many batches are sorted by length together, so that a batch needs little padding.
POOL = 50
WARM_UP = 20  # steps
CHECK_EVERY = 50  # steps between two held-out losses
SAVE_EVERY = 50  # steps between two checkpoints
MOST_EPOCHS = 1e6
HELD_OUT = "held_out_loss"  # the metric
FINAL = "held_out.json"  # the loss after the last step, in a run's folder

Teacher = tuple[Model, Tokenizer]
T = TypeVar("T")


class Distilled(NamedTuple):
    """The result of a run. `losses`: held-out losses in nats per token, by the number of steps
    before each. `dropped`: the numbers of the traces without an answer token. `padded`: the
    fraction of pads. `metrics`: one record per step."""

    losses: dict[int, float]
    dropped: list[int]
    padded: float
    metrics: list[dict]


def distill(
    model: Model,
    tokenizer: Tokenizer,
    problems: Sequence[Trace],
    *,
    epochs: float = 1,
    minutes: float | None = None,
    batch_size: int = 8,
    micro_batch: int | None = None,
    max_length: int | None = None,
    lr: float = 1e-5,
    held_out: int = 64,
    teacher: Teacher | None = None,
    temperature: float = 1.0,
    plain: bool = False,
    seed: int = 0,
    folder: str | Path | None = None,
    progress: bool = False,
) -> Distilled:
    """Trains `model` (float32, in place) on `problems`, which are traces (`load_traces`,
    `make_traces`).

    A step takes `batch_size` rows of similar length, `micro_batch` of them at a time (None: all),
    which changes memory but not the gradient. Training ends after `epochs`, or between two steps
    once `minutes` have passed. The learning rate rises to `lr` over the first steps and then falls
    linearly to 0 at whichever end comes first. max_length: most tokens of prompt, answer and stop
    id together (None: the model's context); see `answer_rows`. The loss on `held_out` traces, which
    are never trained on, is measured before training, every CHECK_EVERY steps, and at the end.

    teacher: (model, tokenizer), as `load` returns them. The loss is then KL(teacher || student) at
    the answers' tokens, of softmax(logits / temperature), times temperature^2. The teacher must
    have the student's vocabulary.

    Of several ranks (see `qwenlab.scale.ranks`), each takes a share of a step's rows that has about
    as many tokens as the others', `micro_batch` of them at a time. The gradient stays the same.

    folder: a run that was killed resumes there and ends with the same weights, bit for bit, unless
    `minutes` is given, since no two runs take the same time. Raises TraceError, TrainingError,
    RunFolderError, and ValueError for a wrong option.
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
    if max_length is not None:
        limit = min(limit, whole(max_length, "max_length", 1))
    rows, dropped = answer_rows(model, tokenizer, problems, limit, plain)
    if len(rows) <= held_out:
        raise TraceError(
            f"only {len(rows)} usable traces; more than held_out={held_out} are needed"
        )
    if teacher:
        check_teacher(model, tokenizer, *teacher)
    rows = [rows[place] for place in seeded_order(len(rows), "held out", seed)]
    test_rows = sorted(rows[:held_out], key=row_length)
    rows = rows[held_out:]
    batches_an_epoch = -(-len(rows) // batch_size)
    steps = max(1, round(epochs * batches_an_epoch))
    settings = run_settings(
        model,
        [test_rows, rows],
        len(test_rows) + len(rows),
        task="distill",
        steps=steps,
        minutes=minutes,
        batch_size=batch_size,
        micro_batch=micro_batch,
        lr=lr,
        seed=seed,
        teacher=teacher and run_settings(teacher[0], [], 0)["model"],
        temperature=temperature,
    )
    lengths = tuple(map(row_length, rows))

    def loss_of(parts: list[list[Row]]) -> float:
        return mean_loss(model, parts, tokenizer.pad_id, teacher and teacher[0], temperature)

    def parts_of(rows: list[Row]) -> list[list[Row]]:
        """What this rank computes of a batch, a part at a time."""
        return cut(ranks.share(rows, row_length), micro_batch)

    def held_out_loss() -> float:
        with torch.no_grad():
            return loss_of(parts_of(test_rows))

    def one_step(step: int) -> dict:
        measured = {}
        if test_rows and step % CHECK_EVERY == 0:
            measured[HELD_OUT] = held_out_loss()
        elif test_rows:  # the last one, so that every record has the same fields
            measured[HELD_OUT] = training.metrics[-1][HELD_OUT]
        epoch, place = divmod(step, batches_an_epoch)
        batch = [rows[i] for i in batches(lengths, batch_size, seed, epoch)[place]]
        parts = parts_of(batch)
        loss = loss_of(parts)
        spent = training.spent / (60 * minutes) if minutes else 0
        rate = lr * min(rate_factor(step, WARM_UP, steps), 1 - spent)
        norm = training.update(rate)
        tokens = sum(map(row_length, batch))
        padded = ranks.total(sum(len(part) * max(map(row_length, part)) for part in parts))
        return {
            "loss": loss,
            **measured,
            "lr": rate,
            "gradient_norm": norm,
            "tokens": tokens,
            "pads": padded - tokens,
        }

    with open_run(folder, settings) as run:
        training = Training(model, run, lr=lr)
        limits = {"steps": steps, "minutes": minutes, "save_every": SAVE_EVERY}
        metrics = training.run(one_step, **limits, progress=progress, show=("loss",))
        final = held_out_loss() if test_rows else None
        if run and test_rows:
            content = json.dumps({"step": training.step, HELD_OUT: final}) + "\n"
            write_whole(run.path / FINAL, content, RunFolderError)
    losses = {}
    if test_rows:
        losses = measured_losses(metrics)
        losses[training.step] = final
    pads = sum(record["pads"] for record in metrics)
    tokens = sum(record["tokens"] for record in metrics)
    return Distilled(losses, dropped, pads / (pads + tokens), metrics)


def measured_losses(metrics: Sequence[dict], folder: Path | None = None) -> dict[int, float]:
    """The held-out losses that were measured, by the number of steps before each; with `folder`
    also the one after the last step, if the training has ended there."""
    losses = {record["step"]: record[HELD_OUT] for record in metrics[::CHECK_EVERY]}
    if folder and (folder / FINAL).is_file():
        last = read_json(folder / FINAL, TrainingError)
        check_record(last, str(folder / FINAL), {"step": WHOLE, HELD_OUT: NUMBER}, TrainingError)
        losses[last["step"]] = last[HELD_OUT]
    return losses


def row_length(row: Row) -> int:
    return len(row.ids)


def mean_loss(
    model: Model,
    parts: Sequence[Sequence[Row]],
    pad_id: int,
    teacher: Model | None = None,
    temperature: float = 1.0,
) -> float:
    """Mean loss over all answer tokens of `parts`, however they are split; its gradient is added to
    the parameters', unless gradients are off. Of several ranks, each gives its own parts.

    Each part's sum is divided by the tokens of all parts, because in a mean of their means a token
    in a small part would weigh more.
    """
    targets = 0
    for row in chain.from_iterable(parts):
        targets += len(row.ids) - row.prompt
    targets = ranks.total(targets)
    total = 0.0
    for part in parts:
        loss = loss_sum(model, part, pad_id, teacher, temperature) / targets
        if loss.requires_grad:
            loss.backward()
        total += loss.item()
    return ranks.total(total)


def loss_sum(
    model: Model,
    rows: Sequence[Row],
    pad_id: int,
    teacher: Model | None = None,
    temperature: float = 1.0,
) -> Tensor:
    """Sum over answer tokens of -log p(token) or, with a teacher, of temperature^2 KL(teacher ||
    student), in nats."""
    input_ids, mask, wanted = rectangle(rows, pad_id)
    if teacher is None:
        return -token_logprobs(model, input_ids, mask, wanted).sum()

    def hidden_before_answers(network: Model) -> Tensor:  # (answer tokens, hidden)
        hidden = network(input_ids, mask, hidden_only=True)
        return hidden[:, :-1][wanted[:, 1:].to(network.device)]

    def divergence(student_hidden: Tensor, teacher_hidden: Tensor) -> Tensor:
        q = (model.logits(student_hidden) / temperature).log_softmax(-1)
        p = (teacher.logits(teacher_hidden) / temperature).log_softmax(-1)
        return temperature**2 * F.kl_div(q, p, reduction="sum", log_target=True)

    piece = max(1, LOGITS // model.config.vocab_size)
    ours = hidden_before_answers(model).split(piece)
    theirs = hidden_before_answers(teacher).split(piece)  # its parameters require no gradients
    total = 0
    for student_hidden, teacher_hidden in zip(ours, theirs, strict=True):
        total = total + checkpoint(divergence, student_hidden, teacher_hidden, use_reentrant=False)
    return total


def check_teacher(
    model: Model, tokenizer: Tokenizer, teacher: Model, teacher_tokenizer: Tokenizer
) -> None:
    """Raises TrainingError, naming an id, unless teacher and student have the same vocabulary."""
    ours = tokenizer.text_of
    theirs = teacher_tokenizer.text_of
    differing = ours.items() ^ theirs.items()
    if differing or model.config.vocab_size != teacher.config.vocab_size:
        first_beyond = min(model.config.vocab_size, teacher.config.vocab_size)
        id, _ = min(differing, default=(first_beyond, ""))
        raise TrainingError(
            f"a teacher's logits need the student's vocabulary: id {id} is {theirs.get(id)!r} to "
            f"the teacher, {ours.get(id)!r} to the student; train on its traces alone"
        )


@lru_cache(maxsize=1)  # called at every step, new in every epoch
def batches(lengths: tuple[int, ...], batch_size: int, seed: int, epoch: int) -> list[list[int]]:
    """The batches of an epoch, each a list of indices into `lengths`: every row once, with rows of
    similar length together.

    Determined by the arguments alone, so that a resumed run needs only its step.
    """
    rng = seeded("batches", seed, epoch)
    filled = []
    for pool in cut(rng.sample(range(len(lengths)), len(lengths)), POOL * batch_size):
        filled += cut(sorted(pool, key=lengths.__getitem__), batch_size)
    rng.shuffle(filled)
    return filled


def cut(items: list[T], size: int) -> list[list[T]]:
    """Consecutive parts of `size` items, the last one shorter where they don't divide evenly."""
    return [items[start : start + size] for start in range(0, len(items), size)]


def rectangle(rows: Sequence[Row], pad_id: int) -> tuple[Tensor, Tensor, Tensor]:
    """input_ids (B, T) int64, right-padded; attention_mask (B, T) bool; and (B, T) bool, True for
    the ids of answers, their stop ids included. Both masks come from lengths, because an answer may
    contain the pad id, or end with it."""
    input_ids = right_pad([row.ids for row in rows], pad_id)
    lengths = torch.tensor(list(map(row_length, rows)))[:, None]  # (B, 1)
    prompts = torch.tensor([row.prompt for row in rows])[:, None]  # (B, 1)
    columns = torch.arange(input_ids.shape[1])  # (T,)
    mask = columns < lengths  # (B, T)
    return input_ids, mask, mask & (columns >= prompts)
