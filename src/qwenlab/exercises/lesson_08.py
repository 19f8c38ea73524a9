"""The exercises of lesson 08: common-prefix, repeat-rows and prefill-tokens."""

import random
from collections.abc import Callable, Iterator
from itertools import product, takewhile

import torch
from torch import Tensor

from qwenlab.exercises import Cases, Exercise, random_numbers

EXERCISES: dict[str, Exercise] = {}

# --- common-prefix: (prompts) -> how many tokens can be read once for all ---


def _alike(prompts: list[list[int]]) -> int:
    columns = zip(*prompts, strict=False)
    return len(list(takewhile(_agree, columns)))


def _agree(column: tuple[int, ...]) -> bool:
    return len(set(column)) == 1


def common_prefix(prompts: list[list[int]]) -> int:
    """The length of what all prompts begin with, less than that of the shortest prompt."""
    return _alike(_without_last(prompts))


def _without_last(prompts: list[list[int]]) -> list[list[int]]:
    return [ids[:-1] for ids in prompts]


def _prompts() -> Cases:
    yield (
        "prompts that diverge in the middle",
        ([[5, 6, 7, 8, 1], [5, 6, 9, 4, 1], [5, 6, 7, 9, 9]],),
    )
    yield "nothing in common", ([[1, 2, 3, 5], [4, 3, 2, 6]],)
    yield "a prompt that is a prefix of another", ([[3, 4, 5], [3, 4, 5, 6, 7]],)
    yield "equal prompts", ([[3, 4, 5], [3, 4, 5]],)
    yield "the same id again after diverging", ([[1, 2, 3, 4, 5], [1, 9, 3, 4, 6]],)
    yield "the third prompt diverges first", ([[1, 2, 3, 4], [1, 2, 3, 5], [1, 7, 3, 4]],)
    yield "a prompt of one token", ([[1, 2, 3], [1]],)
    yield "one prompt only", ([[4, 5, 6]],)
    draw = random.Random(10)
    for _ in range(20):
        common = draw.choices(range(9), k=draw.randint(0, 6))
        fewest = 0 if common else 1
        prompts = []
        for _ in range(draw.randint(1, 4)):
            prompts.append(common + draw.choices(range(3), k=draw.randint(fewest, 4)))
        yield "random prompts", (prompts,)


def _equal_columns(prompts: list[list[int]]) -> int:
    columns = zip(*_without_last(prompts), strict=False)
    return sum(map(_agree, columns))


def _zero_without_a_difference(prompts: list[list[int]]) -> int:
    length = _alike(prompts)
    return 0 if length == min(map(len, prompts)) else length


EXERCISES["common-prefix"] = Exercise(
    common_prefix,
    results=("length",),
    cases=_prompts,
    mistakes=(
        (
            _alike,
            "one prompt has no token left to read, and so no logits. Leave each prompt at least "
            "its last token.",
        ),
        (
            _zero_without_a_difference,
            "you return 0 where no column differs before the shortest prompt ends. All of it but "
            "its last token is in common then.",
        ),
        (
            lambda prompts: max(0, _alike(prompts) - 1),
            "subtract one token only where a prompt would otherwise be used up.",
        ),
        (
            _equal_columns,
            "you also count equal columns after the prompts diverge. A prefix ends at the first "
            "difference.",
        ),
        (
            lambda prompts: common_prefix(prompts[:2]),
            "you compare only two of the prompts. All of them must agree.",
        ),
        (
            lambda prompts: common_prefix(prompts[:: max(1, len(prompts) - 1)]),
            "you compare only the first and the last.",
        ),
        (
            lambda prompts: len(set.intersection(*map(set, prompts))),
            "ids that all prompts contain are not a prefix: compare position by position.",
        ),
        (
            lambda prompts: min(map(len, prompts)) - 1,
            "the lengths alone would allow that much. Compare the ids too.",
        ),
    ),
)

# --- repeat-rows: (rows (B, T), n) -> rows (B * n, T), prompt (B * n,), sample (B * n,) ---


def repeat_rows(rows: Tensor, n: int) -> tuple[Tensor, Tensor, Tensor]:
    prompt, sample = _numbers(rows, n)
    return rows.repeat_interleave(n, 0), prompt, sample


def _numbers(rows: Tensor, n: int) -> tuple[Tensor, Tensor]:
    return torch.arange(len(rows)).repeat_interleave(n), torch.arange(n).repeat(len(rows))


def _rows() -> Cases:
    yield "two rows", (torch.tensor([[1, 2, 3], [4, 5, 6]]), 3)
    yield "one row", (torch.tensor([[4, 5, 6]]), 3)
    yield "one copy", (torch.tensor([[1, 2], [3, 4], [5, 6]]), 1)
    draw = random.Random(11)
    for _ in range(20):
        count = draw.randint(1, 4)
        width = draw.randint(1, 5)
        ids = draw.sample(range(40), count * width)
        yield "random rows", (torch.tensor(ids).view(count, width), draw.randint(1, 4))  # (B, T)


def _mixed(*results: list) -> Iterator[tuple[Callable, str]]:
    """Mistakes: each result computed rightly or wrongly, and the hint of the first wrong one.

    A result is a list of (way, hint), the right way first.
    """
    for chosen in list(product(*results))[1:]:
        ways, hints = zip(*chosen, strict=True)
        yield (
            lambda *given, ways=ways: tuple(way(*given) for way in ways),
            next(filter(None, hints)),
        )


_BLOCKS = (
    "you repeated the batch as a whole. The copies of one prompt belong together: row i*n+k is "
    "sample k of i."
)
_TOKENS = "you repeated tokens. Rows are dim 0."
_NUMBERS = "{} is (B * n,) int64, one number for each row of the result."
_SWAPPED = "prompt and sample are swapped: the prompt stays the same for n rows."

EXERCISES["repeat-rows"] = Exercise(
    repeat_rows,
    results=("rows", "prompt", "sample"),
    cases=_rows,
    mistakes=tuple(
        _mixed(
            [
                (lambda rows, n: rows.repeat_interleave(n, 0), None),
                (lambda rows, n: rows.repeat(n, 1), _BLOCKS),
                (lambda rows, n: rows.repeat_interleave(n, 1), _TOKENS),
                (lambda rows, n: rows.repeat(1, n), _TOKENS),
            ],
            [
                (lambda rows, n: _numbers(rows, n)[0], None),
                (lambda rows, n: _numbers(rows, n)[1], _SWAPPED),
                (
                    lambda rows, n: torch.arange(len(rows)).repeat(n),
                    "the rows are right, but the prompts' numbers do not match them: repeat each "
                    "for n rows.",
                ),
                (
                    lambda rows, n: torch.arange(len(rows) * n) // len(rows),
                    "a prompt has n rows: divide by n, not by the number of prompts.",
                ),
                (lambda rows, n: torch.arange(len(rows)), _NUMBERS.format("prompt")),
            ],
            [
                (lambda rows, n: _numbers(rows, n)[1], None),
                (lambda rows, n: _numbers(rows, n)[0], _SWAPPED),
                (
                    lambda rows, n: torch.arange(len(rows) * n),
                    "sample starts from 0 again for each prompt: it numbers the n answers of one "
                    "prompt, not all rows.",
                ),
                (
                    lambda rows, n: torch.arange(n).repeat_interleave(len(rows)),
                    "the samples of one prompt are adjacent: their numbers run from 0 to n - 1, "
                    "then start again.",
                ),
                (lambda rows, n: torch.arange(n), _NUMBERS.format("sample")),
            ],
        )
    ),
    rules=(
        (
            "rows",
            lambda rows: (
                "rows is (B * n, T): one dimension for all copies." if rows.ndim != 2 else None
            ),
        ),
        (
            "prompt",
            lambda p: _NUMBERS.format("prompt") if p.ndim != 1 or p.dtype != torch.int64 else None,
        ),
        (
            "sample",
            lambda s: _NUMBERS.format("sample") if s.ndim != 1 or s.dtype != torch.int64 else None,
        ),
    ),
)

# --- prefill-tokens: (lengths, common, n) -> apart, answers, all: tokens prefilled ---


def prefill_tokens(lengths: list[int], common: int, n: int) -> tuple[int, int, int]:
    return n * sum(lengths), _answers(lengths, n), common + _answers(_rests(lengths, common), n)


def _answers(lengths: list[int], n: int) -> int:
    """Per prompt: one row reads all but the last token, then n rows read one each."""
    return sum(length - 1 + n for length in lengths)


def _rests(lengths: list[int], common: int) -> list[int]:
    return [length - common for length in lengths]


def _lengths() -> Cases:
    yield "one prompt, one answer", ([9], 8, 1)
    yield "one prompt, four answers", ([9], 8, 4)
    yield "three prompts, one answer", ([9, 12, 7], 5, 1)
    yield "three prompts, four answers", ([9, 12, 7], 5, 4)
    yield "a prompt that is a prefix of another", ([6, 9], 5, 3)
    draw = random.Random(12)
    for _ in range(20):
        lengths = random_numbers(draw, 5, 60)
        common = min(lengths) - 1 if len(lengths) == 1 else draw.randint(0, min(lengths) - 1)
        yield "random prompts", (lengths, common, draw.randint(1, 6))


def _changed(change: Callable) -> Callable:
    """The right counts after change(apart, answers, all, lengths, common, n)."""
    return lambda *given: change(*prefill_tokens(*given), *given)


def _padded(lengths: list[int], common: int, n: int) -> int:
    return n * len(lengths) * max(lengths)


def _shared(wrong: Callable, hint: str) -> Iterator[tuple[Callable, str]]:
    """Mistakes that use wrong(lengths, n) for both shared counts, then for each of them alone."""

    def within_all(lengths: list[int], common: int, n: int) -> int:
        return common + wrong(_rests(lengths, common), n)

    def both(lengths: list[int], common: int, n: int) -> tuple[int, int, int]:
        return n * sum(lengths), wrong(lengths, n), within_all(lengths, common, n)

    def only_answers(lengths: list[int], common: int, n: int) -> tuple[int, int, int]:
        apart, _, everybody = prefill_tokens(lengths, common, n)
        return apart, wrong(lengths, n), everybody

    yield both, hint
    yield only_answers, hint
    yield _all(within_all), hint


def _all(wrong: Callable) -> Callable:
    """wrong(lengths, common, n): tokens read with all prompts sharing."""
    return _changed(lambda apart, answers, everybody, *given: (apart, answers, wrong(*given)))


_LOGITS = (
    "a copied state has no logits. Each row reads its prompt's last token: T - 1 once, plus n."
)
_TWICE = "the last token is counted once too often: T - 1 tokens are shared, not T."
_ONCE = "you add n once. Each prompt has n rows of its own, and each of them reads a last token."
_ORDER = "the order is apart, answers, all."

EXERCISES["prefill-tokens"] = Exercise(
    prefill_tokens,
    results=("apart", "answers", "all"),
    cases=_lengths,
    mistakes=(
        *_shared(lambda lengths, n: sum(lengths), _LOGITS),
        *_shared(lambda lengths, n: _answers(lengths, 0), _LOGITS),
        *_shared(lambda lengths, n: _answers(lengths, n + 1), _TWICE),
        (
            _all(
                lambda lengths, common, n: (
                    common * len(lengths) + _answers(_rests(lengths, common), n)
                )
            ),
            "where all prompts share, the common prefix is read once, not once per prompt.",
        ),
        (
            _all(lambda lengths, common, n: common + n * sum(_rests(lengths, common))),
            "after the common prefix, the answers to a prompt still share the rest of it.",
        ),
        (
            _all(lambda lengths, common, n: _answers(_rests(lengths, common), n)),
            "where all prompts share, the common prefix must be read too: once.",
        ),
        (
            _all(lambda lengths, common, n: common + _answers(lengths, n)),
            "after the common prefix only T - common tokens of a prompt are left.",
        ),
        (
            _changed(
                lambda apart, answers, everybody, lengths, *_: (sum(lengths), answers, everybody)
            ),
            "apart, each answer reads its prompt for itself: n times all lengths.",
        ),
        (
            _changed(
                lambda apart, *both_and_given: (_padded(*both_and_given[2:]), *both_and_given[:2])
            ),
            "pads are not prompt tokens: add up the lengths as they are.",
        ),
        (_changed(lambda apart, answers, everybody, *_: (apart, everybody, answers)), _ORDER),
        (lambda *given: prefill_tokens(*given)[::-1], _ORDER),
        *_shared(lambda lengths, n: _answers(lengths, 0) + n, _ONCE),
    ),
    rules=(
        (
            "answers",
            lambda _: (
                "for each prompt: one row reads all but the last token, then n rows read one each."
            ),
        ),
    ),
)
