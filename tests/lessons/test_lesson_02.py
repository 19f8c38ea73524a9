"""What lesson 02 says must be what happens."""

import re

import pytest
from lesson_cells import RIGHT, WRONG, code_cells, say, verdicts


@pytest.fixture(scope="module")
def lesson():
    """The source of each cell by id, and a namespace in which the first half has run."""
    sources = code_cells("02-left-padding")
    names = {}
    for name in (
        "load",
        "hero",
        "hero-python",
        "alone",
        "right-pad",
        "mask-from-ids",
        "look-sides",
    ):
        exec(sources[name], names)
    return sources, names


def test_right_padding_spoils_the_short_row_only(lesson, capsys):
    assert verdicts(say(lesson, "right-pad", capsys)) == [WRONG, RIGHT]
    assert verdicts(say(lesson, "plain", capsys)) == [RIGHT] * 2


def test_the_model_answers_rightly_alone(lesson):
    names = lesson[1]
    assert [names["text"](ids)[-9:] for ids in names["alone"]] == ["\\boxed{4}", "boxed{38}"]


def test_a_mask_from_ids_moves_the_logits(lesson, capsys):
    said = say(lesson, "mask-from-ids", capsys)
    real, true = map(int, re.search(r"(\d+) real tokens, (\d+) True", said).groups())
    assert real == true + 1 and float(re.search(r"logits: ([\d.]+)", said)[1]) > 1e-3
    lone, masked = re.findall(r"(?:alone|from ids) +(.+)", said)
    assert lone != masked


def test_breaking_shows_what_the_text_says(lesson, capsys):
    swap_ids = ("[pad_id] * pads + list(ids)", "list(ids) + [pad_id] * pads")
    swap_mask = ("[False] * pads + [True] * len(ids)", "[True] * len(ids) + [False] * pads")
    from_ids = ("return input_ids, attention_mask  # 3", "return input_ids, input_ids != pad_id")
    note = ("batch = [prompts[0], prompts[1]]", "batch = [with_note, prompts[1]]")
    assert verdicts(say(lesson, "break-me", capsys)) == [RIGHT] * 2
    assert verdicts(say(lesson, "break-me", capsys, swap_ids, swap_mask)) == [WRONG, RIGHT]
    assert verdicts(say(lesson, "break-me", capsys, swap_mask)) == [WRONG, RIGHT]
    assert verdicts(say(lesson, "break-me", capsys, from_ids)) == [RIGHT] * 2
    assert WRONG in verdicts(say(lesson, "break-me", capsys, from_ids, note))
