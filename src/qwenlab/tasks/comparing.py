r"""Answers compared as text, by exact arithmetic and part by part: whatever needs no symbolic mathematics."""

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
REPLACED = [
    (re.compile(r"\\(?:text|mbox|textrm|mathrm)\s*\{\s*(?:and|or)\s*\}"), ","),
    (re.compile(r"\\!\s*|\\(?:left|right|displaystyle|[bB]igg?[lr]?)(?![a-zA-Z])|[$]"), ""),
    (re.compile(r"\^\s*(?:\\circ(?![a-z])|\{\s*\\circ\s*\})|\\degrees?(?![a-z])|°|\\?%"), ""),
    (re.compile(r"(?<!\\)\\[,;: ]|\\q?quad(?![a-zA-Z])|~|\s+"), " "),
    (re.compile(r"\\[dtc]frac(?![a-zA-Z])"), r"\\frac"),
    (re.compile(r"\\(?:leq?|leqslant)(?![a-zA-Z])|<=|≤"), r"\\le "),
    (re.compile(r"\\(?:geq?|geqslant)(?![a-zA-Z])|>=|≥"), r"\\ge "),
    (re.compile(r"\\in(?![a-zA-Z])|∈"), "="),
    (re.compile(r"\{,\}"), ","),
    (re.compile("[−–]"), "-"),
]
# What is given a value: x, \theta, f(x), AB, (x, y).
NAMED = re.compile(r"((?:\\?[a-zA-Z]|\\[a-zA-Z]+|[A-Z]{2})(?:\([a-z]\))?|\([a-z](?:, ?[a-z])+\)) ?= ?(?=[^=])")
UNIT = re.compile(r"(.+?) ?(\\(?:text|mbox|textrm|mathrm) ?\{[^{}]*\}(?: ?\^ ?\{?[0-9]\}?)?)|([0-9]+)(_ ?\{?[0-9]+\}?)")
WHOLE = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)"
DECIMAL = rf"(?:{WHOLE}(?:\.[0-9]*)?|\.[0-9]+)"
FRACTION = re.compile(rf"\\frac ?(?:\{{ ?(-?{DECIMAL}) ?\}}|([0-9])) ?(?:\{{ ?({DECIMAL}) ?\}}|([0-9]))")
NUMBER = re.compile(rf"([-+]?) ?(?:([0-9]+) (?=[0-9]+ ?/))?(-?{DECIMAL})(?: ?/ ?({DECIMAL}))?")
WORDS = re.compile(r"[a-zA-Z ]{4,}")
# Brackets which differ, or lists of another length, may still be the same where one of these stands for more.
SPREAD = re.compile(r"[<>±]|\\(?:pm|mp|le|ge|lt|gt|ne|cup)(?![a-zA-Z])")


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


def compare(answer: str, gold: str) -> bool | tuple[list[str], list[str], bool]:
    """The verdict on two tidied texts, or what is left to compare: answers, golds, and if their order counts."""
    if len(split(answer)) == len(split(gold)) == 1:
        answer, gold = bare(answer, gold)
        verdict = same(answer, gold)
        if verdict is not None:
            return verdict
    (brackets, answers), (others, golds) = parts(answer), parts(gold)
    if brackets != others or len(answers) != len(golds):
        return ([answer], [gold], True) if SPREAD.search(answer) or SPREAD.search(gold) else False
    if brackets:
        verdicts = [same(*pair) for pair in zip(answers, golds, strict=True)]
        if False in verdicts:
            return False
        left = [i for i, verdict in enumerate(verdicts) if verdict is None]
        answers, golds = [answers[i] for i in left], [golds[i] for i in left]
    else:
        for one in answers[:]:
            twin = next((other for other in golds if same(one, other)), None)
            if twin is not None:
                answers.remove(one)
                golds.remove(twin)
    if not answers:
        return True
    pairs = [bare(*pair) for pair in zip(answers, golds, strict=True)]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs], bool(brackets)


def same(answer: str, gold: str) -> bool | None:
    """The verdict on one value against another; None where only mathematics can tell."""
    answer, gold = bare(answer, gold)
    if equation(answer) != equation(gold):
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


def bare(answer: str, gold: str) -> tuple[str, str]:
    """Both without the variable in front that only one of them names, or both."""
    named, other = NAMED.match(answer), NAMED.match(gold)
    if named and (other[1] == named[1] if other else not equation(gold)):
        answer = answer[named.end() :]
    if other and (other[1] == named[1] if named else not equation(answer)):
        gold = gold[other.end() :]
    return answer, gold


def equation(text: str) -> bool:
    r"""If an equals sign stands outside brackets; the one in ``\\sum_{n=1}`` doesn't count."""
    return any(letter == "=" and depth == 0 for letter, depth in zip(text, depths(text), strict=False))


def measured(text: str) -> tuple[str, str]:
    """Value, and unit or base, which is empty where none is named."""
    match = UNIT.fullmatch(text)
    if not match:
        return text, ""
    unit = re.sub("[ {}]", "", TEXT.sub(r"\1", match[2] or match[4]))
    return match[1] or match[3], unit.casefold().rstrip("es") or unit  # inch is inches


def squeeze(text: str) -> str:
    """Without spaces, save between digits; a single letter without its brackets."""
    text = re.sub(r"(?<![0-9]) +| +(?![0-9])", "", text)
    return re.sub(r"^\(([A-Za-z])\)$", r"\1", text)


def number(text: str) -> Fraction | None:
    """A whole number, decimal, fraction or mixed number, exactly."""
    match = NUMBER.fullmatch(FRACTION.sub(r" \1\2/\3\4", text).strip())
    if not match:
        return None
    whole, top, bottom = (Fraction((part or "0").replace(",", "")) for part in match.groups()[1:])
    if match[4] is not None:
        if bottom == 0:
            return None
        top /= bottom
    return (whole + top) * (-1 if match[1] == "-" else 1)


def parts(text: str) -> tuple[str, list[str]]:
    r"""The brackets that count, as in ``(1,2]``, and what stands between them. A set ``\{1,2\}`` is a list."""
    if text[:2] == r"\{" and text[-2:] == r"\}" and min(depths(text)[2:-1]) > 0:
        return "", split(text[2:-2])
    if text[:1] in tuple("([") and text[-1:] in tuple(")]") and min(depths(text)[1:-1]) > 0:
        inner, brackets = split(text[1:-1]), text[0] + text[-1]
        return ("" if len(inner) == 1 and brackets == "()" else brackets), inner
    return "", split(text)


def split(text: str) -> list[str]:
    """At the commas outside brackets; those of a number don't count."""
    if number(NAMED.sub("", text, count=1)) is not None:
        return [text]
    depth, start, pieces = depths(text), 0, []
    for i, letter in enumerate(text + ","):
        if letter == "," and (depth[i] <= 0 or i == len(text)):
            pieces.append(text[start:i].strip())
            start = i + 1
    return pieces
