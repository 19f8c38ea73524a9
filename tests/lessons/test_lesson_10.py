"""What lesson 10 says must be what happens, and its widget shows the right numbers."""

import re

import pytest
from lesson_cells import Lesson, numbers
from widget_numbers import every_state_is_right

CURES = ["keys", "window", "decay", "beta", "positions"]


@pytest.fixture(scope="module")
def lesson():
    return Lesson("10-hiding-padding", until="mended")


def gaps(text):
    """{(turn, row): (logits, window, memory)} of a report."""
    found = re.findall(r"turn (\d), row (\d): .*logits (\S+), window (\S+), memory (\S+)", text)
    return {(int(turn), int(row)): [float(x) for x in rest] for turn, row, *rest in found}


def test_zeroing_is_right_for_one_turn_and_wrong_for_two(lesson, capsys):
    found = gaps(lesson.say("naive", capsys))
    wrong = found.pop((2, 0))
    assert (
        min(wrong) > 1e-3 and max(max(rest) for rest in found.values()) < 1e-5 and len(found) == 3
    )


def test_a_follow_up_behind_zeroed_pads_is_answered_wrongly(lesson, capsys):
    """Alone, both follow-ups get the right answer, which goes on from that of turn 1."""
    said = lesson.say("naive-words", capsys)
    assert re.findall("same words|OTHER WORDS", said) == ["OTHER WORDS", "same words"]
    here, alone, other = numbers(r"boxed\{(\d+)\}", said)
    assert here != alone == 6 + 38 - 41 + 33 and other == 12 + 34 + 5 + 9


def test_a_zeroed_pad_fades_writes_and_fills_the_window(lesson):
    decay, beta, value, left = lesson.names["inside"](6)
    assert (
        (decay < 1).all()
        and (beta == 0.5).all()
        and (value[:3] > 0).all()
        and (value[3:] == 0).all()
    )
    assert left[-1] < left[0] and left[-1] < 1


def test_with_all_cures_each_row_is_as_alone(lesson, capsys):
    said = lesson.say("mended", capsys)
    assert max(max(rest) for rest in gaps(said).values()) < 1e-5 and said.count("same words") == 2


def test_each_cure_is_needed(lesson, capsys):
    said = lesson.say("leave-one-out", capsys)
    found = dict(re.findall(r"without (\w+) .*logits (\S+),", said))
    assert float(found.pop("nothing")) < 1e-5 and list(found) == CURES
    assert all(float(gap) > 1e-4 for gap in found.values())
    said = lesson.say("positions", capsys)
    assert [gap < 1e-5 for gap in numbers(r"logits (\S+)", said)] == [True, True, False, True]
    columns, own = (numbers(pattern, said) for pattern in (r"column (\d+)", r"position (\d+)"))
    assert [a > b for a, b in zip(columns, own, strict=True)] == [False, True, True, True]


def test_the_library_takes_three_ragged_turns_and_moves_no_bit(lesson, capsys):
    exec(lesson.sources["library"], lesson.names)
    said = capsys.readouterr().out
    assert len(numbers(r"at most (\S+) from alone", said)) == 3
    for side in ("left", "right", "inner"):
        rows = [[1, 2], [3, 4, 5, 6, 7]]
        ids, real = lesson.names["scattered"](rows, side, seed=3)
        assert [ids[row][real[row]].tolist() for row in range(2)] == rows
    assert lesson.say("bits", capsys).count("every bit as before") == 2


@pytest.mark.parametrize("cure", ["decay", "beta", "window"])
def test_breaking_shows_what_the_text_says(lesson, capsys, cure):
    without = (
        '"decay", "beta", "window"}',
        ", ".join(f'"{c}"' for c in ("decay", "beta", "window") if c != cure) + "}",
    )
    found = gaps(lesson.say("break-me", capsys, without))
    logits, _, memory = found[2, 0]  # a window shows earlier layers only, at its last tokens
    assert min(logits, memory) > 1e-4 and (max(found[2, 1]) < 1e-5) == (cure == "decay")
    zeroed = (without[0], without[1].replace("}", ', "zero inputs"}'))
    found = gaps(lesson.say("break-me", capsys, zeroed))
    wrong = found.pop((2, 0))
    assert max(wrong) > 1e-4 and max(max(rest) for rest in found.values()) < 1e-5


def test_as_it_stands_nothing_is_broken(lesson, capsys):
    assert max(max(rest) for rest in gaps(lesson.say("break-me", capsys)).values()) < 1e-5


def test_every_state_of_the_widget_shows_the_right_numbers_and_no_two_are_alike():
    every_state_is_right("10-hiding-padding", until="explore-pads", fewest=8)
