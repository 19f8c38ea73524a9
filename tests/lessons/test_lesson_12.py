"""Lesson 12: what its text says is what happens, and every state of its widget is right."""

import itertools
import random
import re
from collections import Counter
from math import factorial, prod

import pytest
from coins import chance
from helpers import count
from lesson_cells import asked, lesson_of_a_page, numbers, pictures
from widget_numbers import EXPECTED, wrong_cells
from widget_votes import PROBLEMS, contested, greedily, sampled, tally

from qwenlab.evaluation import majority_vote
from qwenlab.exercises.lesson_12 import vote_chance, vote_decided
from qwenlab.teach import check

LESSON = "12-self-consistency"
COUNTS = [1, 2, 4, 8, 16]


@pytest.fixture(scope="module")
def lesson():
    lesson = lesson_of_a_page(LESSON, until="hero")
    for cell in ("naive-vote", "plain", "estimates"):  # those between them only measure
        exec(lesson.sources[cell], lesson.names)
    return lesson


def test_the_samples_are_those_that_each_prompt_gives_by_itself(lesson):
    assert lesson.names["answers"] == [line for _, line in sampled()]
    assert lesson.names["contested"] == contested()
    assert lesson.names["greedy"].accuracy == pytest.approx(greedily() / PROBLEMS)


def test_the_first_picture_made_again_has_the_votes_of_the_widget(lesson):
    shown = dict(re.findall(r"^ *(\d+|None) +(\d+)$", lesson.shown("hero-python"), re.MULTILINE))
    votes = Counter(map(str, sampled()[contested()[0]][1]))
    assert {answer: int(number) for answer, number in shown.items()} == votes


def test_single_samples_scatter_most_where_the_doubt_is_greatest(lesson):
    said = lesson.shown("singles")
    shares = numbers(r"(0\.\d\d)", said)
    right = [sum(line[k] == gold for gold, line in sampled()) / PROBLEMS for k in range(16)]
    assert shares == pytest.approx(right, abs=0.006) and max(shares) - min(shares) > 0.05
    most = min(max(Counter(line).values()) for _, line in sampled())
    answers = said.splitlines()[-2].split()
    assert len(answers) == 16 and max(Counter(answers).values()) == most


def test_the_naive_vote_elects_silence_and_then_the_wrong_one(lesson):
    said = lesson.shown("naive-vote")
    assert "most common:  (None, 4)" in said and "without None: ('3', 2)" in said
    assert "('1/2', {'1/2': 3, '3': 2})" in lesson.shown("plain")


@pytest.mark.parametrize("seed", range(count(30, 300)))
def test_the_plain_vote_is_the_library_s(lesson, seed):
    rng = random.Random(seed)
    forms = ["1", "2", "1/2", "0.5", r"\frac{1}{2}", "2.0", None]
    answers = [rng.choice(forms) for _ in range(rng.randint(0, 9))]
    assert lesson.names["vote"](answers) == majority_vote(answers)


def exact(n):
    """maj@n over all sets in all orders, for few samples."""
    lines = [(gold, line[:4]) for gold, line in sampled()]
    total = 0.0
    for gold, line in lines:
        orders = list(itertools.permutations(line, n))
        total += sum(tally(order)[1] == gold for order in orders) / len(orders)
    return total / len(lines)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_averaged_over_sets_a_vote_is_worth_its_mean_over_all_sets(lesson, n):
    """Of four samples, whose sets can be counted."""
    names = dict(lesson.names, N=4, answers=[line[:4] for line in lesson.names["answers"]])
    names["good"] = [line[:4] for line in lesson.names["good"]]
    exec(lesson.sources["estimates"], names)
    assert names["maj_at"](n, sets=300) == pytest.approx(exact(n), abs=0.015)


@pytest.mark.parametrize("k", [1, 2, 4, 8, 16])
def test_pass_at_k_counts_draws(lesson, k):
    total = 0.0
    for gold, line in sampled():
        wrong = 16 - line.count(gold)
        drawn = 1.0  # the chance that all k are wrong, one after the other
        for i in range(k):
            drawn *= max(wrong - i, 0) / (16 - i)
        total += 1 - drawn
    assert lesson.names["pass_at"](k) == pytest.approx(total / PROBLEMS)


def test_the_curves_are_printed_as_counted(lesson):
    said = lesson.shown("curves")
    first = numbers(r"first n ([\d.]+),", said)
    averaged = numbers(r"averaged ([\d.]+),", said)
    passed = numbers(r"pass@n ([\d.]+)\n", said)
    for n, share in zip(COUNTS, first, strict=True):
        right = sum(tally(line[:n])[1] == gold for gold, line in sampled())
        assert share == pytest.approx(right / PROBLEMS, abs=6e-4)
    assert passed == pytest.approx([lesson.names["pass_at"](k) for k in COUNTS], abs=6e-4)
    assert averaged[0] == pytest.approx(passed[0], abs=0.02)  # one sample is one sample
    assert averaged[1] == pytest.approx(averaged[0], abs=0.02)  # the vote of two
    assert averaged[1] < averaged[2] < averaged[3] < averaged[4] < passed[4] - 0.2


def test_the_vote_beats_greedy_for_one_model_and_not_for_the_other(lesson):
    said = lesson.shown("against-greedy")
    pattern = (
        r"greedy ([\d.]+) .*\n +the vote ([\d.]+) .*\n +(\d+) problems: only the vote is right in "
        r"(\d+),\n +only greedy in (\d+): ([+-]\d+) points, p = ([\d.e-]+), (.+)\n"
    )
    found = re.findall(pattern, said)
    assert len(found) == 2
    for greedy, vote, problems, won, lost, points, p, verdict in found:
        assert float(points) == pytest.approx(100 * (float(vote) - float(greedy)), abs=0.6)
        assert float(points) == pytest.approx(
            100 * (int(won) - int(lost)) / int(problems), abs=0.51
        )
        assert float(p) == pytest.approx(chance(int(won), int(lost)), rel=0.06)
        assert verdict == ("more than chance" if float(p) < 0.05 else "may be chance")
    (first, second) = found
    assert float(first[5]) >= 8 and first[7] == "more than chance"
    assert abs(float(second[5])) < 5 and second[7] == "may be chance"
    assert float(first[0]) == pytest.approx(greedily() / PROBLEMS, abs=6e-4)


def test_greedy_begins_with_the_short_cut_and_many_samples_do_not(lesson):
    greedy, samples = lesson.shown("ways").split("samples")
    (often,) = numbers(r"(\d+)%  quick", greedy)
    (less,) = numbers(r"(\d+)%  quick", samples)
    assert often > 90 and less < 70
    assert samples.index("quick") < samples.index("in order")  # still the most frequent way


def test_sixteen_at_once_are_the_sixteen_one_by_one(lesson):
    said = lesson.shown("time")
    one, at_once, one_by_one = numbers(r"(\d+) tokens,", said)
    assert one_by_one == at_once > 12 * one


def test_where_it_loses_nothing_is_voted_on_or_everything_is_paid_for(lesson):
    said = lesson.shown("where-it-loses")
    assert len(re.findall(r"\{'\d+': 8\}", said)) == 4  # temperature 0
    few, many = numbers(r"(\d+) steps,", said)
    assert many > 2 * few
    leads = {}
    for place, (gold, line) in enumerate(sampled()):
        votes, winner = tally(line)
        if gold in line and winner != gold:
            leads[place] = votes[winner] - votes[gold]
    clearest = sorted(leads, key=lambda place: -leads[place])[:3]
    assert numbers(r"problem (\d+):", said) == clearest and leads[clearest[-1]] > 2
    assert numbers(r"(\d+) of 96", said) == [len(leads)]


BREAKS = {
    "1": [("if answer is not None:  # 1", "if True:")],
    "2": [
        (
            "problem_prompts(tokenizer, problems[:16]),  # 2",
            "problem_prompts(tokenizer, problems[:16]) * 8,",
        ),
        ("n=8,  # 2", "n=1,"),
        ("seed=[problem.number for problem in problems[:16]],  # 2, 3", "seed=0,"),
    ],
    "3": [("seed=[problem.number for problem in problems[:16]],  # 2, 3", "seed=[7] * 16,")],
}


def test_breaking_shows_what_the_text_says(lesson, capsys):
    whole, silent = numbers(r"(\d+) (?:of|without)", lesson.shown("break-me"))
    broken = {}
    for number, changes in BREAKS.items():
        said = lesson.say("break-me", capsys, *changes)
        broken[number] = numbers(r"(\d+) (?:of|without)", said)
    assert broken["1"][1] > silent and broken["1"][0] <= whole
    assert broken["2"][0] < whole / 2
    assert abs(broken["3"][0] - whole) <= 6  # no mistake: samples of a problem still differ


# --- the exercises say what the library does ---


@pytest.mark.parametrize("seed", range(count(10, 100)))
def test_a_vote_that_is_decided_never_changes_and_any_other_can(seed):
    rng = random.Random(seed)
    n = rng.randint(1, 6)
    drawn = [rng.choice(["1", "2", "3", None]) for _ in range(rng.randint(0, n))]
    known = [*{answer for answer in drawn if answer is not None}, None, "new", "newer"]
    winners = set()
    for rest in itertools.product(known, repeat=n - len(drawn)):
        winners.add(majority_vote([*drawn, *rest])[0])
    assert vote_decided(drawn, n) is (len(winners) == 1)


@pytest.mark.parametrize(("shares", "n"), [([0.4, 0.6], 5), ([0.4, 0.2, 0.2, 0.2], 4)])
def test_a_vote_s_chance_is_how_often_the_library_s_vote_is_right(shares, n):
    names = [str(answer) for answer in range(len(shares))]
    total = 0.0
    for line in itertools.product(names, repeat=n):
        if majority_vote(line)[0] == "0":
            total += prod(shares[int(answer)] for answer in line)
    assert vote_chance(shares, n) == pytest.approx(total)


def test_predictions_are_measured(lesson, capsys):
    names = {**lesson.names, "my_vote_chance": vote_chance, "my_vote_decided": vote_decided}
    exec(lesson.sources["measure-vote-chance"], names)
    said = capsys.readouterr().out
    predicted = numbers(r"predict ([\d.]+),", said)
    measured = numbers(r"([\d.]+) of 2,000", said)
    assert measured == pytest.approx(predicted, abs=0.05)
    assert predicted[2] > predicted[0] == predicted[3] > predicted[5]  # one helps, one does not
    exec(lesson.sources["measure-vote-decided"], names)
    said = capsys.readouterr().out
    drawn, saved, same = numbers(r"(\d+)(?: of 1536|% saved| of 96)", said)
    assert drawn < 16 * PROBLEMS and saved > 5 and same == PROBLEMS


def test_the_colleague_stops_too_early_and_too_late():
    colleague = asked(LESSON, "vote-decided", Counter=Counter)["vote_decided"]
    assert colleague([None, None, None], 5) and not vote_decided([None, None, None], 5)
    late = ["5", "5", "5", "1", "2", "3", "4"]
    assert vote_decided(late, 8) and not colleague(late, 8)
    assert not check("vote-decided", lambda answers, n: colleague(answers, n)).ok


def by_counts(shares, n):
    """Over how many votes each answer has; of tied answers each is first equally often."""
    chance = 0.0
    for counts in itertools.product(range(n + 1), repeat=len(shares)):
        if sum(counts) == n and counts[0] == max(counts):
            ways = factorial(n)
            for number, share in zip(counts, shares, strict=True):
                ways *= share**number / factorial(number)
            chance += ways / counts.count(counts[0])
    return chance


def by_trying(answers, n):
    """Gives the rest to each rival in turn."""
    rest = n - len(answers)
    winner = majority_vote(answers)[0]
    if winner is None:
        return rest == 0
    rivals = [*{answer for answer in answers if answer is not None}, "an answer of its own"]
    return all(majority_vote([*answers, *[rival] * rest])[0] == winner for rival in rivals)


@pytest.mark.parametrize(
    ("name", "answer"), [("vote-chance", by_counts), ("vote-decided", by_trying)]
)
def test_an_answer_in_another_style_is_right(name, answer):
    assert check(name, answer).ok


# --- the widget ---


def test_every_state_of_the_widget_shows_the_right_votes_and_no_two_are_alike(lesson):
    ((widget, controls),) = lesson.widgets
    assert controls == {"samples": COUNTS, "problem": contested()}
    html = widget._repr_html_()
    shown = pictures(html)
    states = [
        {"samples": str(n), "problem": str(i)} for n, i in itertools.product(COUNTS, contested())
    ]
    assert len(shown) == len(states) and len(html) < 150_000  # equal pictures would be stored once
    (right,) = EXPECTED[LESSON]
    for state, (picture, tables) in zip(states, shown, strict=True):
        assert wrong_cells(tables, right(state)) == [], state
        votes, winner = tally(sampled()[int(state["problem"])][1][: int(state["samples"])])
        labels = [th.text for th in picture.find("table").tbody.find_all("th")]
        outlined = [td.parent.find("th").text for td in picture.find_all("td", class_="x")]
        assert labels[: len(votes)] == list(votes) and outlined == ([winner] if votes else [])
