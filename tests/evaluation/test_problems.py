"""Problems: the shipped models' own, MATH-500 from the hub, files with all their mistakes; and
their prompts."""

import json

import pytest
from hub_stand_in import hub, said_with_a_hub
from small_tokenizer import small_spec

import qwenlab
from qwenlab.evaluation import Problem, arithmetic_problems, load_problems, problem_prompts
from qwenlab.evaluation.problems import BOXED, MATH500, ProblemError
from qwenlab.text.tokenizer import Tokenizer

GOOD = {"problem": "What is 1+1?", "answer": "2"}
LINE = json.dumps(GOOD)


def write(tmp_path, content, name="set.jsonl"):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


# --- The shipped models' own -----------------------------------------------------------------------------------------


def test_the_tiny_test_set_is_the_held_out_thousand():
    problems = load_problems("tiny-test")
    made = arithmetic_problems(1000)
    assert [(p.number, p.problem, p.answer, p.fields) for p in problems] == [
        (m.number, m.question, m.answer, {"subject": m.kind}) for m in made
    ]
    assert [p.number for p in problems] == list(range(1000)) and problems[7].id == "7"
    assert (
        load_problems("tiny-test", 5) == problems[:5]
        and load_problems("tiny-test", 5000) == problems
    )


def test_the_tiny_training_set_is_another():
    train = load_problems("tiny-train")
    assert len(train) == 5000 and train[:9] == load_problems("tiny-train", 9)
    assert not {p.problem for p in train} & {p.problem for p in load_problems("tiny-test")}


# --- Files -----------------------------------------------------------------------------------------------------------


def test_a_list_and_lines_give_the_same(tmp_path):
    records = [
        {
            **GOOD,
            "subject": "Algebra",
            "level": 1,
            "solution": "It is $\\boxed{2}$.",
            "unique_id": "test/1.json",
        },
        {"problem": "How much is é + 🙂?", "answer": 7, "unique_id": 12},
        {"problem": "And now?", "answer": 0.5},
    ]
    lines = (
        "\ufeff\n" + "\r\n\n  \n".join(json.dumps(r, ensure_ascii=False) for r in records) + "\n"
    )
    problems = load_problems(write(tmp_path, lines))
    assert problems == load_problems(str(write(tmp_path, json.dumps(records), "set.JSON")))
    assert [(p.number, p.id, p.answer) for p in problems] == [
        (0, "test/1.json", "2"),
        (1, "12", "7"),
        (2, "2", "0.5"),
    ]
    assert problems[0].fields == {
        "subject": "Algebra",
        "level": 1,
        "solution": "It is $\\boxed{2}$.",
    }
    assert problems[1].problem == "How much is é + 🙂?" and problems[1].fields == {}
    assert load_problems(tmp_path / "set.jsonl", 2) == problems[:2]


def test_a_line_separator_within_a_text_ends_no_line(tmp_path):
    (problem,) = load_problems(
        write(tmp_path, json.dumps({**GOOD, "problem": "a\u2028b\x85c"}, ensure_ascii=False))
    )
    assert problem.problem == "a\u2028b\x85c"


BAD_LINES = [
    ("[]", r'line 2: expected an object with "problem" and "answer", found list'),
    ("7", r"line 2: expected an object .*, found int"),
    ("null", r"line 2: expected an object .*, found NoneType"),
    ("{", r"line 2: not JSON \(.*\)"),
    ("[" * 100_000, r"line 2: not JSON \(.*recursion.*\)"),
    ('{"problem": "x", "answer": ' + "9" * 5000 + "}", r"line 2: not JSON \(.*\)"),
    ("{} {}", r"line 2: not JSON \(.*\)"),
    ('{"answer": "2"}', r"line 2: problem is missing, expected a text that is not empty"),
    ('{"problem": "x"}', r"line 2: answer is missing, expected a text that is not empty"),
    ('{"problem": " ", "answer": "2"}', r"line 2: problem is ' ', expected a text .*"),
    ('{"problem": 3, "answer": "2"}', r"line 2: problem is 3, expected a text .*"),
    ('{"problem": "x", "answer": ""}', r"line 2: answer is '', expected a text .*"),
    ('{"problem": "x", "answer": null}', r"line 2: answer is None, expected a text .*"),
    ('{"problem": "x", "answer": true}', r"line 2: answer is True, expected a text .*"),
    ('{"problem": "x", "answer": NaN}', r"line 2: answer is nan, expected a text .*"),
    ('{"problem": "x", "answer": ["2"]}', r"line 2: answer is \['2'\], expected a text .*"),
    (
        '{"problem": "x", "answer": "2", "unique_id": ""}',
        r"line 2: unique_id is '', expected a text or a whole number",
    ),
    (
        '{"problem": "x", "answer": "2", "unique_id": null}',
        r"line 2: unique_id is None, expected .*",
    ),
    (
        '{"problem": "x", "answer": "2", "unique_id": 0}',
        r"line 2: duplicate id '0', first used at .*set\.jsonl line 1",
    ),
]


@pytest.mark.parametrize(("line", "said"), BAD_LINES, ids=[line[:24] for line, _ in BAD_LINES])
def test_a_bad_line_is_named(tmp_path, line, said):
    with pytest.raises(ProblemError, match=rf"^\S*set\.jsonl {said}$"):
        load_problems(write(tmp_path, f"{LINE}\n{line}\n"))


BAD_FILES = [
    ("set.jsonl", b"", r"set\.jsonl: no problem in it"),
    ("set.jsonl", b"\n \n", r"set\.jsonl: no problem in it"),
    (
        "set.jsonl",
        LINE.encode() + b"\n\n\xff\n",
        r"set\.jsonl line 3: not UTF-8 text \(byte 0xff\)",
    ),
    ("set.json", b"", r"set\.json: no problem in it"),
    ("set.json", b"[]", r"set\.json: no problem in it"),
    ("set.json", LINE.encode(), r"set\.json: expected a list of objects, found dict"),
    ("set.json", f"[{LINE},\n\n]".encode(), r"set\.json: not JSON \(.*line \d.*\)"),
    ("set.json", f"[{LINE}, 3]".encode(), r"set\.json entry 2: expected an object .*, found int"),
    (
        "set.csv",
        b"problem,answer",
        r"set\.csv': expected tiny-test, tiny-train, math500, or a \.json or \.jsonl file",
    ),
]


@pytest.mark.parametrize(("name", "content", "said"), BAD_FILES)
def test_a_bad_file_is_named(tmp_path, name, content, said):
    with pytest.raises(ProblemError, match=rf"^(no problems ')?\S*{said}$"):
        load_problems(write(tmp_path, content, name))


def test_what_is_no_file(tmp_path):
    with pytest.raises(
        ProblemError, match=r"none\.json: can't be read \(No such file or directory\)$"
    ):
        load_problems(tmp_path / "none.json")
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(ProblemError, match=r"folder\.json: can't be read \(Is a directory\)$"):
        load_problems(tmp_path / "folder.json")
    with pytest.raises(ProblemError, match=r"^no problems 'tiny': expected tiny-test, .*"):
        load_problems("tiny")


@pytest.mark.parametrize("limit", [0, -1, True, 1.5, "3"])
def test_a_limit_that_is_none(limit):
    with pytest.raises(ValueError, match="limit is"):
        load_problems("tiny-test", limit)


# --- The hub ---------------------------------------------------------------------------------------------------------


def say_math500():
    try:
        print([(p.id, p.answer) for p in load_problems("math500")])
    except ValueError as error:
        print("refused", error)


def load_math500(cache, address, **variables) -> str:
    return said_with_a_hub(say_math500, cache=cache, address=address, **variables)


def test_math500_is_fetched_once_and_is_there_offline(tmp_path):
    (tmp_path / "data").mkdir()
    write(tmp_path / "data", json.dumps({**GOOD, "unique_id": "test/1.json"}), MATH500["filename"])
    with hub({MATH500["repo_id"]: tmp_path / "data"}) as (address, requests):
        said = load_math500(tmp_path / "cache", address)
        assert said == "[('test/1.json', '2')]"
        assert [url for url in requests if url.startswith("GET")] == [
            f"GET /datasets/{MATH500['repo_id']}/resolve/main/test.jsonl"
        ]
    assert load_math500(tmp_path / "cache", address, HF_HUB_OFFLINE="1") == said
    said = load_math500(tmp_path / "empty", address, HF_HUB_OFFLINE="1")
    assert said.startswith(
        f"refused math500: {MATH500['repo_id']} is not in the cache {tmp_path / 'empty'}"
    )
    assert (
        "HF_HUB_OFFLINE is set" in said
        and "name a .json or .jsonl file" in said
        and "HF_HOME" in said
    )
    assert "\n" not in said


# --- Prompts ---------------------------------------------------------------------------------------------------------


def test_tiny_prompts_are_those_that_the_models_were_trained_on():
    _, tokenizer = qwenlab.load("tiny")
    problems = load_problems("tiny-test", 3)
    for thinking in (True, False):
        assert problem_prompts(tokenizer, problems, thinking=thinking) == [
            tokenizer.chat([{"role": "user", "content": p.problem}], thinking=thinking)
            for p in problems
        ]
    (ids,) = problem_prompts(
        tokenizer, load_problems("tiny-test", 1, instruction="Box it."), plain=True
    )
    assert tokenizer.decode(ids) == f"Problem: {problems[0].problem}\n\nBox it.\n\nSolution:"


def test_others_are_asked_for_a_box(tmp_path):
    tokenizer = Tokenizer(small_spec())  # of a base model: no template
    path = write(tmp_path, LINE)
    (ids,) = problem_prompts(tokenizer, load_problems(path))
    assert tokenizer.decode(ids) == f"Problem: What is 1+1?\n\n{BOXED}\n\nSolution:"
    (ids,) = problem_prompts(tokenizer, load_problems(path, instruction=""))
    assert tokenizer.decode(ids) == "Problem: What is 1+1?\n\nSolution:"
    _, tokenizer = qwenlab.load("tiny")
    (ids,) = problem_prompts(tokenizer, load_problems(path))
    assert ids == tokenizer.chat([{"role": "user", "content": f"What is 1+1?\n\n{BOXED}"}])


def test_a_prompt_that_cannot_be_asked_is_named():
    _, tokenizer = qwenlab.load("tiny")
    problems = [Problem(0, "1+1?", "2", "first"), Problem(1, "1+1+1+1?", "4", "algebra/7")]
    short, long = map(len, problem_prompts(tokenizer, problems))
    assert long > short
    assert len(problem_prompts(tokenizer, problems, limit=long + 1)) == 2
    with pytest.raises(
        ProblemError,
        match=rf"^problem algebra/7: {long} tokens leave no room in a context of {long}$",
    ):
        problem_prompts(tokenizer, problems, limit=long)
    with pytest.raises(ProblemError, match=r"^problem odd: "):
        problem_prompts(tokenizer, [Problem(0, "\ud800", "2", "odd")])
    assert problem_prompts(tokenizer, []) == []


@pytest.mark.parametrize("key", ["answer", "unique_id"])
def test_half_a_surrogate_pair_is_named_before_anything_is_generated(tmp_path, key):
    path = tmp_path / "bad.jsonl"
    path.write_text(
        json.dumps({"problem": "1+1", "answer": "2"} | {key: "\ud800"}) + "\n", encoding="utf-8"
    )
    with pytest.raises(ProblemError, match=f"bad.jsonl line 1: {key} holds half a surrogate pair"):
        load_problems(path)


def test_without_a_tokenizer_there_are_no_prompts():
    with pytest.raises(ProblemError, match=r"^there is no tokenizer"):
        problem_prompts(None, [])
