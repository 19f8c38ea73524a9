"""What counts as the answer in a model's text, and when it is right. Evaluation, voting and rewards all ask here."""

import re

from qwenlab.tasks.comparing import bare, refused, same, tidy
from qwenlab.tasks.symbolic import WORKER

OPEN, CLOSE = "<think>", "</think>"
BOX = re.compile(r"\\boxed(?![a-zA-Z])\s*")
# The unbraced form, `\boxed 2$`: up to a space, the end of the formula, or a brace that was opened further out.
BARE = re.compile(r"(?:(?!\\[)\]])[^\s$])*")
# A minus sign counts only where it can't be a subtraction: "9-4" ends in 4, "is -4" in -4.
WHOLE = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)"
NUMBER = re.compile(rf"(?:(?<![\w)}}\]])-)?(?:{WHOLE}(?:\.[0-9]+)?|\.[0-9]+)(?:/[0-9]+)?")


def extract_answer(text: str | None, thinking_open: bool = False) -> str | None:
    r"""The answer that `text` gives, as written there, or None.

    - The **last** ``\boxed`` counts, braces nested to any depth; ``\boxed 2`` and ``\boxed {2}`` are boxes too.
    - Where that box is empty or never closes there is no answer: an earlier box doesn't stand in for it.
    - A box inside a thinking block that never closes earns nothing. `thinking_open` says that the prompt had already
      opened one.
    - Only a text without any box takes the fallback: the last number after the thinking block, with its sign,
      decimals and fraction bar.

    A closed thinking block may hold the last box; it counts like any other. Text that isn't a string gives None.
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
    """What the box whose content begins at `start` holds, without outer spaces; None if empty or not closed."""
    if text[start : start + 1] == "{":
        end = matching_brace(text, start + 1)
        held = None if end is None else text[start + 1 : end]
    else:
        held = BARE.match(text, start).group()
        outer = matching_brace(held, 0)
        held = (held if outer is None else held[:outer]).rstrip(".,;:")
    return (held and held.strip()) or None


def matching_brace(text: str, start: int) -> int | None:
    r"""Index of the `}` that closes a brace opened before `start`; ``\{`` and ``\}`` are letters, not braces."""
    depth, escaped = 1, False
    for i in range(start, len(text)):
        letter = text[i]
        if not escaped and letter in "{}":
            depth += 1 if letter == "{" else -1
            if depth == 0:
                return i
        escaped = letter == "\\" and not escaped
    return None


def grade(answer: str | None, gold: str) -> bool:
    r"""If `answer`, as `extract_answer` gives it, says the same as `gold`. Neither is executed; no text raises.

    Right whatever it is: the same text. Else False without a look at the mathematics for

    - what is no text, or empty;
    - more than 300 characters, or brackets nested more than 30 deep, on either side;
    - lettered choices beside values, ``A) 1, B) 2``. A letter alone is an answer: ``(C)`` is ``C``.

    Then both are tidied. Spaces, dollar and per cent signs, degrees, the size of brackets and a full stop don't count:
    50\% is 50, and not 0.5. ``1,234`` and ``1{,}234`` are 1234, ``016`` is 16, ``2\frac12`` and ``2 1/2`` are 5/2.

    - ``x=5`` and ``x \in [0,1]`` are 5 and [0,1] where the other side names no variable, or the same. Other equations
      equal only equations: ``2x+z=1`` is not 1, ``n=3k`` is not 3.
    - A unit in ``\text{}`` and the base of ``52_8`` may be left out, but two that are named must agree.
      A word that makes another value is no unit: ``5\text{ million}`` is not 5, nor is ``5\mathrm{i}``.
    - Dots, ``\approx``, ``\ne``, primes and their like are on both sides or on none.
    - Numbers compare exactly: 0.75 is 3/4, 33.3 is not 100/3.
    - Words compare letter by letter, large or small: ``\text{Even}`` is ``even``, ``seat`` is not ``east``.
    - The rest goes to math-verify (Hugging Face), which parses LaTeX and simplifies with SymPy. ``(1,2)`` and ``[1,2)``
      keep their order and brackets; ``1,2``, ``\{1,2\}`` and ``1 \text{ and } 2`` are sets, also equal to
      ``1.5 \pm 0.5``. A decimal beside something that is no plain number must agree with it to six places.

    math-verify works in a process of its own, started at the first answer that needs it, shared by all threads and
    ended with this one. What takes it more than a second or 1 GiB is False.

    grade(a, b) is grade(b, a). Raises GradingError only where that process can't be started.
    """
    if not isinstance(answer, str) or not isinstance(gold, str) or not answer.strip() or not gold.strip():
        return False
    if answer.strip() == gold.strip():
        return True
    if refused(answer) or refused(gold):
        return False
    one, two = tidy(answer), tidy(gold)
    one, two = bare(one, two), bare(two, one)
    verdict = same(one, two)
    return WORKER.equal(one, two) if verdict is None else verdict
