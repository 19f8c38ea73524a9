"""The last box counts, and nothing else where there is one."""

import time

import pytest

from qwenlab.evaluation.grading import extract_answer

CASES = [
    # The last box, whatever came before it.
    (r"\boxed{5} ... wrong ... \boxed{7}", "7"),
    (r"\boxed{7} ... so \boxed{", None),
    (r"\boxed{7} and \boxed{}", None),
    (r"\boxed{ }", None),
    (r"\boxed{7} so \boxed{1+(2", None),
    (r"\boxed{\boxed{7}}", "7"),
    # The ways to write a box.
    (r"\boxed 2", "2"),
    (r"$x = \boxed 2$, so $y=3$", "2"),
    (r"\(\boxed 2\) of 9", "2"),
    (r"{\boxed 2} of 9", "2"),
    (r"\boxed 2.", "2"),
    (r"\boxed{3}.", "3"),
    (r"\boxed {3}", "3"),
    ("\\boxed\n{3}", "3"),
    (r"\boxed{ 3 }", "3"),
    (r"Put it in \boxed .", None),
    (r"Put 4 in \boxed", None),
    (r"\boxedx{3} 8", "8"),
    # Braces inside.
    (r"\boxed{\frac{1}{\sqrt{2}}}", r"\frac{1}{\sqrt{2}}"),
    (r"\boxed\frac{1}{2}", r"\frac{1}{2}"),
    (r"\boxed{1{,}234}", "1{,}234"),
    (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
    (r"\boxed{\\}", r"\\"),
    (r"\boxed{(1,4.5)}", "(1,4.5)"),
    # Thinking that closes and thinking that doesn't.
    ("<think>\n\\boxed{5}\n</think>\n\n\\boxed{7}", "7"),
    ("<think>\n\\boxed{5}\n</think>\n\nDone.", "5"),
    ("<think>\nso \\boxed{5}", None),
    ("<think>\nso it is 5", None),
    ("It is 4.<think>so \\boxed{5}", None),
    ("\\boxed{4}<think>no, \\boxed{5}", None),
    ("\\boxed{4}<think>or not", "4"),
    ("<think>a</think>\\boxed{4}<think>\\boxed{5}", None),
    ("<think>\n2+2=4\n</think>\n\n", None),
    ("<think>\n2+2=4\n</think>\n\nSo 5", "5"),
    # No box at all: the last number.
    ("The answer is 42.", "42"),
    ("12+5=17", "17"),
    ("9-4", "4"),
    ("It is -4", "-4"),
    ("=-4", "-4"),
    ("about 1,234.5 m", "1,234.5"),
    ("3/4 of it", "3/4"),
    (".5", ".5"),
    ("1, 2", "2"),
    ("no number", None),
    ("", None),
    (None, None),
    (7, None),
    ("🙂", None),
]


@pytest.mark.parametrize(("text", "answer"), CASES)
def test_extract(text, answer):
    assert extract_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{5}", None),
        ("so 5", None),
        ("so \\boxed{5}</think> \\boxed{6}", "6"),
        ("so 5</think> 6", "6"),
        ("5</think>6<think>\\boxed{7}", None),
    ],
)
def test_thinking_opened_by_the_prompt(text, answer):
    assert extract_answer(text, thinking_open=True) == answer


@pytest.mark.parametrize(
    "junk", ["(" * 10_000, "\\boxed{" * 10_000, "{" * 100_000, "1," * 50_000, "\\boxed" * 10_000]
)
def test_junk_is_quick(junk):
    started = time.process_time()  # quadratic matching would take minutes of it
    extract_answer(junk)
    extract_answer("\\boxed{" + junk)
    assert time.process_time() - started < 10
