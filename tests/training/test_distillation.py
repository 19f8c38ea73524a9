"""Distillation: the loss counts answers only, however a batch is cut, and a run that broke off ends
as a whole one."""

import copy
import json
import random
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from helpers import FULL, count, difference

import qwenlab
from qwenlab.evaluation.problems import BOXED, load_problems
from qwenlab.run_folder import RunFolderError
from qwenlab.training import distillation
from qwenlab.training import trainer as training
from qwenlab.training.distillation import batches, distill, mean_loss, rectangle
from qwenlab.training.traces import Row, TraceError, load_traces, make_traces
from qwenlab.training.trainer import TrainingError

STOP, PAD = 300, 301  # PAD ends answers too


# --- What counts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [STOP, PAD])
def test_exactly_the_answer_and_its_stop_count(end):
    """Prompt 1 2, answer 3 4 and a stop id, which may be the pad's: three places, with pads behind
    them or not."""
    row, longer = Row([1, 2, 3, 4, end], 2), Row([1] * 8 + [2], 8)
    input_ids, mask, wanted = rectangle([row, longer], PAD)
    assert input_ids[0].tolist() == [1, 2, 3, 4, end] + [PAD] * 4
    assert mask[0].tolist() == [True] * 5 + [False] * 4 and mask[1].all()
    assert wanted[0].tolist() == [False] * 2 + [True] * 3 + [False] * 4
    assert wanted[1].tolist() == [False] * 8 + [True]
    assert rectangle([row], PAD)[2].sum() == 3
    assert rectangle([Row([1, 2, 3, 4], 2)], PAD)[2].sum() == 2  # cut off: no stop is made up


class Table(torch.nn.Module):
    """A model that knows only the id before: `table` (4, 4) holds the logits behind each id."""

    config, device = SimpleNamespace(vocab_size=4), torch.device("cpu")

    def __init__(self, table):
        super().__init__()
        self.table = torch.nn.Parameter(table)

    def forward(self, input_ids, attention_mask, hidden_only):
        return F.one_hot(input_ids, 4).float()

    def logits(self, hidden):
        return hidden @ self.table


def table():
    """Behind 0 comes 1 with probability e^-4, and surely 3 behind 2 and 3."""
    unlikely = torch.exp(torch.tensor(-4.0))
    return (
        torch.tensor([[1 - unlikely, unlikely, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 0, 1]])
        .log()
        .clamp(min=-99)
    )


def test_every_token_counts_the_same_however_a_batch_is_cut():
    """One token with loss 4 beside three with loss 0: 1.0, where the mean of the two micro-batches'
    means is 2.0."""
    one, three = Row([0, 1], 1), Row([2, 3, 3, 3], 1)
    gradients = []
    for parts in ([[one], [three]], [[three], [one]], [[one, three]]):
        model = Table(table())
        assert mean_loss(model, parts, 0) == pytest.approx(1.0, abs=1e-6)
        gradients.append(model.table.grad)
    e4 = float(torch.exp(torch.tensor(-4.0)))
    assert gradients[0][0].tolist() == pytest.approx([(1 - e4) / 4, (e4 - 1) / 4, 0, 0], abs=1e-6)
    assert all(difference(gradient, gradients[0]) < 1e-6 for gradient in gradients)


def gradients_of(model, parts, **options):
    model = copy.deepcopy(model).requires_grad_(True)
    loss = mean_loss(model, parts, PAD, **options)
    return loss, {name: p.grad for name, p in model.named_parameters()}


def slowly(model, rows, teacher=None, temperature=1.0):
    """Row by row, without a pad: all logits at once, those behind the prompt picked out."""
    model = copy.deepcopy(model).requires_grad_(True)
    total = sum(len(row.ids) - row.prompt for row in rows)
    loss = 0
    for row in rows:
        ids = torch.tensor([row.ids])
        logits = model(ids)[0, row.prompt - 1 : -1]
        if teacher is None:
            loss = loss + F.cross_entropy(logits, ids[0, row.prompt :], reduction="sum") / total
        else:
            theirs = teacher(ids)[0, row.prompt - 1 : -1]
            p, q = (x.double().div(temperature).softmax(-1) for x in (theirs, logits))
            loss = loss + temperature**2 * (p * (p.log() - q.log())).sum() / total
    loss.backward()
    return loss.item(), {name: p.grad for name, p in model.named_parameters()}


def random_rows(rng, rows, longest=14):
    made = []
    for _ in range(rows):
        ids = [rng.randrange(300) for _ in range(rng.randint(2, longest))]
        made.append(Row(ids + [STOP] * rng.randint(0, 1), rng.randint(1, len(ids) - 1)))
    return made


def same(ours, theirs):
    assert ours[0] == pytest.approx(theirs[0], rel=1e-5)
    assert ours[1].keys() == theirs[1].keys()
    for name, gradient in ours[1].items():
        assert difference(gradient, theirs[1][name]) <= 1e-5, name


@pytest.mark.parametrize("taught", ["by traces", "by logits"])
def test_the_gradient_is_that_of_the_rows_one_by_one(model, taught, monkeypatch):
    rng = random.Random(taught)
    teacher = copy.deepcopy(model)
    for p in teacher.parameters():
        p.mul_(1.1)
    options = {"teacher": teacher, "temperature": 2.0} if taught == "by logits" else {}
    for _ in range(count(1, 10)):
        rows = random_rows(rng, 6)
        expected = slowly(model, rows, **options)
        for size in range(1, 7):
            if size == 3:  # and the logits in pieces of seven places
                monkeypatch.setattr(training, "LOGITS", 7 * model.config.vocab_size)
                monkeypatch.setattr(distillation, "LOGITS", 7 * model.config.vocab_size)
            same(
                gradients_of(model, [rows[i : i + size] for i in range(0, 6, size)], **options),
                expected,
            )
        monkeypatch.undo()
        same(gradients_of(model, [rows[:1], rows[1:5], rows[5:]], **options), expected)
        if not options:
            with torch.no_grad():
                assert mean_loss(model, [rows[:4], rows[4:]], PAD) == pytest.approx(
                    expected[0], rel=1e-5
                )


def test_one_s_own_probabilities_have_nothing_to_teach(dense):
    rows = random_rows(random.Random(0), 4)
    loss, gradients = gradients_of(dense, [rows], teacher=dense, temperature=3.0)
    assert abs(loss) < 1e-5 and max(float(g.abs().max()) for g in gradients.values()) < 1e-4


# --- Batches ---------------------------------------------------------------------------------------------------------


def test_every_row_is_in_one_batch_of_every_epoch():
    rng = random.Random(0)
    for _ in range(count(30, 300)):
        lengths = tuple(rng.randint(2, 200) for _ in range(rng.randint(1, 900)))
        size, seed = rng.randint(1, 16), rng.randrange(99)
        cut = batches(lengths, size, seed, 0)
        assert sorted(place for batch in cut for place in batch) == list(range(len(lengths)))
        assert len(cut) == -(-len(lengths) // size) and max(map(len, cut)) <= size
        assert cut == batches.__wrapped__(lengths, size, seed, 0)


def test_batches_are_of_one_length_and_in_random_order():
    rng = random.Random(0)
    lengths = tuple(rng.randint(10, 100) for _ in range(2000))
    cut = batches(lengths, 8, 0, 0)
    pads = sum(max(lengths[i] for i in batch) - lengths[j] for batch in cut for j in batch)
    assert pads / sum(lengths) < 0.02
    firsts = [lengths[batch[0]] for batch in cut]
    assert sum(a < b for a, b in pairwise(firsts)) < 0.6 * len(firsts)
    assert batches(lengths, 8, 0, 1) != cut != batches(lengths, 8, 1, 0)


# --- A run -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    model, tokenizer = qwenlab.load("tiny", device="cpu")
    problems = load_problems("tiny-train", limit=count(200, 1000))
    return make_traces(
        model, tokenizer, problems, tmp_path_factory.mktemp("t") / "run", max_new_tokens=128
    )


def student(**options):
    return qwenlab.load("tiny-base", device="cpu", **options)


def weights(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("taught", ["by traces", "by logits"])
def test_a_few_steps_lower_the_held_out_loss(traces, taught, tmp_path):
    model, tokenizer = student()
    options = {"epochs": 2, "lr": 6e-4, "batch_size": 16, "folder": tmp_path / "run"}
    share = 0.9  # of the loss at first
    if taught == "by logits":  # with words in the prompt that both have never seen
        traces = [
            replace(trace, problem=replace(trace.problem, instruction=BOXED)) for trace in traces
        ]
        options["teacher"] = qwenlab.load("tiny", device="cpu")
        share = 0.6 if FULL else 0.75
    run = distill(model, tokenizer, traces, **options)
    steps = len(run.metrics)
    assert list(run.losses) == [*range(0, steps, distillation.CHECK_EVERY), steps]
    assert run.losses[steps] < share * run.losses[0]
    assert run.dropped == [] and 0 < run.padded < 0.1
    assert not any(p.requires_grad for p in model.parameters())
    again, _ = qwenlab.load(training.last_checkpoint(tmp_path / "run"), device="cpu")
    assert equal(weights(again), weights(model))
    rates = [record["lr"] for record in run.metrics]
    assert rates[0] < rates[10] < max(rates) <= 6e-4 and 0 < rates[-1] < 6e-5
    lines = (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["loss"] for line in lines] == [
        record["loss"] for record in run.metrics
    ]


def test_micro_batches_change_nothing_but_rounding(traces):
    after = []
    for micro_batch in (None, 3, 1):
        model, tokenizer = student()
        distill(
            model, tokenizer, traces[:60], held_out=4, epochs=0.3, lr=1e-4, micro_batch=micro_batch
        )
        after.append(weights(model))
    assert not equal(after[0], weights(student()[0]))
    for other in after[1:]:
        assert max(difference(other[name], after[0][name]) for name in other) < 1e-5


def test_dropped_traces_leave_no_mark(traces):
    """A batch with rows that have no answer token within max_length trains as the other rows alone
    do."""
    tokenizer = student()[1]
    length = {
        t.problem.number: len(tokenizer.chat([{"role": "user", "content": t.problem.problem}]))
        for t in traces
    }
    good = [trace for trace in traces if length[trace.problem.number] < 22]
    both, alone = student()[0], student()[0]
    options = {"held_out": 0, "max_length": 22, "lr": 1e-3}
    run = distill(both, tokenizer, traces, **options)
    assert (
        run.dropped == [number for number, size in length.items() if size >= 22] != []
        and run.losses == {}
    )
    assert distill(alone, tokenizer, good, **options).dropped == []
    assert equal(weights(both), weights(alone)) and all(
        p.isfinite().all() for p in both.parameters()
    )


def test_time_ends_a_run_between_two_steps(traces):
    model, tokenizer = student()
    assert len(distill(model, tokenizer, traces, minutes=1e-9).metrics) == 1
    run = distill(model, tokenizer, traces, epochs=1000, minutes=0.03, lr=1e-3, held_out=0)
    spent = [record["seconds"] / 1.8 for record in run.metrics]
    assert sum(spent[:-1]) < 1 <= sum(spent)  # and the rate has fallen as the time ran out
    rates = [1e-3 * min((step + 1) / 20, 1 - sum(spent[:step])) for step in range(len(spent))]
    assert [record["lr"] for record in run.metrics] == pytest.approx(rates)


def test_a_run_that_ended_early_goes_on_to_the_same_weights(traces, tmp_path, monkeypatch):
    model, tokenizer = student()
    options = {"epochs": 2, "lr": 1e-3, "held_out": 20}
    whole = distill(model, tokenizer, traces[:150], **options, folder=tmp_path / "whole")
    monkeypatch.setattr(distillation, "SAVE_EVERY", 7)
    asked, update = [], training.Training.update

    def broken(self, lr=None):
        asked.append(lr)
        if len(asked) in (10, 20):  # at steps 9 and 16, two behind a checkpoint
            raise RuntimeError("out of memory")
        return update(self, lr)

    monkeypatch.setattr(training.Training, "update", broken)
    for _ in range(2):
        with pytest.raises(RuntimeError):
            distill(student()[0], tokenizer, traces[:150], **options, folder=tmp_path / "parts")
    parted = student()[0]
    end = distill(parted, tokenizer, traces[:150], **options, folder=tmp_path / "parts")
    assert len(asked) == 20 + len(whole.metrics) - 14 and equal(weights(parted), weights(model))
    assert [r["loss"] for r in end.metrics] == [
        r["loss"] for r in whole.metrics
    ] and end.losses == whole.losses


# --- Wrong input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_length": 5}, "none of 20 traces has a token of its answer within 5 tokens"),
        ({"held_out": 20}, "only 20 usable traces; more than held_out=20 are needed"),
        ({"held_out": -1}, "held_out is -1, expected a whole number of at least 0"),
        ({"batch_size": 0}, "batch_size is 0, expected a whole number of at least 1"),
        ({"batch_size": 2.5}, "batch_size is 2.5, expected a whole number of at least 1"),
        ({"micro_batch": -1}, "micro_batch is -1, expected a whole number of at least 1"),
        ({"max_length": -3}, "max_length is -3, expected a whole number of at least 1"),
        ({"epochs": 0}, "epochs is 0, expected a number above 0"),
        ({"epochs": float("inf")}, "epochs is inf, expected a number above 0"),
        ({"epochs": 1e300}, "epochs is 1e+300, expected a number above 0 and at most 1e+06"),
        ({"epochs": "1"}, "epochs is '1', expected a number above 0"),
        ({"lr": 1e300}, "lr is 1e+300, expected a number above 0 and at most 1"),
        ({"lr": True}, "lr is True, expected a number above 0"),
        ({"temperature": 1e-300}, "temperature is 1e-300, expected a number above 0.001"),
        ({"minutes": "5"}, "minutes is '5', expected a number above 0"),
        ({"batch_size": 10**30}, "batch_size is 10000000000000000000000"),
        ({"seed": -1}, "seed is -1, expected a whole number of at least 0"),
        ({"seed": 0.5}, "seed is 0.5, expected a whole number of at least 0"),
        ({"plain": "no"}, "plain is 'no', expected True or False"),
        ({"teacher": "tiny"}, "teacher is a str, expected (model, tokenizer)"),
        ({"lr": float("nan")}, "lr is nan, expected a number above 0"),
        ({"temperature": 0}, "temperature is 0, expected a number above 0"),
        ({"minutes": -1}, "minutes is -1, expected a number above 0"),
        ({"minutes": 0}, "minutes is 0, expected a number above 0"),
    ],
)
def test_wrong_options_are_named(traces, tmp_path, options, message):
    model, tokenizer = student()
    with pytest.raises(ValueError) as caught:
        distill(model, tokenizer, traces[:20], **{"held_out": 4} | options, folder=tmp_path / "run")
    assert message in str(caught.value) and not (tmp_path / "run").exists()


def test_no_traces_at_all():
    with pytest.raises(TraceError, match="none of 0 traces"):
        distill(*student(), [])


def test_a_model_in_bfloat16_is_refused(traces, tmp_path):
    with pytest.raises(TrainingError, match=r"bfloat16, expected torch\.float32"):
        distill(*student(dtype="bfloat16"), traces)


def test_another_vocabulary_has_no_logits_to_teach(traces):
    model, tokenizer = student()
    other = copy.copy(tokenizer)
    other.text_of = tokenizer.text_of | {7: "seven", 9: "nine"}
    with pytest.raises(TrainingError, match=r"id 7 is 'seven' to the teacher, '.' to the student"):
        distill(model, tokenizer, traces, teacher=(student()[0], other))
    wider = copy.copy(model)
    wider.config = SimpleNamespace(vocab_size=600)
    with pytest.raises(TrainingError, match="id 512 is None"):
        distill(model, tokenizer, traces, teacher=(wider, tokenizer))


def test_another_run_s_folder_is_refused(traces, tmp_path):
    model, tokenizer = student()
    options = {"held_out": 4, "epochs": 0.2, "folder": tmp_path / "run"}
    distill(model, tokenizer, traces[:40], **options)
    files = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    for changes, what in (
        ({"lr": 1}, "lr is 1e-05 there, 1 now"),
        ({"seed": 1}, "as many others now"),
    ):
        with pytest.raises(RunFolderError, match=f"holds another run.*{what}"):
            distill(student()[0], tokenizer, traces[:40], **options | changes)
    with pytest.raises(
        RunFolderError, match=r"holds another run.*model is"
    ):  # the student that was trained already
        distill(model, tokenizer, traces[:40], **options)
    assert files == {
        path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()
    }


def test_a_full_disk_is_one_line_and_the_run_goes_on_later(traces, tmp_path, monkeypatch):
    model, tokenizer = student()
    options = {"held_out": 4, "epochs": 2, "lr": 1e-3}
    distill(model, tokenizer, traces[:60], **options)
    monkeypatch.setattr(distillation, "SAVE_EVERY", 5)
    real, saves = training.save_checkpoint, []

    def full(model, path, dtype=None):
        saves.append(path)
        if len(saves) > 1:
            (path / "model.safetensors").write_bytes(b"half")
            raise OSError(28, "No space left on device")
        real(model, path, dtype)

    monkeypatch.setattr(training, "save_checkpoint", full)
    with pytest.raises(RunFolderError, match="No space left on device"):
        distill(student()[0], tokenizer, traces[:60], **options, folder=tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").glob("step*")] == ["step-000005"]
    monkeypatch.setattr(training, "save_checkpoint", real)
    resumed = student()[0]
    distill(resumed, tokenizer, traces[:60], **options, folder=tmp_path / "run")
    assert equal(weights(resumed), weights(model))


def test_load_traces_then_distill(traces, tmp_path):
    """A file from elsewhere: only problem, thinking and content."""
    file = tmp_path / "elsewhere.json"
    names = ("message_thinking", "message_content")
    records = [
        {"problem": t.problem.problem} | dict(zip(names, (t.thinking, t.content), strict=True))
        for t in traces
    ]
    file.write_text(json.dumps(records[:30]), encoding="utf-8")
    run = distill(*student(), load_traces(file), held_out=6)
    assert len(run.metrics) == 3 and all(record["loss"] > 0 for record in run.metrics)
