r"""Answers read into forms.

A form is a nested record of what an answer says: a value with its unit, a list, an interval, a
name with its value, an equation. Equal forms are the same answer, so they also serve as keys.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

from qwenlab.tasks.notation import FUNCTION, TEXT, depths, spell
from qwenlab.tasks.units import TRIGONOMETRIC, measured


@dataclass(frozen=True)
class Form:
    r"""What an answer says. `kind` tells what the parts are.

    number: a Fraction. expression, text, words: a string. named: the name, then each value it is given.
    list, names, or, and, union: forms whose order doesn't count; names gives several names a value each.
    (), [), (], [], matrix: forms in order; a matrix has rows. pair: the two values of a plus-minus, on its way into a
    list.
    equation, inequality: one string for the worker. claim: a string that only its own spelling equals.
    """

    kind: str
    parts: tuple
    unit: str = ""


GREEK = (
    "alpha|beta|gamma|delta|epsilon|varepsilon|theta|lambda|mu|phi|varphi|rho|sigma|tau|omega|psi"
    "|Delta|Theta|Phi|Omega|Sigma|ell|kappa|eta|zeta|nu|xi|chi"
)
SYMBOL = rf"(?:\\(?:{GREEK})(?![a-zA-Z])|[a-zA-Z])"
# What is given a value: x, a_1, f(2), f^{-1}(x), P(A), AB, \angle ABC, \text{Area}, (x, y).
NAME = re.compile(
    rf"{SYMBOL}'*(?: ?_ ?(?:\{{[^{{}}]*\}}|[a-zA-Z0-9]))?(?: ?\^ ?\{{ ?-1 ?\}})?(?: ?\([^()]*\))?"
    r"|[A-Z]{2,3}|m? ?\\(?:angle|triangle|overline)(?: ?\{ ?[A-Z]+ ?\}| ?[A-Z]{1,3})"
    rf"|\\(?:angle) ?{SYMBOL}|\\text ?\{{[^{{}}0-9]*\}}|\| ?[A-Z]{{2}} ?\||\[ ?[A-Z]{{3,}} ?\]"
    rf"|\( ?{SYMBOL}(?: ?, ?{SYMBOL})+ ?\)"
)
RELATION = re.compile(
    r"\\(le|ge|ne|in|notin|approx|sim|simeq|cong|equiv|mid|nmid|subset|subseteq|perp|parallel|to|implies|iff"
    r"|Rightarrow|Leftrightarrow|rightarrow)(?![a-zA-Z])|([=<>≡])"
)
SWAPPED = {"<": ">", ">": "<", "le": "ge", "ge": "le"}
# What is said, not calculated.
SHORT_WORDS = (
    "no|on|yes|odd|one|two|six|ten|all|any|not|nor|now|own|is|it|in|of|to|up|ok|he|she|we|us|me|my|by|so|if|as"
    "|at|an|am|be|do|go"
)
WORDS = re.compile(rf"[a-zA-Z][a-zA-Z' -]{{3,}}|[A-Z][a-z]{{2}}|[A-Z]{{3,}}|[IVX]{{2,}}|{FUNCTION}|(?i:{SHORT_WORDS})")
EVERYTHING = {"all real numbers", "all reals", "real numbers", "the real numbers"}
NOTHING = {"no solution", "no solutions", "empty set", "the empty set"}
# What may go to the worker: numbers, letters, operators and commands that it reads as mathematics writes them.
COMMANDS = (
    rf"frac|sqrt|binom|pi|infty|cdot|times|div|{FUNCTION}|{GREEK}|lfloor|rfloor|lceil|rceil|sum|prod|int|lim|to|pm"
    r"|mod|degree|begin\{[pv]matrix\}|end\{[pv]matrix\}"
)
CALCULABLE = re.compile(rf"(?:\\(?:{COMMANDS})(?![a-zA-Z])|\\\\|[0-9a-zA-Z+*/^_(){{}}|!.,&=\[\] -])*")
# What the worker would read otherwise than a person, or than another person.
MISREAD = (
    r"[0-9.] +[0-9.]",  # 2 3
    r"\.[0-9]*\.",  # 1.2.3
    r"[0-9]\{",  # 2{3}
    r"\{ *\}",  # x^{}
    r"[0-9] ?\\frac\{ ?[0-9.]+ ?\}\{ ?[0-9.]+ ?\}",  # 1\frac{3}{2}; proper ones are sums by now
    r"/ ?(?:[0-9.]+|[a-zA-Z]|\([^()]*\))(?:\^\{[^{}]*\})? ?(?:[a-zA-Z(|]|\\(?!cdot|times|div|pm))",  # 1/2x
    r"(?:\\frac\{|^|[^a-zA-Z])d ?[a-zA-Z] ?(?:\}\{|/) ?d",  # dy/dx
    r"[^0-9.]\\degree",
    r"(?<!sqrt)\[",
    r"[+-] *[+-]|[+*/^_=-]$",  # +-5, 5+
    r"! ?!",
    r"(?<![\\a-zA-Z{])[a-zA-Z]{4,}",  # a word, not a product
)
AMBIGUOUS = re.compile("|".join(MISREAD))
INTEGER = r"[0-9]+"
DECIMAL = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
FRACTION = rf"\\frac\{{ ?(-?{DECIMAL}) ?\}}\{{ ?(-?{DECIMAL}) ?\}}"
NUMBER = re.compile(rf"([-+]?) ?(?:(-?{DECIMAL})(?: ?/ ?({DECIMAL}))?|{FRACTION}|\(({INTEGER})\+{FRACTION}\))")
MATRIX = re.compile(r"\\begin\{pmatrix\}(.*)\\end\{pmatrix\}")


def normal_form(text: str) -> Form:
    """What `text` says, whatever the spelling."""
    if not closed(text):
        return claim(text)
    text = spell(text)
    pieces, joints = split(text, r",|;|\\land(?![a-zA-Z])|\\lor(?![a-zA-Z])")
    if len(pieces) == 1:
        return listed([single(text)])
    if not all(pieces):
        return claim(text)
    forms = [single(piece) for piece in pieces]
    if any(form.kind in ("range", "inequality", "claim") for form in forms):
        return conditions(text, forms, joints)
    if "\\lor" in joints and any(is_named_thing(form) for form in forms):
        return Form("or", tuple(forms))
    units = {form.unit for form in forms} - {""}
    return claim(text) if len(units) > 1 else collected(forms)


def is_named_thing(form: Form) -> bool:
    """Words and single letters, of which one *or* the other isn't both; values are listed by either word."""
    return form.kind == "words" or bool(form.kind == "expression" and re.fullmatch("[a-zA-Z]", form.parts[0]))


def split(text: str, separator: str) -> tuple[list[str], list[str]]:
    """The parts of `text` between separators outside brackets, and these separators."""
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
    r"""If every ``{`` has its ``}``, with as many round and square brackets opened as closed in between."""
    opened: list[int] = []
    depth = 0
    for letter in re.sub(r"\\\\|\\[{}]", "", text):
        depth += (letter in "([") - (letter in ")]")
        if letter == "{":
            opened.append(depth)
        elif letter == "}" and (not opened or opened.pop() != depth):
            return False
    return not opened


def inside_matrix(text: str, at: int) -> bool:
    return text.count("\\begin", 0, at) > text.count("\\end", 0, at)


def claim(text: str) -> Form:
    return Form("claim", (squeeze(text),))


def collected(forms: list[Form]) -> Form:
    """A bare list. A name that all its values share is given once: x=1, x=2."""
    names = {form.parts[0] for form in forms if form.kind == "named"}
    if not names or names == {""}:
        return listed(forms)
    if len(names) > 1 or forms[0].kind != "named":
        return Form("names", tuple(forms))
    values = [form.parts[-1] if form.kind == "named" else form for form in forms]
    single = all(form.kind != "named" or len(form.parts) == 2 for form in forms)
    return Form("named", (*names, listed(values))) if single else Form("names", tuple(forms))


def listed(forms: list[Form]) -> Form:
    """A list, in which a plus-minus counts as its two values; of one value that value."""
    items: list[Form] = []
    for form in forms:
        items += form.parts if form.kind == "pair" else [form]
    return items[0] if len(items) == 1 else Form("list", tuple(items))


def conditions(text: str, forms: list[Form], joints: list[str]) -> Form:
    """Inequalities: *or* unites the ranges of one variable, *and* cuts them; a comma leaves them side by side."""
    joint = joints[0]
    ranges = all(form.kind == "range" for form in forms)
    if len(set(joints)) > 1:
        return claim(text)
    if ranges and len({form.parts[0] for form in forms}) == 1 and joint in ("\\lor", "\\land"):
        name = forms[0].parts[0]
        spans = [form.parts[1] for form in forms]
        if joint == "\\lor":
            return Form("range", (name, Form("union", tuple(spans))))
        if (both := intersection(spans)) is not None:
            return Form("range", (name, both))
    kind = {"\\lor": "or", "\\land": "and", ",": "list", ";": "list"}[joint]
    return Form(kind, tuple(forms))


def intersection(spans: list[Form]) -> Form | None:
    """One lower and one upper bound as one interval; None where that takes more than two half-lines."""
    if len(spans) != 2:
        return None
    low, high = sorted(spans, key=lambda span: span.parts[0] == MINUS_INFINITY)
    if MINUS_INFINITY in low.parts or INFINITY in high.parts or low.parts[1] != INFINITY:
        return None
    start, end = low.parts[0], high.parts[1]
    if start.kind == end.kind == "number" and start.parts[0] >= end.parts[0]:
        return None
    return Form(low.kind[0] + high.kind[1], (start, end))


def single(text: str) -> Form:
    """An answer of one piece: a statement or a value."""
    text = text.strip()
    depth = depths(text)
    found = [match for match in RELATION.finditer(text) if depth[match.start()] == 0]
    if not found or inside_matrix(text, found[0].start()):
        return value(text)
    signs = [match[1] or match[2] for match in found]
    starts = [0, *(match.end() for match in found)]
    ends = [*(match.start() for match in found), len(text)]
    sides = [text[start:end].strip() for start, end in zip(starts, ends, strict=True)]
    if not all(sides):
        return claim(text)
    if set(signs) == {"="}:
        return equation(sides)
    if signs == ["in"] and NAME.fullmatch(sides[0]):
        return Form("named", (squeeze(sides[0]), value(sides[1])))
    if set(signs) <= set(SWAPPED):
        return inequality(text, sides, signs)
    return claim(text)


def equation(sides: list[str]) -> Form:
    """A name and what it is given, in a chain of any length; else an equation."""
    named, values = sides[0], sides[1:]
    if len(sides) == 2 and NAME.fullmatch(sides[1]) and not NAME.fullmatch(sides[0]):
        named, values = sides[1], sides[:1]
    symbols = len(sides) == 2 and all(re.fullmatch(SYMBOL, side) for side in sides)
    if NAME.fullmatch(named) and not symbols and not any(mentions(side, named) for side in values):
        given = [listed([value(side)]) for side in values]
        return Form("named", (squeeze(TEXT.sub(r"\1", named)), *given))
    if not any(has_letters(side) for side in sides):
        return Form("named", ("", *map(value, sides)))
    if len(sides) == 2 and all(map(calculable, sides)) and not any(map(applied, sides)):
        return Form("equation", ("=".join(squeeze(side) for side in sides),))
    return claim("=".join(sides))


def mentions(side: str, name: str) -> bool:
    """If a single letter is on the other side too: x=2x+1 gives x no value."""
    letters = re.sub(r"\\[a-zA-Z]+", "", side)
    return len(name) == 1 and name in letters


def has_letters(side: str) -> bool:
    return bool(re.search("[a-zA-Z]", re.sub(rf"\\(?:{COMMANDS})(?![a-zA-Z])", "", side)))


def applied(side: str) -> bool:
    return bool(re.search(r"[a-zA-Z] ?\(", re.sub(r"\\[a-zA-Z]+", "", side)))


def inequality(text: str, sides: list[str], signs: list[str]) -> Form:
    """The range of one variable, or an inequality of several."""
    if len(signs) == 2 and NAME.fullmatch(sides[1]) and not has_letters(sides[0] + sides[2]):
        if {signs[0], signs[1]} <= {"<", "le"}:
            return span(sides[1], sides[0], signs[0], sides[2], signs[1])
        if {signs[0], signs[1]} <= {">", "ge"}:
            return span(sides[1], sides[2], SWAPPED[signs[1]], sides[0], SWAPPED[signs[0]])
    if len(signs) != 1:
        return claim(text)
    left, right, sign = *sides, signs[0]
    if NAME.fullmatch(right) and not has_letters(left):
        left, right, sign = right, left, SWAPPED[sign]
    if NAME.fullmatch(left) and not has_letters(right):
        if sign in ("<", "le"):
            return span(left, r"-\infty", "<", right, sign)
        return span(left, right, SWAPPED[sign], r"\infty", "<")
    if sign in ("<", "le"):
        left, right, sign = right, left, SWAPPED[sign]
    if not (calculable(left) and calculable(right)) or applied(left) or applied(right):
        return claim(text)
    mark = ">" if sign == ">" else ">="
    return Form("inequality", (f"{squeeze(left)}{mark}{squeeze(right)}",))


def span(name: str, low: str, low_sign: str, high: str, high_sign: str) -> Form:
    brackets = ("(" if low_sign == "<" else "[") + (")" if high_sign == "<" else "]")
    return Form("range", (squeeze(name), Form(brackets, (value(low), value(high)))))


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
