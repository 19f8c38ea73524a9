"""When an answer is right. Evaluation, voting and rewards all ask here."""

from functools import lru_cache

from qwenlab.tasks.answers import extract_answer
from qwenlab.tasks.comparing import Form, normal_form, same
from qwenlab.tasks.notation import TEXT, refused
from qwenlab.tasks.symbolic import Budget

__all__ = ["extract_answer", "grade"]


def grade(answer: str | None, gold: str) -> bool:
    r"""If `answer`, as `extract_answer` gives it, says the same as `gold`. Neither is executed; no text raises.

    Right whatever it is: the same text. Else False without a look at the mathematics for

    - what is no text, or empty;
    - more than 300 characters, or brackets nested more than 30 deep, on either side;
    - lettered choices beside values, ``A) 1, B) 2``. A letter alone is an answer: ``(C)`` is ``C``.

    Then both are tidied. Spaces, dollar and per cent signs, degrees, the size of brackets and a full stop don't count:
    50\% is 50, and not 0.5. ``1,234`` and ``1{,}234`` are 1234, ``016`` is 16, ``2\frac12`` and ``2 1/2`` are 5/2.

    - ``x=5`` and ``x \in [0,1]`` are 5 and [0,1] where the other side names no variable, or the same. Other equations
      equal only equations: ``2x+z=1`` is not 1, ``n=3k`` is not 3.
    - A unit in ``\text{}`` and the base of ``52_8`` may be left out, but two that are named must agree.
      A word that makes another value is no unit: ``5\text{ million}`` is not 5, nor is ``5\mathrm{i}``.
    - Dots, ``\approx``, ``\ne``, primes and their like are on both sides or on none.
    - Numbers compare exactly: 0.75 is 3/4, 33.3 is not 100/3.
    - Words compare letter by letter, large or small: ``\text{Even}`` is ``even``, ``seat`` is not ``east``.
    - The rest goes to math-verify (Hugging Face), which parses LaTeX and simplifies with SymPy. ``(1,2)`` and ``[1,2)``
      keep their order and brackets; ``1,2``, ``\{1,2\}`` and ``1 \text{ and } 2`` are sets, also equal to
      ``1.5 \pm 0.5``. A decimal beside something that is no plain number must agree with it to six places.

    math-verify works in a process of its own, started at the first answer that needs it, shared by all threads and
    ended with this one. What takes it more than a second or 1 GiB is False.

    grade(a, b) is grade(b, a). Raises GradingError only where that process can't be started.
    """
    return graded(answer, gold, Budget())


def graded(answer: str, gold: str, budget: Budget) -> bool:
    """As `grade`, within the worker's time that `budget` leaves."""
    if not isinstance(answer, str) or not isinstance(gold, str) or not answer.strip() or not gold.strip():
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
