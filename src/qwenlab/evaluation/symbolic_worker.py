r"""The process that does symbolic mathematics: one question per line on stdin, one reply per line
on stdout.

`symbolic.Worker` starts it by its path, so it imports nothing from qwenlab.

    ""                                       ready, or the reason why not: a library doesn't load
    [1.0, "2\\sqrt{3}", "\\sqrt{12}"]        question: are these equal? with its limit in seconds
    true                                     reply

math-verify's parser (latex2sympy2_extended) reads the LaTeX, and SymPy decides. math-verify's own
comparison is too lenient for a grader: it drops letters that could be units, ignores case and
rounds small numbers to zero.

Where the system has fork and timers, a child does the work, and a timer kills it at the limit,
wherever it hangs. The next child starts immediately, because SymPy is already loaded. Elsewhere
this process does the work itself; the asking process kills it if the reply is late and starts
another, which takes as long as loading SymPy. If the asking process is gone, this one ends by
itself a little later. All of them end when stdin closes, as it does when the asking process ends in
any way.

Memory is limited where the module `resource` exists and the system enforces it (Linux). Elsewhere a
single question may take all memory; a process that has grown is replaced only before the next one.
"""

import faulthandler
import json
import logging
import os
import re
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    import sympy
    from latex2sympy2_extended.latex2sympy2 import _Latex2Sympy

    Expression = sympy.Expr | sympy.MatrixBase

SPACE = 2**30  # bytes of address space, beyond which allocations raise MemoryError
GROWTH = 100 * 2**20  # bytes by which a process may grow before another takes over
GROWN = 3  # exit status of a process that has grown too large
PATIENCE = 2.0  # seconds after the limit at which a process without timers ends itself
# Only with fork and timers is the work done in a child.
HAS_CHILDREN = hasattr(os, "fork") and hasattr(signal, "SIGALRM")
DIGITS = 40  # to which values are computed before anything is proved
AGREED = 25  # digits in which equal values must agree
# These letters with an argument are functions, as in f(x). Any other, as in x(x+1), is a factor.
FUNCTIONS = "fghFGHP"
# Letters that the parser would take for the imaginary unit and the gamma function, and substitutes.
OTHER_LETTERS = {"I": r"\Xi ", r"\gamma": r"\upsilon "}
LETTER = re.compile(r"\\[a-zA-Z]+|[a-zA-Z]")
DECIMAL = re.compile(r"[0-9]*\.[0-9]+|[0-9]+\.")
RELATION = re.compile(r">=|>|=")


def equal(one: str, two: str) -> bool:
    """Whether two values, two equations or two inequalities are equal."""
    relation, left, right = split(one)
    other_relation, other_left, other_right = split(two)
    if relation != other_relation:
        return False
    if relation:
        difference = read(left) - read(right)
        return proportional(difference, read(other_left) - read(other_right), relation)
    if same_value(read(one), read(two)):
        return True
    return rounded(one, two) or rounded(two, one)


def split(text: str) -> tuple[str, str, str]:
    """Relation, left and right side; a text without a relation outside brackets is all left
    side."""
    depth = 0
    for at, character in enumerate(text):
        if character in "({[":
            depth += 1
        elif character in ")}]":
            depth -= 1
        if depth == 0 and (found := RELATION.match(text, at)):
            return found[0], text[:at], text[found.end() :]
    return "", text, ""


@lru_cache(maxsize=64)
def read(text: str) -> "Expression":
    """The SymPy expression of LaTeX `text`. Decimals are exact, letters are real and case matters,
    i and e are the constants.

    Raises ValueError unless the whole text is one well-defined expression.
    """
    import sympy
    from sympy.core.function import AppliedUndef

    def is_product(part: sympy.Basic) -> bool:
        function = isinstance(part, AppliedUndef) and len(part.args) == 1
        return function and part.func.__name__ not in FUNCTIONS

    def as_product(part: sympy.Expr) -> sympy.Expr:
        name = part.func.__name__.removeprefix("\\")
        factor = sympy.pi if name == "pi" else sympy.Symbol(name)
        return factor * part.args[0]

    latex = re.sub(r"([0-9]+(?:\.[0-9]+)?) ?\\degree ?", r"(\\frac{\1 \\pi}{180})", text)
    latex = DECIMAL.sub(exact, latex)
    latex = LETTER.sub(lambda found: OTHER_LETTERS.get(found[0], found[0]), latex)
    value = parser().parse(latex)
    if not isinstance(value, sympy.Expr | sympy.MatrixBase) or value.has(sympy.Derivative):
        raise ValueError(f"not an expression: {text}")
    value = value.replace(is_product, as_product)
    names = {symbol.name for symbol in value.atoms(sympy.Symbol)}
    names |= {part.func.__name__ for part in value.atoms(AppliedUndef)}
    written = re.sub(r"\\(?:begin|end)\{[a-z]+\}|\\[a-zA-Z]+", "", text)
    if set(re.findall("[a-zA-Z]", written)) - set("".join(names)) - set("eidI"):
        raise ValueError(f"not all of it was read: {text}")
    free = set(value.free_symbols)
    for part in value.atoms(sympy.Sum, sympy.Product):
        free -= set(part.variables)
    letters = {symbol: sympy.Symbol(symbol.name, real=True) for symbol in free}
    value = value.subs(letters).subs(sympy.Symbol("i", real=True), sympy.I).doit()
    infinity = re.fullmatch(r"[+-]?\\infty", text)
    if value.has(sympy.oo, -sympy.oo, sympy.zoo, sympy.nan) and not infinity:
        raise ValueError(f"not defined: {text}")
    return value


@lru_cache(maxsize=1)
def parser() -> "_Latex2Sympy":
    """math-verify's parser, except that 2(3) is 6: two numbers side by side are no mixed number."""
    import sympy
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig, _Latex2Sympy

    class Parser(_Latex2Sympy):
        def convert_postfix_list(self, arr: list, i: int = 0) -> sympy.Basic:
            factors = list(map(self.convert_postfix, arr[i:]))
            if any(isinstance(factor, list) for factor in factors):
                raise ValueError("a derivative")
            if len(factors) == 1 or any(isinstance(factor, sympy.MatrixBase) for factor in factors):
                return sympy.prod(factors)
            return sympy.Mul(*factors, evaluate=False)

    return Parser(None, None, False, config=ConversionConfig(lowercase_symbols=False))


def exact(found: re.Match) -> str:
    """A decimal as a fraction in LaTeX."""
    whole, _, places = found[0].partition(".")
    return rf"(\frac{{{int(whole + places)}}}{{{10 ** len(places)}}})"


def same_value(one: "Expression", two: "Expression") -> bool:
    """Whether the difference is provably zero. Numerical values are tried first, because they
    settle most unequal pairs."""
    import sympy

    if isinstance(one, sympy.MatrixBase) or isinstance(two, sympy.MatrixBase):
        alike = getattr(one, "shape", None) == getattr(two, "shape", None)
        return alike and all(same_value(*pair) for pair in zip(one, two, strict=True))
    if one == two:
        return True
    if one.is_infinite or two.is_infinite:
        return False
    if one.free_symbols != two.free_symbols:
        one = sympy.simplify(one)
        two = sympy.simplify(two)
        if one.free_symbols != two.free_symbols:
            return False
    difference = one - two
    if difference.is_Rational:
        return bool(difference == 0)
    if differ(one, two):
        return False
    simple = sympy.simplify(difference)
    return bool(simple == 0 or (not simple.is_Rational and simple.equals(0)))


def differ(one: "sympy.Expr", two: "sympy.Expr") -> bool:
    """Whether some numbers in place of the letters give the two different values."""
    import sympy

    letters = sorted(one.free_symbols | two.free_symbols, key=str)
    for seed in (7, 11):
        numbers = {}
        for n, letter in enumerate(letters):
            numbers[letter] = sympy.Rational(seed + 3 * n, 5 + 2 * n)
        left = one.subs(numbers).evalf(DIGITS)
        right = two.subs(numbers).evalf(DIGITS)
        if not (left.is_number and right.is_number and left.is_finite and right.is_finite):
            continue
        scale = max(abs(left), abs(right))
        if scale and abs(left - right) > scale * sympy.Float(10) ** -AGREED:
            return True
    return False


def proportional(one: "sympy.Expr", two: "sympy.Expr", relation: str) -> bool:
    """Whether one difference of sides is a constant times the other, positive for inequalities."""
    import sympy

    if not one.free_symbols or one.free_symbols != two.free_symbols:
        return False
    ratio = sympy.simplify(one / two)
    constant = ratio.is_number and ratio.is_finite and ratio != 0
    return bool(constant and (relation == "=" or ratio.is_positive))


def rounded(text: str, other: str) -> bool:
    """Whether `text` is the irrational value `other`, rounded or truncated to at least six places
    and six significant digits.

    Digits after the twelfth place don't count, because they may come from floating-point
    arithmetic.
    """
    import sympy

    places = text.partition(".")[2]
    digits = text.strip("-0.").replace(".", "")
    if not re.fullmatch(r"-?[0-9]*\.[0-9]{6,}", text) or len(digits) < 6:
        return False
    decimal = read(text)
    value = read(other)
    if value.free_symbols or value.is_rational or value.is_real is not True:
        return False
    scale = 10 ** min(len(places), 12)
    exact = value.evalf(DIGITS) * scale
    return int(decimal * scale) in (int(exact), sympy.floor(exact + sympy.Rational(1, 2)))


def serve(reply: Callable[[object], None]) -> int:
    """Replies until stdin closes (returns 0) or this process has grown too large (returns
    GROWN)."""
    memory = psutil.Process().memory_info
    at_start = memory().rss
    for line in sys.stdin:
        limit, one, two = json.loads(line)
        start_timer(limit)
        try:
            right = equal(one, two)
        except Exception:  # RecursionError and MemoryError too
            right = False
        stop_timer()
        reply(right)
        if memory().rss - at_start > GROWTH:
            return GROWN
    return 0


def start_timer(seconds: float) -> None:
    """Ends this process after so many seconds, wherever it hangs, unless `stop_timer` is called.

    Without the system's timers it ends a little later, because the asking process should kill it
    first.
    """
    if HAS_CHILDREN:
        signal.setitimer(signal.ITIMER_REAL, seconds)
    else:  # its thread runs even while the interpreter's lock is held
        faulthandler.dump_traceback_later(seconds + PATIENCE, exit=True)


def stop_timer() -> None:
    if HAS_CHILDREN:
        signal.setitimer(signal.ITIMER_REAL, 0)
    else:
        faulthandler.cancel_dump_traceback_later()


def serve_in_children(reply: Callable[[object], None]) -> None:
    """As `serve`, in one child after another. For a child that its timer killed, replies False."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # kills a child
    status = GROWN
    while status in (GROWN, -signal.SIGALRM):
        child = os.fork()
        if not child:
            os._exit(serve(reply))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status == -signal.SIGALRM:
            reply(False)


def limit_memory() -> None:
    """Limits this process and its children to SPACE bytes each, where the system can."""
    with suppress(ImportError, OSError, ValueError):  # Windows; macOS
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (SPACE, SPACE))


def main() -> None:
    replies = sys.stdout
    sys.stdout = sys.stderr  # so that a library's output is not taken for a reply

    def reply(value: object) -> None:
        print(json.dumps(value), file=replies, flush=True)

    logging.disable(logging.CRITICAL)
    try:
        # Warms up parser and SymPy for all children, and checks that `parser`'s override is used.
        ready = [
            equal(r"\frac{x}{2}+\sqrt{8}", r"\sqrt{2}\cdot 2+0.5x"),
            equal("x^{2}+2y^{2}=4", r"\frac{x^{2}}{4}+\frac{y^{2}}{2}=1"),
            equal(r"\sin^{2} x+\cos^{2} x+\ln 2", r"1+\log_{3} 2\ln 3"),
            equal("2(3)", "6"),
        ]
        if not all(ready):
            return reply(f"this version parses or compares differently: {ready}")
    except Exception as problem:
        return reply(f"{type(problem).__name__}: {problem}")
    limit_memory()
    reply("")
    if HAS_CHILDREN:
        serve_in_children(reply)
    else:
        serve(reply)


if __name__ == "__main__":
    main()
