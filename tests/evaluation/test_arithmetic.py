"""Problems are the same everywhere, answers are right, a held-out calculation is held out in every
wording."""

from collections import Counter

import pytest

from qwenlab.evaluation.arithmetic import (
    FOLLOW_UPS,
    KINDS,
    Calculation,
    arithmetic_conversations,
    arithmetic_problems,
    problem_stream,
)

STORED = [
    ("What is the product of 25 and 48?", "1200"),
    ("39+31+22+4?", "96"),
    ("Find x if 7x+31=199.", "24"),
]


def test_deterministic():
    first = arithmetic_problems(50, seed=3)
    assert first == arithmetic_problems(50, seed=3)
    assert first == arithmetic_problems(80, seed=3)[:50]
    assert first != arithmetic_problems(50, seed=4)
    assert [problem.number for problem in first] == list(range(50))


def test_stored():
    """The same on every machine and in every version: recorded results depend on it."""
    got = [(problem.question, problem.answer) for problem in arithmetic_problems(3)]
    assert got == STORED


def test_distinct_and_disjoint():
    held_out = {problem.key for problem in arithmetic_problems(1000)}
    train = {problem.key for problem in arithmetic_problems(4000, split="train")}
    assert len(held_out) == 1000 and len(train) == 4000
    assert not held_out & train


def expression_in(question):
    """The numbers of a question and the signs between them, however these are written."""
    signs = {"plus": "+", "minus": "-", "times": "*", "multiplied by": "*", "×": "*"}
    signs |= {f" {word} ": "*" for word in ("by", "and")}  # Multiply 3 by 4; the product of 3 and 4
    for written, sign in signs.items():
        question = question.replace(written, sign)
    return "".join(character for character in question if character in "0123456789+-*")


@pytest.mark.parametrize("kind", list(KINDS))
def test_answers(kind):
    """Re-computed from the question's own text, as far as it is an expression; else from key and
    numbers."""
    for problem in arithmetic_problems(100, kinds=[kind]):
        assert problem.kind == kind
        assert problem.answer == str(int(problem.answer)) and int(problem.answer) >= 0
        if kind in ("mixed", "product"):
            assert problem.answer == str(eval(expression_in(problem.question))), problem.question
        if kind == "sum":
            numbers = "".join(c if c.isdigit() else " " for c in problem.question).split()
            assert problem.answer == str(sum(map(int, numbers))), problem.question
        if kind == "equation":
            a, b, c = problem.calculation.numbers
            assert a * int(problem.answer) + b == c


@pytest.mark.parametrize(
    ("calculation", "answer"),
    [
        (("add", (12, 5, -3)), 14),
        (("multiply", (4, 23)), 92),
        (("divide", (147, 3)), 49),
        (("multiply-add", (4, 6, -5)), 19),
        (("more", (10, 5)), 25),
        (("solve", (3, -7, 20)), 9),
        (("first", (42,)), 42),
        (("last", (42,)), 42),
    ],
)
def test_calculation(calculation, answer):
    assert Calculation(*calculation).answer == answer


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("add", (3, 17, 5)), ("add", (17, 5, 3))),
        (("add", (3, 17, -5)), ("add", (17, -5, 3))),
        (("multiply", (4, 23)), ("multiply", (23, 4))),
        (("multiply-add", (4, 23, 5)), ("multiply-add", (23, 4, 5))),
        (("solve", (1, 34, 83)), ("add", (83, -34))),
        (("solve", (9, 0, 63)), ("divide", (63, 9))),
        (("more", (10, 5)), ("add", (5, 10, 10))),
    ],
)
def test_same_calculation_same_key(one, other):
    assert Calculation(*one).key == Calculation(*other).key
    assert Calculation(*one).answer == Calculation(*other).answer


def test_other_calculation_other_key():
    assert Calculation("add", (4, 23)).key != Calculation("multiply", (4, 23)).key
    assert Calculation("add", (23, -4)).key != Calculation("add", (23, 4)).key
    assert Calculation("divide", (8, 4)).key != Calculation("divide", (4, 8)).key


def test_product_is_held_out_as_a_word_problem_too():
    products = {p.key for p in arithmetic_problems(150, kinds=["product"])}
    stream = problem_stream(0, "train", kinds=["word", "product"])
    assert not products & {next(stream).key for _ in range(3000)}


def test_shares_of_kinds():
    count = Counter(problem.kind for problem in arithmetic_problems(1000))
    for kind, share in KINDS.items():
        assert abs(count[kind] / 1000 - share) < 0.04, (kind, count)
    assert sum(KINDS.values()) == pytest.approx(1)


def test_numbers():
    """Two in five have one digit, the others go from 10 to 49."""
    numbers = [
        abs(n)
        for p in arithmetic_problems(500, kinds=["sum"], split="train")
        for n in p.calculation.numbers
    ]
    assert min(numbers) >= 2 and max(numbers) <= 49
    assert 0.35 < sum(n < 10 for n in numbers) / len(numbers) < 0.45


def test_mixed_never_negative():
    for problem in arithmetic_problems(300, kinds=["mixed"]):
        terms = problem.calculation.numbers
        assert min(sum(terms[: i + 1]) for i in range(len(terms))) >= 0
        assert min(terms) < 0 and (len(terms) == 2 or sum(term > 0 for term in terms) > 1)


def test_several_wordings():
    starts = {
        p.question.split()[0] for p in arithmetic_problems(300, kinds=["product"], split="train")
    }
    assert {"What", "Multiply", "Calculate", "How"} <= starts


def test_none_asked():
    assert arithmetic_problems(0) == [] == arithmetic_conversations(0)


def test_conversations_are_the_same_again():
    first = arithmetic_conversations(40, turns=3, seed=5)
    assert first == arithmetic_conversations(40, turns=3, seed=5)
    assert first == arithmetic_conversations(60, turns=3, seed=5)[:40]
    assert [turns[0] for turns in first] == arithmetic_problems(40, seed=5)
    for place, turns in enumerate(first):
        assert [turn.number for turn in turns] == [place] * 3


@pytest.mark.parametrize("split", ["held-out", "train"])
def test_follow_ups_go_on_from_the_answers_before(split):
    kinds = set()
    for turns in arithmetic_conversations(400, turns=3, split=split):
        answers = [int(turn.answer) for turn in turns]
        for place, turn in enumerate(turns):
            operation, numbers = turn.calculation.operation, turn.calculation.numbers
            if operation not in ("first", "last"):
                assert turn.calculation.split == split, turn
            assert turn.answer == str(turn.calculation.answer) and int(turn.answer) >= 0
            if place == 0 or turn.kind == "new":
                continue
            kinds.add(turn.kind)
            assert numbers[0] == (answers[0] if operation == "first" else answers[place - 1])
            for number in numbers[1:]:
                in_words = turn.kind in ("twice", "half")
                assert in_words or str(abs(number)) in turn.question, turn
    assert kinds == FOLLOW_UPS.keys() - {"new"}


def test_a_story_goes_on_with_its_own_person():
    """And with the right pronoun."""
    pronouns = {"Ann": "she", "Ben": "he", "Eva": "she", "Leo": "he"}
    pronouns |= {"Mia": "she", "Sam": "he", "Tom": "he", "Zoe": "she"}
    told = 0
    for problem, follow_up in arithmetic_conversations(1000):
        words = follow_up.question.replace(".", " ").split()
        people = [word for word in words if word in pronouns]
        spoken_of = [word for word in words if word in ("he", "she")]
        if follow_up.kind != "new" and people + spoken_of:
            told += 1
            name = problem.question.split()[0]
            assert set(people) <= {name} and set(spoken_of) <= {pronouns[name]}, follow_up
    assert told > 20


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": -1}, "n is -1"),
        ({"n": 1, "split": "test"}, "split is 'test'"),
        ({"n": 1, "kinds": ["sums"]}, "sums"),
        ({"n": 1, "kinds": []}, "nothing"),
        ({"n": 2000, "kinds": ["product"]}, "no new held-out problem of kind 'product'"),
    ],
)
def test_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        arithmetic_problems(**arguments)


def test_refused_conversations():
    with pytest.raises(ValueError, match="turns is 0"):
        arithmetic_conversations(1, turns=0)
    with pytest.raises(ValueError, match="split is 'test'"):
        arithmetic_conversations(1, split="test")
