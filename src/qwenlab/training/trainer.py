"""What every training here needs: an optimiser, checkpoints from which it resumes bit for bit,
metrics, Ctrl-C."""

import csv
import io
import json
import logging
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from time import perf_counter

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from tqdm import tqdm

from qwenlab.errors import QwenlabError, failure, json_value, read_json, text_of
from qwenlab.fast import linear
from qwenlab.files import write_whole
from qwenlab.fingerprints import all_weights, counted, fingerprint
from qwenlab.interrupts import held_back
from qwenlab.loading import save_checkpoint
from qwenlab.model.model import Model
from qwenlab.model.weights import load_weights
from qwenlab.run_folder import NUMBER, WHOLE, RunFolder, RunFolderError, check_record
from qwenlab.scale import ranks
from qwenlab.training.steady import reference_kernels

METRICS = "metrics.jsonl"
TABLE = "metrics.csv"
# beside a checkpoint's model.safetensors
OPTIMISER = "optimizer.safetensors"
POSITION = "training.json"
LOGITS = 2**25  # most logits that are held at once: 128 MiB of float32
# Bounds of the options. AdamW moves a weight by about the learning rate per step; logits divided by
# the temperature must stay within float32.
MOST_STEPS = 10**9
LARGEST_LR = 1.0
COLDEST = 0.001
HOTTEST = 1000.0
LARGEST_KL = 1000.0
LARGE = 1e38  # about the largest float32
CHECKPOINT = re.compile(r"step-\d{6,}")
FINISHING = "finishing this step; press Ctrl-C again to stop at once"

logger = logging.getLogger(__name__)


class TrainingError(QwenlabError):
    """The model can't be trained as it is, or a step went wrong; the message is one line."""


class Training:
    """A model in training with AdamW (Loshchilov and Hutter, arXiv:1711.05101; betas 0.9 and 0.95,
    no weight decay).

    folder: where metrics.jsonl, metrics.csv and the newest checkpoint ("step-000010") are written;
    None keeps nothing. If it holds a checkpoint, model and optimiser are restored from it bit for
    bit; `step` is then the number of steps that they have done, `metrics` the records of those
    steps, and `spent` their seconds.

    Every step must depend only on its number, the settings and the weights. Then a run that was
    killed ends with the same weights as one that was not, and the same seed gives the same weights,
    bit for bit: on the same machine, with the same number of threads, on a CPU (on a GPU some sums
    have no fixed order).

    Of several ranks, only the first has a folder. All restore its checkpoint, and `update` takes
    the sum of their gradients, so they keep the same weights.
    """

    def __init__(
        self, model: Model, folder: RunFolder | None, *, lr: float, clip: float = 1.0
    ) -> None:
        self.model = model
        self.folder = folder
        self.clip = clip
        self.step = 0
        self.metrics: list[dict] = []
        path = ranks.of_first(last_checkpoint(folder.path) if folder else None)
        if path:
            load_weights(model, path, device=model.device)
        self.optimiser = torch.optim.AdamW(
            model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.0
        )
        with ranks.agreed():
            if path:
                self.restore(path)
            if folder:
                self.take_up(folder, path)
        self.metrics = ranks.of_first(self.metrics)
        self.spent = sum(record["seconds"] for record in self.metrics)

    def take_up(self, folder: RunFolder, path: Path | None) -> None:
        """Cuts the folder's metrics, and its other checkpoints, to those of checkpoint `path`."""
        if path:
            remove_others(folder.path, path)  # left by a kill right after this one was written
        self.metrics = folder.records(METRICS)[: self.step]
        check_metrics(self.metrics, folder.path / METRICS)
        if len(self.metrics) < self.step:
            have = f"{len(self.metrics)} steps, expected the {self.step} of {path.name}"
            raise TrainingError(f"{folder.path / METRICS}: {have}")
        folder.keep(METRICS, self.metrics)
        write_whole(folder.path / TABLE, as_csv(self.metrics), RunFolderError)

    def restore(self, path: Path) -> None:
        """Restores optimiser and step from a checkpoint, whose weights are loaded already."""
        parameters = dict(self.model.named_parameters())
        try:
            for place, value in load_file(path / OPTIMISER).items():
                name, _, key = place.rpartition(".")
                value = value if key == "step" else value.to(parameters[name].device)
                self.optimiser.state[parameters[name]][key] = value
        except (OSError, SafetensorError, KeyError) as problem:
            raise TrainingError(
                f"{path / OPTIMISER}: not this model's optimiser ({problem})"
            ) from None
        position = read_json(path / POSITION, TrainingError)
        check_record(position, str(path / POSITION), {"step": WHOLE}, TrainingError)
        self.step = position["step"]

    def save(self) -> None:
        """Writes a checkpoint of this step in Hugging Face layout, whole or not at all, and then
        removes the previous one."""
        name = f"step-{self.step:06}"
        if self.folder and not (self.folder.path / name).exists():
            path = self.folder.write_folder(name, self.fill)
            remove_others(self.folder.path, path)

    def fill(self, path: Path) -> None:
        """Writes the files of a checkpoint into the folder `path`."""
        save_checkpoint(self.model, path)
        tensors = {}
        for name, parameter in self.model.named_parameters():
            for key, value in self.optimiser.state[parameter].items():
                tensors[f"{name}.{key}"] = value.cpu().contiguous()
        (path / OPTIMISER).write_bytes(save(tensors))
        (path / POSITION).write_text(
            json.dumps({"step": self.step}) + "\n", encoding="utf-8", newline="\n"
        )

    def update(self, lr: float | None = None) -> float:
        """One optimiser step along the accumulated gradients, summed over all ranks, which are
        then cleared.

        Returns their norm before clipping. Raises TrainingError, before any weight has changed, if
        it is not finite.
        """
        ranks.add_gradients(self.model.parameters())
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        if not torch.isfinite(norm):
            reason = f"the gradient's norm is {norm.item()}; no weight was changed"
            raise failure(TrainingError(f"step {self.step}: {reason}"))
        if lr is not None:
            self.optimiser.param_groups[0]["lr"] = lr
        self.optimiser.step()
        self.optimiser.zero_grad()
        return norm.item()

    def run(
        self,
        one_step: Callable[[int], dict],
        *,
        steps: int | None,
        minutes: float | None = None,
        save_every: int = 10,
        progress: bool = False,
        show: Sequence[str] = (),
    ) -> list[dict]:
        """Calls `one_step(number)`, which trains and returns its metrics, until `steps` steps are
        done (None: any number) or `minutes` were spent on them, both counted from the start of the
        run, before a kill too. A step that has begun is finished. Of several ranks, the first tells
        the seconds.

        Ctrl-C lets the step finish, saves, logs that and raises KeyboardInterrupt; a second one
        doesn't wait. `show` names the metrics for the progress bar. Returns `metrics`: one record
        per step, with its number (from 0) and seconds.
        """
        self.model.requires_grad_(True)
        most = float("inf") if steps is None else steps
        limit = float("inf") if minutes is None else 60 * minutes
        if self.step and self.folder:
            logger.info(f"{self.folder.path}: {self.step} steps are there")
        bar = tqdm(total=steps, initial=self.step, unit="step", disable=not progress)
        with held_back(FINISHING) as pressed, reference_kernels(), bar:
            while self.step < most and self.spent < limit and not ranks.total(bool(pressed)):
                began = perf_counter()
                metrics = {"step": self.step, **one_step(self.step)}
                metrics["seconds"] = ranks.of_first(perf_counter() - began)
                self.spent += metrics["seconds"]
                self.step += 1
                self.metrics.append(metrics)
                if self.folder:
                    self.folder.append(METRICS, metrics)
                    self.folder.add(TABLE, as_csv([metrics]))
                shown = [f"{name} {metrics[name]:.4g}" for name in show]
                if minutes is not None:
                    shown.insert(0, f"{self.spent / 60:.1f} of {minutes:g} min")
                bar.set_postfix_str(", ".join(shown), refresh=False)
                bar.update()
                if self.step % save_every == 0:
                    self.save()
            self.save()
            stopped = ranks.total(bool(pressed))
        self.model.requires_grad_(False)
        if stopped:
            if self.folder:
                done = f"saved after {self.step} steps; the same settings resume from there"
                logger.warning(f"{self.folder.path}: {done}")
            raise KeyboardInterrupt
        return self.metrics


def rate_factor(step: int, warm_up: int, decay_steps: int | None) -> float:
    """The share of the learning rate that a step (from 0) takes: it rises over `warm_up` steps and
    falls linearly, to 0 after `decay_steps` (None: it stays)."""
    rise = (step + 1) / (warm_up or 1)
    fall = 1 - step / decay_steps if decay_steps else 1
    return min(1, rise, fall)


def as_csv(records: Iterable[dict]) -> str:
    """The steps' records as lines of CSV, with a header before step 0."""
    lines = io.StringIO()
    for record in records:
        table = csv.DictWriter(lines, record.keys(), lineterminator="\n")
        if record["step"] == 0:
            table.writeheader()
        table.writerow(record)
    return lines.getvalue()


def last_checkpoint(path: str | Path) -> Path | None:
    """The newest checkpoint in a run's folder, which `qwenlab.load` reads; None if there is none
    yet."""
    return max(checkpoints(path), key=step_of, default=None)


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))


def checkpoints(path: str | Path) -> list[Path]:
    """All checkpoints in a run's folder: two if a kill came before the older one was removed."""
    return [p for p in Path(path).glob("step-*") if CHECKPOINT.fullmatch(p.name)]


def remove_others(path: str | Path, kept: Path | None) -> None:
    """Removes all checkpoints in a run's folder except `kept`."""
    for other in checkpoints(path):
        if other != kept:
            shutil.rmtree(other, ignore_errors=True)


def read_metrics(folder: str | Path) -> list[dict]:
    """The records of a training so far, one per step.

    Raises TrainingError if the folder has none, or naming file and line for an invalid record.
    """
    path = Path(folder) / METRICS
    lines = text_of(path, TrainingError).splitlines()
    if not lines:
        raise TrainingError(f"{path}: no step was finished yet")
    records = []
    for number, line in enumerate(lines, 1):
        records.append(json_value(line, f"{path} line {number}", TrainingError))
    check_metrics(records, path)
    return records


def check_metrics(records: list, path: Path) -> None:
    """Raises TrainingError, naming the line, unless the records are those of steps 0, 1, 2, ...,
    with the same metrics in each, all of them numbers."""
    for step, record in enumerate(records):
        place = f"{path} line {step + 1}"
        check_record(record, place, {"step": WHOLE, "seconds": NUMBER}, TrainingError)
        check_record(record, place, dict.fromkeys([*records[0], *record], NUMBER), TrainingError)
        if record["step"] != step:
            raise TrainingError(f"{place}: step is {record['step']}, expected {step}")
        if surplus := record.keys() - records[0].keys():
            raise TrainingError(f"{place}: {min(surplus)} is not in the earlier steps")


def run_settings(model: Model, problems: Sequence, many: int, **options: object) -> dict:
    """The settings of a run's folder: the options, and whatever else its results depend on.

    Model and problems (JSON values, `many` in all) are included as fingerprints. Raises
    TrainingError unless the model is float32.
    """
    if model.dtype != torch.float32:
        raise TrainingError(
            f"the model is {model.dtype}, expected torch.float32: others round small updates away"
        )
    data = fingerprint([json.dumps(problems, sort_keys=True).encode()])
    machine = {"device": str(model.device), "threads": torch.get_num_threads()}
    machine["kernel"] = linear.forced() or "linear"
    data = counted(many, "problem", data)
    return {"model": all_weights(model), "problems": data, **options, **machine}


def open_run(folder: str | Path | None, settings: dict) -> AbstractContextManager[RunFolder | None]:
    """The run's folder, to be used in a `with` statement. None where none is given, and on all
    ranks but the first, which alone writes.

    How many ranks there are is a setting: other shares give other last bits. Raises RunFolderError,
    on all ranks, and RankError if another rank has another model, data or options.
    """
    many = {"ranks": ranks.size()} if ranks.size() > 1 else {}
    first, *others = ranks.gather(settings)
    for rank, theirs in enumerate(others, 1):
        for name in first:
            if name != "device" and theirs[name] != first[name]:
                here = f"{theirs[name]!r} on rank {rank}"
                raise ranks.RankError(f"{name} is {first[name]!r} on rank 0, but {here}")
    run = None
    with ranks.agreed():
        if folder and ranks.rank() == 0:
            run = RunFolder(folder, settings | many)
    return run or nullcontext()


def token_logprobs(
    model: Model,
    input_ids: Tensor,
    attention_mask: Tensor | None,
    wanted: Tensor,
    *,
    temperature: float = 1.0,
    piece: int | None = None,
) -> Tensor:
    """Log-probability of each `wanted` token under softmax(logits / temperature), given the tokens
    before it in its row.

    input_ids (B, T) int64; attention_mask (B, T) bool, True = real, None = all real; wanted (B, T)
    bool, only real tokens that directly follow a real one. Pads may be on either side. Returns
    (B, T) float32, 0 where not wanted.

    The logits are computed `piece` tokens at a time (None: 2**25 logits at a time) and, in
    training, recomputed for the backward pass: all logits of 4 x 1,100 tokens with a vocabulary of
    151,936 would take 2.7 GB, several times over. Raises ValueError naming the row.
    """
    before = torch.ones_like(wanted) if attention_mask is None else attention_mask.bool()
    wrong = wanted.clone()
    wrong[:, 1:] &= ~(before[:, 1:] & before[:, :-1])
    if wrong.any():
        row, column = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"row {row}: the wanted token {column} is a pad, or has no real token right before it"
        )
    if not temperature > 0:
        raise ValueError(f"temperature is {temperature!r}, expected a number above 0")

    def score(hidden: Tensor, ids: Tensor) -> Tensor:
        return -F.cross_entropy(model.logits(hidden) / temperature, ids, reduction="none")

    wanted = wanted[:, 1:].to(model.device)
    ids = input_ids[:, 1:].to(model.device)
    hidden = model(input_ids, attention_mask, hidden_only=True)  # (B, T, hidden)
    hidden = hidden[:, :-1][wanted]  # (N, hidden) of the tokens before the wanted ones
    piece = piece or max(1, LOGITS // model.config.vocab_size)
    pieces = list(zip(hidden.split(piece), ids[wanted].split(piece), strict=True))
    recompute = torch.is_grad_enabled() and len(pieces) > 1
    scores = [hidden.new_zeros(0, dtype=torch.float32)]  # nothing may be wanted
    for states, targets in pieces:
        if recompute:
            scores.append(checkpoint(score, states, targets, use_reentrant=False))
        else:
            scores.append(score(states, targets))
    out = hidden.new_zeros(input_ids.shape, dtype=torch.float32)  # (B, T)
    out[:, 1:][wanted] = torch.cat(scores)
    return out
