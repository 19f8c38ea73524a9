r"""LaTeX as text: brackets, separators, arguments of commands, and the content of ``\text{}``."""

import re
from collections.abc import Callable

LONGEST = 300
DEEPEST = 30
# A letter that labels what follows, at the start or after a separator:
# `(B) 2`, `C. 3`, `D: 4`; `A) 1`.
LABEL = re.compile(
    r"(?:^|[\s,;~])"
    r"(?:\([A-Ja-j]\)(?:\s+(?:\\d?frac|\\sqrt|\\text|[^\s\\+*/^=,;&|<>-])|\\[ ,;:]|[$0-9])"
    r"|[A-J][.:]\s*[-\\$0-9])"
)
HALF_LABEL = re.compile(r"(?:^|[\s,;~])[A-Za-z]\)\s*[^\s,;]")
STYLE = r"\\(?:text|mbox|textbf|textit|textrm|textsf|mathrm|mathbf|mathsf|operatorname)"
TEXT = re.compile(STYLE + r"\s*\{([^{}]*)\}")
# `x^10` is read as x^{10}, which is what its author means.
TAKES_ARGUMENTS = re.compile(
    r"\\(?:frac|binom|mathbb|pmod)(?![a-zA-Z])|\\sqrt(?![a-zA-Z])(?: *\[[^\[\]]*\])?|[\^_]"
)
SHORT_ARGUMENT = re.compile(r"[0-9]|-?[a-zA-Z]|-?\\(?!text|mathrm|mbox)[a-zA-Z]+|'")
SHORT_EXPONENT = re.compile(rf"-?[0-9]+|{SHORT_ARGUMENT.pattern}")


def refused(text: str) -> bool:
    """Whether a text is too long, nested too deep, or has lettered choices next to values."""
    if len(text) > LONGEST or max(depths(text)) > DEEPEST:
        return True
    text = TEXT.sub(r"\1", text).strip()
    if LABEL.search(text):
        return True
    depth = depths(text)  # `a)` closes a bracket in `(0, a) 5`, and is a label where none is open
    return any(depth[half.start()] <= 0 for half in HALF_LABEL.finditer(text))


def depths(text: str) -> list[int]:
    """How many brackets are open before each character, and after the last."""
    depth = 0
    before = [0]
    for character in text:
        depth += step(character, "([{", ")]}")
        before.append(depth)
    return before


def step(character: str, opening: str, closing: str) -> int:
    """The change of depth at one character: 1, -1 or 0."""
    if character in opening:
        return 1
    return -1 if character in closing else 0


def outside_text(
    pattern: str | re.Pattern, replacement: str | Callable[[re.Match], str], text: str
) -> str:
    r"""`re.sub`, but leaving the content of every ``\text{}`` alone unless it is just *and* or
    *or*."""
    kept: list[str] = []

    def hide(found: re.Match) -> str:
        if re.fullmatch(r"\s*,?\s*(?:and|or)\s*", found[1]):
            return found[0]
        kept.append(found[0])
        return "\\text{}"

    hidden = re.sub(pattern, replacement, TEXT.sub(hide, text))
    parts = iter(kept)
    return re.sub(r"\\text\{\}", lambda _: next(parts), hidden)


def arguments(text: str) -> str:
    r"""Braces around every argument: ``\frac\pi2``, ``\sqrt3``, ``x^-2``, ``\sqrt(2)``."""
    out: list[str] = []
    at = 0
    while found := TAKES_ARGUMENTS.search(text, at):
        out.append(text[at : found.start()])
        braced, at = with_arguments(text, found)
        out.append(braced)
    return "".join([*out, text[at:]])


def with_arguments(text: str, command: re.Match) -> tuple[str, int]:
    """The command with its arguments in braces, and where they end."""
    braced = command[0].replace(" ", "")
    at = command.end()
    for _ in range(2 if braced in (r"\frac", r"\binom") else 1):
        part, at = argument(text, at, braced)
        braced += part
    return braced, at


def argument(text: str, at: int, command: str) -> tuple[str, int]:
    """The argument that begins at `at`, in braces, and where it ends; an empty text if there is
    none."""
    while text[at : at + 1] == " ":
        at += 1
    if text[at : at + 1] == "{" or (text[at : at + 1] == "(" and command == r"\sqrt"):
        end = closing(text, at)
        return ("", at) if end is None else ("{" + arguments(text[at + 1 : end]) + "}", end + 1)
    inner = TAKES_ARGUMENTS.match(text, at)
    if inner and inner[0] not in "^_":
        braced, at = with_arguments(text, inner)
        return "{" + braced + "}", at
    found = (SHORT_EXPONENT if command == "^" else SHORT_ARGUMENT).match(text, at)
    return ("{" + found[0] + "}", found.end()) if found else ("", at)


def closing(text: str, start: int) -> int | None:
    """Where the bracket that opens at `start` closes; None if it never does."""
    depth = depths(text)
    for end in range(start + 1, len(text)):
        if depth[end + 1] == depth[start]:
            return end
    return None


def split(text: str, separator: str) -> tuple[list[str], list[str]]:
    """The parts of `text` between the separators outside brackets, and these separators."""
    depth = depths(text)
    pieces: list[str] = []
    joints: list[str] = []
    start = 0
    for found in re.finditer(separator, text):
        if depth[found.start()] == 0 and not inside_matrix(text, found.start()):
            pieces.append(text[start : found.start()].strip())
            joints.append(found[0])
            start = found.end()
    return [*pieces, text[start:].strip()], joints


def closed(text: str) -> bool:
    r"""Whether every ``{`` has its ``}``, with as many round and square brackets opened as closed
    in between."""
    opened: list[int] = []
    depth = 0
    for character in re.sub(r"\\\\|\\[{}]", "", text):
        depth += step(character, "([", ")]")
        if character == "{":
            opened.append(depth)
        elif character == "}" and (not opened or opened.pop() != depth):
            return False
    return not opened


def inside_matrix(text: str, at: int) -> bool:
    return text.count("\\begin", 0, at) > text.count("\\end", 0, at)
