"""The exercises of lesson 05: decode-step and cut-at-stop."""

import random
from collections.abc import Callable

import torch
from torch import Tensor

from qwenlab.exercises import Cases, Exercise, random_numbers

EXERCISES: dict[str, Exercise] = {}

# --- decode-step: (logits, done, stop_ids, pad_id) -> input_ids (B, 1) int64, done (B,) bool ---


def _scores(rows: list[int]) -> Tensor:
    return torch.eye(10)[torch.tensor(rows)]  # logits (B, 10), each row highest at the id given


def _steps() -> Cases:
    # Both kinds of end in the first case, so that each mistake shows there in its own way.
    yield (
        "one row stops now, one was done before",
        (_scores([4, 9, 2, 5]), torch.tensor([False, False, False, True]), [9], 0),
    )
    yield "one row stops now", (_scores([4, 9, 2]), torch.tensor([False] * 3), [9], 0)
    yield (
        "two stop ids",
        (_scores([8, 9, 3, 8]), torch.tensor([False, False, False, True]), [9, 8], 0),
    )
    yield (
        "a pad id that is a stop id too",
        (_scores([7, 5]), torch.tensor([True, False]), [9, 7], 7),
    )
    draw = random.Random(7)
    for _ in range(20):
        rows = random_numbers(draw, 6, 9)
        done = torch.tensor([draw.random() < 0.3 for _ in rows])
        yield "random batches", (_scores(rows), done, draw.sample(range(1, 10), 3), 0)


def _step(ids: Callable, after: Callable) -> Callable:
    """A decode step that feeds ids(sampled, done, stops, pad_id); after(done, stops) is the new
    `done`."""

    def step(
        logits: Tensor, done: Tensor, stop_ids: list[int], pad_id: int
    ) -> tuple[Tensor, Tensor]:
        sampled = logits.argmax(-1)
        stops = _is_stop(sampled, stop_ids)
        return ids(sampled, done, stops, pad_id)[:, None], after(done, stops)

    return step


def _is_stop(ids: Tensor, stop_ids: list[int]) -> Tensor:
    return torch.isin(ids, torch.tensor(list(stop_ids), dtype=torch.int64))


def _pad(sampled: Tensor, done: Tensor, stops: Tensor, pad_id: int) -> Tensor:
    return sampled.masked_fill(done, pad_id)


def _pad_stops(sampled: Tensor, done: Tensor, stops: Tensor, pad_id: int) -> Tensor:
    return sampled.masked_fill(done | stops, pad_id)


def _bools(name: str, ndim: int) -> tuple[str, Callable]:
    """The rule that `name` is a bool tensor of so many dimensions."""
    each = "row: (B,)" if ndim == 1 else "token: (B, T)"
    hint = f"{name} is bool, with one answer for each {each}."
    return name, lambda value: hint if value.dtype != torch.bool or value.ndim != ndim else None


def _one_column(ids: Tensor) -> str | None:
    if ids.dtype == torch.bool:
        return "the two values are swapped: input_ids come first, then done."
    if ids.ndim != 2 or ids.shape[1] != 1:
        return (
            "the next call reads one new token per row: input_ids is (B, 1). argmax over the "
            "vocabulary gives (B,)."
        )


decode_step = _step(_pad, torch.logical_or)
_SET_HINT = "a row is done at any of the stop ids; you test only one. Qwen checkpoints have two."
_LIFE_HINT = "a row that was done comes back. Once done, always done: combine old and new."
_BOTH_HINT = (
    "`&` asks for both. A row is done if it was done before or stops now: combine them with `|`."
)
_TALK_HINT = "a row that was done keeps generating. Give it pad_id; nobody reads its output."
_ALL_HINT = "one finished row ends the whole batch. Each row has its own done."
_STOP_HINT = (
    "a row that stops now has just sampled its stop id. Only rows that were already done get "
    "pad_id."
)

EXERCISES["decode-step"] = Exercise(
    decode_step,
    results=("input_ids", "done"),
    cases=_steps,
    mistakes=(
        (
            lambda logits, done, stop_ids, pad: decode_step(logits, done, stop_ids[:1], pad),
            _SET_HINT,
        ),
        (_step(_pad, lambda done, stops: stops), _LIFE_HINT),
        (_step(_pad, torch.logical_and), _BOTH_HINT),
        (_step(lambda sampled, *_: sampled, torch.logical_or), _TALK_HINT),
        (_step(_pad_stops, torch.logical_or), _STOP_HINT),
        (
            lambda logits, done, stop_ids, pad: decode_step(logits, done, [pad], pad),
            "no row stops here. Test against all the stop ids, with torch.isin: `==` with a list "
            "is never True, and pad_id is not what ends a row.",
        ),
        (_step(_pad, lambda done, stops: (done | stops).any().repeat(len(done))), _ALL_HINT),
    ),
    rules=(("input_ids", _one_column), _bools("done", 1)),
)

# --- cut-at-stop: (token_ids (B, T), stop_ids) -> keep (B, T) bool, stopped (B,) bool ---


def _answers() -> Cases:
    yield (
        "stops inside, at the end and nowhere",
        (torch.tensor([[3, 4, 9, 0], [5, 9, 0, 9], [3, 4, 5, 6]]), [9]),
    )
    yield "two stop ids, the other one first", (torch.tensor([[3, 8, 4, 9], [9, 8, 4, 4]]), [9, 8])
    yield "a row that never stops", (torch.tensor([[3, 4, 5], [3, 9, 5]]), [9])
    yield "tokens after the stop", (torch.tensor([[3, 9, 4, 9, 5]]), [9])
    draw = random.Random(8)
    for _ in range(20):
        ids = torch.tensor(draw.choices(range(10), k=24))
        rows = ids.view(draw.choice([1, 3, 4]), -1)  # (B, T) with B * T = 24
        yield "random batches", (rows, draw.sample(range(10), 2))


def _cut(keep: Callable) -> Callable:
    """Keeps keep(stops), where stops (B, T) is True at every stop id."""

    def cut(token_ids: Tensor, stop_ids: list[int]) -> tuple[Tensor, Tensor]:
        stops = _is_stop(token_ids, stop_ids)
        return keep(stops), stops.any(1)

    return cut


def _until_last(stops: Tensor) -> Tensor:
    after = stops.flip(1).cumsum(1).flip(1)  # stop ids from here to the end of the row
    return (after > 0) & ~(stops & (after == 1)) | ~stops.any(1, keepdim=True)


def _until_shortest(stops: Tensor) -> Tensor:
    return (stops.cumsum(1) == 0).all(0).repeat(len(stops), 1)


def _before_argmax(stops: Tensor) -> Tensor:
    return torch.arange(stops.shape[1]) < stops.int().argmax(1, keepdim=True)


def _before_argmax_or_all(stops: Tensor) -> Tensor:
    first = stops.int().argmax(1, keepdim=True)
    return torch.arange(stops.shape[1]) < first.masked_fill(first == 0, stops.shape[1])


def _by_last_column(keep: Callable) -> Callable:
    """A cut that says of the last column only whether the row has stopped."""

    def cut(token_ids: Tensor, stop_ids: list[int]) -> tuple[Tensor, Tensor]:
        stops = _is_stop(token_ids, stop_ids)
        return keep(stops), stops[:, -1]

    return cut


cut_at_stop = _cut(lambda stops: stops.cumsum(1) == 0)

EXERCISES["cut-at-stop"] = Exercise(
    cut_at_stop,
    results=("keep", "stopped"),
    cases=_answers,
    mistakes=(
        (lambda token_ids, stop_ids: cut_at_stop(token_ids, stop_ids[:1]), _SET_HINT),
        (lambda token_ids, stop_ids: cut_at_stop(token_ids, stop_ids[-1:]), _SET_HINT),
        (
            _cut(lambda stops: stops.cumsum(1) > 0),
            "your keep is inverted: True marks what belongs to the answer.",
        ),
        (
            _cut(lambda stops: stops.cumsum(0) == 0),
            "you counted down the columns. Count along each row, dim=1.",
        ),
        (
            _cut(lambda stops: ~stops),
            "only the stop ids are gone. What follows the first one does not belong either.",
        ),
        (
            _cut(lambda stops: stops.cumsum(1) <= stops),
            "the stop id itself is still included. It is not part of the answer.",
        ),
        (
            _cut(lambda stops: stops.cumsum(1) <= 1),
            "you keep all that comes before the second stop id. Only before the first is the count "
            "0.",
        ),
        (
            _cut(_before_argmax_or_all),
            "a row may begin with a stop id: its answer is empty, and argmax is rightly 0. Ask "
            "`any` whether there is a stop id at all.",
        ),
        (
            _by_last_column(_before_argmax),
            "that is the version with both bugs. Look at the row that never stops, and at the one "
            "that goes on after its stop.",
        ),
        (
            _by_last_column(lambda stops: stops.cumsum(1) == 0),
            "keep is right, but stopped looks at the last column only. A row that stops early may "
            "go on to anything.",
        ),
        (
            _cut(_before_argmax),
            "a row that never stops has no first stop id, and argmax then returns 0. The whole "
            "row is its answer.",
        ),
        (
            lambda token_ids, stop_ids: (
                cut_at_stop(token_ids, stop_ids)[0],
                ~cut_at_stop(token_ids, stop_ids)[1],
            ),
            "stopped is inverted: it is True for a row that contains a stop id, wherever that is.",
        ),
        (_cut(_until_last), "you cut at the last stop id. The first one ends the answer."),
        (
            _cut(_until_shortest),
            "all rows are cut at the same column. Each row ends at its own stop id.",
        ),
    ),
    rules=(_bools("keep", 2), _bools("stopped", 1)),
)
