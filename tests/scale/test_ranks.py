"""Ranks train together: the same weights as one process, whoever has which rows, and nothing lost
when one of them dies."""

import json
import os
import random
import signal
from pathlib import Path

import pytest
import torch
from forks import HAS_FORK
from helpers import FULL, count, difference, needs_float64
from in_ranks import in_ranks, start

import qwenlab
from qwenlab.evaluation.problems import load_problems
from qwenlab.run_folder import RunFolderError
from qwenlab.scale import ranks
from qwenlab.training import distillation, rl, trainer
from qwenlab.training.traces import load_traces
from qwenlab.training.trainer import read_metrics

STEPS = 8
CLOSE = 1e-5
AVERAGES = ("token", "sequence", "fixed")
# Three groups a step, so that one rank has two of them and the other has one.
GRPO = {"num_rollouts": 4, "prompts_per_step": 3, "batch_size": 5, "max_new_tokens": 12, "lr": 1e-3}
# Of 24 rows, 4 of them held out, four batches an epoch: the last has two rows.
DISTILL = {"epochs": STEPS / 4, "batch_size": 6, "held_out": 4, "lr": 1e-3, "micro_batch": 2}
TIMES = ("seconds", "rollout_seconds", "training_seconds", "tokens_per_second")


def student(dtype: str):
    """Many ids end an answer, so that answers have unequal lengths."""
    model, tokenizer = qwenlab.load("tiny-base", "float32", "cpu")
    model.stop_ids |= frozenset(range(0, model.config.vocab_size, 7))
    return model.to(getattr(torch, dtype)), tokenizer


def odd(tokenizer, request, problem) -> float:
    """A reward for which every group has a spread now and then."""
    return float(sum(request.token_ids) % 2)


def settings_of_any(*arguments, **options) -> dict:
    """In the place of `run_settings`, which refuses float64."""
    return {}


def trained(model, metrics: list[dict]) -> tuple[dict, list[dict]]:
    kept = [{name: r[name] for name in r if name not in TIMES} for r in metrics]
    return {name: weight.detach().double() for name, weight in model.named_parameters()}, kept


def with_grpo(dtype: str = "float32", steps: int = STEPS, **options):
    rl.reward = odd
    if dtype == "float64":
        rl.run_settings = settings_of_any
    model, tokenizer = student(dtype)
    problems = load_problems("tiny-train", 40)
    return trained(model, rl.grpo(model, tokenizer, problems, steps=steps, **GRPO | options))


def write_traces(path: Path) -> Path:
    rng = random.Random(0)
    lines = []
    for _ in range(24):
        sums = [f"{rng.randint(1, 99)}+{rng.randint(1, 99)}" for _ in range(rng.randint(1, 12))]
        answer = {"problem": f"{sums[0]}?", "message_content": ", ".join(sums)}
        lines.append(json.dumps(answer) + "\n")
    path.write_text("".join(lines), encoding="utf-8")
    return path


def with_distill(traces: Path, dtype: str = "float32", save_every: int = 50, **options):
    distillation.SAVE_EVERY = save_every
    if dtype == "float64":
        distillation.run_settings = settings_of_any
    model, tokenizer = student(dtype)
    run = distillation.distill(model, tokenizer, load_traces(traces), **DISTILL | options)
    return trained(model, run.metrics)


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    return write_traces(tmp_path_factory.mktemp("traces") / "traces.jsonl")


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch):
    """What the trainings above replace, in the processes of the ranks too, is put back in this
    one."""
    monkeypatch.setattr(rl, "reward", rl.reward)
    for module in (rl, distillation):
        monkeypatch.setattr(module, "run_settings", module.run_settings)
    monkeypatch.setattr(distillation, "SAVE_EVERY", distillation.SAVE_EVERY)


# --- Sums and shares -------------------------------------------------------------------------------------------------


def test_alone_all_is_what_it_was():
    assert (ranks.rank(), ranks.size()) == (0, 1)
    assert ranks.gather("x") == ["x"] and ranks.total(0.1) == 0.1 and ranks.of_first(3) == 3
    assert ranks.share([5, 1, 4], float) == [5, 1, 4]
    with pytest.raises(RunFolderError), ranks.agreed():
        raise RunFolderError("as ever")


def shares_of(costs: list[int]) -> list[int]:
    return ranks.share(list(range(len(costs))), costs.__getitem__)


def sums() -> list:
    """Of a parameter that all have a gradient of, one that rank 1 has none of, and one that nobody
    has."""
    parameters = [torch.nn.Parameter(torch.zeros(many)) for many in (3, 2, 5)]
    parameters[0].grad = torch.arange(3.0) * (ranks.rank() + 1)
    if ranks.rank() == 0:
        parameters[1].grad = torch.ones(2)
    ranks.BUCKET = 4
    ranks.add_gradients(parameters)
    return [
        parameter.grad if parameter.grad is None else parameter.grad.tolist()
        for parameter in parameters
    ]


def told() -> str:
    """An error of rank 1 reaches every rank."""
    try:
        with ranks.agreed():
            if ranks.rank() == 1:
                raise RunFolderError("only here")
    except RunFolderError as problem:
        return str(problem)
    return "nothing"


def refused(folder: Path, **options) -> str:
    try:
        with_grpo(folder=folder, **options)
    except ValueError as problem:
        return str(problem)
    return "nothing"


def test_shares_sums_and_errors(tmp_path):
    costs = [9, 1, 1, 8, 2, 2, 1]
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").touch()
    done = in_ranks(
        {
            "shares": (shares_of, {"costs": costs}),
            "sums": (sums, {}),
            "told": (told, {}),
            "folder": (refused, {"folder": tmp_path / "full"}),
            "few": (refused, {"folder": tmp_path / "new", "prompts_per_step": 1}),
        }
    )
    first, second = done["shares"]
    assert sorted(first + second) == list(range(7)) and first == sorted(first)
    assert sum(costs[i] for i in first) == sum(costs[i] for i in second) == 12
    assert done["sums"] == [[[0.0, 3.0, 6.0], [1.0, 1.0], None]] * 2
    assert done["told"] == ["only here"] * 2
    assert done["folder"][0] == done["folder"][1] and "holds files but no run" in done["folder"][0]
    few = "prompts_per_step is 1, expected at least one group for each of 2 ranks"
    assert done["few"] == [few] * 2 and not (tmp_path / "new").exists()


# --- Trainings -------------------------------------------------------------------------------------------------------


def apart(one: dict, other: dict) -> float:
    return max(difference(one[name], other[name]) for name in one)


def check_same(ours: list, alone: tuple, steps: int, but: tuple = ()) -> None:
    """The ranks agree bit by bit with each other, and with one process but for rounding."""
    (weights, metrics), (others, records) = ours
    assert metrics == records and apart(weights, others) == 0
    assert apart(weights, alone[0]) <= CLOSE
    assert len(metrics) == len(alone[1]) == steps
    for record, expected in zip(metrics, alone[1], strict=True):
        assert record.keys() == expected.keys()
        for name in record.keys() - set(but):
            assert record[name] == pytest.approx(expected[name], rel=1e-3, abs=1e-4), name


@needs_float64
def test_every_loss_ends_with_the_weights_of_one_process():
    """In float64, because AdamW makes a weight's step as large as the learning rate even where its
    gradient is nothing but rounding."""
    steps = count(3, STEPS)
    calls = {}
    for how in AVERAGES:
        options = {"averaging": how, "dtype": "float64", "steps": steps}
        if how == "sequence":
            options |= {"kl": 0.05, "updates": 2}
        calls[how] = (with_grpo, options)
    together = in_ranks(calls)
    ends = []
    for how, (train, options) in calls.items():
        alone = train(**options)
        check_same(together[how], alone, steps)
        assert apart(together[how][0][0], alone[0]) <= 1e-10
        assert min(record["silent"] for record in alone[1]) < 1
        assert len({record["length"] for record in alone[1]}) > 1
        ends.append(alone[0])
    assert apart(ends[0], ends[1]) > CLOSE < apart(ends[0], ends[2])  # the losses do differ


@pytest.mark.skipif(not FULL, reason="eight steps of each loss, in two types (QWENLAB_FULL=1)")
@needs_float64
@pytest.mark.parametrize("how", AVERAGES)
def test_in_float32_ranks_are_as_near_to_float64_as_one_process(how, as_it_was):
    two = in_ranks({how: (with_grpo, {"averaging": how})})[how]
    one = with_grpo(averaging=how)
    exact = with_grpo(averaging=how, dtype="float64")
    assert apart(two[0][0], two[1][0]) == 0
    assert apart(two[0][0], exact[0]) <= max(CLOSE, 3 * apart(one[0], exact[0]))


def test_distillation_ends_with_the_weights_of_one_process(traces):
    together = in_ranks({"distill": (with_distill, {"traces": traces})})
    check_same(together["distill"], with_distill(traces), STEPS, but=("pads",))


def dying(at: int, told: Path, **options) -> None:
    """Rank 1 is killed before its gradients of step `at` are summed; the other writes what it is
    told."""
    add = trainer.ranks.add_gradients
    left = [at]

    def add_or_die(parameters):
        if ranks.rank() == 1 and not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1
        add(parameters)

    trainer.ranks.add_gradients = add_or_die
    try:
        with_distill(**options)
    except ranks.RankLost as problem:
        told.write_text(str(problem), encoding="utf-8")


@pytest.mark.skipif(not HAS_FORK, reason="needs SIGKILL, and processes that start at once")
def test_a_killed_rank_ends_the_others_and_nothing_is_lost(traces, tmp_path):
    """Another number of ranks is another run; the same one ends with the same bits."""
    options = {"traces": traces, "save_every": 2, "folder": tmp_path / "run"}
    told = tmp_path / "told"
    processes = start({"killed": (dying, {"at": 5, "told": told, **options})}, 2, tmp_path)
    processes[1].join()
    while not told.exists():
        processes[0].join(0.05)
        assert processes[0].is_alive() or told.exists()
    assert told.read_text(encoding="utf-8") == ranks.LOST
    assert processes[1].exitcode == -signal.SIGKILL
    processes[0].kill()  # torchrun would
    processes[0].join()
    assert len(read_metrics(tmp_path / "run")) == 5
    assert [path.name for path in trainer.checkpoints(tmp_path / "run")] == ["step-000004"]

    with pytest.raises(RunFolderError, match="ranks is 2 there"):
        with_distill(**options)
    whole = {**options, "folder": tmp_path / "whole"}
    ends = in_ranks({"whole": (with_distill, whole), "again": (with_distill, options)})
    for (weights, metrics), (again, records) in zip(*ends.values(), strict=True):
        assert apart(weights, again) == 0 and metrics == records
    written = [record["step"] for record in read_metrics(tmp_path / "run")]
    assert written == list(range(STEPS))
