"""What lessons share: chats that have begun, ids as text, verdicts chosen from data."""

import pytest
import torch

import qwenlab
from qwenlab.teach import ask, compare, difference, shown, speed_verdict, until_stop


@pytest.fixture(scope="module")
def tiny():
    return qwenlab.load("tiny", dtype="float32")


def test_a_begun_answer_is_continued(tiny):
    model, tokenizer = tiny
    prompt = ask(tokenizer, "2+2?", "2+2=")
    assert prompt[: len(ask(tokenizer, "2+2?"))] == ask(tokenizer, "2+2?")
    (answer,) = qwenlab.generate(model, [prompt], max_new_tokens=3)
    assert shown(tokenizer, answer.token_ids).startswith("4⏎")


def test_until_stop_keeps_what_stands_before_the_first_stop():
    assert until_stop([3, 4, 9, 5, 9], {9, 8}) == [3, 4]
    assert until_stop(torch.tensor([3, 4]), {9}) == [3, 4]
    assert until_stop([9], [9]) == until_stop([], [9]) == []


def test_compare_shows_both_only_where_they_differ(tiny):
    tokenizer = tiny[1]
    four, five = tokenizer.encode("4"), tokenizer.encode("5")
    told = compare(tokenizer, ["a", "long"], [four, five], [four, four])
    assert told.splitlines() == [
        "a     same as alone",
        "    4",
        "long  DIFFERENT",
        "    alone  5",
        "    here   4",
    ]
    assert compare(tokenizer, [], [], []) == ""
    with pytest.raises(ValueError):
        compare(tokenizer, ["a"], [four], [])


def test_difference_is_relative_to_large_values_only():
    assert difference(torch.tensor([0.5, 0.0]), torch.tensor([0.25, 0.0])) == 0.25
    assert difference(torch.tensor([300.0]), torch.tensor([200.0])) == 0.5


@pytest.mark.parametrize(
    "before, after, told",
    [
        ([3.0, 3.3, 3.6], [1.0, 1.0, 1.0], "3.3 times as fast (3.0 to 3.6)"),
        (
            [1.0, 1.1, 0.9],
            [1.0, 1.0, 1.0],
            "no clear difference: 1.00 times as fast (0.90 to 1.10)",
        ),
        ([1.0, 1.0, 1.0], [2.0, 1.6, 1.6], "slower: 0.62 times as fast (0.50 to 0.62)"),
    ],
)
def test_the_verdict_on_speed_follows_the_measurement(before, after, told):
    assert speed_verdict(before, after) == told
