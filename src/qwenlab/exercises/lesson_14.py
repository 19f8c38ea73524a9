"""The exercises of lesson 14: answer-mask, truncate and token-mean."""

import random
from collections.abc import Callable

import torch
from torch import Tensor

from qwenlab.engine.padding import right_pad
from qwenlab.exercises import Cases, Exercise

EXERCISES: dict[str, Exercise] = {}

STOP = 91
PAD = 90

Trace = tuple[list[int], list[int], bool]  # prompt, answer, whether its teacher finished it

# --- answer-mask: (input_ids (B, T), prompts, lengths, pad_id) -> mask (B, T - 1) bool ---


def answer_mask(input_ids: Tensor, prompts: list[int], lengths: list[int], pad_id: int) -> Tensor:
    """Which targets input_ids[:, 1:] count, by lengths alone: column j is token j + 1."""
    token = torch.arange(1, input_ids.shape[1])  # (T - 1,)
    start = torch.tensor(prompts)[:, None]  # (B, 1)
    end = torch.tensor(lengths)[:, None]  # (B, 1)
    return (token >= start) & (token < end)


def _batch(
    *rows: tuple[list[int], list[int]], pad_id: int = PAD
) -> tuple[Tensor, list[int], list[int], int]:
    """rows: (prompt, answer) -> the arguments."""
    prompts = []
    ids = []
    for prompt, answer in rows:
        prompts.append(len(prompt))
        ids.append(prompt + answer)
    return right_pad(ids, pad_id), prompts, list(map(len, ids)), pad_id


def _batches() -> Cases:
    yield "two rows", _batch(([1, 2], [3, 4, STOP]), ([5, 6, 7], [8, 9, 3, STOP]))
    yield "the stop id is the pad id", _batch(([1, 2], [3, 4, PAD]), ([5, 6, 7], [8, 9, 3, PAD]))
    yield (
        "an answer cut off, without a stop",
        _batch(([1, 2, 3], [4, 5, 6]), ([7], [8, 9, 2, 3, STOP])),
    )
    yield (
        "the pad id within an answer",
        _batch(([1, PAD], [3, PAD, 4, STOP]), ([5], [6, 7, 8, 9, 2, 3, STOP])),
    )
    draw = random.Random(14)

    def some() -> list[int]:
        return draw.choices([1, 2, 3, STOP, PAD], k=draw.randint(1, 5))

    for _ in range(20):
        rows = [(some(), some()) for _ in range(draw.randint(1, 4))]
        yield "random rows", _batch(*rows)


def _unshifted(input_ids: Tensor, prompts: list[int], lengths: list[int], pad_id: int) -> Tensor:
    token = torch.arange(input_ids.shape[1])
    start = torch.tensor(prompts)[:, None]
    end = torch.tensor(lengths)[:, None]
    return ((token >= start) & (token < end))[:, :-1]


def _changed(prompt: int | None = 0, length: int | None = 0, ids: bool = False) -> Callable:
    """Bounds shifted by so much, or ignored (None). With `ids`, pads are found by their id."""

    def wrong(input_ids: Tensor, prompts: list[int], lengths: list[int], pad_id: int) -> Tensor:
        starts = [1 if prompt is None else n + prompt for n in prompts]
        width = input_ids.shape[1]
        ends = [width if ids or length is None else n + length for n in lengths]
        mask = answer_mask(input_ids, starts, ends, pad_id)
        return mask & (input_ids[:, 1:] != pad_id) if ids else mask

    return wrong


def _a_column_per_token(
    input_ids: Tensor, prompts: list[int], lengths: list[int], pad_id: int
) -> Tensor:
    mask = answer_mask(input_ids, prompts, lengths, pad_id)
    return torch.cat([torch.zeros(len(mask), 1, dtype=torch.bool), mask], 1)


def _bool(value: Tensor) -> str | None:
    if value.dtype != torch.bool:
        return "mask is of dtype bool: True where the target counts."


EXERCISES["answer-mask"] = Exercise(
    answer_mask,
    results=("mask",),
    cases=_batches,
    mistakes=(
        (
            _changed(ids=True),
            "you find pads by their id, but an answer may contain that id. Use lengths.",
        ),
        (
            _unshifted,
            "off by one. Column j of the targets is token j + 1, which the logits at j predict.",
        ),
        (
            _changed(prompt=None),
            "the prompt's tokens count too. The student would learn to write questions.",
        ),
        (
            _changed(prompt=None, length=None),
            "everything counts, prompts and pads. Only answers should.",
        ),
        (_changed(length=None), "the pads after the answer count too."),
        (
            _a_column_per_token,
            "mask has one column per target: T - 1 of them, as nothing predicts the first token.",
        ),
        (
            lambda *given: ~answer_mask(*given),
            "your mask is inverted: True marks the targets that count.",
        ),
        (
            _changed(prompt=-1, length=-1),
            "shifted twice: column j of the targets is already token j + 1, so compare that with "
            "the lengths as they are.",
        ),
        (
            _changed(length=-1),
            "the answer's last token is missing. It is the stop id, which the student must learn.",
        ),
        (
            _changed(prompt=1),
            "the answer's first token is missing. The prompt's last logits predict it.",
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
            _ways(_right, drops=lambda p, ids: False),
            "you kept a row without any token of its answer. Its mean is 0/0.",
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

# --- token-mean: (losses, masks), a pair (B, T) for each micro-batch -> parts (N,) ---


def token_mean(losses: list[Tensor], masks: list[Tensor]) -> Tensor:
    """What each micro-batch contributes to the mean over all tokens that count."""
    total = _count(masks)
    return _each(lambda loss, mask, _: loss[mask].sum() / total)(losses, masks)


def _count(masks: list[Tensor]) -> int:
    return sum(int(mask.sum()) for mask in masks)


def _micro_batches() -> Cases:
    def one(loss: int, width: int, real: int) -> tuple[Tensor, Tensor]:
        return torch.full((1, width), float(loss)), torch.arange(width)[None] < real

    def split(*pairs: tuple[Tensor, Tensor]) -> list[list[Tensor]]:
        return list(map(list, zip(*pairs, strict=True)))

    yield "1 token of loss 4, 3 tokens of loss 1", tuple(split(one(4, 1, 1), one(1, 3, 3)))
    yield "1 token of loss 4, 3 tokens of loss 0", tuple(split(one(4, 1, 1), one(0, 3, 3)))
    yield "pads beside the tokens", tuple(split(one(2, 4, 1), one(1, 5, 5)))
    yield "a micro-batch where nothing counts", tuple(split(one(3, 2, 2), one(5, 3, 0)))
    draw = random.Random(16)
    source = torch.Generator().manual_seed(16)
    for _ in range(20):
        shapes = [(draw.randint(1, 3), draw.randint(2, 5)) for _ in range(draw.randint(2, 4))]
        losses = [torch.rand(shape, generator=source) for shape in shapes]
        masks = [torch.rand(shape, generator=source) < 0.6 for shape in shapes]
        masks[0][0, 0] = True
        yield "random micro-batches", (losses, masks)


def _each(part: Callable) -> Callable:
    """A mistaken part: part(loss, mask, masks)."""

    def parts(losses: list[Tensor], masks: list[Tensor]) -> Tensor:
        pairs = zip(losses, masks, strict=True)
        return torch.stack([part(loss, mask, masks) for loss, mask in pairs])

    return parts


def _own(loss: Tensor, mask: Tensor) -> Tensor:
    return loss[mask].sum() / mask.sum().clamp(min=1)


EXERCISES["token-mean"] = Exercise(
    token_mean,
    results=("parts",),
    cases=_micro_batches,
    mistakes=(
        (
            _each(lambda loss, mask, masks: _own(loss, mask) / len(masks)),
            "that is the mean of the means: a token in a small micro-batch counts for more than "
            "one in a large one.",
        ),
        (
            _each(lambda loss, mask, masks: _own(loss, mask)),
            "each part is a mean of its own: N of them add up to about N times too much.",
        ),
        (
            _each(lambda loss, mask, masks: loss[mask].sum()),
            "these are sums. Divide by the number of tokens that count in all micro-batches.",
        ),
        (
            _each(lambda loss, mask, masks: loss[mask].sum() / sum(map(len, masks))),
            "you divide by rows. Long answers then make a larger loss.",
        ),
        (
            _each(lambda loss, mask, masks: loss[mask].sum() / sum(one.numel() for one in masks)),
            "you divide by all positions, including those that do not count.",
        ),
        (
            _each(lambda loss, mask, masks: loss.sum() / _count(masks)),
            "your sum includes the losses of positions that do not count.",
        ),
    ),
    rules=(
        (
            "parts",
            lambda value: (
                "0/0 is NaN: a micro-batch where nothing counts adds 0."
                if value.isnan().any()
                else None
            ),
        ),
        (
            "parts",
            lambda value: (
                "parts has one number per micro-batch: (N,)." if value.ndim != 1 else None
            ),
        ),
    ),
)
