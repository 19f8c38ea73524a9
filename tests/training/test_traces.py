"""Traces: read from files, made by a teacher, and turned into what a student reads."""

import json
import os
import random
from types import SimpleNamespace

import pytest
from helpers import count

import qwenlab
from qwenlab.evaluation.problems import BOXED, Problem, ProblemError, load_problems
from qwenlab.run_folder import RunFolderError
from qwenlab.text.tokenizer import Tokenizer
from qwenlab.training import traces
from qwenlab.training.traces import Row, TraceError, answer_rows, load_traces, make_traces

STOP, OTHER_STOP = 300, 299


def Trace(number, problem, *answer, instruction="", **options):
    return traces.Trace(
        Problem(number, problem, "", str(number), {}, instruction), *answer, **options
    )


@pytest.fixture(scope="module")
def tiny():
    return qwenlab.load("tiny", device="cpu")


def write(path, *records):
    text = (
        json.dumps(records)
        if path.suffix == ".json"
        else "".join(json.dumps(r) + "\n" for r in records)
    )
    path.write_text(text, encoding="utf-8")
    return path


# --- Files -----------------------------------------------------------------------------------------------------------

GOOD = {"problem": "1+1?", "message_thinking": "1+1=2", "message_content": "\\boxed{2}"}


@pytest.mark.parametrize("name", ["t.json", "t.jsonl"])
def test_a_file_of_traces(tmp_path, name):
    records = [
        GOOD | {"gtruth_answer": "2"},
        {"problem": "2+2?", "message_content": "4", "instruction": ""},
        {
            "problem": "3+3?",
            "message_content": "6",
            "message_thinking": None,
            "finish_reason": "length",
        },
        {
            "problem": "4+4?",
            "message_content": "<think>\n4+4=8\n</think>\n\n8",
            "number": 17,
            "finish_reason": "stop",
        },
    ]
    assert load_traces(write(tmp_path / name, *records)) == [
        Trace(0, "1+1?", "\\boxed{2}", "1+1=2", instruction=BOXED),
        Trace(1, "2+2?", "4", instruction=""),
        Trace(2, "3+3?", "6", finished=False, instruction=BOXED),
        Trace(17, "4+4?", "8", "4+4=8", instruction=BOXED),
    ]


THOUGHT = "First 1.\n\nThen 2."
SHAPES = {
    "apart": {"message_thinking": THOUGHT, "message_content": "3"},
    "with line breaks": {"message_thinking": f"\n{THOUGHT}\n\n", "message_content": "\n\n3"},
    "as servers name them": {"reasoning_content": f"\n{THOUGHT}\n", "content": "\n\n3"},
    "in a block": {"message_content": f"<think>\n{THOUGHT}\n</think>\n\n3"},
    "in a block behind blanks": {"message_content": f"\n <think>{THOUGHT}</think>3"},
    "behind the prompt's opening mark": {"message_content": f"{THOUGHT}\n</think>\n\n3"},
    "the same, with line breaks": {"message_content": f"\n{THOUGHT}\n\n</think>3"},
    "with null beside it": {"message_content": f"{THOUGHT}</think>\n3", "message_thinking": None},
    "twice": {"message_content": f"<think>\n{THOUGHT}\n</think>\n\n3", "message_thinking": THOUGHT},
    "apart from an empty block": {
        "message_content": "<think>\n\n</think>\n\n3",
        "message_thinking": THOUGHT,
    },
}
UNTHOUGHT = {
    "nothing": {"message_content": "3"},
    "line breaks": {"message_content": "\n\n3", "message_thinking": "\n"},
    "an empty block": {"message_content": "<think>\n\n</think>\n\n3"},
    "the end of a block": {"message_content": "\n</think>\n\n3"},
    "null": {"content": "3", "reasoning_content": None},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_of_a_trace_is_read_as_one(tmp_path, shape):
    (read,) = load_traces(write(tmp_path / "t.jsonl", {"problem": "1+2?"} | SHAPES[shape]))
    assert (read.thinking, read.content) == (THOUGHT, "3")


@pytest.mark.parametrize("shape", UNTHOUGHT)
def test_every_shape_without_thinking_is_read_as_one(tmp_path, shape):
    (read,) = load_traces(write(tmp_path / "t.jsonl", {"problem": "1+2?"} | UNTHOUGHT[shape]))
    assert (read.thinking, read.content) == ("", "3")


@pytest.mark.parametrize("name", ["tiny", "qwen3"])
def test_a_row_is_what_the_template_writes_for_the_conversation(tiny, tmp_path, name):
    """Qwen3's template writes an assistant's last answer with its thinking; where it has none, an
    empty block."""
    model, tokenizer = tiny
    if name == "qwen3":
        folder = os.environ.get("QWENLAB_QWEN3_TOKENIZER")
        if not folder:
            pytest.skip("set QWENLAB_QWEN3_TOKENIZER to a folder with Qwen3's tokenizer")
        tokenizer = Tokenizer.from_folder(folder)
        model = SimpleNamespace(stop_ids=frozenset([151643, 151645]))
    records = [
        {"problem": "1+2?", "instruction": ""} | fields
        for fields in [*SHAPES.values(), *UNTHOUGHT.values()]
    ]
    rows, _ = answer_rows(
        model, tokenizer, load_traces(write(tmp_path / "t.jsonl", *records)), 4096
    )
    for row, record in zip(rows, records, strict=True):
        thought = THOUGHT if record in records[: len(SHAPES)] else ""
        expected = "<|im_start|>user\n1+2?<|im_end|>\n<|im_start|>assistant\n"
        expected += f"<think>\n{thought}\n</think>\n\n3<|im_end|>"
        assert tokenizer.decode(row.ids) == expected
        if name == "qwen3":
            messages = [{"role": "user", "content": "1+2?"}, {"role": "assistant", "content": "3"}]
            messages[1]["reasoning_content"] = thought
            assert tokenizer.chat(messages)[: len(row.ids)] == row.ids


@pytest.mark.parametrize("reason", ["length", "error", "cancelled"])
def test_an_answer_that_its_teacher_did_not_end_is_not_finished(tmp_path, reason):
    record = GOOD | {"finish_reason": reason}
    assert [trace.finished for trace in load_traces(write(tmp_path / "t.json", record, GOOD))] == [
        False,
        True,
    ]


def test_thinking_that_was_cut_off_is_not_closed():
    [row] = answer_rows(MODEL, Letters(), [Trace(0, "?", "", "ab", finished=False)], 99)[0]
    assert row.ids[10:] == [310, *spell("\nab")]


def test_a_model_without_stop_ids_can_not_be_taught_to_end(tiny):
    from qwenlab.training import distill

    model, tokenizer = tiny
    stops, model.stop_ids = model.stop_ids, frozenset()
    try:
        with pytest.raises(TraceError, match="the model has no stop id"):
            distill(model, tokenizer, [Trace(number, "?", "ab") for number in range(4)], held_out=1)
        rows, _ = answer_rows(model, tokenizer, [Trace(0, "?", "ab", finished=False)], 99)
        assert tokenizer.decode(rows[0].ids).endswith("ab")
    finally:
        model.stop_ids = stops


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "t.jsonl",
            json.dumps(GOOD | {"instruction": 3}),
            "line 1: instruction is 3, expected text",
        ),
        (
            "t.jsonl",
            json.dumps(GOOD | {"instruction": ["a"]}),
            "line 1: instruction is ['a'], expected text",
        ),
        (
            "t.jsonl",
            json.dumps(GOOD | {"message_content": 3}),
            "line 1: message_content is 3, expected text",
        ),
        (
            "t.jsonl",
            json.dumps({"problem": "1", "content": []}),
            "line 1: content is [], expected text",
        ),
        (
            "t.jsonl",
            json.dumps({"problem": "1", "message_content": "on and on</think>\n\n"}),
            "line 1: message_content is ''",
        ),
        ("t.jsonl", "", "t.jsonl"),
        ("t.json", "[]", "t.json"),
        ("t.jsonl", "\n \n", "t.jsonl"),
        ("t.jsonl", json.dumps(GOOD) + "\n{", "t.jsonl line 2"),
        ("t.json", "{", "t.json"),
        ("t.jsonl", json.dumps(GOOD) + "\n[]\n", "t.jsonl line 2"),
        (
            "t.jsonl",
            json.dumps(GOOD) + '\n\n{"problem": "1"}\n',
            "t.jsonl line 3: message_content is None, expected text",
        ),
        (
            "t.jsonl",
            json.dumps(GOOD | {"message_content": " "}),
            "message_content is ' ', expected text",
        ),
        (
            "t.jsonl",
            json.dumps(GOOD | {"message_thinking": 3}),
            "line 1: message_thinking is 3, expected text",
        ),
        ("t.jsonl", json.dumps(GOOD | {"problem": None}), "line 1: problem is None, expected text"),
        (
            "t.jsonl",
            json.dumps(GOOD | {"number": -1}),
            "line 1: number is -1, expected a whole number",
        ),
        (
            "t.jsonl",
            json.dumps({"problem": "1", "message_content": "<think>on and on"}),
            "line 1: message_content is ''",
        ),
    ],
)
def test_a_bad_file_is_named_by_line(tmp_path, name, text, message):
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(ValueError) as caught:
        load_traces(tmp_path / name)
    assert (
        message in str(caught.value)
        and str(tmp_path / name) in str(caught.value)
        and "\n" not in str(caught.value)
    )


# --- What the student reads ------------------------------------------------------------------------------------------


class Letters:
    """A tokenizer whose prompts have 10 ids, and one id a character behind them. `opened`: they end
    in <think>."""

    template, pad_id, opened = True, 301, False

    def __init__(self):
        self.control = {"<think>": 310, "</think>": 311}

    def chat(self, messages, thinking=True):
        return [*range(1, 10), 310 if self.opened and thinking else 10]

    def encode(self, text):
        return [ord(letter) for letter in text]

    def next_turn(self, text):
        return [STOP, 10, OTHER_STOP]


MODEL = SimpleNamespace(stop_ids=frozenset([OTHER_STOP, STOP]))


def spell(text):
    return [ord(letter) for letter in text]


def test_the_first_max_length_tokens_are_kept():
    """Prompt 10, answer 3 with its stop. A cut answer keeps its first tokens and gets no made-up
    stop."""
    trace = Trace(7, "?", "ab")
    answers = {13: [*spell("ab"), STOP], 12: spell("ab"), 11: spell("a"), 500: [*spell("ab"), STOP]}
    for length, answer in answers.items():
        rows, dropped = answer_rows(MODEL, Letters(), [trace], length)
        assert rows == [Row([*range(1, 11), *answer], 10)] and dropped == []
    for length in (1, 8, 10):
        with pytest.raises(
            TraceError, match=f"none of 1 traces has a token of its answer within {length} tokens"
        ):
            answer_rows(MODEL, Letters(), [trace], length)


def test_rows_without_an_answer_token_are_dropped_by_name():
    class Longer(Letters):
        def chat(self, messages, thinking=True):
            return [5] * len(messages[0]["content"])

    given = [Trace(3, "?" * 12, "a"), Trace(4, "?" * 10, "a"), Trace(9, "?" * 11, "a")]
    rows, dropped = answer_rows(MODEL, Longer(), given, 11)
    assert rows == [Row([5] * 10 + spell("a"), 10)] and dropped == [3, 9]


def test_what_a_teacher_never_finished_has_no_stop():
    rows, _ = answer_rows(
        MODEL, Letters(), [Trace(0, "?", "ab", finished=False), Trace(1, "?", "ab")], 99
    )
    assert [row.ids[10:] for row in rows] == [spell("ab"), [*spell("ab"), STOP]]


def test_thinking_stands_in_its_block():
    given = [Trace(0, "?", "b</think>", "a<think>")]  # marks in a text stay text
    [row] = answer_rows(MODEL, Letters(), given, 99)[0]
    assert row.ids[10:] == [310, *spell("\na<think>\n"), 311, *spell("\n\nb</think>"), STOP]
    opened = Letters()
    opened.opened = True  # as Qwen3.5's prompts end: the answer doesn't open the block again
    [row] = answer_rows(MODEL, opened, given, 99)[0]
    assert row.ids[9:] == [310, *spell("a<think>\n"), 311, *spell("\n\nb</think>"), STOP]
    [row] = answer_rows(MODEL, opened, [Trace(0, "?", "b")], 99)[0]
    assert row.ids[9:] == [10, *spell("b"), STOP]


def test_a_trace_without_thinking_stands_behind_the_prompt_that_asks_for_none(tiny):
    model, tokenizer = tiny
    rows, _ = answer_rows(
        model, tokenizer, [Trace(0, "1+1?", "2"), Trace(1, "1+1?", "2", "1+1=2")], 99
    )
    turn = "<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.decode(rows[0].ids) == turn + "<think>\n\n</think>\n\n2<|im_end|>"
    assert tokenizer.decode(rows[0].ids[rows[0].prompt :]) == "2<|im_end|>"
    assert tokenizer.decode(rows[1].ids) == turn + "<think>\n1+1=2\n</think>\n\n2<|im_end|>"
    assert (
        tokenizer.decode(rows[1].ids[rows[1].prompt :]) == "<think>\n1+1=2\n</think>\n\n2<|im_end|>"
    )


def test_a_trace_that_cannot_be_encoded_is_named(tiny):
    with pytest.raises(TraceError, match=r"^trace 5: text holds half a surrogate pair"):
        answer_rows(*tiny, [Trace(5, "?", "\ud800")], 99)


# --- Made by a teacher -----------------------------------------------------------------------------------------------

PROBLEMS = load_problems("tiny-train", limit=count(40, 300))


def make(tiny, folder, **options):
    return make_traces(*tiny, PROBLEMS, folder, **{"max_new_tokens": 128} | options)


@pytest.fixture(scope="module")
def made(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "run"
    return folder, make(tiny, folder, temperature=1.0, seed=3)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.glob("*.jsonl")}


def test_a_row_holds_the_very_ids_that_the_teacher_said(tiny, tmp_path):
    """The text goes through the tokenizer again: for what this teacher writes, nothing is lost on
    that way."""
    model, tokenizer = tiny
    given = make(tiny, tmp_path / "run", only_right=False)
    prompts = [
        tokenizer.chat([{"role": "user", "content": trace.problem.problem}]) for trace in given
    ]
    said = qwenlab.generate(model, prompts, max_new_tokens=128)
    rows, _ = answer_rows(model, tokenizer, given, 4096)
    assert len(rows) >= 0.9 * len(PROBLEMS)
    assert [row.ids for row in rows] == [
        r.prompt + r.token_ids + [r.stop_id] * (r.stop_id is not None) for r in said
    ]


def test_only_what_is_right_is_kept(made):
    folder, given = made
    kept = [
        json.loads(line)
        for line in (folder / "traces.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    rest = [
        json.loads(line)
        for line in (folder / "rejected.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert given == load_traces(folder / "traces.jsonl") and len(kept) == len(given) > len(rest) > 0
    assert sorted(r["number"] for r in kept + rest) == [p.number for p in PROBLEMS]
    right = [f"\\boxed{{{r['answer']}}}" in r["message_content"] for r in kept + rest]
    assert right == [True] * len(kept) + [False] * len(rest)


@pytest.mark.filterwarnings("ignore:request .+ its logits are NaN")
def test_an_answer_that_ended_with_an_error_is_no_trace(tiny, tmp_path, monkeypatch):
    """All but one answer break off within their text: the file of the others says why."""
    passes, compute = [], tiny[0].compute

    def poison(batch, **options):
        logits = compute(batch, **options)
        passes.append(1)
        if len(passes) == 12:
            logits[1:] = float("nan")
        return logits

    monkeypatch.setattr(tiny[0], "compute", poison)
    traces = make_traces(
        *tiny, PROBLEMS[:4], tmp_path / "r", max_new_tokens=128, only_right=False, plain=True
    )
    rejected = [
        json.loads(line)
        for line in (tmp_path / "r" / "rejected.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert len(traces) == 1 and [record["number"] for record in rejected] == [1, 2, 3]
    assert all("its logits are NaN after 11 new tokens" in record["error"] for record in rejected)


def test_a_problem_s_trace_is_its_own(tiny, made, tmp_path):
    """Neither the batch nor the other problems change what is sampled for it."""
    few = make_traces(
        *tiny, PROBLEMS[7:12], tmp_path / "r", max_new_tokens=128, temperature=1.0, seed=3, slots=2
    )
    assert few == [trace for trace in made[1] if 7 <= trace.problem.number < 12]


@pytest.mark.parametrize("moment", range(count(4, 20)))
def test_it_goes_on_after_a_kill(tiny, made, tmp_path, moment):
    """Whatever part of the files a kill has left, also half a line, the end is the same, byte for
    byte."""
    rng, folder = random.Random(moment), tmp_path / "run"
    folder.mkdir()
    (folder / "run.json").write_bytes((made[0] / "run.json").read_bytes())
    for name, content in contents(made[0]).items():
        lines = content.splitlines(keepends=True)
        rng.shuffle(lines)
        left = b"".join(lines)
        (folder / name).write_bytes(left[: rng.randint(0, len(left))])
    assert make(tiny, folder, temperature=1.0, seed=3, slots=rng.choice([8, 64])) == made[1]
    assert contents(folder) == contents(made[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_new_tokens": -1}, "max_new_tokens of prompt 0 is -1"),
        ({"temperature": float("nan")}, "temperature of prompt 0 is nan"),
        ({"top_p": 2}, "top_p of prompt 0 is 2"),
        ({"top_k": -1}, "top_k of prompt 0 is -1"),
        ({"slots": 0}, "slots is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"only_right": "no"}, "only_right is 'no', expected True or False"),
        ({"plain": 1}, "plain is 1, expected True or False"),
    ],
)
def test_wrong_options_are_named_before_anything_is_written(tiny, tmp_path, options, message):
    with pytest.raises(ValueError) as caught:
        make(tiny, tmp_path / "run", **options)
    assert str(caught.value).startswith(message) and not (tmp_path / "run").exists()


def test_an_unknown_option_or_a_problem_without_room_leaves_nothing_behind(tiny, tmp_path):
    with pytest.raises(TypeError):
        make(tiny, tmp_path / "run", temprature=0)
    long = [*PROBLEMS[:2], Problem(7, "1+1 " * 5000, "2", "long")]
    with pytest.raises(ProblemError, match=r"problem long: .* leave no room"):
        make_traces(*tiny, long, tmp_path / "run")
    with pytest.raises(ValueError, match="3 problems with 2 numbers"):
        make_traces(*tiny, [*PROBLEMS[:2], PROBLEMS[0]], tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_another_run_s_folder_is_refused(tiny, made):
    before = contents(made[0])
    with pytest.raises(RunFolderError, match=r"holds another run \(seed is 3 there, 4 now\)"):
        make(tiny, made[0], temperature=1.0, seed=4)
    assert contents(made[0]) == before


def test_a_full_disk_is_one_line_and_the_rest_is_safe(tiny, made, tmp_path, monkeypatch):
    written = traces.RunFolder.append

    def append(self, name, record):
        if len(self.records("traces.jsonl")) == 5:
            raise RunFolderError("No space left on device")
        written(self, name, record)

    monkeypatch.setattr(traces.RunFolder, "append", append)
    with pytest.raises(RunFolderError, match="No space left"):
        make(tiny, tmp_path / "run", temperature=1.0, seed=3)
    monkeypatch.undo()
    assert make(tiny, tmp_path / "run", temperature=1.0, seed=3) == made[1]


def test_a_teacher_that_is_always_wrong_leaves_no_trace(tiny, tmp_path):
    said = rf"run: none of {len(PROBLEMS)} answers is usable, see rejected\.jsonl there$"
    with pytest.raises(TraceError, match=said):
        make(tiny, tmp_path / "run", max_new_tokens=3)
    assert len(
        (tmp_path / "run" / "rejected.jsonl").read_text(encoding="utf-8").splitlines()
    ) == len(PROBLEMS)


def test_a_thinking_block_of_blanks_is_none():
    assert traces.take_apart("<think>\n \n</think>\n\n4") == ("", "4")
