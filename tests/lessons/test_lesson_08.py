"""Lesson 08: what its text says is what happens, and every state of its widget is right."""

import itertools
import random
import re

import nbformat
import pytest
from helpers import count
from lesson_cells import NOTEBOOKS, lesson_of_a_page, numbers, pictures, signs
from widget_numbers import EXPECTED, wrong_cells

import qwenlab
from qwenlab.exercises.lesson_08 import common_prefix, prefill_tokens, repeat_rows
from qwenlab.teach import check

LESSON = "08-shared-prefix"
LENGTHS = [8, 64, 256, 512]
COUNTS = [2, 4, 8, 16]


@pytest.fixture(scope="module")
def lesson():
    return lesson_of_a_page(LESSON, until="explore-prefix")


def test_the_first_answers_are_the_same_read_once_or_by_each_slot(lesson, capsys):
    size = len(lesson.names["prompt"])
    once = lesson.say("hero-python", capsys)
    each = lesson.say("hero-python", capsys, ("shared_prefix=None", "shared_prefix=False"))
    assert once == each and len(once.splitlines()) == 8
    assert numbers(r"(\d+) tokens read", lesson.shown("hero-python")) == [size - 1 + 8]


def test_each_row_reads_the_long_prompt_and_holds_the_same(lesson):
    size = len(lesson.names["few_shot"])
    assert size > 400 and numbers(r"([\d,]+) tokens read", lesson.shown("apart")) == [8 * size]


def test_read_once_each_answer_is_as_alone(lesson):
    told = lesson.shown("library")
    assert signs(told) == "========"
    size = len(lesson.names["prompt"])
    assert numbers(r"(\d+) tokens read", told) == [size - 1 + 8, 8 * size]


@pytest.mark.parametrize("seed", range(count(3, 20)))
def test_the_plain_code_answers_as_the_library_does(lesson, seed):
    draw = random.Random(seed)
    names = lesson.names
    asked = draw.sample([names["prompt"], *names["six"]], draw.randint(1, 3))
    n = draw.randint(1, 4)
    options = {"n": n, "temperature": 1.0, "max_new_tokens": names["MOST"]}
    result = qwenlab.generate(names["model"], asked, **options)
    assert names["shared_answers"](asked, n) == result.token_ids


def test_the_first_token_drawn_once_is_every_answer_s_first_token(lesson):
    told = lesson.shown("first-token-once")
    shown = lesson.names["shown"]
    firsts = [shown(lesson.names["tokenizer"], ids[:1]) for ids in lesson.names["each"]]
    (first,) = re.findall(r"'(.+?)'", re.search(r"first tokens: (.+)", told)[1])
    right = [sign == "=" for sign in signs(told)]
    assert right[0] and right.count(False) > len(right) // 2
    assert all(begins == first for begins, same in zip(firsts, right, strict=True) if same)
    assert len(set(firsts)) >= 3


def test_the_tree_is_drawn_as_it_is_counted(lesson):
    six = lesson.names["six"]
    read = set()
    new = 0
    known = []
    for ids in six:
        beginnings = {tuple(ids[: t + 1]) for t in range(len(ids))}
        known.append(len(beginnings & read))
        new += len(beginnings - read)
        read |= beginnings
    told = lesson.shown("tree-picture")
    assert numbers(r"as a tree: (\d+)", told) == [new]
    assert numbers(r"apart: (\d+)", told) == [sum(map(len, six))]
    assert lesson.names["known_tokens"](six) == known
    assert [int(x) for x in re.findall(r" (\d+) known", told)] == known
    assert known[-1] == len(six[-1])  # the same question again


def test_the_stories_are_answered_rightly_and_share_their_beginning(lesson):
    assert "prompt 0 is empty" in lesson.shown("plain-different")
    told = lesson.shown("library-different")
    assert re.findall(r"boxed{(\d+)}", told) == ["28", "32", "45", "25"] and signs(told) == "===="
    stories = lesson.names["stories"]
    assert lesson.names["common"] == common_prefix(stories)
    apart, _, shared = prefill_tokens(list(map(len, stories)), lesson.names["common"], 1)
    assert numbers(r": (\d+) tokens read", told) == [apart, shared] and shared < apart


def test_the_common_text_ends_in_a_token_of_neither(lesson):
    told = lesson.shown("border")
    first, second, common, parts = (line[21:].split(" | ") for line in told.splitlines()[:4])
    kept = common[:-1]
    assert common[-1] not in first + second
    assert kept == first[: len(kept)] == second[: len(kept)]
    assert "".join(parts) == "".join(first) and parts != first
    assert "OTHER logits" in told


def test_a_cache_can_be_cut_and_a_memory_cannot(lesson):
    found = re.findall("right|WRONG", lesson.shown("hybrid"))
    assert found == ["right", "right", "right", "WRONG"]


def test_where_it_loses_a_step_more_is_taken_for_hardly_fewer_tokens(lesson):
    told = lesson.shown("time")
    tokens = numbers(r"(?:apart|shared) +([\d,]+) tokens", told)
    assert tokens == [16 * 400, 399 + 16, 4 * 8, 7 + 4, 8 * 64, 4 + 8 * 60]
    assert numbers(r"steps: (\d+)", told) == [2, 3, 1, 2, 1, 2]


BREAKS = {
    "1": (("one_each.repeat(n)  # 1", "model.new_state(len(pair) * n)"), "--------"),
    "2": (("logits.repeat_interleave(n, 0)  # 2", "logits.repeat(n, 1)"), "=-=--=-="),
    "3": (("stream(k, i))  # 3", "stream(0, i))"), "=---=---"),
}


def test_the_cell_to_break_works_as_it_stands(lesson):
    assert signs(lesson.shown("break-me")) == "========"


@pytest.mark.parametrize("number", BREAKS)
def test_breaking_shows_what_the_text_says(lesson, capsys, number):
    change, expected = BREAKS[number]
    told = lesson.say("break-me", capsys, change)
    assert signs(told) == expected
    if number == "1":  # each first token is right all the same
        alone = re.findall(r"^    alone  (.)", told, re.M)
        assert alone == re.findall(r"^    here   (.)", told, re.M) and len(alone) == 8


# --- the exercises say what the library does ---


@pytest.mark.parametrize("seed", range(count(20, 200)))
def test_the_library_reads_as_many_tokens_as_the_exercise_counts(lesson, seed):
    rng = random.Random(seed)
    start = [rng.randrange(60, 90) for _ in range(rng.randint(0, 9))]
    rests = [
        [rng.randrange(60, 63) for _ in range(rng.randint(not start, 5))]
        for _ in range(rng.randint(1, 4))
    ]
    prompts = [start + rest for rest in rests]
    n = rng.randint(1, 4)
    options = {"n": n, "max_new_tokens": 1, "stop": ()}
    read = [
        qwenlab.generate(
            lesson.names["model"], prompts, shared_prefix=how, **options
        ).stats.prefill_tokens
        for how in (False, None, True)
    ]
    assert read == list(prefill_tokens([len(ids) for ids in prompts], common_prefix(prompts), n))


def test_rows_are_repeated_as_a_state_repeats_them(lesson):
    model = lesson.names["model"]
    torch = lesson.names["torch"]
    ids = torch.tensor([[5, 6, 7], [8, 9, 10]])
    state = model.new_state(2, capacity=3)
    model(ids, state=state)
    rows, prompt, sample = repeat_rows(ids, 3)
    assert sample.tolist() == [0, 1, 2] * 2 and rows.tolist() == [ids[i].tolist() for i in prompt]
    keys = state.layers[0]["keys"]
    copies = state.repeat(3).layers[0]["keys"]
    assert torch.equal(copies, keys[prompt])


COLLEAGUE = """
def repeat_rows(rows, n):
    count = len(rows)
    prompt = torch.arange(count).repeat(n)
    sample = torch.arange(count * n) % n
    return rows.repeat(n, 1), prompt, sample
"""


def test_the_colleague_s_version_passes_with_one_prompt_and_fails_with_two(lesson):
    page = nbformat.read(NOTEBOOKS / f"{LESSON}.ipynb", as_version=4)
    (asked,) = [cell.source for cell in page.cells if cell["id"] == "exercise-repeat-rows"]
    assert COLLEAGUE in asked
    torch = lesson.names["torch"]
    exec(COLLEAGUE, names := {"torch": torch})
    one = torch.tensor([[4, 5, 6]])
    pairs = zip(names["repeat_rows"](one, 3), repeat_rows(one, 3), strict=True)
    assert all(torch.equal(theirs, right) for theirs, right in pairs)
    two = torch.tensor([[1, 2], [3, 4]])
    pairs = zip(names["repeat_rows"](two, 3), repeat_rows(two, 3), strict=True)
    assert [torch.equal(theirs, right) for theirs, right in pairs] == [False, False, True]
    told = repr(check("repeat-rows", lambda rows, n: names["repeat_rows"](rows, n)))
    assert "row i*n+k is sample k of i" in told


def by_index(rows, n):
    import torch

    places = torch.arange(len(rows) * n)
    return rows[places // n], places // n, places % n


def by_lists(prompts):
    shortest = min(map(len, prompts)) - 1
    for place in range(shortest):
        if any(ids[place] != prompts[0][place] for ids in prompts):
            return place
    return shortest


def with_numpy(lengths, common, n):
    import numpy as np

    lengths = np.asarray(lengths)
    each = (lengths + n - 1).sum()
    return n * lengths.sum(), each, each - common * len(lengths) + common


@pytest.mark.parametrize(
    ("name", "answer"),
    [("repeat-rows", by_index), ("common-prefix", by_lists), ("prefill-tokens", with_numpy)],
)
def test_an_answer_in_another_style_is_right(name, answer):
    assert check(name, answer).ok


# --- the widget ---


def test_every_state_of_the_widget_shows_the_right_numbers_and_no_two_are_alike(lesson):
    ((widget, controls),) = lesson.widgets
    assert controls == {"answers": COUNTS, "prompt_tokens": LENGTHS}
    html = widget._repr_html_()
    shown = pictures(html)
    states = [
        {"answers": str(n), "prompt tokens": str(length)}
        for n, length in itertools.product(COUNTS, LENGTHS)
    ]
    assert len(shown) == len(states) and len(html) < 200_000  # equal pictures would be stored once
    (right,) = EXPECTED[LESSON]
    for state, (_, tables) in zip(states, shown, strict=True):
        assert wrong_cells(tables, right(state)) == [], state
