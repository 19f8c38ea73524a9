"""Runs a lesson's cells that time something with a clock that says what a test wants, and reads the
verdicts that they print.

While `alternate` runs a case, each look at the clock takes one tick, and the test chooses how long
a tick is for each case. So whatever a cell derives from seconds follows, in the lesson and in the
library alike, and the machine's own speed plays no part.
"""

import ast
import contextlib
import io
import re
import sys
import time
from collections.abc import Callable

import nbformat

from qwenlab.bench import timing
from qwenlab.teach import exploring

TIE = 1.0
# How many times as fast each later way is.
FEW_SCALES = (100.0, 0.01)
SCALES = (*FEW_SCALES, TIE, 3.0, 1 / 3.0)


class Clock:
    """`perf_counter`, until `tick` is set: then each call is `tick` seconds after the last."""

    def __init__(self) -> None:
        self.real = time.perf_counter
        self.tick = 0.0
        self.now = 0.0

    def __call__(self) -> float:
        if not self.tick:
            return self.real()
        self.now += self.tick
        return self.now


CLOCK = Clock()  # one for all tests: modules keep what they have imported


def replace_the_clock(patch) -> None:
    """For the lesson, and for the library, which has it under a name of its own."""
    patch.setattr(time, "perf_counter", CLOCK)
    for name, module in list(sys.modules.items()):
        if name.startswith("qwenlab.") and getattr(module, "perf_counter", None) is CLOCK.real:
            patch.setattr(module, "perf_counter", CLOCK)


# --- The stand-in for alternate --------------------------------------------------------------------


def parts(cases: list) -> list[int | None]:
    """What cases can be ordered by: None is the case itself, a number a part of a tuple that
    varies."""
    if not all(isinstance(case, tuple) and len(case) == len(cases[0]) for case in cases):
        return [None]
    varied = [i for i in range(len(cases[0])) if len({case[i] for case in cases}) > 1]
    return [None, *varied]


def ranks(cases: list, part: int | None) -> list[int]:
    """Of each case, how many values of this part came before its own."""
    values = cases if part is None else [case[part] for case in cases]
    seen = list(dict.fromkeys(values))
    return [seen.index(value) for value in values]


def stand_in(scale: float, which: int, noticed: set[int]) -> Callable:
    """An `alternate` by which every later way takes `scale` times fewer seconds than the one
    before. `which` of the parts of a case tells the ways apart; how many there are is noticed."""

    def alternate(
        run: Callable, cases: list, repeats: int, warm_up: int = 1, progress: bool = False
    ) -> dict:
        cases = list(cases)
        found = parts(cases)
        noticed.add(len(found))
        readings = {}
        for case, rank in zip(cases, ranks(cases, found[which % len(found)]), strict=True):
            CLOCK.now = 0.0  # so that the shortest tick isn't lost beside what has gone by
            CLOCK.tick = 1e-3 * scale**-rank
            try:
                readings[case] = [run(case)] * repeats
            finally:
                CLOCK.tick = 0.0
        return readings

    return alternate


# --- Verdicts in a text ----------------------------------------------------------------------------

WORDS = {
    "same": r"no clear difference|\bhardly\b|\babout as (?:fast|long)\b",
    "slower": r"\bslower\b|\bloses?\b|\b(?:no|not|never) (?:faster|quicker)\b",
    "faster": r"\bfaster\b|\bquicker\b|\bgains\b",
}
RATIO = re.compile(
    r"([\d.,]*\d(?:e[+-]?\d+)?) times as (fast|quick|long|slow|late)"
    r"(?: \(([\d.,]*\d) to ([\d.,]*\d)\))?"
)


def verdict_of(line: str) -> str | None:
    """ "same", "slower" or "faster", as a line says in words."""
    for verdict, pattern in WORDS.items():
        if re.search(pattern, line):
            return verdict
    return None


def ratio_of(line: str) -> tuple[float, float, float] | None:
    """How many times as fast, lowest and highest, as a line says in figures. None unless it has
    exactly one such ratio."""
    found = RATIO.findall(line)
    if len(found) != 1:
        return None
    value, way, low, high = found[0]
    spread = [float(number.replace(",", "")) for number in (value, low or value, high or value)]
    if way in ("fast", "quick"):
        return tuple(spread)
    middle, least, most = (1 / max(number, 1e-9) for number in spread)
    return middle, most, least


def contradictions(text: str) -> list[str]:
    """Lines whose words do not follow from their own figures."""
    wrong = []
    for line in text.splitlines():
        verdict = verdict_of(line)
        ratio = ratio_of(line)
        if verdict is None or ratio is None:
            continue
        value, low, high = ratio
        holds = {
            "faster": value >= 0.995,
            "slower": value <= 1.005,
            "same": low <= 1.1 and high >= 0.9,
        }
        if not holds[verdict]:
            wrong.append(line.strip())
    return wrong


def signature(text: str) -> list[tuple[str | None, str | None]]:
    """What the lines of a text say of speed: the word, and the side of 1 that the figure is on."""
    said = []
    for line in text.splitlines():
        ratio = ratio_of(line)
        side = None if ratio is None else "over" if ratio[0] > 1 else "under"
        if verdict_of(line) or side:
            said.append((verdict_of(line), side))
    return said


# --- A lesson, cell by cell ------------------------------------------------------------------------


def printed(source: str, names: dict) -> str:
    """Runs a cell; what it prints, and its last value as text."""
    tree = ast.parse(source)
    last = tree.body[-1] if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    body = ast.Module(tree.body[:-1] if last else tree.body, [])
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(body, "<cell>", "exec"), names)
        value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names) if last else None
    return out.getvalue() + ("" if value is None else repr(value))


def read_again(path, patch, whole: bool) -> list[str]:
    """Runs a lesson up to its last cell that calls `alternate`, and each of those cells with every
    scale. What is wrong with what they say, one line each.

    Unless `whole`, the first of these cells does, with two scales.
    """
    notebook = nbformat.read(path, as_version=4)
    sources = {cell["id"]: cell.source for cell in notebook.cells if cell.cell_type == "code"}
    timed = [name for name, source in sources.items() if re.search(r"\balternate\(", source)]
    if not timed:
        return []
    timed = timed if whole else timed[:1]
    patch.chdir(path.parent)
    patch.setattr(exploring, "explore", lambda draw, **controls: None)
    replace_the_clock(patch)
    names = {}
    wrong = []
    for name, source in sources.items():
        if name in timed:
            timed.remove(name)
            wrong += [f"{name}: {told}" for told in said_by(source, names, patch, whole)]
            if not timed:
                break
        run_as(source, names, patch, TIE, 0, set())
    return wrong


def said_by(source: str, names: dict, patch, whole: bool) -> list[str]:
    noticed = {1}
    wrong = []
    signatures = []
    which = 0
    while which < (max(noticed) if whole else 1):
        for scale in SCALES if whole else FEW_SCALES:
            text = run_as(source, dict(names), patch, scale, which, noticed)
            told = "\n".join(contradictions(text))
            if told:
                wrong.append(f"later ways {scale:g} times as fast, and it says: {told}")
            signatures.append(signature(text))
        which += 1
    if signatures[0] and all(said == signatures[0] for said in signatures):
        wrong.append(f"the same verdict, whatever the readings: {signatures[0]}")
    return wrong


def run_as(source: str, names: dict, patch, scale: float, which: int, noticed: set[int]) -> str:
    """A cell with another `alternate`, whether it imports one or has it from a cell above."""
    other = stand_in(scale, which, noticed)
    patch.setattr(timing, "alternate", other)
    if "alternate" in names:
        names["alternate"] = other
    return printed(source, names)
