"""The exercises of lesson 16: fixed-rows, may-flip and count-flips."""

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from qwenlab.exercises import Cases, Exercise

EXERCISES: dict[str, Exercise] = {}

# --- fixed-rows: x (N, K), rows, product -> (N, M); product must always get `rows` rows ---


@dataclass(frozen=True)
class Product:
    """A product whose numbers depend on how many rows it gets: by much more than a real one's, and
    alike on every machine."""

    outputs: int

    def __call__(self, x: Tensor) -> Tensor:
        """x (N, K) -> (N, M): each row's running sums, and N times a hundred."""
        return x.cumsum(-1)[:, : self.outputs] + 100 * len(x)

    def __repr__(self) -> str:
        return "a product that depends on the number of rows"


def fixed_rows(x: Tensor, rows: int, product: Callable) -> Tensor:
    """The product of x (N, K), `rows` rows at a time; zeros fill up the last piece."""
    pieces = []
    for piece in x.split(rows):
        filled = F.pad(piece, (0, 0, 0, rows - len(piece)))
        pieces.append(product(filled)[: len(piece)])
    return torch.cat(pieces)


def _some_rows() -> Cases:
    x = torch.arange(1.0, 11).view(5, 2)
    yield "one row more than two whole pieces", (x, 2, Product(2))
    yield "fewer rows than a piece has", (x[:3], 4, Product(2))
    yield "one row", (x[:1], 4, Product(1))
    yield "whole pieces", (x[:4], 2, Product(2))
    draw = random.Random(8)
    for _ in range(20):
        shape = (draw.randint(1, 9), draw.randint(2, 4))
        numbers = [float(draw.randint(-9, 9)) for _ in range(shape[0] * shape[1])]
        yield "random rows", (torch.tensor(numbers).view(shape), draw.randint(2, 5), Product(2))


def _last_piece_shorter(x: Tensor, rows: int, product: Callable) -> Tensor:
    return torch.cat([product(piece) for piece in x.split(rows)])


def _whole(x: Tensor, rows: int) -> Tensor:
    """x with zeros behind, up to a whole number of pieces."""
    return F.pad(x, (0, 0, 0, -len(x) % rows))


def _all_at_once(x: Tensor, rows: int, product: Callable) -> Tensor:
    return product(_whole(x, rows))[: len(x)]


def _zeros_kept(x: Tensor, rows: int, product: Callable) -> Tensor:
    return torch.cat([product(piece) for piece in _whole(x, rows).split(rows)])


def _zeros_in_front(x: Tensor, rows: int, product: Callable) -> Tensor:
    filled = F.pad(x, (0, 0, -len(x) % rows, 0))
    return torch.cat([product(piece) for piece in filled.split(rows)])[: len(x)]


def _first_piece_only(x: Tensor, rows: int, product: Callable) -> Tensor:
    filled = F.pad(x[:rows], (0, 0, 0, max(0, rows - len(x))))
    return product(filled)[: len(x)]


def _row_by_row(x: Tensor, rows: int, product: Callable) -> Tensor:
    return torch.cat([product(row) for row in x.split(1)])


def _whole_pieces_only(x: Tensor, rows: int, product: Callable) -> Tensor:
    return fixed_rows(x, rows, product)[: len(x) // rows * rows]


def _so_many_pieces(x: Tensor, rows: int, product: Callable) -> Tensor:
    """`chunk` where `split` is meant."""
    pieces = []
    for piece in x.chunk(rows):
        filled = F.pad(piece, (0, 0, 0, max(0, rows - len(piece))))
        pieces.append(product(filled)[: len(piece)])
    return torch.cat(pieces)


EXERCISES["fixed-rows"] = Exercise(
    fixed_rows,
    results=("out",),
    cases=_some_rows,
    mistakes=(
        (
            lambda x, rows, product: product(x),
            "you passed all rows at once, however many. Split them into pieces of `rows`.",
        ),
        (
            _last_piece_shorter,
            "the last piece has fewer rows, so its product has another shape. Fill it up.",
        ),
        (
            _all_at_once,
            "a multiple of `rows` is another shape too: call product once for each piece.",
        ),
        (_zeros_kept, "you return the rows that you filled up with. Cut them off again."),
        (
            _zeros_in_front,
            "you filled up in front, and then kept the first rows: those are the filling.",
        ),
        (
            _whole_pieces_only,
            "the rows of the last piece are missing. Fill it up rather than leave it out.",
        ),
        (
            _so_many_pieces,
            "`x.chunk(rows)` makes `rows` pieces; `x.split(rows)` makes pieces of `rows` rows.",
        ),
        (_first_piece_only, "only the first piece is there. Go on with the rest of the rows."),
        (
            _row_by_row,
            "one row at a time is a fixed shape, but not this one, and nothing is shared.",
        ),
    ),
)

# --- may-flip: logits (T, V), moved (float) -> (T,) bool, True where the best token may change ---


def may_flip(logits: Tensor, moved: float) -> Tensor:
    """Where the best two are no further apart than twice what a logit may move."""
    best, second = logits.topk(2, dim=-1).values.unbind(-1)
    return best - second <= 2 * moved


def _logits() -> Cases:
    rows = torch.tensor(
        [
            [1.0, 5.0, 3.0, -9.0],  # margin 2: exactly twice what moves
            [4.0, 0.0, 2.5, -1.0],  # 1.5
            [0.0, 1.0, 8.0, 5.0],  # 3
            [2.0, 2.0, 0.0, 1.0],  # a tie
            [-7.0, 1.0, 1.75, -12.0],  # 0.75
            [3.0, 2.5, 2.75, -1.0],  # 0.25, and the mean is near
            [9.0, 8.75, -9.0, -9.0],  # 0.25, and the mean is far
        ]
    )
    yield "margins on each side of twice the move", (rows, 1.0)
    yield "nothing moves, and one tie", (rows, 0.0)
    yield "one step", (rows[:1], 0.5)
    draw = random.Random(9)
    for _ in range(20):
        shape = (draw.randint(1, 6), draw.randint(3, 6))
        numbers = [draw.randint(-24, 24) / 4 for _ in range(shape[0] * shape[1])]
        yield "random logits", (torch.tensor(numbers).view(shape), draw.randint(0, 8) / 4)


def _margin(logits: Tensor) -> Tensor:
    best, second = logits.topk(2, dim=-1).values.unbind(-1)
    return best - second


def _next_value(logits: Tensor) -> Tensor:
    """The lead of the best logit over the largest one that differs from it."""
    best = logits.amax(-1)
    return best - logits.masked_fill(logits == best[:, None], -torch.inf).amax(-1)


def _to_the_mean(logits: Tensor, moved: float) -> Tensor:
    return logits.amax(-1) - logits.mean(-1) <= 2 * moved


def _down_the_columns(logits: Tensor, moved: float) -> Tensor:
    ordered = logits.sort(0, descending=True).values
    return ordered[0] - ordered[min(1, len(ordered) - 1)] <= 2 * moved


def _one_bool_a_step(answer: Tensor) -> str | None:
    if getattr(answer, "dtype", None) != torch.bool:
        return "answer with bool: True where the token may change."
    if answer.ndim != 1:
        return "one answer for each step: shape (T,)."


EXERCISES["may-flip"] = Exercise(
    may_flip,
    results=("may_flip",),
    cases=_logits,
    mistakes=(
        (
            lambda logits, moved: _margin(logits) <= moved,
            "the best may fall by `moved` while the second rises by as much: together twice that.",
        ),
        (
            lambda logits, moved: _next_value(logits) <= 2 * moved,
            "two equal logits are a tie already. You took the second of the *different* values.",
        ),
        (
            lambda logits, moved: _margin(logits) < 2 * moved,
            "exactly twice is enough for a tie, and a tie may go either way.",
        ),
        (
            lambda logits, moved: _margin(logits) <= moved / 2,
            "the other way: the margin may be as large as TWICE what one logit moves.",
        ),
        (
            lambda logits, moved: logits.sort(-1).values.diff()[:, 0] <= 2 * moved,
            "`sort` begins with the lowest, and these are the two lowest logits.",
        ),
        (
            lambda logits, moved: logits.amax(-1) - logits.amin(-1) <= 2 * moved,
            "you took the lowest logit. Only the second best can overtake the best.",
        ),
        (_to_the_mean, "you took the mean. Only the second best can overtake the best."),
        (
            lambda logits, moved: logits[:, 0] - logits[:, 1] <= 2 * moved,
            "you took ids 0 and 1. Find the best two of each step first.",
        ),
        (lambda logits, moved: _margin(logits) > 2 * moved, "inverted: True means that it may."),
        (
            _down_the_columns,
            "you compared steps with each other. The best two are those of one step, dim=-1.",
        ),
        (
            lambda logits, moved: _margin(logits.abs()) <= 2 * moved,
            "a large negative logit is not a likely token: no absolute values here.",
        ),
    ),
    rules=(("may_flip", _one_bool_a_step),),
)

# --- count-flips: (first, second, prompt, steps) -> at how many steps the two next tokens differ,
#     second being given what first said ---


@dataclass(frozen=True)
class Machine:
    """A next token that depends on all ids; every `odd`-th sum of them gives a neighbour's token.
    odd = 0: never."""

    odd: int

    def __call__(self, ids: list[int]) -> int:
        total = sum((place + 1) * token for place, token in enumerate(ids))
        flips = self.odd and total % self.odd == 0
        token = (5 * total + len(ids)) % 17 + 1
        return token + 1 if flips else token

    def __repr__(self) -> str:
        return "a model that flips now and then" if self.odd else "a model"


def count_flips(first: Callable, second: Callable, prompt: list[int], steps: int) -> int:
    """How many of the first's tokens the second would not have generated in the same place."""
    ids = list(prompt)
    flips = 0
    for _ in range(steps):
        token = first(ids)
        if second(ids) != token:
            flips += 1
        ids.append(token)
    return flips


def _machines() -> Cases:
    yield "a few flips", (Machine(0), Machine(4), [3, 7, 3, 3], 20)
    yield "no flip", (Machine(0), Machine(0), [5], 8)
    yield "no step", (Machine(0), Machine(2), [5], 0)
    draw = random.Random(10)
    for _ in range(20):
        prompt = [draw.randint(1, 9) for _ in range(draw.randint(1, 5))]
        second = Machine(draw.randint(2, 6))
        yield "random models", (Machine(0), second, prompt, draw.randint(1, 15))


def _answer(model: Callable, prompt: list[int], steps: int) -> list[int]:
    ids = list(prompt)
    for _ in range(steps):
        ids.append(model(ids))
    return ids[len(prompt) :]


def _unlike(first: list[int], second: list[int]) -> int:
    return sum(a != b for a, b in zip(first, second, strict=True))


def _each_alone(first: Callable, second: Callable, prompt: list[int], steps: int) -> int:
    return _unlike(_answer(first, prompt, steps), _answer(second, prompt, steps))


def _until_the_first(first: Callable, second: Callable, prompt: list[int], steps: int) -> int:
    return min(1, count_flips(first, second, prompt, steps))


def _step_of_the_first(first: Callable, second: Callable, prompt: list[int], steps: int) -> int:
    said = _answer(first, prompt, steps)
    pairs = zip(said, _answer(second, prompt, steps), strict=True)
    return next((step for step, (one, other) in enumerate(pairs) if one != other), steps)


def _follows_the_second(first: Callable, second: Callable, prompt: list[int], steps: int) -> int:
    return count_flips(second, first, prompt, steps)


def _appending(new: Callable) -> Callable:
    """Asks both models about one list, but goes on with new(first's token, second's token)."""

    def wrong(first: Callable, second: Callable, prompt: list[int], steps: int) -> int:
        ids = list(prompt)
        flips = 0
        for _ in range(steps):
            token = first(ids)
            other = second(ids)
            flips += int(token != other)
            ids = [*ids, *new(token, other)]
        return flips

    return wrong


def _from_place(start: Callable) -> Callable:
    """Compares the finished text from place start(prompt) on."""

    def wrong(first: Callable, second: Callable, prompt: list[int], steps: int) -> int:
        ids = prompt + _answer(first, prompt, steps)
        return sum(second(ids[:place]) != ids[place] for place in range(start(prompt), len(ids)))

    return wrong


def _agreeing(first: Callable, second: Callable, prompt: list[int], steps: int) -> int:
    return steps - count_flips(first, second, prompt, steps)


def _without_the_prompt(first: Callable, second: Callable, prompt: list[int], steps: int) -> int:
    said = _answer(first, prompt, steps)
    return _unlike(said, [second(said[:step]) for step in range(steps)])


def _one_token_late(first: Callable, second: Callable, prompt: list[int], steps: int) -> int:
    ids = list(prompt)
    flips = 0
    for _ in range(steps):
        token = first(ids)
        ids.append(token)
        if second(ids) != token:
            flips += 1
    return flips


def _only_the_prompt(first: Callable, second: Callable, prompt: list[int], steps: int) -> int:
    return steps * count_flips(first, second, prompt, 1)


EXERCISES["count-flips"] = Exercise(
    count_flips,
    results=("flips",),
    cases=_machines,
    mistakes=(
        (
            _from_place(lambda prompt: len(prompt) + 1),
            "the first new token counts as well. Both models know the prompt.",
        ),
        (
            _each_alone,
            "each model goes on from its own token, so after one flip nothing is comparable. Give "
            "the second model what the first one said.",
        ),
        (_until_the_first, "you stop at the first flip. Go on from the first model's token."),
        (
            _step_of_the_first,
            "that is the step of the first flip. Go on from the first model's token, and count.",
        ),
        (_follows_the_second, "you go on from the second model's token. The first one leads."),
        (
            _appending(lambda token, other: [token] if token == other else []),
            "append the first model's token in every step, after a flip as well.",
        ),
        (
            _appending(lambda token, other: [token, other]),
            "one token a step: the first model's, and not the second's too.",
        ),
        (
            _from_place(lambda prompt: 1),
            "the prompt was given, so nobody can flip in it. Begin with the first new token.",
        ),
        (
            lambda *given: count_flips(*given) / max(1, given[-1]),
            "that is a share of the steps. Give their number.",
        ),
        (_agreeing, "you counted the steps at which they agree."),
        (_without_the_prompt, "the second model has not read the prompt."),
        (
            _one_token_late,
            "ask the second model before you append: it should see what the first one saw.",
        ),
        (_only_the_prompt, "you ask about the same step again and again. Append the token."),
    ),
)
