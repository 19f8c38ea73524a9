"""Whether an answer is right, for evaluation, voting and rewards alike."""

from functools import lru_cache

from qwenlab.evaluation.answers import extract_answer
from qwenlab.evaluation.comparing import same
from qwenlab.evaluation.forms import normal_form
from qwenlab.evaluation.latex import TEXT, refused
from qwenlab.evaluation.symbolic import Budget
from qwenlab.evaluation.values import Form

__all__ = ["extract_answer", "grade"]


def grade(answer: str, gold: str) -> bool:
    r"""Whether `answer`, as `extract_answer` returns it, means the same as `gold`.

    Neither text is executed, none raises, and ``grade(a, b) is grade(b, a)``. A false positive is
    worse than a false negative, so whatever isn't fully understood equals only its own spelling.

    Identical texts are always equal. Otherwise the answer is False at once for anything that isn't
    text or is empty, for more than 300 characters, for brackets nested more than 30 deep, and for
    lettered choices next to values (``A) 1, B) 2``). A choice alone is an answer: ``(C)`` is ``C``.

    - Spelling: ``\dfrac12``, ``1/2`` and ``½`` are equal; so are ``1,234``, ``1{,}234`` and
      ``1\,234``; ``2\frac12``, ``2 1/2`` and 2.5; ``0.1\overline{6}`` and 1/6. Markdown, dollar
      signs around mathematics, bracket sizes and a full stop are ignored.
    - Numbers compare exactly, however small: 0.333333 is not 1/3. A decimal of six places or more
      equals an irrational value that agrees with it to six places.
    - Letters are variables, and case matters; ``4`` is not ``4s``. ``i`` is the imaginary unit and
      ``e`` Euler's number.
    - Units are ``\text{}``, ``\mbox{}`` or ``\mathrm{}`` after a value, unit words (*60 miles per
      hour*), per cent, degrees and dollars, and the base in ``52_8``. They may be missing on one
      side; if both sides have one, they must agree. ``cm^2`` is *square centimetres*, but units
      aren't converted: 1 hour is not 60 minutes, 50% is 50 and not 0.5. A word that changes the
      value is no unit (*5 million*, *at least 5*).
    - A value given to a name equals the bare value, and the same value under the same name:
      ``x=5``, ``5=x``, ``f(2)=5``, ``x \in [0,1]``. In a chain every link must agree. Several named
      values equal only the same names. Other equations equal only equations that are a multiple of
      them: ``x^2=4`` is not ``x=2``, nor 4.
    - ``1,2``, ``1 \text{ and } 2``, ``\{1,2\}`` and ``1.5 \pm 0.5`` list values in any order.
      ``(1,2)`` and ``[1,2)`` keep order and brackets, and none of these kinds equals another.
    - Inequalities of one variable are intervals; *or* is their union, *and* their intersection.
    - Words compare as words, in any case: ``on`` is not ``no``.
    - Any other expression goes to SymPy, which must prove that the difference is zero.

    Where a yes would risk false positives, only the same spelling is equal: ``1/2x`` (half of x, or
    1/(2x)?), ``5 apples`` without ``\text{}``, a bare ``m`` for metres, ``1,2`` for the point
    ``(1,2)``, ``x=1, y=2`` for ``(1,2)``, radians for degrees, ``3:4`` for 3/4, ``x \ne 1`` for its
    intervals, two plus-minus signs in one expression, and numbers in words.

    SymPy runs in a process of its own, which is started by the first answer that needs it, shared
    by all threads and ended with this process. Whatever takes it more than a second or 1 GiB is
    False.

    Raises GradingError only if that process can't be started.
    """
    return graded(answer, gold, Budget())


def graded(answer: str, gold: str, budget: Budget) -> bool:
    """As `grade`, within the worker's time that `budget` leaves."""
    if not (is_text(answer) and is_text(gold)):
        return False
    if answer.strip() == gold.strip():
        return True
    one = form_of(answer)
    two = form_of(gold)
    return one is not None and two is not None and same(one, two, budget.equal)


def is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


@lru_cache(maxsize=4096)
def form_of(text: str) -> Form | None:
    """The normal form of `text`; None if it is refused or empty. Cached, because a vote compares
    the same few answers again and again."""
    empty = not TEXT.sub(r"\1", text).strip("$ ")
    return None if empty or refused(text) else normal_form(text)
