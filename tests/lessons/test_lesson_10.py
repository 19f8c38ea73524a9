"""Lesson 10: what its text says is what happens, and its widget shows the right numbers."""

import re

import pytest
import torch
from lesson_cells import Lesson, asked, numbers, signs
from widget_numbers import every_state_is_right

from qwenlab.exercises.lesson_10 import hide_gates, next_positions
from qwenlab.model import deltanet
from qwenlab.teach import check

LESSON = "10-hiding-padding"
CURES = ["keys", "window", "decay", "beta", "positions"]


@pytest.fixture(scope="module")
def lesson():
    return Lesson(LESSON, until="mended")


def gaps(text):
    """{(turn, row): (logits, window, memory)} of what `two_turns` prints."""
    found = re.findall(r"turn (\d), (\w): .*logits (\S+), window (\S+), memory (\S+)", text)
    return {(int(turn), row): [float(x) for x in rest] for turn, row, *rest in found}


def wrong_rows(text):
    """The (turn, row) that it calls WRONG, which must be those that differ."""
    wrong = {(int(turn), row) for turn, row in re.findall(r"turn (\d), (\w): WRONG", text)}
    assert wrong == {place for place, rest in gaps(text).items() if max(rest) >= 1e-5}
    return wrong


def test_zeroing_is_right_for_one_turn_and_wrong_for_two(lesson):
    found = gaps(lesson.shown("naive"))
    wrong = found.pop((2, "A"))
    assert min(wrong) > 1e-3 and len(found) == 3
    assert max(max(rest) for rest in found.values()) < 1e-5


def test_a_follow_up_behind_zeroed_pads_is_answered_wrongly(lesson):
    """Alone, both follow-ups get the right answer, which goes on from that of turn 1."""
    told = lesson.shown("naive")
    assert signs(told) == "-="
    alone, here, other = numbers(r"boxed\{(\d+)\}", told)
    assert here != alone == 6 + 38 - 41 + 33 and other == 12 + 34 + 5 + 9


def test_a_zeroed_pad_fades_writes_and_fills_the_window(lesson):
    decay, beta, value, left = lesson.names["inside"](6)
    assert (decay < 1).all() and (beta == 0.5).all()
    assert (value[:3] > 0).all() and (value[3:] == 0).all()
    assert left[-1] < left[0] and left[-1] < 1


def test_the_plain_layer_hides_loud_pads_bit_for_bit(lesson):
    names = lesson.names
    before = names["first_alone"]
    for loud in (100.0, -7.0):
        kept = names["copy_of"](before)
        ids = torch.full((1, 5), names["pad_id"])
        names["forward"](ids, torch.zeros_like(ids).bool(), kept, names["CURES"], loud)
        for n in names["LINEAR"]:
            assert all(
                torch.equal(kept[n][part], before[n][part]) for part in names["PARTS"].values()
            )


def test_with_all_cures_each_row_is_as_alone(lesson):
    told = lesson.shown("mended")
    assert wrong_rows(told) == set() and len(gaps(told)) == 4 and signs(told) == "=="


def test_each_cure_is_needed(lesson):
    told = lesson.shown("leave-one-out")
    found = {}
    for name, *rest in re.findall(r"without (\w+) +logits (\S+), window (\S+), memory (\S+)", told):
        found[name] = [float(x) for x in rest]
    assert max(found.pop("nothing")) < 1e-5 and list(found) == CURES
    assert all(rest[0] > 1e-4 for rest in found.values())
    only_logits = [name for name, rest in found.items() if max(rest[1:]) < 1e-5]
    assert only_logits == ["keys", "positions"]


def test_column_numbers_are_wrong_only_with_pads_between_the_turns(lesson):
    told = lesson.shown("positions")
    assert [gap < 1e-5 for gap in numbers(r"logits (\S+)", told)] == [True, True, False, True]
    columns = numbers(r"column (\d+)", told)
    own = numbers(r"position (\d+)", told)
    assert [a > b for a, b in zip(columns, own, strict=True)] == [False, True, True, True]


def test_the_library_takes_three_ragged_turns_and_moves_no_bit(lesson):
    assert len(numbers(r"at most (\S+) from alone", lesson.shown("library"))) == 3
    assert lesson.shown("bits").count("every bit as before") == 2


def test_pads_are_scattered_and_tokens_keep_their_order(lesson):
    exec(lesson.sources["library"].split("\nasked = ")[0], lesson.names)
    rows = [[1, 2], [3, 4, 5, 6, 7]]
    for side in ("left", "right", "inner"):
        ids, real = lesson.names["scattered"](rows, side, seed=3)
        assert [ids[row][real[row]].tolist() for row in range(2)] == rows


# --- the cell to break ---

STANDS = 'cures = {"keys", "positions", "window", "decay", "beta"}'
A, B = (2, "A"), (2, "B")
B_FIRST = (1, "B")
BREAKS = {
    "1": ('cures = {"keys", "positions", "window", "beta"}', {A}),
    "2": ('cures = {"keys", "positions", "window", "decay"}', {A, B, B_FIRST}),
    "3": ('cures = {"keys", "positions", "window", "decay", "zero inputs"}', {A}),
    "4": ('cures = {"positions", "window", "decay", "beta"}', {A, B, B_FIRST}),
}


def test_the_cell_to_break_works_as_it_stands(lesson):
    assert wrong_rows(lesson.shown("break-me")) == set()


@pytest.mark.parametrize("number", BREAKS)
def test_breaking_shows_what_the_text_says(lesson, capsys, number):
    change, expected = BREAKS[number]
    told = lesson.say("break-me", capsys, (STANDS, change))
    assert wrong_rows(told) == expected
    only_logits = all(max(rest[1:]) < 1e-5 for rest in gaps(told).values())
    assert only_logits == (number == "4")


# --- the exercises ---


def test_the_colleague_s_gates_pass_with_an_empty_memory_only():
    names = asked(LESSON, "hide-gates", torch=torch)
    draw = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 1, 6, 2, 4, generator=draw)
    k = k / k.norm(dim=-1, keepdim=True)
    g, beta = torch.rand(2, 1, 6, 2, generator=draw)
    real = torch.tensor([[False, False, True, True, True, True]])  # a left-padded prompt
    filled = torch.randn(1, 2, 4, 4, generator=draw)
    for memory, passes in ((torch.zeros_like(filled), True), (filled, False)):
        found = []
        for hide in (names["hide_gates"], hide_gates):
            gates = hide(-g, beta, real)
            found.append(deltanet.delta_steps(q, k, v, *gates, memory)[1])
        assert torch.allclose(*found, atol=1e-6) == passes
    told = repr(check("hide-gates", lambda *given: names["hide_gates"](*given)))
    assert "erases the table" in told


def test_predicted_lengths_are_the_library_s(lesson, capsys):
    lesson.names["my_next_positions"] = next_positions
    told = lesson.say("measure-next-positions", capsys)
    pairs = re.findall(r"predict (\[.+?\]), it holds (\[.+?\])", told)
    assert len(pairs) == 2 and all(predicted == held for predicted, held in pairs)


def with_where(g, beta, real):
    nothing = torch.zeros(())
    return torch.where(real[..., None], g, nothing), torch.where(real[..., None], beta, nothing)


def in_place(g, beta, real):
    g = g.clone()
    beta = beta.clone()
    g[~real] = 0
    beta[~real] = 0
    return g, beta


def one_input_at_a_time(window, inputs, real):
    rows = []
    for old, new, keep in zip(window, inputs, real, strict=True):
        lines = list(old)
        for line, is_real in zip(new, keep, strict=True):
            if is_real:
                lines = [*lines[1:], line]
        rows.append(torch.stack(lines))
    return torch.stack(rows)


def row_by_row(lengths, real):
    positions = torch.zeros(real.shape, dtype=torch.int64)
    after = lengths.clone()
    for row in range(len(real)):
        for column in range(real.shape[1]):
            if real[row, column]:
                positions[row, column] = after[row]
                after[row] += 1
    return positions, after


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("hide-gates", with_where),
        ("hide-gates", in_place),
        ("next-window", one_input_at_a_time),
        ("next-positions", row_by_row),
    ],
)
def test_an_answer_in_another_style_is_right(name, answer):
    assert check(name, answer).ok


# --- the widget ---


def test_every_state_of_the_widget_shows_the_right_numbers_and_no_two_are_alike():
    every_state_is_right(LESSON, until="explore-pads", fewest=8)
