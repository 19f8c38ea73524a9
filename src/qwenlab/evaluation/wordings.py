"""Arithmetic problems in words. Every kind has several wordings, none of which changes what is
computed."""

import random

PRONOUNS = {
    "Ann": "she",
    "Ben": "he",
    "Eva": "she",
    "Leo": "he",
    "Mia": "she",
    "Sam": "he",
    "Tom": "he",
    "Zoe": "she",
}
ITEMS = ["apples", "books", "cards", "coins", "eggs", "nuts", "pens", "stones"]
FOR_SALE = ["apples", "books", "cards", "pens"]
GAINS = ["finds {} more", "buys {} more", "gets {} more", "is given {} more"]
LOSSES = ["gives away {}", "gives {} away", "loses {}", "sells {}"]

EXPRESSION = [
    "{}=?",
    "{}?",
    "{} =",
    "What is {}?",
    "What's {}?",
    "How much is {}?",
    "What does {} equal?",
    "Calculate {}.",
    "Compute {}.",
    "Work out {}.",
    "Find {}.",
]
SUM = [
    "Add {}.",
    "Add up {}.",
    "What is the sum of {}?",
    "Find the sum of {}.",
    "What do {} add up to?",
]
PRODUCT = [
    "Multiply {} by {}.",
    "{} times {}?",
    "What is {} times {}?",
    "What is {} multiplied by {}?",
    "What is the product of {} and {}?",
    "Find the product of {} and {}.",
]
EQUATION = [
    "Solve {}.",
    "Solve {} for x.",
    "{}, x=?",
    "Find x: {}.",
    "Find x if {}.",
    "If {}, what is x?",
    "What is x if {}?",
]
BAGS = ["{name} has {a} bags with {b} {items} in each.", "{name} has {a} bags of {b} {items}."]
MULTIPLY = [
    "{name} has {a} bags with {b} {items} in each. How many {items} does {he} have?",
    "{name} buys {a} bags of {b} {items}. How many {items} is that?",
    "Each box holds {b} {items}. How many {items} are there in {a} boxes?",
    "There are {b} {items} in each box. How many {items} are in {a} boxes?",
    "{One} costs {b} dollars. How much do {a} {goods} cost?",
]
DIVIDE = [
    "{b} friends share {a} {items} equally. How many does each of them get?",
    "{a} {items} are shared equally by {b} friends. How many does each get?",
    "{name} puts {a} {items} into {b} equal bags. How many {items} are in each bag?",
    "{name} has {a} {items} in {b} equal boxes. How many are in each box?",
]
MORE = [
    "{name} has {a} {items}. {other} has {b} more than {name}. How many do they have together?",
    "{name} has {a} {items}, and {other} has {b} more than {name}. "
    "How many {items} do they have in all?",
]
HOW_MANY_NOW = [
    "How many {items} does {name} have now?",
    "How many {items} does {he} have now?",
    "How many does {he} have now?",
]
HOW_MANY_LEFT = [
    "How many {items} does {he} have left?",
    "How many {items} are left?",
    "How many are left?",
]

# What follows an answer, which "that" and "it" stand for.
THEN_PLUS = [
    "Then plus {}?",
    "And plus {}?",
    "Now add {}.",
    "Add {} to that.",
    "And if you add {}?",
    "What if you add {} to it?",
    "What do you get if you add {}?",
]
THEN_MINUS = [
    "Then minus {}?",
    "And minus {}?",
    "Now subtract {}.",
    "Now take away {}.",
    "Subtract {} from that.",
    "And if you subtract {}?",
    "What is left if you take away {}?",
]
THEN_TIMES = ["Then times {}?", "And times {}?", "Now multiply that by {}.", "Multiply it by {}."]
TWICE = ["And twice that?", "Double that.", "Now double it.", "What is twice that?"]
HALF = ["And half of that?", "Half of that?", "What is half of that?", "Now divide it by 2."]
FIRST = [
    "What was the first one?",
    "What was the first answer?",
    "What was your first answer?",
    "And the first answer was?",
]
LAST = ["What was that again?", "What was your last answer?", "What was the last answer?"]
NEXT = ["And {}?", "What about {}?", "And what is {}?", "Next: {}."]

# What may be asked with a problem: how to work, what to do with the answer, or both. Whoever asks
# has words of their own, so there are many; the one that is held out is in no training example, nor
# is either half of it.
USUAL_INSTRUCTION = "Please reason step by step, and put your final answer within \\boxed{}."
HELD_OUT_INSTRUCTION = "Please work it out step by step and write the result within \\boxed{}."
HOW_TO_WORK = [
    "Please reason step by step",
    "Reason step by step",
    "Think step by step",
    "Let's think step by step",
    "Solve it step by step",
    "Work step by step",
    "Take one step at a time",
    "Explain each step",
    "Please show each step",
    "Show your steps",
    "Show your work",
    "Think before you answer",
    "Please think carefully",
    "Work it out carefully",
]
WHAT_TO_GIVE = [
    "put your final answer within \\boxed{}",
    "put the final answer in \\boxed{}",
    "put the answer in \\boxed{}",
    "put the result in a box",
    "give your answer in \\boxed{}",
    "give the final answer inside \\boxed{}",
    "give only one number at the end",
    "write your answer within \\boxed{}",
    "write the result in \\boxed{}",
    "box your final answer",
    "end with the answer in \\boxed{}",
]
BETWEEN = [", and ", " and ", ", then ", ". Then "]
SYSTEM_MESSAGES = [
    "You are a helpful assistant.",
    "You are a helpful maths tutor.",
    "You are good at arithmetic. Answer each question.",
    "Answer the question.",
]


def instruct(rng: random.Random) -> str:
    """An instruction; two in five are the usual one of Qwen's model cards."""
    if rng.random() < 0.4:
        return USUAL_INSTRUCTION
    how, what = rng.choice(HOW_TO_WORK), rng.choice(WHAT_TO_GIVE)
    part = rng.random()
    if part < 0.15:
        return f"{how}."
    if part < 0.30:
        return f"{what[0].upper()}{what[1:]}."
    return f"{how}{rng.choice(BETWEEN)}{what}."


def ask(rng: random.Random, kind: str, operation: str, numbers: tuple[int, ...]) -> str:
    """The question for a calculation of this kind, in one of its wordings."""
    if kind == "word":
        return _ask_in_words(rng, operation, numbers)
    spaced = rng.random() < 0.3
    if kind == "equation":
        return rng.choice(EQUATION).format(equation(*numbers, spaced=spaced))
    if kind == "product":
        if rng.random() < 0.5:
            return rng.choice(PRODUCT).format(*numbers)
        sign = " × " if spaced else "*"
        return rng.choice(EXPRESSION).format(sign.join(map(str, numbers)))
    if kind == "sum" and rng.random() < 0.25:
        *first, last = numbers
        return rng.choice(SUM).format(f"{', '.join(map(str, first))} and {last}")
    if len(numbers) < 4 and rng.random() < 0.15:
        return f"What is {spoken(numbers)}?"
    return rng.choice(EXPRESSION).format(expression(numbers, spaced=spaced))


def expression(terms: tuple[int, ...], spaced: bool = False) -> str:
    """(12, 5, -3) as ``12+5-3``, or as ``12 + 5 - 3``."""
    text = "".join(f"{term:+d}" for term in terms).removeprefix("+")
    return text.replace("+", " + ").replace("-", " - ") if spaced else text


def spoken(terms: tuple[int, ...]) -> str:
    """(12, 5, -3) as ``12 plus 5 minus 3``."""
    return expression(terms, spaced=True).replace("+", "plus").replace("-", "minus")


def equation(a: int, b: int, c: int, spaced: bool = False) -> str:
    """(3, -7, 20) as ``3x-7=20``; a factor of 1 and a term of 0 are not written."""
    left = f"{a if a > 1 else ''}x{f'{b:+d}' if b else ''}"
    if spaced:
        return left.replace("+", " + ").replace("-", " - ") + f" = {c}"
    return f"{left}={c}"


def _ask_in_words(rng: random.Random, operation: str, numbers: tuple[int, ...]) -> str:
    name, other = rng.sample(list(PRONOUNS), 2)
    items = rng.choice(ITEMS)
    goods = rng.choice(FOR_SALE)
    words = {"name": name, "other": other, "he": PRONOUNS[name], "items": items, "goods": goods}
    words["One"] = f"{'An' if goods == 'apples' else 'One'} {goods[:-1]}"
    if operation == "add":
        return _tell(rng, f"{name} has {numbers[0]} {items}", list(numbers[1:]), words)
    if operation == "multiply-add":
        a, b, c = numbers
        bags = rng.choice(BAGS).format(a=a, b=b, **words).removesuffix(".")
        return _tell(rng, bags, [c], words)
    wording = {"multiply": MULTIPLY, "divide": DIVIDE, "more": MORE}[operation]
    a, b = numbers
    return rng.choice(wording).format(a=a, b=b, **words)


def _tell(rng: random.Random, start: str, changes: list[int], words: dict[str, str]) -> str:
    """`start`, what then is gained or lost, and how many there are in the end."""
    who = [words["name"], words["he"].capitalize()]
    told = [happening(rng, change) for change in changes]
    if rng.random() < 0.3:
        start = f"{start} and {told.pop(0)}"
    sentences = [start, *(f"{rng.choice(who)} {change}" for change in told)]
    closing = HOW_MANY_LEFT if changes[-1] < 0 and rng.random() < 0.5 else HOW_MANY_NOW
    return ". ".join([*sentences, rng.choice(closing).format(**words)])


def happening(rng: random.Random, change: int) -> str:
    """What makes something more or less: 3 as ``buys 3 more``, -3 as ``loses 3``."""
    return rng.choice(GAINS if change > 0 else LOSSES).format(abs(change))


def ask_next(
    rng: random.Random, operation: str, numbers: tuple[int, ...], name: str | None = None
) -> str:
    """The follow-up that asks for a calculation whose first number is the answer before it.

    `name` is the person whose story the answer belongs to, if there is one: the story may go on.
    """
    match operation, numbers:
        case "first", _:
            wording = rng.choice(FIRST)
        case "last", _:
            wording = rng.choice(LAST)
        case "add", (_, change):
            if name is not None and rng.random() < 0.5:
                wording = _go_on(rng, name, change)
            else:
                wording = rng.choice(THEN_PLUS if change > 0 else THEN_MINUS).format(abs(change))
        case "multiply", (_, 2):
            wording = rng.choice(TWICE)
        case "multiply", (_, factor):
            wording = rng.choice(THEN_TIMES).format(factor)
        case "divide", (_, 2):
            wording = rng.choice(HALF)
        case _:
            raise ValueError(f"no follow-up asks for {operation!r} of {numbers}")
    # Many people don't begin with a capital here: "then plus 3?"
    return wording[0].lower() + wording[1:] if rng.random() < 0.4 else wording


def _go_on(rng: random.Random, name: str, change: int) -> str:
    he = PRONOUNS[name]
    closing = rng.choice(["How many now?", f"How many does {he} have now?"])
    return f"Then {rng.choice([name, he])} {happening(rng, change)}. {closing}"
