"""When an answer is right. Evaluation, voting and rewards all ask here."""

from functools import lru_cache

from qwenlab.evaluation.answers import extract_answer
from qwenlab.evaluation.comparing import same
from qwenlab.evaluation.forms import normal_form
from qwenlab.evaluation.latex import TEXT, refused
from qwenlab.evaluation.symbolic import Budget
from qwenlab.evaluation.values import Form

__all__ = ["extract_answer", "grade"]


def grade(answer: str, gold: str) -> bool:
    r"""Whether `answer`, as `extract_answer` returns it, says the same as `gold`.

    Neither is executed, no text raises, and ``grade(a, b) is grade(b, a)``. A wrong yes is worse
    than a wrong no, so whatever isn't understood in full equals only its own spelling.

    The same text is right whatever it is. Otherwise False at once for anything that isn't text or
    is empty, for more than 300 characters, for brackets nested more than 30 deep, and for lettered
    choices beside values (``A) 1, B) 2``). A choice by itself is an answer: ``(C)`` is ``C``.

    - Spelling: ``\dfrac12``, ``1/2`` and ``½`` are one; so are ``1,234``, ``1{,}234`` and
      ``1\,234``; ``2\frac12``, ``2 1/2`` and 2.5; ``0.1\overline{6}`` and 1/6. Markdown, dollar
      signs around mathematics, bracket sizes and a full stop don't count.
    - Numbers compare exactly, however small: 0.333333 is not 1/3. A decimal of six places or more
      equals an irrational value that agrees with it to six places.
    - Letters are variables and differ by case; ``4`` is not ``4s``. ``i`` is the imaginary unit and
      ``e`` Euler's number.
    - Units are ``\text{}``, ``\mbox{}`` or ``\mathrm{}`` behind a value, unit words (*60 miles per
      hour*), per cent, degrees and dollars, and the base in ``52_8``. They may be left out on one
      side; two that are named must agree. ``cm^2`` is *square centimetres*, but units aren't
      converted: 1 hour is not 60 minutes, 50% is 50 and not 0.5. A word that changes the value is
      no unit (*5 million*, *at least 5*).
    - Values given to a name are those values where the other side names nothing or the same:
      ``x=5``, ``5=x``, ``f(2)=5``, ``x \in [0,1]``. In a chain every link must agree. Several named
      values equal only the same names. Other equations equal only equations, and only those that
      are a multiple of them: ``x^2=4`` is not ``x=2``, nor 4.
    - ``1,2``, ``1 \text{ and } 2``, ``\{1,2\}`` and ``1.5 \pm 0.5`` list values in any order.
      ``(1,2)`` and ``[1,2)`` keep order and brackets, and none of these kinds equals another.
    - Inequalities of one variable are intervals; *or* unites them, *and* cuts them.
    - Words compare as words, whatever their case: ``on`` is not ``no``.
    - Any other expression goes to SymPy, which must prove that the difference is zero.

    What can't be had without wrong yeses stays False unless it is spelled the same: ``1/2x`` (half
    of x, or 1/(2x)?), ``5 apples`` without ``\text{}``, a bare ``m`` for metres, ``1,2`` for the
    point ``(1,2)``, ``x=1, y=2`` for ``(1,2)``, radians for degrees, ``3:4`` for 3/4, ``x \ne 1``
    for its intervals, two plus-minus signs in one expression, and numbers in words.

    SymPy works in a process of its own, started at the first answer that needs it, shared by all
    threads and ended with this one. Whatever takes it more than a second or 1 GiB is False.

    Raises GradingError only where that process can't be started.
    """
    return graded(answer, gold, Budget())


def graded(answer: str, gold: str, budget: Budget) -> bool:
    """As `grade`, within the worker's time that `budget` leaves."""
    if (
        not isinstance(answer, str)
        or not isinstance(gold, str)
        or not answer.strip()
        or not gold.strip()
    ):
        return False
    if answer.strip() == gold.strip():
        return True
    one, two = form_of(answer), form_of(gold)
    return one is not None and two is not None and same(one, two, budget.equal)


@lru_cache(maxsize=4096)
def form_of(text: str) -> Form | None:
    """What `text` says; None where it is refused or says nothing."""
    empty = not TEXT.sub(r"\1", text).strip("$ ")
    return None if empty or refused(text) else normal_form(text)
