"""The exercise of lesson 09 on the rule: delta-step."""

import random

import torch

from qwenlab.teach.checking import exercise

# --- delta-step: (q, k (N, Dk), v (N, Dv), decay, beta (N,), memory (N, Dk, Dv)) -> memory, said (N, Dv) ---


def _delta(ask=lambda old, faded: faded, known=1, fade_late=False, read=lambda old, faded, new: new):
    """The rule, or a mistaken one: which table is asked and read, how much of its answer is taken off the value."""

    def step(q, k, v, decay, beta, memory):
        decay, beta = decay[:, None, None], beta[:, None, None]
        faded = memory if fade_late else decay * memory
        gap = beta * (v[:, None] - known * k[:, None] @ ask(memory, faded))  # (N, 1, Dv)
        new = faded + k[:, :, None] @ gap
        if fade_late:
            new = decay * new
        return new, (q[:, None] @ read(memory, faded, new))[:, 0]

    return step


delta_step = _delta()


def _heads(draw, count, key, value):
    numbers = torch.Generator().manual_seed(draw.randrange(10**6))
    q, k = torch.randn(2, count, key, generator=numbers)
    v, memory = torch.randn(count, value, generator=numbers), torch.randn(count, key, value, generator=numbers)
    decay, beta = 0.2 + 0.6 * torch.rand(2, count, generator=numbers)
    return q / q.norm(dim=-1, keepdim=True), k / k.norm(dim=-1, keepdim=True), v, decay, beta, memory


def _tables():
    yield "one head, a square table", _heads(random.Random(1), 1, 3, 3)
    yield "two heads", _heads(random.Random(2), 2, 3, 3)
    yield "keys shorter than values", _heads(random.Random(3), 2, 2, 4)
    q, k, v, decay, beta, memory = _heads(random.Random(4), 2, 4, 3)
    yield "an empty table", (q, k, v, decay, beta, torch.zeros_like(memory))
    yield "a beta of 0", (q, k, v, decay, torch.zeros_like(beta), memory)
    draw = random.Random(5)
    for _ in range(20):
        yield "random heads", _heads(draw, draw.randint(1, 5), draw.randint(1, 6), draw.randint(1, 6))


def _with(change):
    return lambda *given: delta_step(*change(*given))


def _transposed(q, k, v, decay, beta, memory):
    """Asks and writes as if rows of the table were the values."""
    if memory.shape[1] != memory.shape[2]:
        return memory, v
    new, said = delta_step(q, k, v, decay, beta, memory.mT)
    return new.mT.contiguous(), said


def _turned_round(q, k, v, decay, beta, memory):
    """Asks as it should, but writes the outer product of the value and the key."""
    if memory.shape[1] != memory.shape[2]:
        return memory, v
    faded = decay[:, None, None] * memory
    new = faded + (delta_step(q, k, v, decay, beta, memory)[0] - faded).mT
    return new, (q[:, None] @ new)[:, 0]


def _first_said(q, k, v, decay, beta, memory):
    said = k[:, None] @ (decay[:, None, None] * memory)
    return delta_step(q, k, v, decay, beta, memory)[0], said[:, 0]


def _both_in_shape(memory):
    if memory.ndim != 3:
        return "memory is (N, Dk, Dv): one table for each head, and it comes first."


exercise(
    "delta-step",
    delta_step,
    results=("memory", "said"),
    cases=_tables,
    mistakes=(
        (_with(lambda q, k, v, d, b, m: (q, k, v, torch.ones_like(d), b, m)), "nothing fades: decay is not used."),
        (_with(lambda q, k, v, d, b, m: (q, k, v, d, torch.ones_like(b), m)), "all is written: beta is not used."),
        (_with(lambda q, k, v, d, b, m: (q, k, v, d.exp(), b, m)), "decay is given as it is. It is no logarithm."),
        (_with(lambda q, k, v, d, b, m: (k, k, v, d, b, m)), "the key asks before the correction, the query reads."),
        (_delta(known=0), "you add the value whatever the table says already. Ask first, write the difference."),
        (_delta(known=-1), "the wrong sign: write the value less what the table says."),
        (_delta(ask=lambda old, faded: old), "you asked the table before it had faded. Fade first, then ask."),
        (_delta(fade_late=True), "you faded last, so what was just written has faded too. Fade first."),
        (_delta(read=lambda old, faded, new: faded), "you read before writing. The query sees this token as well."),
        (_delta(read=lambda old, faded, new: old), "you read the table that you were given, not the new one."),
        (
            _first_said,
            "this is what the table said to the key before the correction. Ask again, with the query.",
        ),
        (
            _with(lambda q, k, v, d, b, m: (q, k, b[:, None] * v, d, torch.ones_like(b), m)),
            "beta scales the whole difference, v - said.",
        ),
        (
            _with(lambda q, k, v, d, b, m: (q / q.shape[-1] ** 0.5, k, v, d, b, m)),
            "the query is used as given; the layer has scaled it before.",
        ),
        (_turned_round, "the outer product is turned round: k[:, :, None] * x[:, None, :]."),
        (
            _transposed,
            "transposed: lines of a table are the key's numbers, columns the value's. k[:, :, None] is a line.",
        ),
        (lambda *given: delta_step(*given)[::-1], "the two values are swapped: memory comes first, then said."),
    ),
    rules=(("memory", _both_in_shape),),
)
