"""peers: the same weights and prompts in both libraries, honest arithmetic, and one line for
whatever is wrong."""

import json
import re
import runpy
import sys
from dataclasses import asdict

import pytest
import torch
from helpers import SHAPE, alone_greedy, alone_logits, random_model
from small_checkpoint import VOCAB, write_small_checkpoint

from qwenlab import bench
from qwenlab.bench import beside, roofline, twins
from qwenlab.cli.main import main
from qwenlab.fast import linear

pytest.importorskip("transformers")

QUICK = [
    "--batch",
    "1,3",
    "--prompt-tokens",
    "6",
    "--new-tokens",
    "20",
    "--prefill",
    "4,9",
    "--repeats",
    "2",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_small_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(autouse=True)
def small_shape(monkeypatch):
    monkeypatch.setitem(
        twins.SHAPES,
        "small",
        {**SHAPE, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
    )


@pytest.fixture
def run(capsys):
    """Runs `qwenlab peers` with these options; its status, stdout and stderr."""

    def run(*options):
        with pytest.raises(SystemExit) as end:
            main(["peers", *map(str, options)])
        return end.value.code, *capsys.readouterr()

    return run


# --- the two sides ---


def test_both_generate_the_same_for_prompts_of_unequal_lengths(folder):
    prompts = [[5, 6, 7, 8, 9], [10], [11, 12, 13]]
    ours, theirs = twins.load_twins(folder, None)
    expected = [alone_greedy(ours.model, prompt, 7) for prompt in prompts]
    assert ours.generate(prompts, 7) == theirs.generate(prompts, 7) == expected


def test_nobody_stops_and_nothing_is_penalised(folder, tmp_path):
    """Whatever the checkpoint's own settings say: every id ends an answer, samples, and repeats at
    a price."""
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    settings = {
        "eos_token_id": [*range(VOCAB)],
        "do_sample": True,
        "temperature": 0.6,
        "repetition_penalty": 1.5,
    }
    (tmp_path / "generation_config.json").write_text(json.dumps(settings), encoding="utf-8")
    ours, theirs = twins.load_twins(tmp_path, None)
    assert (
        ours.generate([[5, 6], [7]], 6)
        == theirs.generate([[5, 6], [7]], 6)
        == twins.load_twins(folder, None)[1].generate([[5, 6], [7]], 6)
    )


def test_random_weights_are_held_once_and_are_the_same(folder):
    before = torch.random.get_rng_state()
    ours, theirs = twins.load_twins(None, "small")
    assert torch.equal(torch.random.get_rng_state(), before)
    assert ours.generate([[1, 2, 3], [4]], 5) == theirs.generate([[1, 2, 3], [4]], 5)
    named = dict(theirs.model.named_parameters())
    for name, parameter in ours.model.named_parameters():
        assert parameter.data_ptr() == named[name].data_ptr() and parameter.dtype == torch.float32
    half, other = twins.load_twins(None, "small", "bfloat16")
    assert half.model.dtype == other.model.dtype == torch.bfloat16


def test_a_shape_is_measured_as_load_makes_it(folder):
    """Else our plain code would be measured, which nobody runs on a CPU."""
    loaded, _ = twins.load_twins(folder, None)
    of_shape, _ = twins.load_twins(None, "small")
    kinds = {type(module) for module in of_shape.model.modules()}
    assert kinds == {type(module) for module in loaded.model.modules()}


def test_the_published_shape():
    from qwenlab.model.config import Config
    from qwenlab.model.model import Model

    with torch.device("meta"):
        model = Model(Config.from_dict(twins.SHAPES["0.6b"]))
    assert sum(p.numel() for p in model.parameters()) == 596_049_920


# --- what is made of the times ---


class Clock:
    """Stands in for perf_counter: it moves when a side works."""

    now = 0.0

    def __call__(self):
        return self.now


class Side:
    """A side that takes a known time: `first` for the first token, `step` for each later one,
    `token` to read one."""

    def __init__(self, clock, calls, name, first, step, token):
        self.clock, self.calls, self.name, self.times = clock, calls, name, (first, step, token)
        self.model = random_model()

    def generate(self, prompts, new_tokens):
        self.calls.append((self.name, len(prompts), new_tokens))
        first, step, _ = self.times
        self.clock.now += first + (new_tokens - 1) * step
        said = [[1] * new_tokens for _ in prompts]
        if self.name == "transformers" and len(prompts) == 4:
            said[2][3:] = [9] * (new_tokens - 3)
        return said

    def prefill(self, input_ids):
        self.calls.append((self.name, tuple(input_ids.shape)))
        self.clock.now += self.times[2] * input_ids.shape[1]


@pytest.fixture
def unit(monkeypatch):
    """A machine that takes no seconds to measure."""
    unit = bench.Machine("a machine", "float32", 1e6, 1e9)
    monkeypatch.setattr(beside, "measure_machine", lambda *_: unit)
    return unit


@pytest.fixture
def known(monkeypatch, unit):
    """A comparison of two sides of known speed, with the calls that were made."""
    clock, calls = Clock(), []
    sides = (
        Side(clock, calls, "qwenlab", 0.5, 0.25, 0.125),
        Side(clock, calls, "transformers", 1.0, 0.5, 0.25),
    )
    monkeypatch.setattr(roofline, "perf_counter", clock)
    monkeypatch.setattr(beside, "load_twins", lambda *_: sides)
    sizes = {"batch_sizes": (1, 4), "prompt_tokens": 8, "new_tokens": 6, "prefill": [16]}
    return bench.peers(shape="small", **sizes), calls


def test_prefill_and_decode_are_told_apart(known):
    made, _ = known
    one, four = made.batches
    prompt_tokens = 8.0  # of the first row
    assert (one.batch_size, four.batch_size) == (1, 4)
    assert (
        one.prefill.qwenlab.median == prompt_tokens / 0.5
        and one.prefill.transformers.median == prompt_tokens / 1.0
    )
    assert (one.decode.qwenlab.median, one.decode.transformers.median) == (4.0, 2.0)
    assert (four.decode.qwenlab.median, four.decode.transformers.median) == (16.0, 8.0)
    for pair in (one.prefill, one.decode, four.decode, made.prefills[16]):
        assert pair.ratio.low == pair.ratio.median == pair.ratio.high == 2.0
    assert (one.over_first, four.over_first) == (2.0, 8.0)
    assert made.prefills[16].qwenlab.median == 8.0


def test_sides_take_turns(known):
    _, calls = known
    batches = [
        (name, size, n) for size in (1, 4) for name in ("qwenlab", "transformers") for n in (1, 6)
    ]
    forth = [*batches, ("qwenlab", (1, 16)), ("transformers", (1, 16))]
    back = [("transformers", (1, 16)), ("qwenlab", (1, 16))]
    back += [
        (name, size, n) for size in (4, 1) for name in ("transformers", "qwenlab") for n in (1, 6)
    ]
    assert calls == forth + forth + back + forth  # warm-up, then three times


def test_the_share_of_bandwidth_is_what_a_step_must_read(known, unit):
    made, _ = known
    least, _ = bench.decode_bound(random_model(), unit, 1, 8 + 3)
    assert made.batches[0].bandwidth == {"qwenlab": least / 0.25, "transformers": least / 0.5}


def test_where_rows_part_is_said_with_the_margin(known):
    made, _ = known
    assert made.batches[0].parted == []
    (parting,) = made.batches[1].parted
    assert (parting.row, parting.token) == (2, 3)
    assert re.search(
        r"\n +4 .* 3 of 4\nof 4 rows, row 2 diverges at new token 3; alone, its two best logits there",
        str(made),
    )


def test_the_margin_is_the_lone_row_s(dense):
    prompts, said = [[1, 2, 3], [4, 5]], [[7, 8, 9], [1, 1, 1]]
    (parting,) = beside.compare(dense, prompts, said, [[7, 8, 6], [1, 1, 1]])
    best, second = alone_logits(dense, [1, 2, 3, 7, 8])[-1].topk(2).values.tolist()
    assert (parting.row, parting.token) == (0, 2) and parting.margin == pytest.approx(
        best - second, abs=1e-5
    )


def test_ratios_are_taken_run_by_run():
    pair = beside.Pair.of(12, [1.0, 2.0, 4.0], [2.0, 3.0, 16.0])
    assert (pair.qwenlab.low, pair.qwenlab.median, pair.qwenlab.high) == (3.0, 6.0, 12.0)
    assert (pair.ratio.low, pair.ratio.median, pair.ratio.high) == (1.5, 2.0, 4.0)


def test_a_decoding_too_short_to_be_seen_is_refused():
    assert beside.decode_seconds(
        [(1.0, 3.0, []), (9.0, 4.0, []), (2.0, 5.0, [])], "qwenlab", 1, 3
    ) == [1.0, 2.0, 3.0]
    with pytest.raises(
        ValueError,
        match="qwenlab, 8 rows: 2 new tokens took no longer than 1, expected more of them",
    ):
        beside.decode_seconds([(1.0, 1.0, [])], "qwenlab", 8, 2)


# --- the command ---


def check(out, err, **expected):
    """The tables and the one line of JSON hold the same; returns what the line holds."""
    *table, last = out.splitlines()
    found = json.loads(last)
    assert not any(line.startswith("{") for line in table)
    assert {name: found[name] for name in expected} == expected
    assert found["machine"] in table[0] and found["transformers_version"] in table[0]
    heads = [line for line in table if line.startswith(("decode", "prefill"))]
    assert heads == [
        "decode",
        "prefill, to the first token of generate",
        "prefill of one row, a pass of the model",
    ]
    decode = table[table.index("decode") + 2 :]
    for line, batch in zip(decode, found["batches"], strict=False):
        size, _, _, ratio, over, share, alike = re.split(r"\s{2,}", line.strip())
        rate = batch["decode"]["ratio"]
        assert size == str(batch["batch_size"]) and over == f"{batch['over_first']:.2f}"
        assert ratio == f"{rate['median']:.2f} ({rate['low']:.2f}–{rate['high']:.2f})"
        assert share == ", ".join(
            f"{batch['bandwidth'][name]:.0%}" for name in ("qwenlab", "transformers")
        )
        assert alike == f"{batch['batch_size']} of {batch['batch_size']}" and batch["parted"] == []
    assert (
        "24/24" in err and "24/24" not in out
    )  # the bar: eight cases, one warm-up and two repeats each
    return found


def test_a_folder_is_read_by_both(run, folder):
    status, out, err = run("--model", folder, *QUICK)
    assert status == 0
    found = check(
        out, err, model=str(folder), dtype="float32", prompt_tokens=6, new_tokens=20, repeats=2
    )
    assert [batch["batch_size"] for batch in found["batches"]] == [1, 3]
    assert list(found["prefills"]) == ["4", "9"]
    assert found["kernels"] == linear.record()


def test_a_shape_is_filled_with_random_weights(run, unit):
    status, out, err = run("--shape", "small", *QUICK)
    assert status == 0
    check(out, err, model="random weights of shape small", dtype="float32")


def test_the_library_gives_what_the_command_prints(folder, unit, capsys):
    made = bench.peers(str(folder), [2], 5, 20, prefill=[], repeats=1)
    assert capsys.readouterr().out == ""
    assert "\n" not in made.json() and json.loads(made.json())["batches"] == asdict(made)["batches"]


def test_help_names_every_option(run):
    status, out, _ = run("--help")
    assert status == 0
    for (
        name
    ) in "model shape batch prompt-tokens new-tokens prefill repeats threads dtype device".split():
        assert f"--{name} " in out


def test_the_old_command_names_the_new_one(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["qwenlab.bench", "peers", "--model", "tiny"])
    with pytest.raises(SystemExit) as end:
        runpy.run_module("qwenlab.bench", run_name="__main__")
    out, err = capsys.readouterr()
    assert (end.value.code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("qwenlab: ") and "`qwenlab peers`" in line


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--batch", "1,two"], "--batch is '1,two', expected whole numbers separated by commas"),
        (["--batch", "0"], "a batch size is 0, expected a whole number of at least 1"),
        (["--batch", "2,2"], "batch_sizes is [2, 2], expected at least one size and none twice"),
        (["--prefill", "x"], "--prefill is 'x', expected whole numbers separated by commas"),
        (["--prefill", "0"], "a prefill length is 0, expected a whole number of at least 1"),
        (["--prefill", "257"], "the longest row would hold 257 tokens, expected at most 256"),
        (["--prompt-tokens", "0"], "prompt_tokens is 0, expected a whole number of at least 1"),
        (["--prompt-tokens", "240"], "the longest row would hold 260 tokens, expected at most 256"),
        (["--new-tokens", "1"], "new_tokens is 1, expected a whole number of at least 2"),
        (["--repeats", "0"], "repeats is 0, expected a whole number of at least 1"),
        (["--threads", "0"], "--threads is 0, expected a whole number of at least 1"),
        (["--dtype", "int8"], "dtype is 'int8', expected one of float32, bfloat16, float16, auto"),
        (["--device", "abacus"], "device 'abacus' can't be used"),
        (["--model", "./nowhere"], "no checkpoint './nowhere'"),
        (["--shape", "0.6b"], "both a model and a shape, expected one of them"),
        (["--repeats", "often"], "--repeats"),
        (["a-file"], "unexpected extra argument"),
    ],
)
def test_wrong_input_is_one_line_and_status_2(run, folder, options, complaint):
    refused(run, complaint, "--model", folder, *QUICK, *options)


def refused(run, complaint, *options):
    status, out, err = run(*options)
    assert status == 2 and out == ""
    line = err.splitlines()[-1]
    assert (
        line.startswith("qwenlab: ")
        and complaint in line
        and "Traceback" not in err
        and "run/s" not in err
    )


def test_what_is_measured_must_be_named_and_known(run):
    with pytest.raises(ValueError, match="neither a model nor a shape, expected one of them"):
        bench.peers(None)
    refused(run, "shape is 'huge', expected one of 0.6b, 0.8b, small", "--shape", "huge", *QUICK)


def test_a_missing_peer_is_named_with_its_remedy(run, folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    refused(
        run,
        "transformers is not installed, expected: pip install 'qwenlab[peers]'",
        "--model",
        folder,
        *QUICK,
    )


def test_a_folder_that_only_we_can_read(run, tmp_path):
    write_small_checkpoint(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(
        json.dumps({**config, "attention_dropout": "much"}), encoding="utf-8"
    )
    refused(run, f"{tmp_path}: transformers can't read it (", "--model", tmp_path, *QUICK)
