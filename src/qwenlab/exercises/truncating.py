"""Lesson 14: the exercise truncate."""

import random

from qwenlab.teach.checking import exercise

STOP = 91

# --- truncate: (traces, stop_id, max_length) -> rows, tokens, dropped ---


def truncate(traces, stop_id, max_length):
    """What stays of (prompt, answer, finished) within max_length tokens, how many train in each, and who is dropped."""
    rows, tokens, dropped = [], [], []
    for place, (prompt, answer, finished) in enumerate(traces):
        ids = (prompt + answer + [stop_id] * finished)[:max_length]
        if len(ids) <= len(prompt):
            dropped.append(place)
        else:
            rows.append(ids)
            tokens.append(len(ids) - len(prompt))
    return rows, tokens, dropped


def _traces():
    ten = list(range(10, 20))
    for most in (8, 10, 12, 11, 13):
        name = f"10 + 3 tokens, max_length {most}"
        yield name, ([(ten, [1, 2], True), ([3, 4], [5], True)], STOP, most)
    yield "an answer that its teacher did not finish", ([([3, 4], [5, 6], False), ([7], [8, 9], True)], STOP, 9)
    draw = random.Random(15)
    for _ in range(20):
        some = lambda most: draw.choices(range(1, 90), k=draw.randint(1, most))  # noqa: E731
        traces = [(some(9), some(6), draw.random() < 0.7) for _ in range(draw.randint(2, 5))]
        yield "random traces", (traces, STOP, draw.randint(4, 14))


def _ways(keep, drops=lambda prompt, ids: len(ids) <= len(prompt), count=lambda prompt, ids: len(ids) - len(prompt)):
    """A mistaken way: keep(prompt, answer, finished, stop_id, max_length) -> ids, and who is dropped by it."""

    def wrong(traces, stop_id, max_length):
        rows = [(prompt, keep(prompt, answer, done, stop_id, max_length)) for prompt, answer, done in traces]
        kept = [(prompt, ids) for prompt, ids in rows if not drops(prompt, ids)]
        dropped = [place for place, row in enumerate(rows) if drops(*row)]
        return [ids for _, ids in kept], [count(*row) for row in kept], dropped

    return wrong


def _right(prompt, answer, done, stop, most):
    return (prompt + answer + [stop] * done)[:most]


def _made_up(prompt, answer, done, stop, most):
    ids = prompt + answer + [stop] * done
    return ids if len(ids) <= most else [*ids[: most - 1], stop]


def _too_long(prompt, answer, done, stop, most):
    return prompt if len(prompt) + len(answer) + done > most else prompt + answer + [stop] * done


exercise(
    "truncate",
    truncate,
    results=("rows", "tokens", "dropped"),
    cases=_traces,
    mistakes=(
        (_ways(_made_up), "you put a stop where the answer was cut off. The teacher never stopped there."),
        (
            _ways(lambda p, a, d, s, n: (p + a + [s])[:n]),
            "an answer that is not finished got a stop. It would teach to stop in the middle.",
        ),
        (_ways(lambda p, a, d, s, n: (p + a)[:n]), "the stop id is missing where the teacher did stop."),
        (_ways(_right, drops=lambda p, ids: False), "a row without a token of its answer stays. Its mean is 0/0."),
        (_ways(_right, drops=lambda p, ids: len(ids) <= len(p) + 1), "a row with one token of its answer is of use."),
        (_ways(_too_long), "an answer that does not fit is cut, not dropped: what is left of it still teaches."),
        (_ways(lambda p, a, d, s, n: (p + a + [s] * d)[-n:]), "you cut off the front. The prompt must stay."),
        (
            _ways(lambda p, a, d, s, n: p + (a + [s] * d)[:n]),
            "max_length is for prompt and answer together, the stop id included.",
        ),
        (_ways(_right, count=lambda p, ids: len(ids)), "tokens counts the prompt too. It does not train."),
    ),
)
