r"""The process that does symbolic mathematics: one question a line on stdin, one reply a line on
stdout.

`symbolic.Worker` starts it by its path, so it imports nothing of qwenlab.

    ""                                       ready, or why not: a library doesn't load
    [1.0, "2\\sqrt{3}", "\\sqrt{12}"]        asked: are these two the same? Within so many seconds
    true                                     the reply

math-verify's parser (latex2sympy2_extended) reads the LaTeX, SymPy decides. math-verify's own
comparison is too generous for a grader: it drops letters that could be units, ignores case and
rounds small numbers to nothing.

Where the system can fork and set timers, a child does the work, and a timer ends it at the limit,
whatever it hangs in. The next child is there in no time, since SymPy is loaded already. Elsewhere
this process does the work itself; whoever asked ends it when the reply is late, and starts another,
which takes as long as loading SymPy. If nobody is left to end it, it ends by itself a little later.
All of them end when stdin closes, as it does when the process that asks is gone, however that
ended.

Memory is limited where the module `resource` is there and the system heeds it (Linux). Elsewhere a
single question may take all there is; what has grown is only replaced before the next question.
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

import psutil

# Bytes of address space: what asks for more gets a MemoryError, not the machine's memory.
SPACE = 2**30
# By how many bytes it may grow before the next one takes over, and the exit status that says so.
GROWTH = 100 * 2**20
GROWN = 3
PATIENCE = 2.0  # seconds
# A child that a timer ends; without these the work is done without one.
HAS_CHILDREN = hasattr(os, "fork") and hasattr(signal, "SIGALRM")
# Digits to which two values are computed before anything is proved, and to which they must agree.
DIGITS = 40
AGREED = 25
# Letters with a value beside them are functions: f(x). Any other, as in x(x+1), is a factor.
FUNCTIONS = "fghFGHP"
# Letters that the parser takes for the imaginary unit and the gamma function, and others for them.
OTHER_LETTERS = {"I": r"\Xi ", r"\gamma": r"\upsilon "}
LETTER = re.compile(r"\\[a-zA-Z]+|[a-zA-Z]")
DECIMAL = re.compile(r"[0-9]*\.[0-9]+|[0-9]+\.")
RELATION = re.compile(r">=|>|=")


def equal(one: str, two: str) -> bool:
    """If two values, two equations or two inequalities are the same."""
    sides = [split(text) for text in (one, two)]
    if sides[0][0] != sides[1][0]:
        return False
    if sides[0][0]:
        return proportional(
            *(read(left) - read(right) for _, left, right in sides), sign=sides[0][0]
        )
    if same_value(read(one), read(two)):
        return True
    return rounded(one, two) or rounded(two, one)


def split(text: str) -> tuple[str, str, str]:
    """Relation, left and right side; no relation where none stands outside brackets."""
    depth = 0
    for at, letter in enumerate(text):
        depth += (letter in "({[") - (letter in ")}]")
        if depth == 0 and (found := RELATION.match(text, at)):
            return found[0], text[:at], text[found.end() :]
    return "", text, ""


@lru_cache(maxsize=64)
def read(text: str):
    """The SymPy expression. Decimals are exact, letters real and of their own case, i and e the
    constants.

    Raises ValueError for what isn't one expression made of all that stands there.
    """
    import sympy
    from sympy.core.function import AppliedUndef

    def is_product(part) -> bool:
        function = isinstance(part, AppliedUndef) and len(part.args) == 1
        return function and part.func.__name__ not in FUNCTIONS

    def factors(part):
        name = part.func.__name__.removeprefix("\\")
        return (sympy.pi if name == "pi" else sympy.Symbol(name)) * part.args[0]

    latex = re.sub(r"([0-9]+(?:\.[0-9]+)?) ?\\degree ?", r"(\\frac{\1 \\pi}{180})", text)
    latex = DECIMAL.sub(exact, latex)
    latex = LETTER.sub(lambda found: OTHER_LETTERS.get(found[0], found[0]), latex)
    value = parser().parse(latex)
    if not isinstance(value, sympy.Expr | sympy.MatrixBase) or value.has(sympy.Derivative):
        raise ValueError(f"no expression: {text}")
    value = value.replace(is_product, factors)
    names = {symbol.name for symbol in value.atoms(sympy.Symbol)}
    names |= {part.func.__name__ for part in value.atoms(AppliedUndef)}
    written = re.sub(r"\\(?:begin|end)\{[a-z]+\}|\\[a-zA-Z]+", "", text)
    if set(re.findall("[a-zA-Z]", written)) - set("".join(names)) - set("eidI"):
        raise ValueError(f"not all of it was read: {text}")
    bound = {symbol for part in value.atoms(sympy.Sum, sympy.Product) for symbol in part.variables}
    letters = {
        symbol: sympy.Symbol(symbol.name, real=True) for symbol in value.free_symbols - bound
    }
    value = value.subs(letters).subs(sympy.Symbol("i", real=True), sympy.I).doit()
    if value.has(sympy.oo, -sympy.oo, sympy.zoo, sympy.nan) and not re.fullmatch(
        r"[+-]?\\infty", text
    ):
        raise ValueError(f"not defined: {text}")
    return value


@lru_cache(maxsize=1)
def parser():
    """math-verify's parser, without its reading of a number beside another as a mixed number: 2(3)
    is 6."""
    import sympy
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig, _Latex2Sympy

    class Parser(_Latex2Sympy):
        def convert_postfix_list(self, arr, i=0):
            factors = [self.convert_postfix(part) for part in arr[i:]]
            if any(isinstance(factor, list) for factor in factors):
                raise ValueError("a derivative")
            if len(factors) == 1 or any(isinstance(factor, sympy.MatrixBase) for factor in factors):
                return sympy.prod(factors)
            return sympy.Mul(*factors, evaluate=False)

    return Parser(None, None, False, config=ConversionConfig(lowercase_symbols=False))


def exact(found: re.Match) -> str:
    whole, _, places = found[0].partition(".")
    return rf"(\frac{{{int(whole + places)}}}{{{10 ** len(places)}}})"


def same_value(one, two) -> bool:
    """If the difference is provably zero. Numbers are tried first, which settles most
    that aren't."""
    import sympy

    if isinstance(one, sympy.MatrixBase) or isinstance(two, sympy.MatrixBase):
        alike = getattr(one, "shape", None) == getattr(two, "shape", None)
        return alike and all(same_value(*pair) for pair in zip(one, two, strict=True))
    if one == two:
        return True
    if one.is_infinite or two.is_infinite:
        return False
    if one.free_symbols != two.free_symbols:
        one, two = sympy.simplify(one), sympy.simplify(two)
        if one.free_symbols != two.free_symbols:
            return False
    difference = one - two
    if difference.is_Rational:
        return bool(difference == 0)
    if differ(one, two):
        return False
    simple = sympy.simplify(difference)
    return bool(simple == 0 or (not simple.is_Rational and simple.equals(0)))


def differ(one, two) -> bool:
    """If numbers in place of the letters tell the two apart."""
    import sympy

    letters = sorted(one.free_symbols | two.free_symbols, key=str)
    for seed in (7, 11):
        numbers = {
            letter: sympy.Rational(seed + 3 * n, 5 + 2 * n) for n, letter in enumerate(letters)
        }
        left, right = (side.subs(numbers).evalf(DIGITS) for side in (one, two))
        if not (left.is_number and right.is_number and left.is_finite and right.is_finite):
            continue
        scale = max(abs(left), abs(right))
        if scale and abs(left - right) > scale * sympy.Float(10) ** -AGREED:
            return True
    return False


def proportional(one, two, sign: str) -> bool:
    """If one difference of sides is a constant times the other; for inequalities a positive one."""
    import sympy

    if not one.free_symbols or one.free_symbols != two.free_symbols:
        return False
    ratio = sympy.simplify(one / two)
    return bool(
        ratio.is_number and ratio.is_finite and ratio != 0 and (sign == "=" or ratio.is_positive)
    )


def rounded(text: str, other: str) -> bool:
    """If `text` is `other`, which is no fraction, rounded or cut off to six places and digits or
    more.

    Digits after the twelfth place don't count: they may come from floating-point arithmetic.
    """
    import sympy

    places = text.partition(".")[2]
    if (
        not re.fullmatch(r"-?[0-9]*\.[0-9]{6,}", text)
        or len(text.strip("-0.").replace(".", "")) < 6
    ):
        return False
    decimal = read(text)
    value = read(other)
    if value.free_symbols or value.is_rational or value.is_real is not True:
        return False
    scale = 10 ** min(len(places), 12)
    exact = value.evalf(DIGITS) * scale
    return int(decimal * scale) in (int(exact), sympy.floor(exact + sympy.Rational(1, 2)))


def serve(reply: Callable[[object], None]) -> int:
    """Answers until stdin closes: 0; or until this process has grown too large: GROWN."""
    memory = psutil.Process().memory_info
    rest = memory().rss
    for line in sys.stdin:
        limit, one, two = json.loads(line)
        start_timer(limit)
        try:
            right = equal(one, two)
        except Exception:  # RecursionError and MemoryError too
            right = False
        stop_timer()
        reply(right)
        if memory().rss - rest > GROWTH:
            return GROWN
    return 0


def start_timer(seconds: float) -> None:
    """Ends this process after so many seconds, whatever it hangs in, unless `stop_timer` is called.

    Without timers of the system a bit later: whoever asked is to end it first, and knows why.
    """
    if HAS_CHILDREN:
        signal.setitimer(signal.ITIMER_REAL, seconds)
    else:  # a thread of its own, which needs no lock of the interpreter's
        faulthandler.dump_traceback_later(seconds + PATIENCE, exit=True)


def stop_timer() -> None:
    if HAS_CHILDREN:
        signal.setitimer(signal.ITIMER_REAL, 0)
    else:
        faulthandler.cancel_dump_traceback_later()


def serve_in_children(reply: Callable[[object], None]) -> None:
    """As `serve`, in one child after the other; one that a timer ended has not replied."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends a child
    status = GROWN
    while status in (GROWN, -signal.SIGALRM):
        child = os.fork()
        if not child:
            os._exit(serve(reply))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status == -signal.SIGALRM:
            reply(False)


def limit_memory() -> None:
    """Lets this process and its children have SPACE at most, where there is such a limit."""
    with suppress(ImportError, OSError, ValueError):  # Windows; macOS
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (SPACE, SPACE))


def main() -> None:
    replies = sys.stdout
    sys.stdout = sys.stderr  # what a library prints is no reply

    def reply(value) -> None:
        print(json.dumps(value), file=replies, flush=True)

    logging.disable(logging.CRITICAL)
    try:
        # Makes parser and SymPy ready for all children, and makes sure that `parser` has its way.
        ready = [
            equal(r"\frac{x}{2}+\sqrt{8}", r"\sqrt{2}\cdot 2+0.5x"),
            equal("x^{2}+2y^{2}=4", r"\frac{x^{2}}{4}+\frac{y^{2}}{2}=1"),
            equal(r"\sin^{2} x+\cos^{2} x+\ln 2", r"1+\log_{3} 2\ln 3"),
            equal("2(3)", "6"),
        ]
        if not all(ready):
            return reply(f"this version reads or compares otherwise: {ready}")
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
