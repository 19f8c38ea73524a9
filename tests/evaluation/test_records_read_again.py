"""What a run reads of its own folder is checked: a line that is no record is named, and so is one
of another run."""

import json
import shutil

import pytest
import torch

import qwenlab
from qwenlab.evaluation import evaluate, load_problems, self_consistency
from qwenlab.run_folder import RunFolder, RunFolderError
from qwenlab.training.traces import make_traces
from qwenlab.training.trainer import TrainingError, read_metrics


@pytest.fixture(scope="module")
def tiny():
    return qwenlab.load("tiny", device="cpu")


@pytest.fixture(scope="module")
def problems():
    return load_problems("tiny-test", 6)


def answer(tiny, problems, folder):
    return evaluate(*tiny, problems, max_new_tokens=4, folder=folder)


def vote(tiny, problems, folder):
    return self_consistency(*tiny, problems, samples=1, max_new_tokens=4, folder=folder)


def collect(tiny, problems, folder):
    return make_traces(*tiny, problems, folder, max_new_tokens=40, only_right=False)


FILES = {answer: "records.jsonl", vote: "records.jsonl", collect: "traces.jsonl"}
NOT_RECORDS = {
    "5": "expected a record, found int",
    "null": "expected a record, found NoneType",
    "[1]": "expected a record, found list",
    '"a"': "expected a record, found str",
    "{}": "is missing, expected",
    "": "not JSON",
    "{": "not JSON",
    "[" * 100_000: "not JSON",
    "1" * 10_000: "not JSON",
    "\udcff": "not JSON",
}
WRONG_FIELDS = [
    ("number", -1),
    ("number", True),
    ("number", "0"),
    ("number", 1.0),
    ("number", None),
    ("number", 10**400),
    ("finish_reason", 3),
]
OF_ANSWERS = [
    ("verdict", "yes"),
    ("verdict", 1),
    ("verdict", None),
    ("sample", None),
    ("answer", 7),
    ("gold", None),
    ("seconds", "1"),
]


@pytest.fixture(scope="module", params=FILES)
def finished(request, tiny, problems, tmp_path_factory):
    """A run in its folder: what goes on there, the folder, the name of its file of records."""
    folder = tmp_path_factory.mktemp("finished")
    request.param(tiny, problems, folder)
    return request.param, folder, FILES[request.param]


def refused(tiny, problems, finished, tmp_path, line: int, text: str) -> str:
    """What the run says if this line of its records, counted from 1, is such a text. It leaves the
    files alone."""
    go_on, folder, name = finished
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    path = tmp_path / name
    lines = path.read_text(encoding="utf-8").splitlines()
    lines[line - 1 : line] = [text]
    path.write_bytes("".join(each + "\n" for each in lines).encode("utf-8", "surrogateescape"))
    before = path.read_bytes()
    with pytest.raises(RunFolderError) as caught:
        go_on(tiny, problems, tmp_path)
    assert path.read_bytes() == before and "\n" not in str(caught.value)
    said = str(caught.value)
    assert said.startswith(f"{path} line {line}: ") and len(said) < 500 + len(str(path))
    return said


@pytest.mark.parametrize("text", NOT_RECORDS, ids=lambda text: repr(text[:9]))
def test_a_line_that_is_no_record_is_named(tiny, problems, finished, tmp_path, text):
    assert NOT_RECORDS[text] in refused(tiny, problems, finished, tmp_path, 2, text)


@pytest.mark.parametrize(("field", "value"), WRONG_FIELDS + OF_ANSWERS)
def test_a_field_of_another_kind_is_named(tiny, problems, finished, tmp_path, field, value):
    record = json.loads((finished[1] / finished[2]).read_text(encoding="utf-8").splitlines()[1])
    if field not in record:
        pytest.skip("no field of a trace")
    said = refused(tiny, problems, finished, tmp_path, 2, json.dumps(record | {field: value}))
    assert f"line 2: {field} is " in said and ", expected " in said


def test_a_surplus_record_is_named_and_not_counted(tiny, problems, finished, tmp_path):
    lines = (finished[1] / finished[2]).read_text(encoding="utf-8").splitlines()
    last = json.loads(lines[-1])
    surplus = [last, last | {"number": 6}] + ([last | {"sample": 1}] if "sample" in last else [])
    for record in surplus:
        said = refused(tiny, problems, finished, tmp_path, len(lines) + 1, json.dumps(record))
        assert ("is there twice" if record == last else "is not of this run") in said


# --- The metrics of a training ---------------------------------------------------------------------------------------

STEP = {"step": 0, "loss": 1.5, "seconds": 0.5}
WRONG_METRICS = [
    ("5", "line 2: expected a record, found int"),
    ("null", "line 2: expected a record, found NoneType"),
    ("[" * 100_000, "line 2: not JSON"),
    ({"step": 1, "seconds": 1.0}, "line 2: loss is missing, expected a number"),
    ({**STEP, "step": "1"}, "line 2: step is '1', expected a whole number"),
    ({**STEP, "step": 5}, "line 2: step is 5, expected 1"),
    ({**STEP, "step": 1, "loss": "low"}, "line 2: loss is 'low', expected a number"),
    ({**STEP, "step": 1, "loss": [1]}, "line 2: loss is [1], expected a number"),
    ({**STEP, "step": 1, "loss": None}, "line 2: loss is None, expected a number"),
    ({**STEP, "step": 1, "loss": True}, "line 2: loss is True, expected a number"),
    ({**STEP, "step": 1, "loss": 10**400}, "line 2: loss is 1000"),
    ({**STEP, "step": 1, "loss": 1e308}, "line 2: loss is 1e+308"),
    (
        {**STEP, "step": 1, "more": 1},
        "line 2: more is missing|line 2: more is not in the earlier steps",
    ),
]


@pytest.mark.parametrize(("second", "message"), WRONG_METRICS)
def test_metrics_that_are_none_are_named_by_line(run, tmp_path, second, message):
    (tmp_path / "run").mkdir()
    text = second if isinstance(second, str) else json.dumps(second)
    (tmp_path / "run" / "metrics.jsonl").write_text(
        json.dumps(STEP) + "\n" + text + "\n", encoding="utf-8"
    )
    with pytest.raises(TrainingError) as caught:
        read_metrics(tmp_path / "run")
    assert any(each in str(caught.value) for each in message.split("|"))
    code, out, err = run("plot", "run")
    assert (code, out) == (2, "") and err.startswith("qwenlab: run/metrics.jsonl line 2: ")
    assert len(err.splitlines()) == 1 and [path.name for path in (tmp_path / "run").iterdir()] == [
        "metrics.jsonl"
    ]


@pytest.mark.parametrize("text", ["5\n", '"a"\n', "[1, 2]\n", "{}\n"])
def test_metrics_without_a_first_step_are_named(tmp_path, text):
    (tmp_path / "metrics.jsonl").write_text(text, encoding="utf-8")
    with pytest.raises(TrainingError, match="line 1: "):
        read_metrics(tmp_path)


def test_any_float_can_be_drawn(run, tmp_path):
    values = (1e299, -1e299, float("inf"), float("nan"), 0)
    steps = [{"step": number, "loss": value, "seconds": 1} for number, value in enumerate(values)]
    (tmp_path / "metrics.jsonl").write_text(
        "".join(json.dumps(step) + "\n" for step in steps), encoding="utf-8"
    )
    code, _, err = run("plot", ".")
    assert code == 0 and "2 metrics of 5 steps" in err and (tmp_path / "metrics.png").exists()


def test_a_training_whose_metrics_or_checkpoint_are_none_does_not_go_on(tmp_path):
    from qwenlab.training import grpo

    def train():
        model, tokenizer = qwenlab.load("tiny-base", torch.float32, "cpu")
        small = {"num_rollouts": 2, "prompts_per_step": 1, "max_new_tokens": 4}
        grpo(
            model,
            tokenizer,
            load_problems("tiny-train", 2),
            steps=2,
            lr=1e-3,
            folder=tmp_path / "run",
            **small,
        )

    train()
    metrics, position = (
        tmp_path / "run" / "metrics.jsonl",
        tmp_path / "run" / "step-000002" / "training.json",
    )
    whole = metrics.read_text(encoding="utf-8")
    for text in (
        whole.replace('"loss": ', '"loss": "a", "x": ', 1),
        whole.splitlines()[0] + "\n5\n",
        "null\nnull\n",
    ):
        metrics.write_text(text, encoding="utf-8")
        with pytest.raises((TrainingError, RunFolderError), match=r"metrics\.jsonl line \d: "):
            train()
        assert metrics.read_text(encoding="utf-8") == text
    metrics.write_text(whole.splitlines()[0] + "\n", encoding="utf-8")
    with pytest.raises(
        TrainingError, match=r"metrics\.jsonl: 1 steps, expected the 2 of step-000002"
    ):
        train()
    metrics.write_text(whole, encoding="utf-8")
    position.write_text('{"step": "two"}', encoding="utf-8")
    with pytest.raises(
        TrainingError, match=r"training\.json: step is 'two', expected a whole number"
    ):
        train()


# --- What a kill leaves, and what a command's status says -------------------------------------------------------------


def test_what_a_kill_left_half_written_goes_when_the_run_goes_on(tmp_path):
    RunFolder(tmp_path, {"seed": 1}).close()
    for name in ("step-000004.part", "step-000005.part"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_text("half", encoding="utf-8")
    (tmp_path / "summary.json.part").write_text("{", encoding="utf-8")
    with pytest.raises(RunFolderError):
        RunFolder(tmp_path, {"seed": 2})
    assert len(list(tmp_path.glob("*.part"))) == 3  # another run's are left alone
    RunFolder(tmp_path, {"seed": 1}).close()
    assert {path.name for path in tmp_path.iterdir()} <= {"run.json", "run.lock"}


def test_a_refused_folder_can_be_used_at_once(tmp_path):
    (tmp_path / "run.json").write_text("{", encoding="utf-8")
    with pytest.raises(RunFolderError, match="not readable as JSON"):
        RunFolder(tmp_path, {})
    (tmp_path / "run.json").write_text("{}", encoding="utf-8")
    RunFolder(tmp_path, {}).close()


TINY = ("--model", "tiny", "--limit", 2, "--max-new-tokens", 4)


def test_a_folder_in_use_is_a_failure(run, tmp_path):
    for command in ("evaluate", "vote", "traces"):
        RunFolder(tmp_path / "run", {}).close()
        with RunFolder(tmp_path / "run", {}):
            code, _, err = run(command, *TINY, "--data", "tiny-train", "--output", "run")
            assert code == 1 and err.splitlines()[-1] == "qwenlab: run: another process is using it"


@pytest.mark.parametrize(("number", "status"), [(28, 1), (122, 1), (5, 1), (13, 2), (36, 2)])
def test_a_full_disk_is_a_failure_and_a_name_that_can_not_be_is_wrong_input(
    run, tmp_path, monkeypatch, number, status
):
    def full(self, *_, **__):
        raise OSError(number, "as the system says")

    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    code, _, err = run("evaluate", *TINY, "--data", "tiny-test", "--output", "run")
    assert code == status and "can't be written (as the system says)" in err.splitlines()[-1]
    (tmp_path / "metrics.jsonl").write_text(json.dumps(STEP) + "\n", encoding="utf-8")
    code, _, err = run("plot", ".", "--output", "picture.png")
    assert code == status and err == "qwenlab: picture.png: can't be written (as the system says)\n"
