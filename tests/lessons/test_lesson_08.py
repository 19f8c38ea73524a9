"""Lesson 08: what its text says is what happens, and every state of its widget is right."""

import itertools
import random
import re

import pytest
from helpers import count
from lesson_cells import lesson_of_a_page, numbers, pictures, signs
from widget_numbers import EXPECTED, wrong_cells

import qwenlab
from qwenlab.exercises.lesson_08 import common_prefix, prefill_tokens, repeat_rows

LENGTHS = [8, 64, 256, 1024]
COUNTS = [1, 2, 4, 8, 16]


@pytest.fixture(scope="module")
def lesson():
    return lesson_of_a_page("08-shared-prefix", until="hybrid")


def first_tokens(text):
    return re.search(r"first tokens: (.+)", text)[1].split(", ")


def test_the_first_answers_are_the_same_read_once_or_by_each_slot(lesson, capsys):
    size = len(lesson.names["chat"]) + len(lesson.names["thought"])
    once = lesson.say("hero-python", capsys)
    each = lesson.say("hero-python", capsys, ("shared_prefix=None", "shared_prefix=False"))
    (read_once, *answers), (read_each, *same) = once.splitlines(), each.splitlines()
    assert answers == same and len(answers) == 8
    assert read_once == f"{size - 1 + 8} tokens read" and read_each == f"{8 * size} tokens read"


def test_a_long_prompt_is_read_once_in_place_of_eight_times(lesson, capsys):
    size = len(lesson.names["few_shot"])
    assert 800 < size < 1200
    assert lesson.names["apart"].stats.prefill_tokens == 8 * size
    assert lesson.names["shared"].stats.prefill_tokens == size - 1 + 8
    said = lesson.say("same-numbers", capsys)
    assert max(numbers(r"(\d\.?\d*e[+-]\d+)", said)) < 1e-4


def test_the_examples_of_the_long_prompt_are_solved_rightly(lesson):
    names = lesson.names
    text = names["tokenizer"].decode(names["few_shot"])
    problems = names["arithmetic_problems"](names["EXAMPLES"], seed=1)
    asked = [problem for problem in problems if f"user\n{problem.question}<" in text]
    assert len(asked) >= 15 and text.rstrip().endswith("assistant")
    assert re.findall(r"\\boxed{(\d+)}", text) == [problem.answer for problem in asked]
    assert "think>" not in text and names["QUESTION"] in text


def test_the_first_token_drawn_once_is_everybody_s_first_token(lesson, capsys):
    said = lesson.say("first-token-once", capsys)
    (first,) = first_tokens(said)
    alike = [lesson.names["text"](ids[:1]) == first for ids in lesson.names["each"]]
    right = [sign == "=" for sign in signs(said)]
    assert right[0] and right.count(False) > len(right) // 2
    assert all(begins for begins, same in zip(alike, right, strict=True) if same)
    assert len(first_tokens(lesson.say("plain", capsys))) >= 3


def test_logits_without_the_state_give_right_first_tokens_only(lesson, capsys):
    said = lesson.say("logits-only", capsys)
    assert signs(said) == "--------"
    answers = re.findall(r"^\d  DIFFERENT +(.)", said, re.M)
    assert answers == [lesson.names["text"](ids[:1]) for ids in lesson.names["each"]]


def test_read_once_each_answer_is_as_alone(lesson, capsys):
    assert signs(lesson.say("plain", capsys)) == "========"
    size = len(lesson.names["prompt"])
    assert numbers(r"(\d+) tokens read", lesson.say("library", capsys)) == [size - 1 + 8, 8 * size]


def test_the_stories_are_answered_rightly_and_share_their_beginning(lesson, capsys):
    said = lesson.say("plain-different", capsys)
    assert (
        re.findall(r"boxed{(\d+)}", said) == ["28", "32", "45", "25"]
        and "prompt 0 is empty" in said
    )
    lengths = [len(ids) for ids in lesson.names["stories"]]
    apart, _, shared = prefill_tokens(lengths, lesson.names["common"], 1)
    two = prefill_tokens(lengths, lesson.names["common"], 2)[2]
    said = lesson.say("library-different", capsys)
    assert numbers(r": (\d+) tokens read", said) == [apart, shared, two] and shared < apart


def test_the_common_text_ends_in_a_token_of_neither(lesson, capsys):
    said = lesson.say("border", capsys)
    first, second, common, parts = (line[21:].split(" | ") for line in said.splitlines()[:4])
    kept = common[:-1]
    assert common[-1] not in first + second
    assert kept == first[: len(kept)] == second[: len(kept)]
    assert "".join(parts) == "".join(first) and parts != first
    assert numbers(r"differ by (\d+\.\d+)", said)[0] > 0.1


def test_a_cache_can_be_cut_and_a_memory_cannot(lesson, capsys):
    assert re.findall("right|WRONG", lesson.say("hybrid", capsys)) == [
        "right",
        "right",
        "right",
        "WRONG",
    ]


def test_where_it_loses(lesson, capsys):
    said = lesson.say("loses-rests", capsys, ("REPEATS", "1"))
    rests = 60
    short = 4
    assert numbers(r"(\d+) tokens", said) == [8 * (short + rests), short + 8 * rests]
    assert numbers(r"(\d+) steps", said) == [1, 2]
    held, one = numbers(r"(?:hold|takes) ([\d.]+) MB", lesson.say("loses-memory-count", capsys))[:2]
    assert held == pytest.approx(8 * one, rel=0.01)
    source = lesson.sources["loses-short"].replace("\nheatmap(", "\nshown = heatmap(")
    exec(source, scope := dict(lesson.names))
    gains = scope["gains"]
    assert gains[-1][-1] > 1.5  # 16 answers to the longest prompt
    assert all(gains[row][column] < 1 <= COUNTS[row] - 1 for row, column in scope["lost"])


BREAKS = {
    "1": (("one_each.repeat(n)  # 1", "model.new_state(len(pair) * n)"), "--------"),
    "2": (("logits.repeat_interleave(n, 0)  # 2", "logits.repeat(n, 1)"), "=-=--=-="),
    "3": (("stream(k, i))  # 3", "stream(0, i))"), "=---=---"),
}


def test_the_cell_to_break_works_as_it_stands(lesson, capsys):
    assert signs(lesson.say("break-me", capsys)) == "========"


@pytest.mark.parametrize("number", BREAKS)
def test_breaking_shows_what_the_text_says(lesson, capsys, number):
    change, expected = BREAKS[number]
    assert signs(lesson.say("break-me", capsys, change)) == expected


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
    (right,) = EXPECTED["08-shared-prefix"]
    for state, (_, tables) in zip(states, shown, strict=True):
        assert wrong_cells(tables, right(state)) == [], state
