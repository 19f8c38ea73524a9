"""Lesson 06: what its text says is what happens, and every state of its widget is right."""

import itertools
import random

import pytest
import torch
from helpers import count, random_prompts
from lesson_cells import lesson_of_a_page, pictures, signs
from widget_numbers import EXPECTED, wrong_cells

import qwenlab
from qwenlab.exercises.lesson_06 import EXERCISES, row_steps, scatter_back, survivors
from qwenlab.teach import check

NAME = "06-early-stop"


@pytest.fixture(scope="module")
def lesson():
    """The lesson up to its measurements, every state of its widget drawn."""
    return lesson_of_a_page(NAME, until="memory-by-place")


# --- the failing case, as designed ---


def test_a_ends_at_step_3_and_c_at_4_and_the_others_later(lesson):
    ends = [len(ids) for ids in lesson.names["alone"]]
    assert (ends[0], ends[2]) == (3, 4) and 4 < ends[1] < ends[3] < lesson.names["MOST"]
    assert [request.finish_reason for request in lesson.names["static"]] == ["stop"] * 4
    wasted = sum(ends[3] - end for end in ends)
    assert lesson.names["static"].stats.row_steps == {
        "real": sum(ends) + 4,
        "wasted": wasted,
        "idle": 0,
    }
    picture = lesson.names["static"]
    assert picture.token_ids == lesson.names["alone"]


def test_written_by_place_words_land_in_the_wrong_answer(lesson, capsys):
    assert signs(lesson.say("by-place", capsys)) == "----"
    (a, b, c, d) = lesson.names["alone"]
    wrong = lesson.names["wrong"]
    # A leaves after its step 3: from then on B's words are at place 0, C's at 1, D's at 2.
    assert wrong[0][: len(a) + 1] == [*a, b[4]]  # at step 4
    assert (
        wrong[1][:4] == b[:4] and wrong[1][4] == d[5]
    )  # C says its stop id at place 1, then D moves up
    assert wrong[2] == [*c[:4], d[4]] and wrong[3] == d[:4]
    assert sorted(itertools.chain(*wrong)) == sorted(
        [*a, *b, *c, *d]
    )  # nothing is lost, all is misplaced


def test_the_library_moves_a_row_into_the_free_slot(lesson):
    early = lesson.names["early"]
    assert early.token_ids == lesson.names["alone"] and early.stats.row_steps["wasted"] == 0
    slot_0 = [event.request for event in early.stats.events if event.slot == 0]
    assert slot_0 == [0] * 4 + [3] * 13
    assert len(early.stats.steps) == len(lesson.names["static"].stats.steps)


# --- the mended loop ---


def test_the_plain_loop_is_right_on_both_models(lesson, capsys):
    assert signs(lesson.say("plain", capsys)) == "===="
    names = lesson.names
    assert names["early_stop"](names["hybrid"], names["prompts"]) == names["lone"]
    assert (
        names["answer"](names["prompts"], "early-stop", names["hybrid"]).token_ids
        == (names["lone"])
    )


def test_the_plain_loop_equals_each_row_alone_for_random_prompts(model, lesson):
    rng = random.Random(8)
    early_stop = lesson.names["early_stop"]
    most = lesson.names["MOST"]
    for _ in range(count(4, 40)):
        prompts = random_prompts(rng, rng.randint(1, 6), 20)
        alone = [qwenlab.generate(model, [p], max_new_tokens=most).token_ids[0] for p in prompts]
        assert early_stop(model, prompts) == alone


def test_every_tensor_of_the_state_shrinks_and_what_stays_is_bit_equal(lesson, capsys):
    before, kept = lesson.names["filled"], lesson.names["KEPT"]
    after = before.select(kept)
    assert kept == [1, 3] and after.lengths.tolist() == before.lengths[kept].tolist()
    names = set()
    for old, new in zip(before.layers, after.layers, strict=True):
        names |= set(new)
        for name, tensor in new.items():
            assert len(tensor) == 2 and all(
                torch.equal(tensor[i], old[name][row]) for i, row in enumerate(kept)
            )
    assert (
        names == {"conv_state", "recurrent_state", "keys", "values"}
        and 2 * after.nbytes == before.nbytes
    )
    said = lesson.say("state-rows", capsys)
    assert all(name in said for name in ("lengths", "keys", "values", "bytes"))


def test_memories_kept_by_place_change_the_words(lesson, capsys):
    assert signs(lesson.say("memory-by-place", capsys)) == "==--"


BREAKS = {
    "1": (("answers[rows[place]]  # 1", "answers[place]"), "----"),
    "2": (("[rows[place] for place in staying]  # 2", "rows[-len(staying) :]"), "=--="),
    "4": (("new[staying][:, None], state=state, last_only=True)  # 4",
           "new[: len(staying), None], state=state, last_only=True)"), "=---"),
    "5": (("len(mine) < MOST:  # 5", "len(mine) < 2:"), "----"),
}  # fmt: skip


def test_the_cell_to_break_works_as_it_stands(lesson, capsys):
    assert signs(lesson.say("break-me", capsys)) == "===="


def test_each_break_shows_what_the_text_says_and_no_two_the_same(lesson, capsys):
    seen = {lesson.say("break-me", capsys)}
    for number, (change, expected) in BREAKS.items():
        said = lesson.say("break-me", capsys, change)
        assert signs(said) == expected, number
        seen.add(said)
    assert len(seen) == len(BREAKS) + 1


def test_requests_as_places_are_refused_by_the_state(lesson, capsys):
    with pytest.raises(ValueError, match=r"slots \[1, 3\] are not all within 0..2"):
        lesson.say("break-me", capsys, ("state.select(staying)  # 3", "state.select(rows)"))


# --- the exercises ask for what the library does ---


def test_row_steps_are_what_a_run_counts(model):
    rng = random.Random(9)
    for _ in range(count(8, 100)):
        lengths = [rng.randint(1, 9) for _ in range(rng.randint(1, 7))]
        slots = rng.randint(1, 7)
        prompts = random_prompts(rng, len(lengths), 6)
        for strategy, leave in (("static", False), ("early-stop", True)):
            options = dict(
                max_new_tokens=lengths, stop=(), strategy=strategy, slots=min(slots, len(lengths))
            )
            stats = qwenlab.generate(model, prompts, **options).stats
            counted = (len(stats.steps), *stats.row_steps.values())
            assert counted == row_steps(lengths, min(slots, len(lengths)), leave)


def test_the_cases_of_the_check_are_real_runs(model):
    for _, (lengths, slots, leave) in EXERCISES["row-steps"].cases():
        options = dict(
            max_new_tokens=lengths,
            stop=(),
            slots=slots,
            strategy="early-stop" if leave else "static",
        )
        stats = qwenlab.generate(model, [[1]] * len(lengths), **options).stats
        assert (len(stats.steps), *stats.row_steps.values()) == row_steps(lengths, slots, leave)


def test_survivors_scattered_back_are_those_who_stayed():
    rng = random.Random(10)
    for _ in range(100):
        size = rng.randint(1, 9)
        rows = torch.tensor(rng.sample(range(size), size))
        said = torch.tensor(rng.sample(range(50), size))
        done = torch.tensor([rng.random() < 0.4 for _ in range(size)])
        keep, left = survivors(rows, done)
        back = scatter_back(said[keep], left, size, -1).tolist()
        for place, row in enumerate(rows.tolist()):
            assert back[row] == (-1 if done[place] else said[place])


def survivors_by_mask(rows, done):
    keep = torch.arange(len(rows))[~done]
    return keep, rows[~done]


def survivors_by_list(rows, done):
    keep = [place for place, over in enumerate(done.tolist()) if not over]
    left = [int(rows[place]) for place in keep]
    return torch.tensor(keep, dtype=torch.int64), torch.tensor(left, dtype=torch.int64)


def scatter_by_loop(new, rows, count, pad_id):
    sampled = [pad_id] * count
    for token_id, row in zip(new.tolist(), rows.tolist(), strict=True):
        sampled[row] = token_id
    return torch.tensor(sampled)


def scatter_by_method(new, rows, count, pad_id):
    return torch.full((count,), pad_id).scatter(0, rows, new)


def row_steps_by_simulation(lengths, slots, leave):
    counts = {"real": 0, "wasted": 0, "idle": 0}
    steps = 0
    for first in range(0, len(lengths), slots):
        batch = lengths[first : first + slots]
        for step in range(max(batch)):
            steps += 1
            real = sum(length > step for length in batch)
            counts["real"] += real
            counts["idle" if leave else "wasted"] += len(batch) - real
            counts["idle"] += slots - len(batch)
    return [steps, *counts.values()]


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("survivors", survivors_by_mask),
        ("survivors", survivors_by_list),
        ("scatter-back", scatter_by_loop),
        ("scatter-back", scatter_by_method),
        ("row-steps", row_steps_by_simulation),
    ],
)
def test_other_ways_to_write_it_are_right_too(name, answer):
    assert check(name, answer).ok


# --- the widget ---


def test_every_state_of_the_widget_shows_what_plain_loops_say(lesson):
    ((widget, controls),) = lesson.widgets
    html = widget._repr_html_()
    shown = pictures(html)
    states = list(itertools.product(*controls.values()))
    assert (
        len(shown) == len(states) <= 60 and len(html) < 300_000
    )  # equal pictures would be stored once
    (right,) = EXPECTED[NAME]
    for state, (picture, tables) in zip(states, shown, strict=True):
        state = dict(zip(controls, map(str, state), strict=True))
        assert wrong_cells(tables, right(state)) == [], state
        legend = [th.text for th in picture.find_all("table")[1].find_all("th")]
        counts = tables[2][0]
        assert legend[2:] == [f"wasted: {counts[3]}", f"idle: {counts[4]}"]
        assert sum(int(word.split()[-1]) for word in legend[:2]) == int(counts[2])
