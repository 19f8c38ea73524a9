r"""Values parsed into forms: numbers, expressions, words, lists and bracketed tuples.

A form is a nested record of an answer's meaning: a value with its unit, a list, an interval, a
name with its value, an equation. Equal forms mean the same answer, so they also serve as keys.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

from qwenlab.evaluation.latex import TEXT, depths, split
from qwenlab.evaluation.notation import FUNCTION
from qwenlab.evaluation.units import TRIGONOMETRIC, measured


@dataclass(frozen=True)
class Form:
    r"""The meaning of an answer. `kind` determines what the parts are.

    number: a Fraction. expression, text, words: a string. named: the name, then each value that it
    is given. list, names, or, and, union: forms in any order; names gives several names a value
    each. (), [), (], [], matrix: forms in order; a matrix has rows. range: a name and its interval.
    pair: the two values of a plus-minus, which `listed` puts into a list. equation, inequality: a
    string for the worker. claim: a string that equals only its own spelling.
    """

    kind: str
    parts: tuple
    unit: str = ""


GREEK = (
    "alpha|beta|gamma|delta|epsilon|varepsilon|theta|lambda|mu|phi|varphi|rho|sigma|tau|omega|psi"
    "|Delta|Theta|Phi|Omega|Sigma|ell|kappa|eta|zeta|nu|xi|chi"
)
SYMBOL = rf"(?:\\(?:{GREEK})(?![a-zA-Z])|[a-zA-Z])"
# Words that are answers in themselves, not products of variables.
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
# What the worker may be given: numbers, letters, operators and commands whose meaning it shares
# with mathematics.
COMMANDS = (
    rf"frac|sqrt|binom|pi|infty|cdot|times|div|{FUNCTION}|{GREEK}|lfloor|rfloor|lceil|rceil|sum"
    r"|prod|int|lim|to|pm|mod|degree|begin\{[pv]matrix\}|end\{[pv]matrix\}"
)
CALCULABLE = re.compile(
    rf"(?:\\(?:{COMMANDS})(?![a-zA-Z])|\\\\|[0-9a-zA-Z+*/^_(){{}}|!.,&=\[\] -])*"
)
# What the worker would read differently from a person, or two people from each other.
MISREAD = (
    r"[0-9.] +[0-9.]",  # 2 3
    r"\.[0-9]*\.",  # 1.2.3
    r"[0-9]\{",  # 2{3}
    r"\{ *\}",  # x^{}
    r"[0-9] ?\\frac\{ ?[0-9.]+ ?\}\{ ?[0-9.]+ ?\}",  # 1\frac{3}{2}; mixed numbers are sums by now
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
    """A form that equals only its own spelling."""
    return Form("claim", (squeeze(text),))


def listed(forms: list[Form]) -> Form:
    """A list, in which a plus-minus counts as its two values; a single value stays as it is."""
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
    if WORDS.fullmatch(text.strip()):
        return True
    inside = TEXT.sub(r"\1", text)
    prose = re.fullmatch(r"[^\\{}0-9^_=<>]*[a-zA-Z]{2}[^\\{}0-9^_=<>]*", inside)
    return inside != text and text[0] == "\\" and prose is not None


def words(text: str) -> Form:
    phrase = " ".join(TEXT.sub(r" \1 ", text).split()).strip("(). ").casefold()
    if phrase in NOTHING:
        return EMPTY
    return REALS if phrase in EVERYTHING else Form("words", (phrase,))


def bare_value(text: str) -> Form:
    """A value without a unit."""
    unions, _ = split(text, r"\\cup(?![a-zA-Z])")
    if len(unions) > 1:
        return Form("union", tuple(map(value, unions)))
    if text == r"\emptyset":
        return EMPTY
    if text == r"\mathbb{R}":
        return REALS
    if (exact := number(text)) is not None:
        return Form("number", (exact,))
    if matrix := MATRIX.fullmatch(text):
        rows = filter(str.strip, matrix[1].split(r"\\"))
        return Form("matrix", tuple(map(matrix_row, rows)))
    if (form := bracketed(text)) is not None:
        return form
    if len(re.findall(r"\\(?:pm|mp)(?![a-zA-Z])", text)) == 1:
        upper = re.sub(r"\\mp ?", "-", re.sub(r"\\pm ?", "+", text))
        lower = re.sub(r"\\mp ?", "+", re.sub(r"\\pm ?", "-", text))
        return Form("pair", (value(upper.removeprefix("+")), value(lower.removeprefix("+"))))
    text = squeeze(text)
    return Form("expression" if calculable(text) else "text", (text,))


def matrix_row(text: str) -> Form:
    cells, _ = split(text, "&")
    return Form("row", tuple(map(value, cells)))


def bracketed(text: str) -> Form | None:
    r"""A text that is in brackets as a whole: (1, 2), [0, 1), \{1, 2\}, (x). None for any other."""
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
        nested = len(pieces) == 1 and value(inside).kind == "list"
        return claim(text) if nested else listed(list(map(value, pieces)))
    brackets = text[0] + text[-1]
    if len(pieces) == 1:
        return value(inside) if brackets == "()" else Form(brackets, (value(inside),))
    return Form(brackets, tuple(map(value, pieces))) if all(pieces) else claim(text)


def squeeze(text: str) -> str:
    """Without meaningless spaces: those between two numbers, or after a command, stay."""
    text = re.sub(r"(?<=[0-9.]) +(?=[0-9.])|(?<=[a-zA-Z]) +(?=[a-zA-Z])", "\0", text.strip())
    text = re.sub(r"(\\[a-zA-Z]+)\0(?=[a-zA-Z])", r"\1" + "\1", text)  # \pi x
    text = re.sub(" +", "", text)
    return re.sub(r"(?<=[a-zA-Z])\0(?=[a-zA-Z])", "", text).replace("\0", " ").replace("\1", " ")


def number(text: str) -> Fraction | None:
    """The exact value of a whole number, decimal, fraction or mixed number; None for other text."""
    match = NUMBER.fullmatch(text.strip())
    if match is None:
        return None
    sign, top, bottom, over, under, whole, part, parts = match.groups()
    numerator = top or over or part
    denominator = Fraction(bottom or under or parts or 1)
    if denominator == 0 or (sign and top and top.startswith("-")):
        return None
    amount = Fraction(whole or 0) + Fraction(numerator) / denominator
    return -amount if sign == "-" else amount


def calculable(text: str) -> bool:
    """Whether the worker reads the whole of `text`, and as it is meant."""
    angles = "\\degree" not in text or TRIGONOMETRIC.search(text)
    return bool(angles and CALCULABLE.fullmatch(text)) and not AMBIGUOUS.search(text)


EMPTY = Form("list", ())
INFINITY = Form("expression", (r"\infty",))
MINUS_INFINITY = Form("expression", (r"-\infty",))
REALS = Form("()", (MINUS_INFINITY, INFINITY))
