"""Forms compared: what needs no symbolic mathematics is decided here."""

import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

from qwenlab.evaluation.values import INFINITY, MINUS_INFINITY, SYMBOL, Form

# Asked whether two expressions, or two equations, are the same.
Ask = Callable[[str, str], bool]
UNORDERED = ("list", "names", "or", "and", "union")
# A name that the worker reads as one letter.
SINGLE = re.compile(rf"{SYMBOL}(?:_(?:[a-zA-Z0-9]|\{{[a-zA-Z0-9]\}}))?")
# Up to which a decimal's digits are written out.
PLACES = 30


def same(one: Form, two: Form, ask: Ask) -> bool:
    """If both forms say the same. `ask` is asked for what takes mathematics."""
    if one == two:
        return True
    if one.unit != two.unit:
        alike = not (one.unit and two.unit)
        return alike and same(replace(one, unit=""), replace(two, unit=""), ask)
    if "named" in (one.kind, two.kind):
        return same_named(one, two, ask)
    if "range" in (one.kind, two.kind):
        return same_range(one, two, ask)
    if {one.kind, two.kind} <= {"number", "expression"}:
        return "expression" in (one.kind, two.kind) and ask(as_latex(one), as_latex(two))
    if {one.kind, two.kind} == {"matrix", "expression"}:
        return ask(as_latex(one), as_latex(two))
    if one.kind != two.kind:
        return False
    if one.kind in ("equation", "inequality"):
        return ask(one.parts[0], two.parts[0])
    if one.kind in ("number", "words", "text", "claim"):
        return one.parts == two.parts
    if len(one.parts) != len(two.parts):
        return False
    if one.kind in UNORDERED:
        return matched(one.parts, two.parts, ask)
    return all(same(left, right, ask) for left, right in zip(one.parts, two.parts, strict=True))


def matched(one: tuple[Form, ...], two: tuple[Form, ...], ask: Ask) -> bool:
    """If each form of `one` has its own in `two`, in any order."""
    rest = list(two)
    for form in sorted(one, key=lambda form: form not in two):  # what needs no mathematics first
        other = form if form in rest else next((o for o in rest if same(form, o, ask)), None)
        if other is None:
            return False
        rest.remove(other)
    return True


def same_named(one: Form, two: Form, ask: Ask) -> bool:
    """A value given to a name is that value where the other side names nothing, or the same."""
    if one.kind != "named":
        one, two = two, one
    name, *values = one.parts
    if two.kind == "equation":
        return (
            SINGLE.fullmatch(name) and len(values) == 1 and ask(stated(one), two.parts[0])
        ) or False
    if two.kind == "names" and name.startswith("("):
        return matched(each_named(one), two.parts, ask)
    if two.kind == "range":
        return name == two.parts[0] and same(values[0], two.parts[1], ask)
    if two.kind in ("inequality", "claim", "or", "and", "names"):
        return False
    if two.kind != "named":
        return all(same(given, two, ask) for given in values)
    other, *others = two.parts
    if name and other and name != other:
        swapped = all(form.parts[1].kind == "expression" for form in (one, two))
        letters = SINGLE.fullmatch(name) and SINGLE.fullmatch(other)
        return bool(swapped and letters) and ask(stated(one), stated(two))
    return all(same(left, right, ask) for left in values for right in others)


def stated(named: Form) -> str:
    given = named.parts[1]
    return (
        f"{named.parts[0]}={as_latex(given)}" if given.kind in ("number", "expression") else "0=1"
    )


def each_named(named: Form) -> tuple[Form, ...]:
    """(x,y)=(1,2) as x=1 and y=2."""
    names = named.parts[0].strip("()").split(",")
    values = named.parts[1].parts
    if len(names) != len(values) or named.parts[1].kind != "()":
        return ()
    return tuple(Form("named", pair) for pair in zip(names, values, strict=True))


def same_range(one: Form, two: Form, ask: Ask) -> bool:
    """Inequalities of one variable are the intervals that they describe."""
    if one.kind != "range":
        one, two = two, one
    name, described = one.parts
    if two.kind == "range":
        return name == two.parts[0] and same(described, two.parts[1], ask)
    if two.kind == "inequality":
        return (half := half_line(name, described)) is not None and ask(half, two.parts[0])
    return (two.kind == "union" or len(two.kind) == 2) and same(described, two, ask)


def half_line(name: str, described: Form) -> str | None:
    if described.kind == "union" or not SINGLE.fullmatch(name):
        return None
    low, high = described.parts
    if high == INFINITY:
        return f"{name}{'>' if described.kind[0] == '(' else '>='}{as_latex(low)}"
    if low == MINUS_INFINITY:
        return f"{as_latex(high)}{'>' if described.kind[1] == ')' else '>='}{name}"
    return None


def as_latex(form: Form) -> str:
    """A number or an expression as the worker reads it: a decimal as a decimal, where it ends."""
    if form.kind == "matrix":
        rows = ["&".join(map(as_latex, row.parts)) for row in form.parts]
        return r"\begin{pmatrix}" + r"\\".join(rows) + r"\end{pmatrix}"
    exact = form.parts[0]
    if not isinstance(exact, Fraction):
        return exact
    for places in range(PLACES + 1):
        if (10**places) % exact.denominator == 0:
            digits = str(abs(exact.numerator) * 10**places // exact.denominator).zfill(places + 1)
            point = f".{digits[-places:]}" if places else ""
            return "-" * (exact < 0) + digits[: len(digits) - places] + point
    return rf"\frac{{{exact.numerator}}}{{{exact.denominator}}}"
