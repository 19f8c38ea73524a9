"""`qwenlab traces` and `qwenlab distill`: from problems to a trained student, killed on the way, or
asked wrongly."""

import json
import random
import signal

import pytest
import torch
from forks import Forked, run_command
from helpers import count
from small_checkpoint import write_small_checkpoint

import qwenlab
from qwenlab.cli.main import main
from qwenlab.training.trainer import last_checkpoint

STEPS = 60
# A checkpoint every five steps, so that kills come before, in and behind them.
OFTEN = {"qwenlab.training.distillation.SAVE_EVERY": 5}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(write_small_checkpoint(tmp_path_factory.mktemp("checkpoint")))


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> str:
    rng, path = random.Random(0), tmp_path_factory.mktemp("data") / "traces.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for _ in range(48):
            a, b = rng.randrange(100), rng.randrange(100)
            text = {"problem": f"{a}+{b}?", "message_thinking": f"{a} and {b} " * rng.randint(1, 5)}
            file.write(json.dumps(text | {"message_content": f"{a + b}", "instruction": ""}) + "\n")
    return str(path)


def weights(folder) -> dict[str, torch.Tensor]:
    return dict(qwenlab.load(last_checkpoint(folder), device="cpu")[0].named_parameters())


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


# --- What they do ----------------------------------------------------------------------------------------------------


def test_traces_then_distill(run):
    options = ["--data", "tiny-train", "--limit", 20, "--temperature", 0, "--max-new-tokens", 128]
    code, out, err = run("traces", "--model", "tiny", *options, "--output", "t")
    assert code == 0 and "tiny, float32 on cpu, 20 problems" in err
    records = [json.loads(line) for line in open("t/traces.jsonl", encoding="utf-8")]
    assert (
        f"t/traces.jsonl: {len(records)} traces of 20 problems" in out and 15 < len(records) <= 20
    )
    options = [
        "--data",
        "t/traces.jsonl",
        "--held-out",
        4,
        "--epochs",
        2,
        "--lr",
        1e-4,
        "--output",
        "d",
    ]
    code, out, err = run("distill", "--model", "tiny-base", *options)
    assert code == 0 and f"tiny-base, float32 on cpu, {len(records)} traces" in err
    assert (
        "held-out loss: " in out
        and "(step 0) -> " in out
        and "pads: " in out
        and "d/step-00000" in out
    )
    _, tokenizer = qwenlab.load(last_checkpoint("d"))  # a whole checkpoint
    assert tokenizer.chat([{"role": "user", "content": "1+1?"}])
    code, _, err = run("distill", "--model", "tiny-base", *options)  # once more: it is done already
    assert code == 0
    code, _, err = run("distill", "--model", "tiny-base", *options[:-1], "e", "--max-length", 28)
    assert code == 0 and "whose answer starts too late to fit: " in err and "dropped " in err


def test_a_teacher_s_probabilities(run, data):
    options = [
        "--model",
        "tiny-base",
        "--data",
        data,
        "--epochs",
        0.5,
        "--held-out",
        8,
        "--batch-size",
        4,
    ]
    losses = []
    for number, more in enumerate(
        ([], ["--teacher", "tiny"], ["--teacher", "tiny", "--temperature", 2])
    ):
        code, out, _ = run("distill", *options, *more, "--output", number)
        assert code == 0
        losses.append(out.partition("held-out loss: ")[2])
    assert len(set(losses)) == 3


# --- Killed ----------------------------------------------------------------------------------------------------------


def options_of(model, data, folder) -> list[str]:
    options = [
        "distill",
        "--model",
        model,
        "--data",
        data,
        "--output",
        str(folder),
        "--lr",
        "1e-3",
        "--seed",
        "2",
    ]
    return [*options, "--epochs", "6", "--batch-size", "4", "--micro-batch", "3", "--held-out", "8"]


def start(model, data, folder, **options) -> Forked:
    """In a process of its own, to be killed."""
    streams = (None, folder.with_name("said"), folder.with_name("told"))
    arguments = options_of(model, data, folder)
    return Forked(
        run_command, *arguments, folder=folder, streams=streams, settings=OFTEN, **options
    )


def finish(*arguments) -> None:
    """In this process, to the end."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with pytest.raises(SystemExit) as end:
            main(options_of(*arguments))
        assert not end.value.code
    finally:
        torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def whole(model, data, tmp_path_factory):
    """A run that nobody stopped."""
    run = start(model, data, tmp_path_factory.mktemp("whole") / "run")
    assert run.end() == 0
    return run


@pytest.mark.parametrize("trial", range(count(2, 20)))
def test_a_run_killed_at_any_place_ends_with_the_same_weights(model, data, whole, tmp_path, trial):
    """Killed before an operation on a file, or halfway through writing one; at full count also
    twice."""
    expected, places = whole.folder, whole.places
    rng, folder = random.Random(trial), tmp_path / "run"
    torn = rng.randrange(1, rng.choice([500, 500_000])) if trial % 2 else None
    left = len(places) - 1
    for _ in range(count(1, 2)):
        killed = start(model, data, folder, signal_at=rng.randrange(left), torn=torn)
        assert killed.end() == (-signal.SIGKILL if torn is None else -signal.SIGXFSZ)
        left = max(1, left - len(killed.places))
    finish(model, data, folder)
    assert equal(weights(folder), weights(expected))
    losses = [
        [json.loads(line)["loss"] for line in (path / "metrics.jsonl").open(encoding="utf-8")]
        for path in (folder, expected)
    ]
    assert losses[0] == losses[1] and len(losses[0]) == STEPS
    assert len((folder / "metrics.csv").read_text(encoding="utf-8").splitlines()) == STEPS + 1
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        path.name for path in expected.iterdir()
    )


def test_ctrl_c_saves_and_says_how_to_go_on(model, data, whole, tmp_path):
    expected, places = whole.folder, whole.places
    folder = tmp_path / "run"
    removal = places.index("os.rmdir")  # of the first checkpoint, after the second, of step 10
    stopped = start(model, data, folder, signal_at=removal, signal_number=signal.SIGINT)
    assert stopped.end() == 130
    err = (tmp_path / "told").read_text(encoding="utf-8")
    assert (
        "Traceback" not in err
        and "resume from there" in err
        and int(last_checkpoint(folder).name[5:]) >= 8
    )
    finish(model, data, folder)
    assert equal(weights(folder), weights(expected))


# --- Asked wrongly ---------------------------------------------------------------------------------------------------

GOOD = json.dumps({"problem": "1+1?", "message_content": "2"}) + "\n"


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("", [], "t.jsonl: no trace in it"),
        (GOOD + "{\n", [], "t.jsonl line 2: not JSON"),
        (GOOD + '{"problem": "2"}\n', [], "t.jsonl line 2: message_content is None, expected text"),
        (
            GOOD * 9,
            ["--max-length", 4],
            "none of 9 traces has a token of its answer within 4 tokens",
        ),
        (GOOD * 9, [], "only 9 usable traces; more than held_out=64 are needed"),
        (
            GOOD * 9,
            ["--held-out", 2, "--batch-size", 0],
            "batch_size is 0, expected a whole number of at least 1",
        ),
        (
            GOOD * 9,
            ["--held-out", 2, "--epochs", "1e300"],
            "epochs is 1e+300, expected a number above 0",
        ),
        (GOOD * 9, ["--held-out", 2, "--lr", "nan"], "lr is nan, expected a number above 0"),
        (
            GOOD.replace("}", ', "instruction": 5}'),
            [],
            "t.jsonl line 1: instruction is 5, expected text",
        ),
        (
            GOOD * 9,
            ["--held-out", 2, "--teacher", "tiny"],
            "a teacher's logits need the student's vocabulary: id ",
        ),
        (GOOD * 9, ["--held-out", 2, "--teacher", "nobody"], "no checkpoint 'nobody'"),
        (GOOD * 9, ["--data", "t.txt"], "t.txt: expected a .json or .jsonl file"),
        (GOOD * 9, ["--data", "none.json"], "none.json: can't be read (No such file or directory)"),
        (GOOD * 9, ["--held-out", 2, "--output", "mine"], "mine: holds files but no run"),
    ],
)
def test_wrong_input_is_one_line_and_nothing_is_written(
    run, model, tmp_path, text, options, message
):
    (tmp_path / "t.jsonl").write_text(text, encoding="utf-8")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x", encoding="utf-8")
    code, out, err = run(
        "distill", "--model", model, "--data", "t.jsonl", "--output", "d", *options
    )
    said = [line for line in err.splitlines() if "traces" not in line.partition(" on cpu")[2]]
    assert (
        (code, out) == (2, "") and len(said) == 1 and message in said[0] and "Traceback" not in err
    )
    assert not (tmp_path / "d").exists() and [
        path.name for path in (tmp_path / "mine").iterdir()
    ] == ["thesis.tex"]


@pytest.mark.parametrize(
    "options",
    [
        ["--temperature", -1],
        ["--temperature", "inf"],
        ["--top-p", 2],
        ["--max-new-tokens", -1],
        ["--slots", 0],
        ["--seed", -1],
        ["--limit", 0],
    ],
)
def test_wrong_options_of_traces_leave_nothing_so_that_the_right_ones_go_on(run, tmp_path, options):
    given = [
        "traces",
        "--model",
        "tiny",
        "--data",
        "tiny-train",
        "--limit",
        2,
        "--output",
        "t",
        "--temperature",
        0,
    ]
    code, out, err = run(*given, *options)
    assert (code, out) == (2, "") and f"{options[0][2:].replace('-', '_')} " in err.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []
    if options[0] == "--slots":
        assert run(*given, "--max-new-tokens", 128)[0] == 0


def test_another_run_s_folder_is_refused(run, data, model, whole):
    before = {path: path.read_bytes() for path in whole.folder.rglob("*") if path.is_file()}
    code, out, err = run(
        "distill", "--model", model, "--data", data, "--output", whole.folder, "--held-out", 8
    )
    assert (code, out) == (2, "") and "holds another run (" in err
    code, out, err = run(
        "traces", "--model", "tiny", "--data", "tiny-train", "--limit", 3, "--output", whole.folder
    )
    assert (code, out) == (2, "") and "holds another run (" in err
    assert before == {path: path.read_bytes() for path in whole.folder.rglob("*") if path.is_file()}
