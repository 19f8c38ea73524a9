"""Answers compared as text and by exact arithmetic: whatever needs no symbolic mathematics."""

import re
from fractions import Fraction

LONGEST, DEEPEST = 300, 30

# A letter as a label with something beside it, at the start or after a separator: `(B) 2`, `C. 3`, `D: 4`; `A) 1`.
LABEL = re.compile(
    r"(?:^|[\s,;~])(?:\([A-Ja-j]\)(?:\s+(?:\\d?frac|\\sqrt|\\text|[^\s\\+*/^=,;&|<>-])|\\[ ,;:]|[$0-9])"
    r"|[A-J][.:]\s*[-\\$0-9])"
)
HALF_LABEL = re.compile(r"(?:^|[\s,;~])[A-Za-z]\)\s*[^\s,;]")
TEXT = re.compile(r"\\(?:text|mbox|textbf|textit|textrm|mathrm|mathbf|operatorname)\s*\{([^{}]*)\}")
# What is written in several ways, in one; what doesn't count, away; `x \in A` gives x a value as `x = A` does.
REPLACED = [
    (re.compile(r"\\(?:text|mbox|textrm|mathrm)\s*\{\s*(?:and|or)\s*\}"), ","),
    (re.compile(r"\\!\s*|\\(?:left|right|displaystyle|[bB]igg?[lr]?)(?![a-zA-Z])|\\?[$]"), ""),
    (re.compile(r"\^\s*(?:\\circ(?![a-z])|\{\s*\\circ\s*\})|\\degrees?(?![a-z])|°|\\?%"), ""),
    (re.compile(r"(?<!\\)\\[,;: ]|\\q?quad(?![a-zA-Z])|~|\s+"), " "),
    (re.compile(r"\\(?:text|mbox|textrm|mathrm)\s*\{\s*([einxyz!]|\\pi)\s*\}"), r" \1 "),
    (re.compile(r"\\[dtc]frac(?![a-zA-Z])"), r"\\frac"),
    (re.compile(r"\\frac ?([0-9]) ?([0-9])(?=[0-9])"), r"\\frac{\1}{\2} "),  # \frac123 is 1/2 and a 3
    (re.compile(r"\\[ldc]?dots[bc]?(?![a-zA-Z])|…|\.\.+"), r"\\dots "),
    (re.compile(r"\\(?:leq?|leqslant)(?![a-zA-Z])|<=|≤"), r"\\le "),
    (re.compile(r"\\(?:geq?|geqslant)(?![a-zA-Z])|>=|≥"), r"\\ge "),
    (re.compile(r"\\neq?(?![a-zA-Z])|≠|!="), r"\\ne "),
    (re.compile(r"\\in(?![a-zA-Z])|∈"), "="),
    (re.compile(r"\{,\}"), ","),
    (re.compile("[−–]"), "-"),
]
# What is given a value: x, \theta, f(x), AB, (x, y).
NAMED = re.compile(r"(?:^|(?<=,)) ?((?:\\?[a-zA-Z]|\\[a-zA-Z]+|[A-Z]{2})(?:\([a-z]\))?|\([a-z](?:, ?[a-z])+\)) ?= ?")
# In \text{}, but no unit: what makes another value of the number before it, or another claim.
CHANGING = (
    "and|or|not|no|isn't|is|wrong|but|to|than|more|less|plus|minus|times|mod|of|half|factorial|dozen|hundred"
    "|thousand|[mbtr]+illion|one|two|three|four|five|six|seven|eight|nine|ten"
)
UNIT = re.compile(
    rf"(.+?) ?(\\(?:text|mbox|textrm|mathrm) ?\{{(?![^{{}}]*\b(?:{CHANGING})s?\b)[^{{}}0-9,;:\\+!=*]*\}}"
    r"(?: ?\^ ?\{?[0-9]\}?)?)|([0-9]+)(_ ?\{?[0-9]+\}?)"
)
# Claims that math-verify cuts off or drops, f' and A^T.
RELATIONS = "dots|approx|sim|simeq|cong|equiv|ne|notin|mid|nmid"
SIGNS = re.compile(rf"\\(?:{RELATIONS})(?![a-zA-Z])|[≈≡]|(?<=[a-zA-Z])'(?![a-z])|\^ ?\{{?T\b")
WHOLE = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)"
DECIMAL = rf"(?:{WHOLE}(?:\.[0-9]*)?|\.[0-9]+)"
FRACTION = re.compile(rf"\s*\\frac ?(?:\{{ ?(-?{DECIMAL}) ?\}}|([0-9])) ?(?:\{{ ?({DECIMAL}) ?\}}|([0-9]))")
NUMBER = re.compile(rf"([-+]?) ?(?:([0-9]+) (?=[0-9]+ ?/))?(-?{DECIMAL})(?: ?/ ?({DECIMAL}))?")
# What is said, not calculated: a word in \text{} that is no unit, or nothing but letters, four or more.
WORDS = re.compile(r".*\\(?:text|mbox) ?\{[^{}]*[a-zA-Z]{2}.*|[a-zA-Z ]{4,}")


def refused(text: str) -> bool:
    """Too long, nested too deep, or lettered choices beside values."""
    if len(text) > LONGEST or max(depths(text)) > DEEPEST:
        return True
    text = TEXT.sub(r"\1", text).strip()
    depth = depths(text)  # `a)` closes a bracket in `(0, a) 5`, and is a label where none is open
    return bool(LABEL.search(text)) or any(depth[half.start()] <= 0 for half in HALF_LABEL.finditer(text))


def depths(text: str) -> list[int]:
    """How many brackets are open before each letter, and after the last."""
    depth = [0]
    for letter in text:
        depth.append(depth[-1] + (letter in "([{") - (letter in ")]}"))
    return depth


def tidy(text: str) -> str:
    for pattern, instead in REPLACED:
        text = pattern.sub(instead, text)
    return text.strip().removesuffix(".").strip()


def same(answer: str, gold: str) -> bool | None:
    """The verdict on two tidied texts; None where only mathematics can tell."""
    if equation(answer) != equation(gold) or SIGNS.findall(answer) != SIGNS.findall(gold):
        return False
    (answer, unit), (gold, other) = measured(answer), measured(gold)
    if unit and other and unit != other:
        return False
    worded = any(TEXT.fullmatch(text) or WORDS.fullmatch(text) for text in (answer, gold))
    answer, gold = TEXT.sub(r"\1", answer), TEXT.sub(r"\1", gold)
    one, two = squeeze(answer), squeeze(gold)
    if one == two:
        return one != ""
    x, y = number(answer), number(gold)
    if x is not None and y is not None:
        return x == y
    return one.casefold() == two.casefold() if worded else None


def bare(text: str, other: str) -> str:
    """Without the name that every value in `text` is given, where `other` names nothing or the same."""
    names, others = set(NAMED.findall(text)), set(NAMED.findall(other))
    return NAMED.sub("", text) if len(names) == 1 and (names == others or not equation(other)) else text


def equation(text: str) -> bool:
    r"""If an equals sign stands outside brackets; the one in ``\sum_{n=1}`` doesn't count."""
    return any(letter == "=" and depth == 0 for letter, depth in zip(text, depths(text), strict=False))


def measured(text: str) -> tuple[str, str]:
    """Value, and unit or base, which is empty where none is named."""
    match = UNIT.fullmatch(text)
    if not match:
        return text, ""
    unit = TEXT.sub(r"\1", match[2] or match[4]).casefold()
    return match[1] or match[3], re.sub(r"[ {}]|(?<=[a-z])e?s(?![a-z])", "", unit)  # inch is inches


def squeeze(text: str) -> str:
    """Without spaces, save between digits; a single letter without its brackets."""
    text = re.sub(r"(?<![0-9]) +| +(?![0-9])", "", text)
    return re.sub(r"^\(([A-Za-z])\)$", r"\1", text)


def number(text: str) -> Fraction | None:
    """A whole number, decimal, fraction or mixed number, exactly."""
    match = NUMBER.fullmatch(FRACTION.sub(r" \1\2/\3\4", text).strip())
    if not match:
        return None
    whole, top, bottom = (
        Fraction((part or default).replace(",", "")) for part, default in zip(match.groups()[1:], "001", strict=True)
    )
    if bottom == 0:
        return None
    return (whole + top / bottom) * (-1 if match[1] == "-" else 1)
