"""What the widget of lesson 11 must show, answered and graded again: see widget_numbers.py.

The prompt is written out here, nobody joins a batch that has begun, and the answer is what stands
in the last box.
"""

from functools import cache

import qwenlab
from qwenlab.evaluation.arithmetic import arithmetic_problems

CAP = 100


@cache
def answered():
    """(problem, text, tokens, why it ended) of each problem."""
    model, tokenizer = qwenlab.load("tiny", dtype="float32")
    problems = arithmetic_problems(120, split="held-out")
    prompts = [
        tokenizer.chat([{"role": "user", "content": problem.question}]) for problem in problems
    ]
    result = qwenlab.generate(
        model,
        prompts,
        strategy="early-stop",
        slots=40,
        max_new_tokens=CAP,
        temperature=1.0,
        seed=list(range(120)),
    )
    texts = [tokenizer.decode(ids) for ids in result.token_ids]
    counts = [len(answer.token_ids) + (answer.stop_id is not None) for answer in result]
    return list(
        zip(problems, texts, counts, [answer.finish_reason for answer in result], strict=True)
    )


def boxed(text):
    """What the last box holds, or "none"; the small model writes no braces into it."""
    last = text.split("\\boxed{")[-1] if "\\boxed{" in text else ""
    return last.split("}")[0] if "}" in last else "none"


def of_kind(show):
    """The records that the control lets through.

    Each is (number, problem, text, answer, verdict, tokens, ended by).
    """
    found = []
    for number, (problem, text, tokens, reason) in enumerate(answered()):
        answer = boxed(text)
        verdict = "right" if answer.isdigit() and int(answer) == int(problem.answer) else "wrong"
        if show in ("all", verdict) or (show == "cut off" and tokens == CAP and reason == "length"):
            found.append((number, problem, text, answer, verdict, tokens, reason))
    return found


def records(state):
    """One table of facts, or none where there are fewer records of that kind."""
    kind = of_kind(state["show"])
    place = int(state["record"])
    if place > len(kind):
        return []
    number, problem, _, *facts = kind[place - 1]
    facts.insert(1, problem.answer)
    return [[[str(fact)] for fact in (number, *facts)]]
