"""The exercises of lesson 14: turn-mask, truncate and part-factors."""

import random
from collections.abc import Callable

import torch
from torch import Tensor

from qwenlab.exercises import Cases, Exercise

EXERCISES: dict[str, Exercise] = {}

STOP = 91

Trace = tuple[list[int], list[int], bool]  # prompt, answer, whether its teacher finished it

# --- turn-mask: turns, (role, length) each -> mask (T - 1,) bool ---


def turn_mask(turns: list[tuple[str, int]]) -> Tensor:
    """Which targets count in a chat of several turns: what the assistant wrote, each time."""
    return _of_tokens(turns, lambda place, role, length: [role == "assistant"] * length)[1:]


def _of_tokens(turns: list[tuple[str, int]], tokens: Callable) -> Tensor:
    """(T,) bool: what tokens(place, role, length) says of the tokens of each turn."""
    marks = []
    for place, (role, length) in enumerate(turns):
        marks += tokens(place, role, length)
    return torch.tensor(marks)


def _chats() -> Cases:
    yield (
        "a system prompt first",
        ([("system", 2), ("user", 2), ("assistant", 3), ("user", 1), ("assistant", 2)],),
    )
    yield "one question", ([("user", 3), ("assistant", 2)],)
    yield (
        "two questions",
        ([("user", 3), ("assistant", 2), ("user", 2), ("assistant", 4)],),
    )
    draw = random.Random(14)
    for _ in range(20):
        chat = [("system", draw.randint(1, 3))] if draw.random() < 0.5 else []
        for _ in range(draw.randint(1, 3)):
            chat += [("user", draw.randint(1, 4)), ("assistant", draw.randint(2, 5))]
        yield "random chats", (chat,)


def _turns(counts: Callable) -> Callable:
    """A mistaken way: counts(place, role, length, number of turns) for the tokens of a turn."""

    def wrong(turns: list[tuple[str, int]]) -> Tensor:
        def tokens(place: int, role: str, length: int) -> list[bool]:
            return counts(place, role, length, len(turns))

        return _of_tokens(turns, tokens)[1:]

    return wrong


def _first_answer(place: int, role: str, length: int, turns: int) -> list[bool]:
    return [role == "assistant" and place <= 2] * length


def _from_the_first_answer(turns: list[tuple[str, int]]) -> Tensor:
    first = [role for role, _ in turns].index("assistant")
    return _turns(lambda place, role, length, count: [place >= first] * length)(turns)


def _others_first(turns: list[tuple[str, int]]) -> Tensor:
    mask = turn_mask(turns)
    return mask.sort().values


def _each_answer(write: Callable) -> Callable:
    """write(length) for the tokens of each answer; nothing else counts."""
    return _turns(
        lambda place, role, length, count: (
            write(length) if role == "assistant" else [False] * length
        )
    )


def _unshifted(turns: list[tuple[str, int]]) -> Tensor:
    return torch.cat([torch.tensor([turns[0][0] == "assistant"]), turn_mask(turns)])


def _bool(value: Tensor) -> str | None:
    if value.dtype != torch.bool:
        return "mask is of dtype bool: True where the target counts."


EXERCISES["turn-mask"] = Exercise(
    turn_mask,
    results=("mask",),
    cases=_chats,
    mistakes=(
        (
            _from_the_first_answer,
            "all that follows the first answer counts, later questions too. The student would "
            "learn to ask them.",
        ),
        (
            _unshifted,
            "the mask has one column per target: T - 1 of them, as nothing predicts the first "
            "token.",
        ),
        (
            lambda turns: _unshifted(turns)[:-1],
            "off by one. Column j of the targets is token j + 1, which the logits at j predict.",
        ),
        (
            _turns(lambda place, role, length, count: [place == count - 1] * length),
            "only the last answer counts. The earlier ones are the assistant's words as well.",
        ),
        (
            _turns(_first_answer),
            "only the first answer counts. The later ones are the assistant's words as well.",
        ),
        (
            _others_first,
            "you count how many tokens are the assistant's, and put them all at the end. They "
            "count where they stand.",
        ),
        (
            _turns(lambda place, role, length, count: [role != "user"] * length),
            "the system prompt counts too, but nobody asks the student to write it.",
        ),
        (
            lambda turns: ~turn_mask(turns),
            "your mask is inverted: True marks the targets that count.",
        ),
        (
            _each_answer(lambda length: [False] + [True] * (length - 1)),
            "the first token of each answer is missing. The question's last logits predict it.",
        ),
        (
            _each_answer(lambda length: [True] * (length - 1) + [False]),
            "the last token of each answer is missing. It is the stop id, which the student must "
            "learn.",
        ),
        (
            _turns(lambda place, role, length, count: [True] * length),
            "everything counts. Only what the assistant wrote should.",
        ),
        (
            lambda turns: _of_tokens(
                turns, lambda place, role, length: [role == "assistant"] * (length - 1)
            ),
            "one target less for the whole chat, not for each turn: a turn's first token is "
            "predicted at the end of the turn before.",
        ),
    ),
    rules=(("mask", _bool),),
)

# --- truncate: (traces, stop_id, max_length) -> rows, tokens, dropped ---


def truncate(
    traces: list[Trace], stop_id: int, max_length: int
) -> tuple[list[list[int]], list[int], list[int]]:
    """Traces cut to max_length tokens, how many tokens of each train, and which are dropped."""
    rows = []
    tokens = []
    dropped = []
    for place, (prompt, answer, finished) in enumerate(traces):
        ids = _whole(prompt, answer, finished, stop_id)[:max_length]
        if len(ids) <= len(prompt):
            dropped.append(place)
        else:
            rows.append(ids)
            tokens.append(len(ids) - len(prompt))
    return rows, tokens, dropped


def _whole(prompt: list[int], answer: list[int], finished: bool, stop_id: int) -> list[int]:
    return [*prompt, *answer, stop_id] if finished else [*prompt, *answer]


def _traces() -> Cases:
    ten = list(range(10, 20))
    for most in (8, 10, 12, 11, 13):
        name = f"10 + 3 tokens, max_length {most}"
        yield name, ([(ten, [1, 2], True), ([3, 4], [5], True)], STOP, most)
    yield (
        "an answer that its teacher did not finish",
        ([([3, 4], [5, 6], False), ([7], [8, 9], True)], STOP, 9),
    )
    draw = random.Random(15)

    def some(most: int) -> list[int]:
        return draw.choices(range(1, 90), k=draw.randint(1, most))

    for _ in range(20):
        traces = [(some(9), some(6), draw.random() < 0.7) for _ in range(draw.randint(2, 5))]
        yield "random traces", (traces, STOP, draw.randint(4, 14))


def _ways(
    keep: Callable,
    drops: Callable = lambda prompt, ids: len(ids) <= len(prompt),
    count: Callable = lambda prompt, ids: len(ids) - len(prompt),
) -> Callable:
    """A mistaken way: keep(prompt, answer, finished, stop_id, max_length) gives a row's ids."""

    def wrong(
        traces: list[Trace], stop_id: int, max_length: int
    ) -> tuple[list[list[int]], list[int], list[int]]:
        rows = []
        tokens = []
        dropped = []
        for place, trace in enumerate(traces):
            prompt = trace[0]
            ids = keep(*trace, stop_id, max_length)
            if drops(prompt, ids):
                dropped.append(place)
            else:
                rows.append(ids)
                tokens.append(count(prompt, ids))
        return rows, tokens, dropped

    return wrong


def _right(prompt: list[int], answer: list[int], done: bool, stop: int, most: int) -> list[int]:
    return _whole(prompt, answer, done, stop)[:most]


def _made_up(prompt: list[int], answer: list[int], done: bool, stop: int, most: int) -> list[int]:
    ids = _whole(prompt, answer, done, stop)
    return ids if len(ids) <= most else [*ids[: most - 1], stop]


def _finished_only(
    prompt: list[int], answer: list[int], done: bool, stop: int, most: int
) -> list[int]:
    return _right(prompt, answer, done, stop, most) if done else prompt


def _with(change: Callable) -> Callable:
    """The right lists, changed: change(traces, rows, tokens, dropped)."""
    return lambda traces, stop, most: change(traces, *truncate(traces, stop, most))


def _count_of_each(traces: list[Trace], rows: list, tokens: list, dropped: list) -> tuple:
    """A count for each trace, 0 for those that are dropped."""
    left = iter(tokens)
    counts = [0 if place in dropped else next(left) for place in range(len(traces))]
    return rows, counts, dropped


def _too_long(prompt: list[int], answer: list[int], done: bool, stop: int, most: int) -> list[int]:
    ids = _whole(prompt, answer, done, stop)
    return ids if len(ids) <= most else prompt


EXERCISES["truncate"] = Exercise(
    truncate,
    results=("rows", "tokens", "dropped"),
    cases=_traces,
    mistakes=(
        (
            _ways(_made_up),
            "you put a stop id where the answer was cut off. The teacher never stopped there.",
        ),
        (
            _ways(lambda p, a, d, s, n: (p + a + [s])[:n]),
            "an unfinished answer got a stop id. It would teach stopping half-way.",
        ),
        (
            _ways(lambda p, a, d, s, n: (p + a)[:n]),
            "the stop id is missing where the teacher did stop.",
        ),
        (
            _ways(_finished_only),
            "an unfinished answer teaches as well, without a stop id.",
        ),
        (
            _with(lambda traces, rows, tokens, dropped: (rows, [n - 1 for n in tokens], dropped)),
            "one too few: the prompt's last logits predict the answer's first token, and the stop "
            "id counts.",
        ),
        (
            _with(_count_of_each),
            "tokens has a number for each row that stays, none for those that are dropped.",
        ),
        (
            _with(
                lambda traces, rows, tokens, dropped: (
                    rows,
                    tokens,
                    [traces[i][0] for i in dropped],
                )
            ),
            "dropped holds places in the list of traces: 0 for the first.",
        ),
        (
            _ways(lambda p, a, d, s, n: (p + a)[:n] + ([s] if d else [])),
            "the stop id comes after the cut, so that a row is one too long, and stops where the "
            "teacher did not. Cut the whole row.",
        ),
        (
            _ways(_right, drops=lambda p, ids: False),
            "you kept a row without any token of its answer. Its mean is 0/0.",
        ),
        (
            _ways(_right, drops=lambda p, ids: False, count=lambda p, i: max(0, len(i) - len(p))),
            "a row with 0 tokens to train on must be dropped: its mean is 0/0.",
        ),
        (
            _ways(_right, drops=lambda p, ids: len(ids) <= len(p) + 1),
            "a row with one token of its answer is usable.",
        ),
        (
            _ways(_too_long),
            "an answer that does not fit is truncated, not dropped: the rest still teaches.",
        ),
        (
            _ways(lambda p, a, d, s, n: _whole(p, a, d, s)[-n:]),
            "you cut off the front. The prompt must stay.",
        ),
        (
            _ways(lambda p, a, d, s, n: p + _whole([], a, d, s)[:n]),
            "max_length is for prompt and answer together, the stop id included.",
        ),
        (
            _ways(_right, count=lambda p, ids: len(ids)),
            "tokens counts the prompt too, but the prompt does not train.",
        ),
    ),
)

# --- part-factors: counts (N,) -> factors (N,) ---


def part_factors(counts: Tensor) -> Tensor:
    """By what each micro-batch's own mean is multiplied, where the mean of them is taken after."""
    return counts * len(counts) / counts.sum()


def _counts() -> Cases:
    yield "2, 3 and 7 tokens", (torch.tensor([2, 3, 7]),)
    yield "parts of one size", (torch.tensor([5, 5, 5]),)
    yield "one part", (torch.tensor([7]),)
    yield "a short last part", (torch.tensor([40, 44, 38, 2]),)
    draw = random.Random(16)
    for _ in range(20):
        yield "random parts", (torch.tensor([draw.randint(1, 60) for _ in range(4)]),)


EXERCISES["part-factors"] = Exercise(
    part_factors,
    results=("factors",),
    cases=_counts,
    mistakes=(
        (
            lambda counts: counts / counts.sum(),
            "those add up to 1, but the trainer divides by N as well: the gradient would be N "
            "times too small.",
        ),
        (
            torch.ones_like,
            "that changes nothing: a token in a small part still weighs more than one in a "
            "large part.",
        ),
        (
            lambda counts: counts.sum() / (counts * len(counts)),
            "upside down: a large part must weigh more, not less.",
        ),
        (
            lambda counts: counts.sum() / counts,
            "upside down: a large part must weigh more, not less. And where all parts are of one "
            "size each factor is 1.",
        ),
        (
            lambda counts: counts.float(),
            "those are the counts. Divide them by the mean count, so that the loss keeps its size.",
        ),
        (
            lambda counts: counts / counts.max(),
            "you divided by the largest count. The sum of all tokens is what the mean needs.",
        ),
        (
            lambda counts: counts * len(counts) ** 2 / counts.sum(),
            "N times too large: the trainer divides by N once.",
        ),
        (
            lambda counts: torch.full(counts.shape, len(counts) / counts.sum().item()),
            "a part's own mean has been divided by its tokens already: multiply by them.",
        ),
        (
            lambda counts: 1 / counts,
            "upside down: a large part must weigh more, not less.",
        ),
        (
            lambda counts: counts * (1 / len(counts)) / counts.sum(),
            "the trainer divides by N already, so your factor must multiply by it.",
        ),
        (
            lambda counts: counts / (counts.sum() // len(counts)),
            "`//` cuts the mean count off. Divide with `/`.",
        ),
        (
            lambda counts: torch.full(counts.shape, float(len(counts))),
            "that undoes the trainer's N alone, and leaves the sum of the parts' means.",
        ),
    ),
    rules=(
        (
            "factors",
            lambda value: (
                "factors are float32: `/`, not `//`." if not value.is_floating_point() else None
            ),
        ),
        (
            "factors",
            lambda value: (
                "factors has one factor per micro-batch: (N,)." if value.ndim != 1 else None
            ),
        ),
    ),
)
