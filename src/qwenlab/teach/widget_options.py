"""What the widgets of `page/` take as options: wrong ones are refused here, in the cell that wrote
them, before a page sees them."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Option:
    """expected: what a value has to be, in words, and `fits` whether it is that."""

    expected: str
    fits: Callable[[Any], bool]
    required: bool = True


def is_text(value: Any) -> bool:
    return isinstance(value, str) and value.strip() != ""


def is_list(value: Any, fits: Callable[[Any], bool], least: int, most: int) -> bool:
    listed = isinstance(value, list | tuple) and least <= len(value) <= most
    return listed and all(map(fits, value))


def is_number(value: Any, low: float, high: float) -> bool:
    numeric = isinstance(value, int | float) and not isinstance(value, bool)
    return numeric and low <= value <= high


def is_count(value: Any) -> bool:
    """A whole number from 0 on."""
    return isinstance(value, int) and is_number(value, 0, float("inf"))


def is_pair(value: Any) -> bool:
    return is_list(value, lambda part: isinstance(part, str), 2, 2) and is_text(value[0])


def text(expected: str) -> Option:
    return Option(expected, is_text)


def texts(least: int, most: int) -> Option:
    count = f"{least}" if least == most else f"{least} to {most}"
    return Option(f"a list of {count} texts", lambda value: is_list(value, is_text, least, most))


def pairs(second: str, most: int) -> Option:
    count = "2" if most == 2 else f"2 to {most}"
    expected = f"a list of {count} pairs: a question and {second}"
    return Option(expected, lambda value: is_list(value, is_pair, 2, most))


def one_of(*names: str) -> Option:
    return Option(" or ".join(map(repr, names)), lambda value: value in names, required=False)


def number(low: float, high: float) -> Option:
    expected = f"a number from {low} to {high}"
    return Option(expected, lambda value: is_number(value, low, high), required=False)


def whole(low: int, high: int) -> Option:
    def fits(value: Any) -> bool:
        return isinstance(value, int) and is_number(value, low, high)

    return Option(f"a whole number from {low} to {high}", fits, required=False)


STRATEGIES = ("static", "early-stop", "continuous")
SIDE = one_of("left", "right")
TEMPERATURE = number(0, 2)
# Of each widget, what its script reads. A widget that is not named here takes what it likes.
OPTIONS = {
    "answers": {"prompt": text("a text"), "n": whole(1, 8), "temperature": TEMPERATURE},
    "batch": {
        "prompts": texts(1, 8),
        "side": SIDE,
        "pads": one_of("hidden", "seen"),
        "max_new_tokens": whole(1, 500),
    },
    "mask": {
        "lines": texts(1, 8),
        "pad": text("the text of a token"),
        "hints": Option(
            "a list of places, one a line",
            lambda value: is_list(value, is_count, 1, 8),
        ),
    },
    "nan": {"lines": texts(2, 2)},
    "queue": {
        "prompts": texts(1, 10),
        "slots": whole(1, 4),
        "strategies": Option(
            f"a list of {', '.join(map(repr, STRATEGIES))}, or of some of them",
            lambda value: is_list(value, STRATEGIES.__contains__, 1, len(STRATEGIES)),
            required=False,
        ),
    },
    "sampling": {
        "prompt": text("a text"),
        "temperature": TEMPERATURE,
        "top_k": whole(0, 20),
        "top_p": number(0.05, 1),
        "repetition_penalty": number(1, 2),
    },
    "sides": {"prompts": pairs("the start of its answer", 2), "side": SIDE},
    "steps": {"prompts": texts(1, 12)},
    "turns": {"talks": pairs("what is asked then", 8)},
}


def checked_options(widget: str, options: dict[str, Any]) -> str:
    """The options as JSON. Raises ValueError, in one line that names the option."""
    known = OPTIONS.get(widget, {name: Option("", lambda value: True) for name in options})
    for name in options:
        if name not in known:
            raise ValueError(f"widget {widget}: no option {name!r}, expected {', '.join(known)}")
    for name, option in known.items():
        if name not in options:
            if option.required:
                raise ValueError(f"widget {widget}: {name} is missing, expected {option.expected}")
        elif not option.fits(options[name]):
            raise refusal(widget, name, options[name], option.expected)
    if widget == "mask" and len(options["hints"]) != len(options["lines"]):
        raise refusal(widget, "hints", options["hints"], known["hints"].expected)
    for name, value in options.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            raise refusal(widget, name, value, "what JSON can hold") from None
    return json.dumps(options)


def check_height(widget: str, height: Any) -> tuple[int, int]:
    """Raises ValueError."""
    if not is_list(height, is_count, 2, 2):
        raise refusal(widget, "height", height, "two whole numbers of pixels: desk and telephone")
    return height


def refusal(widget: str, name: str, value: Any, expected: str) -> ValueError:
    shown = " ".join(repr(value).split())
    if len(shown) > 60:
        shown = f"{shown[:57]}..."
    return ValueError(f"widget {widget}: {name} is {shown}, expected {expected}")
