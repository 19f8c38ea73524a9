"""One grader: what is right, what is not, and that no text, thread or dead process troubles it."""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from helpers import count, gone
from hypothesis import given, settings
from hypothesis import strategies as st

from qwenlab.evaluation import extract_answer, grade, symbolic
from qwenlab.evaluation.latex import refused
from qwenlab.evaluation.symbolic import WORKER, GradingError, Worker
from qwenlab.evaluation.symbolic_worker import HAS_CHILDREN

# prediction, gold, right, kind
PAIRS = Path(__file__).with_name("grading_pairs.tsv")

RESPONSES = [
    (r"\boxed 2", "2", True),
    (r"Put it in \boxed .", "2", False),
    (r"\boxed{\frac{1}{\sqrt{2}}}", r"\frac{\sqrt{2}}{2}", True),
    (r"\boxed {3}", "3", True),
    (r"\boxed{2\frac12}", r"\frac{5}{2}", True),
    (r"\boxed{1,234}", "1234", True),
    (r"\boxed{1{,}234}", "1234", True),
    (r"\boxed{016}", "16", True),
    (r"\boxed{\dfrac{3}{4}}", "0.75", True),
    (r"\boxed{33.3}", r"\frac{100}{3}", False),
    (r"\boxed{(2,1)}", "(1,2)", False),
    (r"\boxed{(1,4.5)}", r"(1,\frac92)", True),
    (r"\boxed{90^\circ}", "90", True),
    (r"\boxed{5\text{ cm}}", "5", True),
    (r"\boxed{x=5}", "5", True),
    (r"\boxed{n=3k}", "3", False),
    # The last box, or no answer.
    (r"\boxed{5} ... wrong ... \boxed{7}", "7", True),
    (r"\boxed{5} ... wrong ... \boxed{7}", "5", False),
    (r"\boxed{7} ... so \boxed{", "7", False),
    (r"\boxed{7} ... so \boxed{}", "7", False),
    (r"<think> so \boxed{7}", "7", False),
]

# Without the worker: equal texts, numbers, names, units, words.
AT_ONCE = [
    ("3", "3.0", True),
    ("-3", "3", False),
    ("−3", "-3", True),
    ("+3", "3", True),
    ("3.", "3", True),
    (".5", "1/2", True),
    ("0.5", r"\frac12", True),
    (r"-\frac{1}{2}", r"\frac{-1}{2}", True),
    ("33.333333333", r"\frac{100}{3}", False),
    ("1 1/2", "3/2", True),
    ("1 1/2", "11/2", False),
    (r"-2\frac12", r"-\frac52", True),
    (r"137 \frac{1}{2}", "137.5", True),
    (r"11,\! 111,\! 111", "11111111", True),
    (r"\$18.90", "18.9", True),
    (r"50\%", "50", True),
    ("50%", "0.5", False),
    ("007", "7", True),
    ("x=5", "x = 5", True),
    ("x=1,234", "1234", True),
    ("y = 2x + 3", "2x+3", True),
    (r"x \in [-2,7]", "[-2,7]", True),
    ("(x,y)=(1,2)", "(1, 2)", True),
    ("2x+z=1", "1", False),
    ("A=1,B=2", "2", False),
    ("x=1,x=2", "1,2", True),
    (r"5\text{ cm}", r"5\text{ m}", False),
    (r"864 \mbox{ inches}^2", r"864\text{ inch}^{2}", True),
    (r"864 \mbox{ inches}^2", "864", True),
    (r"\frac{270}7\text{ degrees}", r"\frac{270}{7}", True),
    ("52_8", "52_9", False),
    ("52_8", "52_{8}", True),
    ("52_8", "52", True),
    (r"\text{Evelyn}", "Evelyn", True),
    (r"\text{even}", "Even", True),
    ("seat", "east", False),
    ("seat", r"\text{east}", False),
    ("7", r"\text{east}", False),
    (r"\text{(C)}", "C", True),
    (r"\left( 3, \frac{\pi}{2} \right)", r"(3,\frac{\pi}{2})", True),
    ("$ $", "$", False),
    (r"\text{}", r"\text{ }", False),
]

# With it. The right answer to the wrong question is among them.
SYMBOLIC = [
    ("2,1", "1,2", True),
    ("(2,1)", "1,2", False),
    ("2,1", "(1,2)", False),
    (r"\{1,2\}", "2,1", True),
    (r"1 \text{ or } 2", "1,2", True),
    ("1,2", "2", False),
    (r"1+\sqrt{19}, 1-\sqrt{19}", r"1 \pm \sqrt{19}", True),
    ("[0,1)", "[0,1]", False),
    (r"(0,9) \cup (9,36)", r"(9,36)\cup(0,9)", True),
    (r"x \ge 2", "2", False),
    (r"x \ge 2", r"[2,\infty)", True),
    ("y=3+2x", "y = 2x + 3", True),
    ("y=5", "x=5", False),
    ("10x - 14y + 22z + 8 = 0", "5x - 7y + 11z + 4 = 0", True),
    (r"\sum_{n=1}^{3} n", "6", True),
    ("(x+1)^2", "x^2+2x+1", True),
    ("-5i+6", "6-5i", True),
    (
        r"\begin{pmatrix} -1/3 \\ 2/3 \end{pmatrix}",
        r"\begin{pmatrix} -\frac13 \\ \frac23 \end{pmatrix}",
        True,
    ),
    (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix} 2 \\ 1 \end{pmatrix}", False),
    (r"2\sqrt{3}", r"\sqrt{12}", True),
    ("1.414214", r"\sqrt2", True),
    ("1.41", r"\sqrt2", False),
    ("12", "1 2", False),
    ("3k", "3", False),
    ("(1,2)", "3", False),
    (r"2 \text{ is wrong, it is 3}", "2", False),
    (r"2 \text{ is wrong, it is 3}", "3", False),
    ("2 3", "6", False),
    (r"\pm 2", "2", False),
    ("2 or 3", "2", False),
    ("2^{10}", "1024", True),
]

JUNK = [
    "an essay " * 45,
    "A) 1, B) 2",
    "a) 1, b) 2",
    "(A) 1 (B) 2",
    r"\textbf{(B)}\ 2",
    "B. 2",
    "B: 2",
    r"x \ge 2",
    "1/0",
    "[",
    "]",
    "}{",
    None,
    2,
    "🙂",
    "\ud800",
    "\0",
    "__import__('os').getcwd()",
    "",
    " ",
    "(" * 10_000 + ")" * 10_000,
    "(" * 10_000,
    "(" * 31 + "2" + ")" * 31,
    "\\",
    r"\frac",
    r"\boxed{",
    "2 \\\\ 2",
    "$",
    "2\n2",
]
# These need the timer: towers of powers, sums, integrals, deep brackets.
HOSTILE = [
    "2^{2^{2^{2^{2^{2}}}}}",
    "9^9^9^9^9",
    "10000000!",
    r"\int_0^1 x^x dx",
    "(" * 30 + "x" + ")" * 30,
]


@pytest.fixture(autouse=True, scope="module")
def warm():
    assert grade(r"\sqrt{4}", "2")


@pytest.fixture
def no_worker(monkeypatch):
    def refuse(*_):
        raise AssertionError("asked the worker")

    monkeypatch.setattr(WORKER, "equal", refuse)


@pytest.mark.parametrize(("text", "gold", "right"), RESPONSES)
def test_responses(text, gold, right):
    assert grade(extract_answer(text), gold) is right


@pytest.mark.parametrize(("answer", "gold", "right"), AT_ONCE)
def test_what_needs_no_mathematics_asks_nobody(answer, gold, right, no_worker):
    assert grade(answer, gold) is right and grade(gold, answer) is right


@pytest.mark.parametrize(("answer", "gold", "right"), SYMBOLIC)
def test_what_needs_mathematics(answer, gold, right):
    assert grade(answer, gold) is right and grade(gold, answer) is right


def pairs_by_kind() -> dict[str, list[list[str]]]:
    rows = [row.split("\t") for row in PAIRS.read_text(encoding="utf-8").splitlines()[1:]]
    rows.sort(key=lambda row: row[3])
    return {kind: list(group) for kind, group in itertools.groupby(rows, key=lambda row: row[3])}


@pytest.mark.parametrize(("kind", "rows"), pairs_by_kind().items(), ids=list(pairs_by_kind()))
def test_pairs_of_each_kind(kind, rows):
    wrong = []
    for prediction, gold, right, _ in rows[:: max(1, len(rows) // count(10, 1000))]:
        answer = extract_answer(prediction) if "without a box" in kind else prediction
        if not grade(answer, gold) is grade(gold, answer) is (right == "yes"):
            wrong.append((prediction, gold, right))
    assert wrong == []
    assert len(rows) >= 5 and {row[2] for row in rows} == {"yes", "no"}


@pytest.mark.parametrize("junk", JUNK, ids=lambda junk: repr(junk)[:20])
def test_junk_is_wrong_before_any_time_is_up(junk, allow_seconds):
    allow_seconds(600.0)
    started = time.perf_counter()
    assert grade(junk, "2") is False
    assert time.perf_counter() - started < 300
    assert grade(junk, "") is False and grade("", junk) is False


@pytest.mark.parametrize("junk", ["an essay " * 45, "A) 1, B) 2", "(" * 31 + "2" + ")" * 31])
def test_refused_before_any_mathematics(junk, no_worker):
    assert grade(junk, r"\sqrt 4") is False and grade(r"\sqrt 4", junk) is False
    assert grade(junk, junk) is True


def test_brackets_and_names_that_are_no_choices():
    for text in ("f(a) + 1", "[0, a) ", "(a)^2", "(x) + 3", "D", "(0, b)", "2:3"):
        assert not refused(text), text


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_answers_are_wrong_when_their_time_is_up_in_any_thread(hostile, allow_seconds):
    """Without a limit each would go on for many minutes."""
    started = time.perf_counter()
    allow_seconds(0.3)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(grade, hostile, "2").result() is False
    allow_seconds(60.0)
    assert grade(r"\sqrt{9}", "3") is True  # the next one doesn't wait for it
    assert time.perf_counter() - started < 300


def test_eight_threads_at_once():
    pairs = [
        (f"{n}\\sqrt{{{n}}}", f"\\sqrt{{{n**3}}}" if n % 3 else f"\\sqrt{{{n}}}", n % 3 != 0)
        for n in range(2, 42)
    ]
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda pair: grade(pair[0], pair[1]), pairs))
    assert got == [right for *_, right in pairs]


letters = st.text(alphabet="0123456789xyABe+-*/^=_(){}[]<>.,;:!|&$%\\ 'π½", max_size=12)
words = st.lists(
    st.sampled_from(
        ["\\frac", "\\sqrt", "{", "}", "(", ")", "1", "2", ",", "x", "=", "\\text{", "^", "\\pi"]
    )
)
texts = st.one_of(st.text(max_size=20), letters, words.map("".join))


@settings(max_examples=count(25, 1000))
@given(texts, texts)
def test_no_text_raises_and_order_does_not_count(a, b):
    right = grade(a, b)
    assert isinstance(right, bool) and grade(b, a) is right
    assert grade(a, a) is bool(a.strip())


@settings(max_examples=count(50, 500))
@given(st.fractions(max_denominator=999), st.fractions(max_denominator=999))
def test_numbers_compare_as_numbers(a, b):
    assert grade(
        f"\\frac{{{a.numerator}}}{{{a.denominator}}}", f"{b.numerator}/{b.denominator}"
    ) is (a == b)


# --- The process -----------------------------------------------------------------------------------------------------


needs_child = pytest.mark.skipif(not HAS_CHILDREN, reason="without os.fork the worker has no child")


def family(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    return []


@pytest.fixture(scope="module")
def one_worker():
    worker = Worker()
    yield worker
    worker.stop()


@pytest.fixture
def worker(one_worker, allow_seconds):
    """A process and its child, if it has one, ready to compare, whatever the last test did to
    them."""
    whole = 2 if HAS_CHILDREN else 1
    if one_worker.process is not None and len(family(one_worker.process.pid)) < whole:
        one_worker.stop()
    assert one_worker.equal("x+1", "1+x")
    return one_worker


@needs_child
def test_the_worker_is_one_process_and_its_child(worker, allow_seconds):
    before = family(worker.process.pid)
    assert len(before) == 2
    for n in range(20):
        assert worker.equal(f"{n}x+1", f"1+{n}x")
    assert family(worker.process.pid) == before
    allow_seconds(0.3)
    assert worker.equal("2^{2^{2^{2^{2^{2}}}}}", "2") is False
    allow_seconds(60.0)
    assert worker.equal("x+1", "1+x")
    after = family(worker.process.pid)
    assert after[0] == before[0] and len(after) == 2 and after[1] != before[1]
    worker.stop()
    assert gone(before + after)


@pytest.mark.parametrize("which", [0, pytest.param(1, marks=needs_child)])
def test_a_killed_worker_comes_back(worker, which):
    killed = family(worker.process.pid)[which]
    killed.kill()
    assert gone([killed]) if which else killed.wait() is not None
    assert worker.equal("x+1", "1+x") is True
    assert worker.equal("x+1", "2+x") is False


@pytest.mark.skipif(os.name != "posix", reason="needs SIGSTOP")
@pytest.mark.parametrize("which", [0, pytest.param(1, marks=needs_child)])
def test_a_hung_worker_is_replaced(worker, which, allow_seconds):
    hung = family(worker.process.pid)
    hung[which].send_signal(signal.SIGSTOP)
    if which == 0:  # its parent restarts the child, so both must hang
        for child in hung[1:]:
            child.send_signal(signal.SIGSTOP)
    allow_seconds(0.3, late=0.5)
    assert worker.equal("x+1", "1+x") is False
    allow_seconds(60.0)
    assert worker.equal("x+1", "1+x") is True
    assert gone(hung)


def test_memory_is_back_to_rest(worker, allow_seconds):
    def held():
        return sum(process.memory_info().rss for process in family(worker.process.pid))

    rest = held()
    for n in range(count(100, 1000)):
        worker.equal(f"{n}\\sqrt{{{n + 2}}}", f"\\sqrt{{{n}^2\\cdot {n + 2}}}")
    allow_seconds(0.3)
    for hostile in HOSTILE:
        worker.equal(hostile, "2")
    allow_seconds(60.0)
    assert worker.equal("x+1", "1+x")
    assert held() < rest + 100e6


def test_a_child_that_has_grown_makes_room_for_another():
    source = symbolic.PROGRAM.read_text(encoding="utf-8")
    program = source.replace("GROWTH = 100 * 2**20", "GROWTH = -(2**40)")
    assert program != source
    run = subprocess.run(
        [sys.executable, "-P", "-c", program],
        input='[60.0, "1", "1+0"]\n[60.0, "1", "2+0"]\n[60.0, "x", "x"]\n',
        capture_output=True,
        text=True,
        timeout=300,
        encoding="utf-8",
    )
    # The first child had read all three lines: the next one finds none left, and ends as at any end
    # of stdin.
    assert run.stdout.splitlines() == ['""', "true"] and run.returncode == 0


def run_script(tmp_path, text, **options):
    path = tmp_path / "script.py"
    path.write_text(text, encoding="utf-8")
    source = str(Path(symbolic.__file__).parents[2])
    paths = [*filter(None, [os.environ.get("PYTHONPATH")]), source]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.Popen(
        [sys.executable, str(path)], stdout=subprocess.PIPE, text=True, env=environment, **options
    )


@pytest.mark.parametrize("hostile", [pytest.param(False, marks=pytest.mark.full), True])
def test_it_ends_with_its_parent_even_when_that_is_killed(tmp_path, hostile):
    script = """
import threading
from qwenlab.evaluation import grade
from qwenlab.evaluation.symbolic import WORKER
grade("x+1", "1+x")
print(WORKER.process.pid, flush=True)
""" + ("grade('2^{2^{2^{2^{2^{2}}}}}', '2')" if hostile else "input()")
    parent = run_script(tmp_path, script, stdin=subprocess.PIPE)
    processes = family(int(parent.stdout.readline()))
    assert len(processes) == (2 if HAS_CHILDREN else 1)
    time.sleep(0.3)  # as a rule the comparison is under way by then; it ends either way
    parent.kill()
    parent.communicate()
    assert gone(processes)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_script_without_a_main_guard_and_a_fork(tmp_path):
    script = """
import os, sys
from qwenlab.evaluation import grade
from qwenlab.evaluation.symbolic import WORKER
assert grade("x+1", "1+x")
mine = WORKER.process.pid
child = os.fork()
if not child:
    os._exit(0 if grade("x+2", "2+x") and not grade("x+2", "x") and WORKER.process.pid != mine else 1)
answers = [grade(f"x+{n}", f"{n}+x") for n in range(20)]
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert all(answers) and WORKER.process.pid == mine
print("sympy" in sys.modules, mine)
"""
    out, _ = run_script(tmp_path, script).communicate(timeout=300)
    said, pid = out.split()
    assert said == "False" and gone(family(int(pid)))


def test_ctrl_c_does_not_shift_the_replies(worker, monkeypatch):
    with monkeypatch.context() as patch:  # it is pressed between question and reply
        patch.setattr(worker, "line", lambda seconds: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            worker.equal("x+1", "2+x")
    assert worker.equal("x+1", "1+x") is True


def test_a_worker_that_cannot_start_is_one_line(monkeypatch, tmp_path):
    worker = Worker()
    monkeypatch.setattr(symbolic.sys, "executable", str(tmp_path / "no-python"))
    with pytest.raises(
        GradingError, match=r"^grading needs a process of its own, .*no-python.* doesn't start: .*$"
    ):
        worker.equal("x", "y")
    monkeypatch.undo()

    (tmp_path / "latex2sympy2_extended.py").write_text(
        "raise ImportError('no such thing')", encoding="utf-8"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(
        GradingError, match=r"^grading needs math-verify's parser, .* ImportError: no such thing$"
    ):
        worker.equal("x", "y")
    (tmp_path / "latex2sympy2_extended.py").write_text("import os; os._exit(1)", encoding="utf-8")
    with pytest.raises(GradingError, match=r"its process ended at once$"):
        worker.equal("x", "y")
    assert worker.process is None
    monkeypatch.undo()
    assert worker.equal("x+1", "1+x")
    worker.stop()


@pytest.mark.skipif(
    "QWENLAB_MATH500" not in os.environ, reason="QWENLAB_MATH500 names no file of MATH-500"
)
def test_math500_against_itself():
    problems = json.loads(Path(os.environ["QWENLAB_MATH500"]).read_text(encoding="utf-8"))
    assert len(problems) == 500
    assert [p["answer"] for p in problems if not grade(p["answer"], p["answer"])] == []
    assert [
        p["answer"] for p in problems if not grade(extract_answer(p["solution"]), p["answer"])
    ] == []
    # Nor does the grader say yes to the next problem's answer, where that isn't the same by chance.
    pairs = [(a["answer"], b["answer"]) for a, b in itertools.pairwise(problems)]
    assert [pair for pair in pairs if pair[0] != pair[1] and grade(*pair)] == [("5", "x=5")]


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        *(
            (rf"5\text{{ {word}}}", "5")
            for word in ("million", "dozen", "or six", "not", "plus one", "and a half", "x")
        ),
        *((rf"5\mathrm{{{what}}}", "5") for what in ("i", "e", "!", r"\pi")),
        *((text, "2") for text in (r"2 \approx 3", "2..", r"2 \neq 3")),
        (r"1,2,\ldots", "1,2"),
        (r"0.3\ldots", "0.3"),
        ("f'(2)", "f(2)"),
        ("A^T", "A"),
        (r"\frac123", r"\frac{1}{23}"),
    ],
)
def test_what_changes_a_value_is_not_overlooked(answer, gold):
    assert not grade(answer, gold)
    assert not grade(gold, answer)


def test_other_spellings_of_such_a_claim():
    pairs = (
        (r"1,2,...,9", r"1,2,\ldots,9"),
        (r"n \neq 3", r"n\ne 3"),
        (r"\frac123", "3/2"),
        ("5i", r"5\mathrm{i}"),
    )
    assert all(grade(one, two) for one, two in pairs)
