"""Which part of a model's text is its answer. Evaluation, voting and rewards all ask here."""

import re

from qwenlab.text.chat_template import CLOSE, OPEN

BOX = re.compile(r"\\boxed(?![a-zA-Z])\s*")
# The unbraced form, `\boxed 2$`: up to a space, the end of the formula, or a brace that was opened
# further out.
BARE = re.compile(r"(?:(?!\\[)\]])[^\s$])*")
# A minus sign, ASCII's or Unicode's, counts only where it can't be a subtraction: "9-4" ends in 4,
# "is -4" in -4.
WHOLE = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)"
NUMBER = re.compile(rf"(?:(?<![\w)}}\]])[-−])?(?:{WHOLE}(?:\.[0-9]+)?|\.[0-9]+)(?:/[0-9]+)?")


def extract_answer(text: str | None, thinking_open: bool = False) -> str | None:
    r"""The answer that `text` gives, as written there, or None.

    - The **last** ``\boxed`` counts, braces nested to any depth; ``\boxed 2`` and ``\boxed {2}``
    are boxes too.
    - Where that box is empty or never closes there is no answer: an earlier box doesn't stand in
    for it.
    - A box inside a thinking block that never closes earns nothing. `thinking_open` says that the
      prompt had already opened one.
    - Only a text without any box takes the fallback: the last number after the thinking block, with
      its sign, decimals and fraction bar.

    A closed thinking block may hold the last box; it counts like any other. Text that isn't a
    string gives None.
    """
    if not isinstance(text, str):
        return None
    opened, closed = text.rfind(OPEN), text.rfind(CLOSE)
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
    """What the box whose content begins at `start` holds, without outer spaces; None if empty or
    not closed."""
    if text[start : start + 1] == "{":
        end = matching_brace(text, start + 1)
        held = None if end is None else text[start + 1 : end]
    else:
        held = BARE.match(text, start).group()
        outer = matching_brace(held, 0)
        held = (held if outer is None else held[:outer]).rstrip(".,;:")
    return (held and held.strip()) or None


def matching_brace(text: str, start: int) -> int | None:
    r"""Index of the `}` that closes a brace opened before `start`;
    ``\{`` and ``\}`` are letters, not braces."""
    depth = 1
    escaped = False
    for i in range(start, len(text)):
        letter = text[i]
        if not escaped and letter in "{}":
            depth += 1 if letter == "{" else -1
            if depth == 0:
                return i
        escaped = letter == "\\" and not escaped
    return None
