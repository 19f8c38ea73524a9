"""Lesson 12: what its text says is what happens, and every state of its widget is right."""

import itertools
import random
import re
from math import comb

import pytest
from helpers import count
from lesson_cells import lesson_of_a_page, numbers, pictures
from widget_numbers import EXPECTED, wrong_cells
from widget_votes import PROBLEMS, contested, sampled, tally

from qwenlab.evaluation import majority_vote
from qwenlab.exercises.lesson_12 import pass_at_k, vote_of

COUNTS = [1, 2, 4, 8, 16]


@pytest.fixture(scope="module")
def lesson():
    lesson = lesson_of_a_page("12-self-consistency", until="accuracy-curve")
    for cell in ("against-greedy", "paired"):  # the cells before them only measure
        exec(lesson.sources[cell], lesson.names)
    return lesson


def test_the_samples_are_those_that_each_prompt_gives_by_itself(lesson):
    assert lesson.names["answers"] == [line for _, line in sampled()]
    assert lesson.names["contested"] == contested()


def test_single_samples_scatter(lesson):
    singles = lesson.names["singles"]
    right = [sum(line[k] == gold for gold, line in sampled()) / PROBLEMS for k in range(16)]
    assert singles == pytest.approx(right) and max(singles) - min(singles) > 0.1


def test_the_problem_shown_is_full_of_doubt_and_the_vote_is_right(lesson, capsys):
    said = lesson.say("disagree", capsys)
    gold, line = sampled()[lesson.names["shown"]]
    assert len(set(line)) >= 5 and tally(line)[1] == gold and f"answer is {gold}" in said


def test_the_naive_vote_elects_silence_and_then_the_wrong_one(lesson, capsys):
    said = lesson.say("naive-vote", capsys)
    assert "most common: (None, 4)" in said and "without None: ('3', 2)" in said
    assert "('1/2', {'1/2': 3, '3': 2})" in lesson.say("plain", capsys)


def test_the_vote_of_16_gains_and_the_vote_of_2_hardly(lesson):
    plain, single, worth = (lesson.names[name] for name in ("plain", "single", "worth"))
    assert plain[16] - single >= 0.12 and plain[2] - plain[1] < 0.05
    for n in COUNTS:
        assert plain[n] == pytest.approx(
            sum(tally(line[:n])[1] == gold for gold, line in sampled()) / PROBLEMS
        )
        assert plain[n] == worth[n][1] <= worth[n][2]
    assert worth[16][2] - plain[16] > 0.2


def test_the_library_votes_the_same(lesson):
    assert "same votes as ours in 16 of 16 problems" in lesson.shown("library")


def chance(won, lost):
    """How often coins split at least as unevenly, counted over all of their outcomes."""
    outcomes = [1]  # by how many heads they have
    for _ in range(won + lost):
        outcomes = [one + two for one, two in zip([0, *outcomes], [*outcomes, 0], strict=True)]
    uneven = 0
    for heads, count_of_heads in enumerate(outcomes):
        if abs(heads - (won + lost - heads)) >= abs(won - lost):
            uneven += count_of_heads
    return uneven / sum(outcomes)


def compared(said):
    """Problems, won, lost, points, p and verdict, as `compare` prints them."""
    pattern = (
        r"(\d+) problems: only the vote is right in (\d+),\n"
        r"only greedy in (\d+): ([+-]\d+) points, p = ([\d.e-]+), (.+)\n"
    )
    *found, verdict = re.search(pattern, said).groups()
    return [*map(float, found), verdict]


def test_the_table_has_greedy_one_sample_and_the_vote(lesson, capsys):
    said = lesson.say("against-greedy", capsys)
    greedy, single, vote = numbers(r"answers +([\d.]+)", said)
    assert single < greedy < vote
    assert single == pytest.approx(lesson.names["single"], abs=1e-3)
    assert vote == pytest.approx(lesson.names["plain"][16], abs=1e-3)
    problems, won, lost, gain, p, verdict = compared(lesson.say("paired", capsys))
    assert problems == PROBLEMS and gain == pytest.approx(100 * (vote - greedy), abs=0.6)
    assert p == pytest.approx(chance(int(won), int(lost)), rel=0.06)
    assert verdict == ("more than chance" if p < 0.05 else "may be chance")


def test_on_more_problems_the_vote_beats_greedy_by_more_than_chance(lesson):
    problems, won, lost, gain, p, verdict = compared(lesson.shown("more"))
    assert problems == 192 and gain >= 5
    assert gain == pytest.approx(100 * (won - lost) / problems, abs=0.51)
    assert p == pytest.approx(chance(int(won), int(lost)), rel=0.06)
    assert p < 0.05 and verdict == "more than chance"


@pytest.mark.parametrize(("won", "lost"), [(0, 0), (1, 0), (3, 3), (0, 5), (1, 6), (12, 3)])
def test_the_sign_test_counts_what_coins_do(lesson, capsys, won, lost):
    problems = lesson.names["problems"]
    golds = [problem.answer for problem in problems]
    ones = [None] * lost + golds[lost:]
    twos = golds[:lost] + [None] * won + golds[lost + won :]
    lesson.names["compare"](ones, twos, problems)
    _, *sides, _, p, verdict = compared(capsys.readouterr().out)
    assert sides == [won, lost] and p == pytest.approx(chance(won, lost), rel=0.06)
    assert verdict == ("more than chance" if chance(won, lost) < 0.05 else "may be chance")


def test_greedy_begins_with_the_short_cut_and_most_samples_do_not(lesson):
    greedy, sample = lesson.shown("ways").split("one sample")
    (quick,) = numbers(r"(\d+)  quick", greedy)
    (rarely,) = numbers(r"(\d+)  quick", sample)
    assert quick > 0.9 * PROBLEMS and 0 < rarely < 0.5 * PROBLEMS
    assert sample.index("quick") < sample.index("in order")  # still the most frequent way


def test_where_greedy_takes_no_short_cut_a_vote_gains_nothing(lesson):
    said = lesson.shown("loses-other")
    greedy, single = numbers(r"(?:greedy|sample) (\d\.\d+)", said)
    _, _, _, gain, _, verdict = compared(said)
    assert single < greedy - 0.1 and abs(gain) < 5 and verdict == "may be chance"


def test_at_temperature_0_all_samples_are_equal(lesson):
    said = lesson.shown("loses-cold")
    assert len(re.findall(r"Counter\(\{'\d+': 8\}\)", said)) == 4


def test_some_votes_are_wrong_though_samples_are_right(lesson):
    said = lesson.shown("loses-wrong")
    leads = {}
    for place, (gold, line) in enumerate(sampled()):
        votes, winner = tally(line)
        if gold in line and winner != gold:
            leads[place] = votes[winner] - votes[gold]
    clearest = sorted(leads, key=lambda place: -leads[place])[:4]
    assert numbers(r"problem (\d+):", said) == clearest and leads[clearest[-1]] > 2
    assert numbers(r"(\d+) of", said)[-1] == len(leads)


def test_sixteen_at_once_take_a_fraction_of_the_steps_of_one_by_one(lesson, capsys):
    said = lesson.say("measure-cells", capsys, ("REPEATS = 3", "REPEATS = 1"))
    one_by_one, one, _, at_once, _ = numbers(r"(\d+) tokens", said)
    assert one_by_one == at_once > 12 * one  # the same answers
    together = lesson.names["sample"](lesson.names["problems"][1:2], 16, 1.0)[1]
    assert one_by_one > 5 * len(together.steps)  # alone every token is a step


def test_in_a_full_batch_sixteen_samples_cost_several_times_as_much(lesson):
    _, tokens = numbers(r"([\d.]+) times the", lesson.shown("loses-full"))
    assert 12 < tokens < 20
    once = lesson.names["sample"](lesson.names["problems"], 1, temperature=1.0)[1]
    assert len(lesson.names["full"].steps) > 4 * len(once.steps)


BREAKS = {
    "1": [
        ("prompts,  # 1", "prompts * n,"),
        ("n=n,  # 1", "n=1,"),
        ("[problem.number for problem in few],  # 2", "0,"),
    ],
    "2": [("[problem.number for problem in few],  # 2", "[7] * len(few),")],
    "3": [("count > votes[winner]:  # 3", "count >= votes[winner]:")],
    "4": [
        ("found.append(extract_answer(text))  # 4", 'found.append(extract_answer(text) or "none")')
    ],
}


def outcome(said):
    return float(re.match(r"([\d.]+) right", said)[1])


def test_breaking_shows_what_the_text_says(lesson, capsys):
    whole = outcome(lesson.shown("break-me"))
    broken = {}
    for number in ("1", "2", "4"):
        said = lesson.say("break-me", capsys, *BREAKS[number])
        broken[number] = outcome(said)
    assert said.endswith("0 without an answer\n")  # silence is an answer now
    assert broken["1"] < whole / 2
    assert broken["2"] > whole - 0.2  # no mistake: samples of a problem still differ
    assert broken["4"] < whole


@pytest.mark.parametrize(("changes", "winner"), [([], "1"), (BREAKS["3"], "2")])
def test_of_equal_groups_the_first_or_the_last_wins(lesson, changes, winner):
    source = lesson.sources["break-me"].split("\nresult =")[0]
    for old, new in changes:
        source = source.replace(old, new)
    names = dict(lesson.names)
    exec(source, names)
    assert names["broken_vote"](["1", "2", None]) == winner


# --- the exercises say what the library does ---


@pytest.mark.parametrize("seed", range(count(30, 300)))
def test_the_vote_is_the_library_s(seed):
    rng = random.Random(seed)
    answers = [rng.choice(["1", "2", "30", None]) for _ in range(rng.randint(1, 9))]
    winner, votes = majority_vote(answers)
    assert vote_of(answers) == (winner or "", votes.get(winner, 0))


@pytest.mark.parametrize(("n", "c", "k"), [(4, 1, 2), (6, 3, 3), (5, 0, 5), (7, 7, 1), (8, 2, 7)])
def test_pass_at_k_counts_draws(n, c, k):
    draws = list(itertools.combinations([i < c for i in range(n)], k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, draws)) / comb(n, k))


# --- the widget ---


def test_every_state_of_the_widget_shows_the_right_votes_and_no_two_are_alike(lesson):
    ((widget, controls),) = lesson.widgets
    assert controls == {"samples": COUNTS, "problem": range(12)}
    html = widget._repr_html_()
    shown = pictures(html)
    states = [
        {"samples": str(n), "problem": str(i)} for n, i in itertools.product(COUNTS, range(12))
    ]
    assert len(shown) == len(states) and len(html) < 150_000  # equal pictures would be stored once
    (right,) = EXPECTED["12-self-consistency"]
    for state, (picture, tables) in zip(states, shown, strict=True):
        assert wrong_cells(tables, right(state)) == [], state
        votes, winner = tally(
            sampled()[contested()[int(state["problem"])]][1][: int(state["samples"])]
        )
        labels = [th.text for th in picture.find("table").tbody.find_all("th")]
        outlined = [td.parent.find("th").text for td in picture.find_all("td", class_="x")]
        assert labels[: len(votes)] == list(votes) and outlined == ([winner] if votes else [])
