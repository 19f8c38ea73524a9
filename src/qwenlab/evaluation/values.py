r"""Values read into forms: numbers, expressions, words, lists and what stands in brackets.

A form is a nested record of what an answer says: a value with its unit, a list, an interval, a
name with its value, an equation. Equal forms are the same answer, so they also serve as keys.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

from qwenlab.evaluation.latex import TEXT, depths, split
from qwenlab.evaluation.notation import FUNCTION
from qwenlab.evaluation.units import TRIGONOMETRIC, measured


@dataclass(frozen=True)
class Form:
    r"""What an answer says. `kind` tells what the parts are.

    number: a Fraction. expression, text, words: a string. named: the name, then each value it is
    given. list, names, or, and, union: forms whose order doesn't count; names gives several names a
    value each. (), [), (], [], matrix: forms in order; a matrix has rows. pair: the two values of a
    plus-minus, on its way into a list. equation, inequality: one string for the worker. claim: a
    string that only its own spelling equals.
    """

    kind: str
    parts: tuple
    unit: str = ""


GREEK = (
    "alpha|beta|gamma|delta|epsilon|varepsilon|theta|lambda|mu|phi|varphi|rho|sigma|tau|omega|psi"
    "|Delta|Theta|Phi|Omega|Sigma|ell|kappa|eta|zeta|nu|xi|chi"
)
SYMBOL = rf"(?:\\(?:{GREEK})(?![a-zA-Z])|[a-zA-Z])"
# What is said, not calculated.
SHORT_WORDS = (
    "no|on|yes|odd|one|two|six|ten|all|any|not|nor|now|own|is|it|in|of|to|up|ok|he|she|we|us|me|my"
    "|by|so|if|as|at|an|am|be|do|go"
)
WORDS = re.compile(
    rf"[a-zA-Z][a-zA-Z' -]{{3,}}|[A-Z][a-z]{{2}}|[A-Z]{{3,}}"
    rf"|[IVX]{{2,}}|{FUNCTION}|(?i:{SHORT_WORDS})"
)
EVERYTHING = {"all real numbers", "all reals", "real numbers", "the real numbers"}
NOTHING = {"no solution", "no solutions", "empty set", "the empty set"}
# What may go to the worker: numbers, letters, operators and commands that it reads as mathematics
# writes them.
COMMANDS = (
    rf"frac|sqrt|binom|pi|infty|cdot|times|div|{FUNCTION}|{GREEK}|lfloor|rfloor|lceil|rceil|sum"
    r"|prod|int|lim|to|pm|mod|degree|begin\{[pv]matrix\}|end\{[pv]matrix\}"
)
CALCULABLE = re.compile(
    rf"(?:\\(?:{COMMANDS})(?![a-zA-Z])|\\\\|[0-9a-zA-Z+*/^_(){{}}|!.,&=\[\] -])*"
)
# What the worker would read otherwise than a person, or than another person.
MISREAD = (
    r"[0-9.] +[0-9.]",  # 2 3
    r"\.[0-9]*\.",  # 1.2.3
    r"[0-9]\{",  # 2{3}
    r"\{ *\}",  # x^{}
    r"[0-9] ?\\frac\{ ?[0-9.]+ ?\}\{ ?[0-9.]+ ?\}",  # 1\frac{3}{2}; proper ones are sums by now
    # 1/2x
    r"/ ?(?:[0-9.]+|[a-zA-Z]|\([^()]*\))(?:\^\{[^{}]*\})? ?(?:[a-zA-Z(|]|\\(?!cdot|times|div|pm))",
    r"(?:\\frac\{|^|[^a-zA-Z])d ?[a-zA-Z] ?(?:\}\{|/) ?d",  # dy/dx
    r"[^0-9.]\\degree",
    r"(?<!sqrt)\[",
    r"[+-] *[+-]|[+*/^_=-]$",  # +-5, 5+
    r"! ?[!0-9.]",
    r"(?<![\\a-zA-Z{])[a-zA-Z]{4,}",  # a word, not a product
)
AMBIGUOUS = re.compile("|".join(MISREAD))
INTEGER = r"[0-9]+"
DECIMAL = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
FRACTION = rf"\\frac\{{ ?(-?{DECIMAL}) ?\}}\{{ ?(-?{DECIMAL}) ?\}}"
NUMBER = re.compile(
    rf"([-+]?) ?(?:(-?{DECIMAL})(?: ?/ ?({DECIMAL}))?|{FRACTION}|\(({INTEGER})\+{FRACTION}\))"
)
MATRIX = re.compile(r"\\begin\{pmatrix\}(.*)\\end\{pmatrix\}")


def claim(text: str) -> Form:
    return Form("claim", (squeeze(text),))


def listed(forms: list[Form]) -> Form:
    """A list, in which a plus-minus counts as its two values; of one value that value."""
    items: list[Form] = []
    for form in forms:
        items += form.parts if form.kind == "pair" else [form]
    return items[0] if len(items) == 1 else Form("list", tuple(items))


def value(text: str) -> Form:
    """A value with its unit."""
    text = text.strip()
    if is_words(text):
        return words(text)
    amount, unit = measured(text)
    form = bare_value(amount.strip())
    return Form(form.kind, form.parts, unit or form.unit)


def is_words(text: str) -> bool:
    inside = TEXT.sub(r"\1", text)
    spoken = re.fullmatch(r"[^\\{}0-9^_=<>]*[a-zA-Z]{2}[^\\{}0-9^_=<>]*", inside)
    return bool(WORDS.fullmatch(text.strip()) or (inside != text and text[0] == "\\" and spoken))


def words(text: str) -> Form:
    said = " ".join(TEXT.sub(r" \1 ", text).split()).strip("(). ").casefold()
    named = {**dict.fromkeys(NOTHING, EMPTY), **dict.fromkeys(EVERYTHING, REALS)}
    return named.get(said) or Form("words", (said,))


def bare_value(text: str) -> Form:
    unions, _ = split(text, r"\\cup(?![a-zA-Z])")
    if len(unions) > 1:
        return Form("union", tuple(value(part) for part in unions))
    if text == r"\emptyset":
        return EMPTY
    if text == r"\mathbb{R}":
        return REALS
    if (exact := number(text)) is not None:
        return Form("number", (exact,))
    if matrix := MATRIX.fullmatch(text):
        rows = [split(row, "&")[0] for row in matrix[1].split(r"\\") if row.strip()]
        return Form("matrix", tuple(Form("row", tuple(map(value, row))) for row in rows))
    if (form := bracketed(text)) is not None:
        return form
    if len(re.findall(r"\\(?:pm|mp)(?![a-zA-Z])", text)) == 1:
        up = re.sub(r"\\(pm|mp) ?", lambda sign: "+" if sign[1] == "pm" else "-", text)
        down = re.sub(r"\\(pm|mp) ?", lambda sign: "-" if sign[1] == "pm" else "+", text)
        return Form("pair", (value(up.removeprefix("+")), value(down.removeprefix("+"))))
    text = squeeze(text)
    return Form("expression" if calculable(text) else "text", (text,))


def bracketed(text: str) -> Form | None:
    r"""What stands in brackets as a whole: (1, 2), [0, 1), \{1, 2\}, (x)."""
    braces = re.fullmatch(r"\\\{(.*)\\\}", text)
    inside = braces[1] if braces else text[1:-1]
    if not braces and not (text[:1] in "([" and text[-1:] in ")]" and len(text) > 2):
        return None
    if min(depths(inside)) < 0 or depths(inside)[-1] != 0:
        return None
    pieces, _ = split(inside, "[,;]")
    if braces:
        if re.search(r"[:|]|\\mid", inside):
            return claim(text)
        if not inside.strip():
            return EMPTY
        items = listed([value(piece) for piece in pieces])
        return claim(text) if len(pieces) == 1 and value(inside).kind == "list" else items
    if len(pieces) > 1 and all(pieces):
        return Form(text[0] + text[-1], tuple(value(piece) for piece in pieces))
    if text[0] == "(" and text[-1] == ")" and len(pieces) == 1:
        return value(inside)
    return Form(text[0] + text[-1], (value(inside),)) if len(pieces) == 1 else claim(text)


def squeeze(text: str) -> str:
    """Without the spaces that mean nothing."""
    text = re.sub(r"(?<=[0-9.]) +(?=[0-9.])|(?<=[a-zA-Z]) +(?=[a-zA-Z])", "\0", text.strip())
    text = re.sub(r"(\\[a-zA-Z]+)\0(?=[a-zA-Z])", r"\1" + "\1", text)  # \pi x
    text = re.sub(" +", "", text)
    return re.sub(r"(?<=[a-zA-Z])\0(?=[a-zA-Z])", "", text).replace("\0", " ").replace("\1", " ")


def number(text: str) -> Fraction | None:
    """A whole number, decimal, fraction or mixed number, exactly."""
    match = NUMBER.fullmatch(text.strip())
    if match is None:
        return None
    sign, top, bottom, over, under, whole, part, parts = match.groups()
    pairs = ((top, bottom), (over, under), (part, parts))
    first, second = next(pair for pair in pairs if pair[0] is not None)
    denominator = Fraction(second or 1)
    if denominator == 0 or (sign and first.startswith("-") and top):
        return None
    amount = Fraction(whole or 0) + Fraction(first) / denominator
    return -amount if sign == "-" else amount


def calculable(text: str) -> bool:
    """If the worker reads the whole of `text`, and as it is meant."""
    angles = "\\degree" not in text or TRIGONOMETRIC.search(text)
    return bool(angles and CALCULABLE.fullmatch(text)) and not AMBIGUOUS.search(text)


EMPTY = Form("list", ())
INFINITY = Form("expression", (r"\infty",))
MINUS_INFINITY = Form("expression", (r"-\infty",))
REALS = Form("()", (MINUS_INFINITY, INFINITY))
