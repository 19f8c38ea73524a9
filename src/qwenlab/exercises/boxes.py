"""An exercise of lesson 11: last-box."""

import random
import re

from qwenlab.teach.checking import exercise

# --- last-box: (text) -> what the last \boxed{...} holds, "" where there is no answer ---

START = "\\boxed{"


def last_box(text):
    place = text.rfind(START)
    return _inside(text, place + len(START)) if place >= 0 else ""


def _inside(text, start):
    """What stands from `start` up to the brace that closes; "" if none does."""
    return _raw(text, start).strip()


def _raw(text, start):
    depth = 1
    for place in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[start:place]
    return ""


def _texts():
    yield "one box", (r"so \boxed{42} it is.",)
    yield "two boxes", (r"\boxed{5}? No, wait: \boxed{7}, I am sure.",)
    yield "braces in the box", (r"that is \boxed{\frac{1}{2}} of {all}",)
    yield "a box that never closes", (r"\boxed{6}, no, \boxed{7}, or rather \boxed{\frac{8}{9",)
    yield "an empty last box", (r"\boxed{6}, \boxed{7} and \boxed{}",)
    yield "spaces", (r"\boxed{ 3 }",)
    yield "no box", ("The answer is 42.",)
    draw = random.Random(14)
    for _ in range(20):
        pieces = [draw.choice([r"\boxed{%d}", r"\boxed{\frac{%d}{3}}", "%d", "{%d}", r"\boxed{ %d }"]) for _ in "abcd"]
        text = " ".join(piece % draw.randint(0, 99) for piece in pieces)
        yield "random texts", (text + draw.choice(["", ".", r" \boxed{", " }"]),)


def _first(text):
    place = text.find(START)
    return _inside(text, place + len(START)) if place >= 0 else ""


def _last_closed(text):
    found = [_inside(text, match.end()) for match in re.finditer(re.escape(START), text)]
    return next((held for held in reversed(found) if held), "")


def _to_the_first_brace(text):
    place = text.rfind(START)
    return text[place + len(START) :].partition("}")[0].strip() if place >= 0 else ""


def _rest_too(text):
    place = text.rfind(START)
    return last_box(text) or (text[place + len(START) :].strip() if place >= 0 else "")


def _to_the_last_brace(text):
    place = text.rfind(START)
    return text[place + len(START) :].rpartition("}")[0].strip() if place >= 0 else ""


def _with_spaces(text):
    place = text.rfind(START)
    return _raw(text, place + len(START)) if place >= 0 else ""


def _whole_text(text):
    return last_box(text) if START in text else text


exercise(
    "last-box",
    last_box,
    results=("answer",),
    cases=_texts,
    mistakes=(
        (_first, "this is the first box. Models think again: the last one counts."),
        (_to_the_first_brace, "you stop at the first closing brace. Count how many are open."),
        (_to_the_last_brace, "you go to the last closing brace of the text. The box ends at its own."),
        (_last_closed, "the last box is empty or never closes, and an earlier one does not stand in for it."),
        (_rest_too, "a box that never closes is no answer, whatever it has said so far."),
        (_with_spaces, "spaces around the answer do not belong to it."),
        (_whole_text, "a text without a box has no answer here: return the empty string."),
    ),
    rules=(("answer", lambda text: "the answer is what stands between the braces." if "boxed" in text else None),),
)
