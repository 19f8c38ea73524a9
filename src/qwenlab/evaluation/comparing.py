"""Forms compared. Whatever needs no symbolic mathematics is decided here."""

import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import product

from qwenlab.evaluation.values import INFINITY, MINUS_INFINITY, SYMBOL, Form

# Decides symbolically whether two expressions, equations or inequalities in LaTeX are equal.
Equal = Callable[[str, str], bool]
UNORDERED = ("list", "names", "or", "and", "union")
# A name that the worker reads as one letter.
SINGLE = re.compile(rf"{SYMBOL}(?:_(?:[a-zA-Z0-9]|\{{[a-zA-Z0-9]\}}))?")
PLACES = 30  # most decimal places that are written out


def same(one: Form, two: Form, equal: Equal) -> bool:
    """Whether both forms mean the same. `equal` decides what takes mathematics."""
    if one == two:
        return True
    if one.unit != two.unit:
        compatible = not (one.unit and two.unit)
        return compatible and same(replace(one, unit=""), replace(two, unit=""), equal)
    kinds = {one.kind, two.kind}
    if "named" in kinds:
        return same_named(one, two, equal)
    if "range" in kinds:
        return same_range(one, two, equal)
    if kinds <= {"number", "expression"}:
        return "expression" in kinds and equal(as_latex(one), as_latex(two))
    if kinds == {"matrix", "expression"}:
        return equal(as_latex(one), as_latex(two))
    if one.kind != two.kind:
        return False
    if one.kind in ("equation", "inequality"):
        return equal(one.parts[0], two.parts[0])
    if one.kind in ("number", "words", "text", "claim"):
        return one.parts == two.parts
    if len(one.parts) != len(two.parts):
        return False
    if one.kind in UNORDERED:
        return matched(one.parts, two.parts, equal)
    return all(same(left, right, equal) for left, right in zip(one.parts, two.parts, strict=True))


def matched(one: tuple[Form, ...], two: tuple[Form, ...], equal: Equal) -> bool:
    """Whether each form of `one` has its own counterpart in `two`, in any order."""
    rest = list(two)
    for form in sorted(one, key=lambda form: form not in two):  # what needs no mathematics first
        other = counterpart(form, rest, equal)
        if other is None:
            return False
        rest.remove(other)
    return True


def counterpart(form: Form, others: list[Form], equal: Equal) -> Form | None:
    if form in others:
        return form
    for other in others:
        if same(form, other, equal):
            return other
    return None


def same_named(one: Form, two: Form, equal: Equal) -> bool:
    """A value given to a name is that value if the other side names nothing, or the same name."""
    if one.kind != "named":
        one, two = two, one
    name, *values = one.parts
    if two.kind == "equation":
        variable = SINGLE.fullmatch(name) and len(values) == 1
        return bool(variable) and equal(as_equation(one), two.parts[0])
    if two.kind == "names" and name.startswith("("):
        return matched(each_named(one), two.parts, equal)
    if two.kind == "range":
        return name == two.parts[0] and same(values[0], two.parts[1], equal)
    if two.kind in ("inequality", "claim", "or", "and", "names"):
        return False
    if two.kind != "named":
        return all(same(given, two, equal) for given in values)
    other, *others = two.parts
    if name and other and name != other:
        # x=y and y=x give the same relation between two variables
        relations = one.parts[1].kind == two.parts[1].kind == "expression"
        variables = SINGLE.fullmatch(name) and SINGLE.fullmatch(other)
        return bool(relations and variables) and equal(as_equation(one), as_equation(two))
    for left, right in product(values, others):
        if not same(left, right, equal):
            return False
    return True


def as_equation(named: Form) -> str:
    """A named value as an equation for the worker; one that never holds if it has no such value."""
    given = named.parts[1]
    if given.kind not in ("number", "expression"):
        return "0=1"
    return f"{named.parts[0]}={as_latex(given)}"


def each_named(named: Form) -> tuple[Form, ...]:
    """(x,y)=(1,2) as x=1 and y=2."""
    names = named.parts[0].strip("()").split(",")
    values = named.parts[1].parts
    if len(names) != len(values) or named.parts[1].kind != "()":
        return ()
    return tuple(Form("named", pair) for pair in zip(names, values, strict=True))


def same_range(one: Form, two: Form, equal: Equal) -> bool:
    """Inequalities of one variable are the intervals that they describe."""
    if one.kind != "range":
        one, two = two, one
    name, described = one.parts
    if two.kind == "range":
        return name == two.parts[0] and same(described, two.parts[1], equal)
    if two.kind == "inequality":
        half = half_line(name, described)
        return half is not None and equal(half, two.parts[0])
    return (two.kind == "union" or len(two.kind) == 2) and same(described, two, equal)


def half_line(name: str, described: Form) -> str | None:
    """An interval with one finite end as an inequality; None for any other range."""
    if described.kind == "union" or not SINGLE.fullmatch(name):
        return None
    low, high = described.parts
    if high == INFINITY:
        return f"{name}{'>' if described.kind[0] == '(' else '>='}{as_latex(low)}"
    if low == MINUS_INFINITY:
        return f"{as_latex(high)}{'>' if described.kind[1] == ')' else '>='}{name}"
    return None


def as_latex(form: Form) -> str:
    """A number, expression or matrix as the worker reads it: a terminating decimal as a decimal."""
    if form.kind == "matrix":
        rows = ["&".join(map(as_latex, row.parts)) for row in form.parts]
        return r"\begin{pmatrix}" + r"\\".join(rows) + r"\end{pmatrix}"
    exact = form.parts[0]
    if not isinstance(exact, Fraction):
        return exact
    for places in range(PLACES + 1):
        if (10**places) % exact.denominator == 0:
            sign = "-" if exact < 0 else ""
            digits = str(abs(exact.numerator) * 10**places // exact.denominator).zfill(places + 1)
            point = f".{digits[-places:]}" if places else ""
            return sign + digits[: len(digits) - places] + point
    return rf"\frac{{{exact.numerator}}}{{{exact.denominator}}}"
