"""Whole answers read into forms: values, and statements about them, equations and inequalities."""

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

# What is given a value: x, a_1, f(2), f^{-1}(x), P(A), AB, \angle ABC, \text{Area}, (x, y). Not
# x(x+1), a product.
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
    """Words and single letters, of which one *or* the other isn't both; values are listed by either
    word."""
    return form.kind == "words" or bool(
        form.kind == "expression" and re.fullmatch("[a-zA-Z]", form.parts[0])
    )


def collected(forms: list[Form]) -> Form:
    """A bare list. A name that all its values share is given once: x=1, x=2."""
    names = {form.parts[0] for form in forms if form.kind == "named"}
    if not names or names == {""}:
        return listed(forms)
    if len(names) > 1 or forms[0].kind != "named":
        return Form("names", tuple(forms))
    values = [form.parts[-1] if form.kind == "named" else form for form in forms]
    chains = any(form.kind == "named" and len(form.parts) > 2 for form in forms)
    return Form("named", (*names, listed(values))) if not chains else Form("names", tuple(forms))


def conditions(text: str, forms: list[Form], joints: list[str]) -> Form:
    """Inequalities: *or* unites the ranges of one variable, *and* cuts them; a comma leaves them
    side by side."""
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
    """One lower and one upper bound as one interval; None where that takes more than two
    half-lines."""
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
    named = sides[0]
    values = sides[1:]
    if len(sides) == 2 and NAME.fullmatch(sides[1]) and not NAME.fullmatch(sides[0]):
        named = sides[1]
        values = sides[:1]
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
