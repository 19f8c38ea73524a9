r"""The many ways to write an answer, reduced to one spelling: text in, text out, no mathematics.

`spell` applies the STEPS below in order. Afterwards a fraction is ``\frac{a}{b}``, a number has no
thousands separators, a unit stands in ``\text{}``, and *and* and *or* are ``\land`` and ``\lor``.
"""

import re
from collections.abc import Callable

from qwenlab.evaluation.latex import STYLE, TEXT, arguments, depths, outside_text

DIGITS = "⁰¹²³⁴⁵⁶⁷⁸⁹"
SUPERSCRIPTS = str.maketrans("⁻" + DIGITS, "-0123456789")
UNICODE = {
    **dict.fromkeys("−–", "-"),
    **dict.fromkeys("×", r"\times "),
    **dict.fromkeys("·⋅∙", r"\cdot "),
    **dict.fromkeys("\u00a0\u2009\u202f\u2002\u2003\u3000", " "),
    "÷": r"\div ",
    "±": r"\pm ",
    "∓": r"\mp ",
    "π": r"\pi ",
    "θ": r"\theta ",
    "∞": r"\infty ",
    "√": r"\sqrt ",
    "∅": r"\emptyset ",
    "∪": r"\cup ",
    "∩": r"\cap ",
    "∠": r"\angle ",
    "°": r"\degree ",
    "≤": r"\le ",
    "≥": r"\ge ",
    "≠": r"\ne ",
    "≈": r"\approx ",
    "≡": r"\equiv ",
    "∈": r"\in ",
    "…": r"\dots ",
    "½": r"\frac12 ",
    "¼": r"\frac14 ",
    "¾": r"\frac34 ",
    "¢": r"\text{ cents}",
    "€": r"\text{ euros}",
    "£": r"\text{ pounds sterling}",
}
TRANSLATION = str.maketrans(UNICODE)
WRAPPERS = [(mark, mark) for mark in ("***", "**", "__", "*", "`", "$$", "$")]
WRAPPERS += [(r"\(", r"\)"), (r"\[", r"\]"), ("{", "}")]
# One command for several with the same meaning.
ALIASES = {
    r"dfrac tfrac cfrac": r"\frac ",
    r"dbinom tbinom": r"\binom ",
    r"leq leqslant leqq": r"\le ",
    r"geq geqslant geqq": r"\ge ",
    r"lt": "<",
    r"gt": ">",
    r"neq": r"\ne ",
    r"ldots cdots dotsc dotsb": r"\dots ",
    r"varnothing": r"\emptyset ",
    r"degrees": r"\degree ",
    r"lvert rvert vert": "|",
    r"lbrace": r"\{",
    r"rbrace": r"\}",
    r"lbrack": "[",
    r"rbrack": "]",
    r"ast": r"\cdot ",
    r"wedge": r"\land ",
    r"vee": r"\lor ",
    r"quad qquad thinspace": " ",
    r"left right displaystyle textstyle middle": "",
    r"big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr": "",
}
COMMANDS: dict[str, str] = {}
for names, command in ALIASES.items():
    COMMANDS |= dict.fromkeys(names.split(), command)
FUNCTION = "arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|log|ln|exp|gcd|lcm|max|min"
# A function in plain text needs an argument: 5 sec and 5 min are times.
WORD_COMMANDS = re.compile(
    r"(?<![a-zA-Z\\{])(?:(sqrt|pi|infinity|infty|theta)(?![a-zA-Z])|(gcd|lcm|max|min)(?= ?\()"
    rf"|({FUNCTION})(?= ?[(\\^]| ?[a-zA-Z](?![a-zA-Z])| ?[0-9]))"
)
# Single upright letters that are units; any other is a variable or a constant.
UNIT_LETTERS = {
    "m": "meter",
    "g": "gram",
    "h": "hour",
    "l": "liter",
    "L": "liter",
    "s": "second",
    "V": "volt",
    "W": "watt",
    "J": "joule",
    "N": "newton",
}
ONE_LETTER = re.compile(
    r"\\(?:text|mbox|textrm|mathrm|textbf|mathbf)\s*\{\s*\(?([a-zA-Z!]|\\pi)\)?\s*\}"
)


def spell(text: str) -> str:
    for step in STEPS:
        text = step(text)
    return text


def unwrap(text: str) -> str:
    r"""Without Markdown or mathematics marks around the whole text, or a ``\text{}`` around an
    answer that is more than words."""
    text = text.strip()
    for start, end in WRAPPERS:
        inside = text[len(start) : -len(end)]
        whole = text.startswith(start) and text.endswith(end) and len(text) > len(start + end)
        if whole and start not in inside and end not in inside:
            return unwrap(inside)
    upright = TEXT.fullmatch(text)
    if upright and re.search(r"[0-9,]|\b(?:and|or)\b", upright[1]):
        return upright[1].strip()
    return text


def translate(text: str) -> str:
    """Unicode's mathematical characters as LaTeX."""
    text = re.sub(r"(?:√|(?<![a-zA-Z\\])sqrt) ?([0-9]+)", r"\\sqrt{\1}", text)
    text = re.sub(f"⁻?[{DIGITS}]+", lambda run: f"^{{{exponent(run[0])}}}", text)
    return text.translate(TRANSLATION)


def exponent(run: str) -> str:
    """Superscript characters as ordinary ones."""
    return run.translate(SUPERSCRIPTS)


def one_command(text: str) -> str:
    text = re.sub(r"\\(?:n?left|right|[bB]igg?[lr]?)\s*\.", "", text)
    text = re.sub(r"(begin|end)\{bmatrix\}", r"\1{pmatrix}", text)
    text = re.sub(r"\\not\s*=", r"\\ne ", text)
    text = re.sub(r"\\([a-zA-Z]+)", lambda found: COMMANDS.get(found[1], found[0]), text)
    return re.sub(r"<=|=<", r"\\le ", re.sub(r">=", r"\\ge ", text.replace("!=", r"\ne ")))


def currency(text: str) -> str:
    """A dollar sign before or after an amount is a unit; any other only delimits mathematics."""
    sign = r"\\\$" if text.count("$") - text.count(r"\$") != 1 else r"\\?\$"
    amount = r"\s*(-?[0-9]+(?:(?:\{,\}|,?\\!|,) ?[0-9]{3})*(?:\.[0-9]+)?(?![0-9]))"
    text = re.sub(rf"{sign}{amount}", r"\1\\text{ dollars}", text)
    text = re.sub(rf"{amount}\s*\\\$", r"\1\\text{ dollars}", text)
    return re.sub(r"(?<!\\)\$", "", text)


def thousands(text: str) -> str:
    r"""``1,234``, ``1{,}234``, ``1,\!234`` and ``1\,234`` are 1234.

    In brackets a bare comma separates, unless another comma there has a space: (1,000, 2,000).
    """
    text = re.sub(r"(?<=[0-9])(?:\s*\{,\}\s*|,\s*\\!\s*|\\!\s*,\s*)(?=[0-9]{3}(?![0-9]))", "", text)
    spaced_group = r"(?<![0-9.])([0-9]+)\\[,:;!] ?([0-9]{3})(?![0-9])"
    while re.search(spaced_group, text):
        text = re.sub(spaced_group, r"\1\2", text)
    depth = depths(re.sub(r"(?<!\\)[{}]", " ", text))
    spaced = re.search(r", ", text)

    def join(found: re.Match) -> str:
        separates = depth[found.start()] and not spaced
        return found[0] if separates else found[0].replace(",", "")

    return re.sub(r"(?<![0-9.,])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9]|,[0-9])", join, text)


def spaces(text: str) -> str:
    text = re.sub(STYLE + r"\s*\{\s*\}", " ", text)
    text = re.sub(r"\\!\s*|\\(?:phantom|hspace)\s*\{[^{}]*\}", "", text)
    return re.sub(r"(?<!\\)\\[,;: ]|~|\s+", " ", text)


def degrees(text: str) -> str:
    text = re.sub(r"\^\s*(?:\\circ(?![a-zA-Z])|\{\s*\\circ\s*\})", r"\\degree ", text)
    scale = r"\s*(?:\\(?:text|mathrm)\s*\{\s*([CF])\s*\}|([CF])(?![a-zA-Z]))"
    names = {"C": r"\text{ celsius}", "F": r"\text{ fahrenheit}"}
    text = re.sub(r"\\degree" + scale, lambda found: names[found[1] or found[2]], text)
    return re.sub(r"\\?%", r"\\text{ percent}", text)


def one_letter(text: str) -> str:
    r"""``\mathrm{i}`` and ``\text{(C)}`` are letters; ``\text{ m}`` after a number is a unit."""

    def letter(found: re.Match) -> str:
        unit = found[1] in UNIT_LETTERS and re.search(r"[0-9}/] ?$", text[: found.start()])
        label = "(" in found[0] and found[0] != text
        return found[0] if unit or label else f" {found[1]} "

    return ONE_LETTER.sub(letter, text)


def conjunctions(text: str) -> str:
    r"""*and* and *or*, with a comma before them, as ``\land`` and ``\lor``."""
    for word, command in (("and", "land"), ("or", "lor")):
        upright = rf"{STYLE}\s*\{{\s*,?\s*{word}\s*\}}|\\{command}(?![a-zA-Z])"
        plain = rf"(?<![a-zA-Z\\]){word}(?![a-zA-Z])"
        text = outside_text(rf"\s*,?\s*(?:{upright}|{plain})\s*", rf" \\{command} ", text)
    return text


def plain_words(text: str) -> str:
    """pi, sqrt(2) and sin x, written without a backslash, as commands."""
    if re.fullmatch(r"[a-zA-Z ]+", text) and not re.fullmatch("pi|infinity|infty|theta", text):
        return text

    def command(found: re.Match) -> str:
        return r"\infty " if found[0] == "infinity" else f"\\{found[0]} "

    return outside_text(WORD_COMMANDS, command, text)


def repeating(text: str) -> str:
    r"""``0.1\overline{6}`` as the fraction it is."""
    mark = r"\\(?:overline|bar|dot)\s*(?:\{ ?([0-9]+) ?\}|([0-9]))"

    def fraction(found: re.Match) -> str:
        whole = found[1] or "0"
        fixed = found[2]
        loop = found[3] or found[4]
        top = int(whole + fixed + loop) - int(whole + fixed)
        bottom = (10 ** len(loop) - 1) * 10 ** len(fixed)
        return rf"\frac{{{top}}}{{{bottom}}}"

    return re.sub(
        rf"(?<![0-9.])([0-9]*)\.([0-9]*){mark}(?![0-9]|\\overline|\\bar|\\dot)", fraction, text
    )


def mixed(text: str) -> str:
    r"""``2\frac{1}{2}`` and ``2 1/2`` as sums."""
    whole = r"(?<![0-9.}^_a-zA-Z)])([0-9]+)"

    def proper(found: re.Match) -> str:
        if int(found[2]) >= int(found[3]):
            return found[0]
        return rf"({found[1]}+\frac{{{found[2]}}}{{{found[3]}}})"

    text = re.sub(rf"{whole} ?\\frac\{{ ?([0-9]+) ?\}}\{{ ?([0-9]+) ?\}}", proper, text)
    return re.sub(rf"{whole} ([0-9]+) ?/ ?([0-9]+)(?![0-9.])", proper, text)


def full_stop(text: str) -> str:
    text = text.strip()
    return text if text.endswith("..") else text.removesuffix(".").strip()


def dots(text: str) -> str:
    return re.sub(r"\.\.+", r"\\dots ", text)


STEPS: list[Callable[[str], str]] = [
    unwrap,
    translate,
    one_command,
    currency,
    thousands,
    dots,
    spaces,
    degrees,
    one_letter,
    conjunctions,
    plain_words,
    repeating,
    arguments,
    mixed,
    full_stop,
]
