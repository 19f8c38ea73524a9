"""majority_vote by hand-made cases, and self_consistency against plain loops."""

import json
import random

import pytest
from helpers import count

import qwenlab
from qwenlab.evaluation import (
    evaluate,
    grade,
    load_problems,
    majority_vote,
    self_consistency,
    voting,
)
from qwenlab.evaluation.evaluation import wilson
from qwenlab.evaluation.symbolic import WORKER


@pytest.mark.parametrize(
    ("answers", "winner", "counts"),
    [
        ([], None, {}),
        ([None, None], None, {}),
        (["7"], "7", {"7": 1}),
        ([None, None, "7"], "7", {"7": 1}),  # no answer is no candidate, however many give none
        (["7", "8", "8"], "8", {"7": 1, "8": 2}),
        (["7", "8"], "7", {"7": 1, "8": 1}),  # a tie: whoever came first
        (["9", "8", "7", "7", "8"], "8", {"9": 1, "8": 2, "7": 2}),
        (["1/2", "3", "0.5", "3", "\\frac{1}{2}"], "1/2", {"1/2": 3, "3": 2}),
        (["3", "0.5", None, "1/2"], "0.5", {"3": 1, "0.5": 2}),
        (["1,234", "1234", "12"], "1,234", {"1,234": 2, "12": 1}),
        (["(1,2)", "(2,1)", "(1,2)"], "(1,2)", {"(1,2)": 2, "(2,1)": 1}),
        (
            ["", "", "7"],
            "",
            {"": 2, "7": 1},
        ),  # extract_answer gives no empty one; the same text is one group
    ],
)
def test_the_vote(answers, winner, counts):
    got = majority_vote(answers)
    assert got == (winner, counts) and list(got[1]) == list(counts)


def plain_vote(answers):
    """The same, slowly: every answer beside the first of every group."""
    groups = []
    for answer in answers:
        if answer is None:
            continue
        for group in groups:
            if answer == group[0] or grade(answer, group[0]):
                group.append(answer)
                break
        else:
            groups.append([answer])
    largest = max(map(len, groups), default=0)
    winner = next((group[0] for group in groups if len(group) == largest), None)
    return winner, {group[0]: len(group) for group in groups}


@pytest.mark.parametrize("seed", range(count(40, 1000)))
def test_random_votes(seed):
    rng = random.Random(seed)
    texts = [
        None,
        "1/2",
        "0.5",
        "2/4",
        ".5",
        "50",
        "50\\%",
        "2",
        "2.0",
        "x=2",
        "-2",
        "\\text{two}",
        "two",
    ]
    answers = [rng.choice(texts) for _ in range(rng.randint(0, 12))]
    winner, counts = majority_vote(answers)
    assert (winner, list(counts.items())) == (
        plain_vote(answers)[0],
        list(plain_vote(answers)[1].items()),
    )
    assert sum(counts.values()) == sum(answer is not None for answer in answers)


@pytest.fixture
def asked(monkeypatch):
    """What the symbolic worker is asked."""
    questions = []
    equal = WORKER.equal
    monkeypatch.setattr(WORKER, "equal", lambda *q: questions.append(q[:2]) or equal(*q))
    return questions


def test_other_spellings_of_one_normal_form_take_no_symbolic_comparison(asked):
    answers = [
        r"\frac\pi2",
        r"\dfrac{\pi}{2}",
        r"$\frac{\pi}{2}$",
        r"x=\frac{\pi}{2}",
        "5 cm",
        "5.0",
    ] * 100
    assert majority_vote(answers) == (r"\frac\pi2", {r"\frac\pi2": 400, "5 cm": 200})
    assert len(asked) <= 2


@pytest.mark.parametrize(
    "hostile", ["{n}^{{9^{{9^{{9^{{9}}}}}}}}", "x^{{99}}\\sqrt{{x+{n}}}=(y+z)^{{{n}99}}+1"]
)
def test_one_time_limit_for_the_whole_vote(hostile, monkeypatch, asked):
    monkeypatch.setattr(voting, "VOTE_LIMIT", 1.0)
    answers = [hostile.format(n=n) for n in range(2, 18)]
    winner, counts = majority_vote([*answers, "1/2", r"\frac12", "0.5"])
    assert 1 <= len(asked) < 30, "questions go on after the limit"  # 120 pairs
    assert winner == "1/2" and counts == dict.fromkeys(answers, 1) | {"1/2": 3}


@pytest.fixture(scope="module")
def tiny():
    return qwenlab.load("tiny")


SAMPLED = {"samples": 6, "temperature": 1.0, "top_p": 1.0, "seed": 1, "max_new_tokens": 60}


@pytest.fixture(scope="module")
def voted(tiny, tmp_path_factory):
    problems = load_problems("tiny-test", 16)
    folder = tmp_path_factory.mktemp("votes")
    return problems, folder, self_consistency(*tiny, problems, folder=folder, **SAMPLED)


def test_votes_and_their_numbers_are_what_plain_loops_count(tiny, voted):
    problems, folder, result = voted
    records = evaluate(*tiny, problems, strategy="static", batch_size=16, **SAMPLED).records
    by_n = {}
    for n in (1, 2, 4, 6):
        right = 0
        for problem in problems:
            mine = [
                r["answer"] for r in records if r["number"] == problem.number and r["sample"] < n
            ]
            winner, counts = plain_vote(mine)
            right += grade(winner, problem.answer)
            if n == 6:
                (vote,) = [vote for vote in result.votes if vote["number"] == problem.number]
                right_now = grade(winner, problem.answer)
                assert vote == {
                    "id": problem.id,
                    "number": problem.number,
                    "gold": problem.answer,
                    "answer": winner,
                    "verdict": right_now,
                    "counts": counts,
                }
        by_n[n] = right / len(problems)
    assert result.by_n == pytest.approx(by_n) and list(result.by_n) == [1, 2, 4, 6]
    assert len(set(by_n.values())) > 1, "votes that change nothing test nothing"
    assert result.accuracy == by_n[6] and result.interval == wilson(by_n[6], 16)
    first = [record["verdict"] for record in records if record["sample"] == 0]
    assert result.by_n[1] == sum(first) / 16
    held = json.loads((folder / "votes.json").read_text(encoding="utf-8"))
    assert (
        held["votes"] == result.votes and held["by_n"]["4"] == by_n[4] and "evaluation" not in held
    )
    table = str(result)
    assert f"accuracy of the vote {by_n[6]:.3f}, " in table and f"      4  {by_n[4]:8.3f}" in table
    assert "96 to 16 problems" in table


def test_the_samples_read_their_prompt_once(tiny, monkeypatch):
    from qwenlab.engine.engine import Engine

    engines, make = [], Engine.__init__
    monkeypatch.setattr(
        Engine, "__init__", lambda self, *a, **k: engines.append(self) or make(self, *a, **k)
    )
    (problem,) = load_problems("tiny-test", 1)
    self_consistency(*tiny, [problem], samples=8, max_new_tokens=3)
    prompt = len(tiny[1].chat([{"role": "user", "content": problem.problem}]))
    assert engines[-1].stats.prefill_tokens == prompt + 7  # the others read its last token only


def test_an_evaluation_s_answers_can_vote_later(tiny, voted):
    """The same settings, the same folder: nothing is answered again."""
    problems, folder, result = voted
    again = self_consistency(*tiny, problems, folder=folder, **SAMPLED)
    assert again.evaluation.sampled_tokens == 0 and again.votes == result.votes
    assert evaluate(*tiny, problems, folder=folder, **SAMPLED).sampled_tokens == 0


def test_defaults(tiny, monkeypatch):
    seen = {}
    monkeypatch.setattr(voting, "evaluate", lambda *a, **k: seen.update(k) or evaluate(*a, **k))
    result = self_consistency(*tiny, load_problems("tiny-test", 2), max_new_tokens=3)
    assert (seen["samples"], seen["temperature"], seen["top_p"]) == (8, 0.9, 0.9)
    assert list(result.by_n) == [1, 2, 4, 8] and result.accuracy == 0
    assert [vote["answer"] for vote in result.votes] == [None, None]
    assert list(
        self_consistency(*tiny, load_problems("tiny-test", 1), samples=1, max_new_tokens=3).by_n
    ) == [1]


def test_wrong_options_are_named(tiny):
    for change, message in [({"samples": 0}, "samples is 0"), ({"temprature": 1}, "temprature")]:
        with pytest.raises((ValueError, TypeError), match=message):
            self_consistency(*tiny, load_problems("tiny-test", 2), **change)
    with pytest.raises(ValueError, match="0 problems"):
        self_consistency(*tiny, [])
