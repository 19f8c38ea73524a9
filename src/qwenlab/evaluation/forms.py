"""Whole answers parsed into forms: values, and statements about them such as equations."""

import re

from qwenlab.evaluation.latex import TEXT, closed, depths, inside_matrix, split
from qwenlab.evaluation.notation import spell
from qwenlab.evaluation.values import (
    COMMANDS,
    INFINITY,
    MINUS_INFINITY,
    SYMBOL,
    Form,
    calculable,
    claim,
    listed,
    squeeze,
    value,
)

# What a value can be given to: x, a_1, f(2), f^{-1}(x), P(A), AB, \angle ABC, \text{Area}, (x, y);
# not x(x+1), a product.
NAME = re.compile(
    rf"{SYMBOL}'*(?: ?_ ?\{{[^{{}}]*\}})?"
    r"|[fghpqFGHPQRSTVE]'*(?: ?\^ ?\{ ?(?:-1|') ?\})?(?: ?_ ?\{[^{}]*\})? ?\([^()]*\)"
    r"|[A-Z]{2,3}|m? ?\\(?:angle|triangle|overline)(?: ?\{ ?[A-Z]+ ?\}| ?[A-Z]{1,3})"
    rf"|\\(?:angle) ?{SYMBOL}|\\text ?\{{[^{{}}0-9]*\}}|\| ?[A-Z]{{2}} ?\||\[ ?[A-Z]{{3,}} ?\]"
    rf"|\( ?{SYMBOL}(?: ?, ?{SYMBOL})+ ?\)"
)
RELATION = re.compile(
    r"\\(le|ge|ne|in|notin|approx|sim|simeq|cong|equiv|mid|nmid|subset|subseteq|perp|parallel|to"
    r"|implies|iff|Rightarrow|Leftrightarrow|rightarrow)(?![a-zA-Z])|([=<>≡])"
)
SWAPPED = {"<": ">", ">": "<", "le": "ge", "ge": "le"}


def normal_form(text: str) -> Form:
    """The meaning of `text`, whatever its spelling."""
    if not closed(text):
        return claim(text)
    text = spell(text)
    pieces, joints = split(text, r",|;|\\land(?![a-zA-Z])|\\lor(?![a-zA-Z])")
    if len(pieces) == 1:
        return listed([single(text)])
    if not all(pieces):
        return claim(text)
    forms = list(map(single, pieces))
    kinds = {form.kind for form in forms}
    if kinds & {"range", "inequality", "claim"}:
        return conditions(text, forms, joints)
    if "\\lor" in joints and any(map(is_alternative, forms)):
        return Form("or", tuple(forms))
    units = {form.unit for form in forms} - {""}
    return claim(text) if len(units) > 1 else collected(forms)


def is_alternative(form: Form) -> bool:
    """Whether *or* gives a choice, as between words or single letters. Other values with *or*
    between them are a list."""
    if form.kind == "words":
        return True
    return form.kind == "expression" and bool(re.fullmatch("[a-zA-Z]", form.parts[0]))


def collected(forms: list[Form]) -> Form:
    """A bare list. A name that all its values share is given once: x=1, x=2."""
    names = set()
    values = []
    chained = False
    for form in forms:
        if form.kind != "named":
            values.append(form)
            continue
        name, *given = form.parts
        names.add(name)
        values.append(given[-1])
        chained = chained or len(given) > 1
    if not names or names == {""}:
        return listed(forms)
    if len(names) > 1 or forms[0].kind != "named" or chained:
        return Form("names", tuple(forms))
    return Form("named", (*names, listed(values)))


def conditions(text: str, forms: list[Form], joints: list[str]) -> Form:
    """Inequalities: *or* is the union of the ranges of one variable, *and* their intersection; a
    comma lists them."""
    joint = joints[0]
    if len(set(joints)) > 1:
        return claim(text)
    first = forms[0]
    one_variable = all(form.kind == "range" and form.parts[0] == first.parts[0] for form in forms)
    if one_variable and joint in ("\\lor", "\\land"):
        spans = tuple(form.parts[1] for form in forms)
        both = Form("union", spans) if joint == "\\lor" else intersection(spans)
        if both is not None:
            return Form("range", (first.parts[0], both))
    kind = {"\\lor": "or", "\\land": "and", ",": "list", ";": "list"}[joint]
    return Form(kind, tuple(forms))


def intersection(spans: tuple[Form, ...]) -> Form | None:
    """The interval between one lower and one upper bound; None for anything else."""
    if len(spans) != 2:
        return None
    low, high = sorted(spans, key=lambda span: span.parts[0] == MINUS_INFINITY)
    if MINUS_INFINITY in low.parts or INFINITY in high.parts or low.parts[1] != INFINITY:
        return None
    start = low.parts[0]
    end = high.parts[1]
    if start.kind == end.kind == "number" and start.parts[0] >= end.parts[0]:
        return None
    return Form(low.kind[0] + high.kind[1], (start, end))


def single(text: str) -> Form:
    """An answer of one piece: a statement or a value."""
    text = text.strip()
    sides, signs = statement(text)
    if not signs:
        return value(text)
    if not all(sides):
        return claim(text)
    if set(signs) == {"="}:
        return equation(sides)
    if signs == ["in"] and NAME.fullmatch(sides[0]):
        return Form("named", (squeeze(sides[0]), value(sides[1])))
    if set(signs) <= set(SWAPPED):
        return inequality(text, sides, signs)
    return claim(text)


def statement(text: str) -> tuple[list[str], list[str]]:
    """The sides of a statement and the relations between them, "=" and "<" or a command's name.
    There are none in a value, whose relations are all inside brackets or a matrix."""
    depth = depths(text)
    sides = []
    signs = []
    start = 0
    for found in RELATION.finditer(text):
        if depth[found.start()] != 0:
            continue
        if not signs and inside_matrix(text, found.start()):
            break
        sides.append(text[start : found.start()].strip())
        signs.append(found[1] or found[2])
        start = found.end()
    return [*sides, text[start:].strip()], signs


def equation(sides: list[str]) -> Form:
    """A name and the values that it is given, in a chain of any length; else an equation."""
    named = sides[0]
    values = sides[1:]
    if len(sides) == 2 and NAME.fullmatch(sides[1]) and not NAME.fullmatch(sides[0]):
        named = sides[1]
        values = sides[:1]
    symbols = len(sides) == 2 and all(re.fullmatch(SYMBOL, side) for side in sides)
    circular = any(mentions(side, named) for side in values)
    if NAME.fullmatch(named) and not symbols and not circular:
        given = [listed([value(side)]) for side in values]
        return Form("named", (squeeze(TEXT.sub(r"\1", named)), *given))
    if not any(map(has_letters, sides)):
        return Form("named", ("", *map(value, sides)))
    if len(sides) == 2 and all(map(calculable, sides)) and not any(map(has_function, sides)):
        return Form("equation", ("=".join(map(squeeze, sides)),))
    return claim("=".join(sides))


def mentions(side: str, name: str) -> bool:
    """Whether a one-letter name occurs in `side`: x=2x+1 gives x no value."""
    letters = re.sub(r"\\[a-zA-Z]+", "", side)
    return len(name) == 1 and name in letters


def has_letters(side: str) -> bool:
    return bool(re.search("[a-zA-Z]", re.sub(rf"\\(?:{COMMANDS})(?![a-zA-Z])", "", side)))


def has_function(side: str) -> bool:
    """Whether a letter has a bracket after it, as in f(x)."""
    return bool(re.search(r"[a-zA-Z] ?\(", re.sub(r"\\[a-zA-Z]+", "", side)))


def inequality(text: str, sides: list[str], signs: list[str]) -> Form:
    """The range of one variable, or an inequality in several."""
    if len(signs) == 2 and NAME.fullmatch(sides[1]) and not has_letters(sides[0] + sides[2]):
        if set(signs) <= {"<", "le"}:
            return span(sides[1], sides[0], signs[0], sides[2], signs[1])
        if set(signs) <= {">", "ge"}:
            return span(sides[1], sides[2], SWAPPED[signs[1]], sides[0], SWAPPED[signs[0]])
    if len(signs) != 1:
        return claim(text)
    [sign] = signs
    left, right = sides
    if NAME.fullmatch(right) and not has_letters(left):
        left, right = right, left
        sign = SWAPPED[sign]
    if NAME.fullmatch(left) and not has_letters(right):
        if sign in ("<", "le"):
            return span(left, r"-\infty", "<", right, sign)
        return span(left, right, SWAPPED[sign], r"\infty", "<")
    if sign in ("<", "le"):
        left, right = right, left
        sign = SWAPPED[sign]
    if not (calculable(left) and calculable(right)) or has_function(left) or has_function(right):
        return claim(text)
    mark = ">" if sign == ">" else ">="
    return Form("inequality", (f"{squeeze(left)}{mark}{squeeze(right)}",))


def span(name: str, low: str, low_sign: str, high: str, high_sign: str) -> Form:
    """The range low < name < high, each sign "<" or "le"."""
    brackets = ("(" if low_sign == "<" else "[") + (")" if high_sign == "<" else "]")
    return Form("range", (squeeze(name), Form(brackets, (value(low), value(high)))))
