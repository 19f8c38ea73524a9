"""Which part of a model's text is its answer, for evaluation, voting and rewards alike."""

import re

from qwenlab.text.chat_template import CLOSE, OPEN

BOX = re.compile(r"\\boxed(?![a-zA-Z])\s*")
# The unbraced form, `\boxed 2$`: up to a space, the end of the formula, or the closing brace of an
# outer group.
BARE = re.compile(r"(?:(?!\\[)\]])[^\s$])*")
# A minus sign, ASCII or Unicode, counts only where it can't be a subtraction: "9-4" ends in 4,
# "is -4" in -4.
WHOLE = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)"
NUMBER = re.compile(rf"(?:(?<![\w)}}\]])[-−])?(?:{WHOLE}(?:\.[0-9]+)?|\.[0-9]+)(?:/[0-9]+)?")


def extract_answer(text: str | None, thinking_open: bool = False) -> str | None:
    r"""The answer in `text`, as written there, or None.

    - The **last** ``\boxed`` counts, with braces nested to any depth; ``\boxed 2`` and
      ``\boxed {2}`` are boxes too.
    - If that box is empty or never closes there is no answer: an earlier box doesn't replace it.
    - A box inside a thinking block that never closes doesn't count. `thinking_open`: the prompt had
      already opened one.
    - Only a text without any box takes the fallback: the last number after the thinking block, with
      its sign, decimals and fraction bar.

    A box inside a closed thinking block counts like any other. Text that isn't a string gives
    None.
    """
    if not isinstance(text, str):
        return None
    opened = text.rfind(OPEN)
    closed = text.rfind(CLOSE)
    cut_off = opened > closed or (thinking_open and closed < 0)
    boxes = list(BOX.finditer(text))
    if boxes:
        box = boxes[-1]
        inside = cut_off and box.start() > opened
        return None if inside else content(text, box.end())
    if cut_off:
        return None
    numbers = NUMBER.findall(text, closed + len(CLOSE) if closed >= 0 else 0)
    return numbers[-1] if numbers else None


def content(text: str, start: int) -> str | None:
    """The content of the box that begins at `start`, without outer spaces; None if it is empty or
    not closed."""
    if text[start : start + 1] == "{":
        end = matching_brace(text, start + 1)
        inner = "" if end is None else text[start + 1 : end]
    else:
        inner = BARE.match(text, start)[0]
        outer = matching_brace(inner, 0)  # ends a group around the box
        inner = (inner if outer is None else inner[:outer]).rstrip(".,;:")
    return inner.strip() or None


def matching_brace(text: str, start: int) -> int | None:
    r"""Index of the `}` that closes a brace opened before `start`; ``\{`` and ``\}`` are plain
    characters, not braces."""
    depth = 1
    escaped = False
    for i in range(start, len(text)):
        character = text[i]
        if not escaped and character in "{}":
            depth += 1 if character == "{" else -1
            if depth == 0:
                return i
        escaped = character == "\\" and not escaped
    return None
