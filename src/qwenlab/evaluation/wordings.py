"""Arithmetic problems in words. Every kind has several wordings, none of which changes what is
computed."""

import random

NAMES = ["Ann", "Ben", "Eva", "Leo", "Mia", "Sam", "Tom", "Zoe"]
ITEMS = ["apples", "books", "cards", "coins", "eggs", "nuts", "pens", "stones"]
GAINS = ["finds {} more", "buys {} more", "gets {} more"]
LOSSES = ["gives away {}", "loses {}", "sells {}"]

EXPRESSION = ["{}=?", "{}?", "What is {}?", "How much is {}?", "Calculate {}.", "Work out {}."]
SUM = ["Add {}.", "What is the sum of {}?"]
PRODUCT = ["Multiply {} by {}.", "{} times {}?", "What is the product of {} and {}?"]
EQUATION = ["Solve {}.", "{}, x=?", "Find x: {}.", "If {}, what is x?"]
MULTIPLY = [
    "{name} has {a} bags with {b} {items} each. How many {items} does {name} have?",
    "One box holds {b} {items}. How many {items} are in {a} boxes?",
]
DIVIDE = [
    "{b} friends share {a} {items}. How many does each get?",
    "{name} puts {a} {items} into {b} equal bags. How many {items} are in each bag?",
]
MORE = ["{name} has {a} {items}. {other} has {b} more than {name}. How many do they have together?"]


def ask(rng: random.Random, kind: str, operation: str, numbers: tuple[int, ...]) -> str:
    """The question for a calculation of this kind, in one of its wordings."""
    if kind == "word":
        return _ask_in_words(rng, operation, numbers)
    if kind == "equation":
        return rng.choice(EQUATION).format(equation(*numbers))
    if kind == "product":
        if rng.random() < 0.5:
            return rng.choice(PRODUCT).format(*numbers)
        return rng.choice(EXPRESSION).format("*".join(map(str, numbers)))
    if kind == "sum" and rng.random() < 0.25:
        *first, last = numbers
        return rng.choice(SUM).format(f"{', '.join(map(str, first))} and {last}")
    return rng.choice(EXPRESSION).format(expression(numbers))


def expression(terms: tuple[int, ...]) -> str:
    """(12, 5, -3) as ``12+5-3``."""
    return "".join(f"{term:+d}" for term in terms).removeprefix("+")


def equation(a: int, b: int, c: int) -> str:
    """(3, -7, 20) as ``3x-7=20``; a factor of 1 and a term of 0 are not written."""
    return f"{a if a > 1 else ''}x{f'{b:+d}' if b else ''}={c}"


def describe(rng: random.Random, change: int) -> str:
    return rng.choice(GAINS if change > 0 else LOSSES).format(abs(change))


def _ask_in_words(rng: random.Random, operation: str, numbers: tuple[int, ...]) -> str:
    name, other = rng.sample(NAMES, 2)
    items = rng.choice(ITEMS)
    if operation == "add":
        start, *changes = numbers
        story = f"{name} has {start} {items}."
        for change in changes:
            story += f" {name} {describe(rng, change)}."
        return f"{story} How many {items} does {name} have now?"
    if operation == "multiply-add":
        a, b, c = numbers
        return (
            f"{name} has {a} bags with {b} {items} each. {name} {describe(rng, c)}. "
            f"How many {items} does {name} have now?"
        )
    wording = {"multiply": MULTIPLY, "divide": DIVIDE, "more": MORE}[operation]
    a, b = numbers
    return rng.choice(wording).format(name=name, other=other, items=items, a=a, b=b)
