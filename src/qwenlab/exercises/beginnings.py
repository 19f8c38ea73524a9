"""Two of the exercises of lesson 08: common-prefix and repeat-rows."""

import random
from itertools import product, takewhile

import torch

from qwenlab.teach.checking import exercise

# --- common-prefix: (prompts) -> how many tokens can be read once for all ---


def _alike(prompts):
    return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, zip(*prompts, strict=False)))


def common_prefix(prompts):
    """What all begin with, but for the last token of the shortest at the latest."""
    return _alike([ids[:-1] for ids in prompts])


def _prompts():
    yield "prompts that part in the middle", ([[5, 6, 7, 8, 1], [5, 6, 9, 4, 1], [5, 6, 7, 9, 9]],)
    yield "nothing in common", ([[1, 2, 3, 5], [4, 3, 2, 6]],)
    yield "a prompt that is the beginning of another", ([[3, 4, 5], [3, 4, 5, 6, 7]],)
    yield "equal prompts", ([[3, 4, 5], [3, 4, 5]],)
    yield "the same id again after the parting", ([[1, 2, 3, 4, 5], [1, 9, 3, 4, 6]],)
    yield "the third prompt parts first", ([[1, 2, 3, 4], [1, 2, 3, 5], [1, 7, 3, 4]],)
    yield "a prompt of one token", ([[1, 2, 3], [1]],)
    yield "one prompt only", ([[4, 5, 6]],)
    draw = random.Random(10)
    for _ in range(20):
        common = draw.choices(range(9), k=draw.randint(0, 6))
        rests = [draw.choices(range(3), k=draw.randint(not common, 4)) for _ in range(draw.randint(1, 4))]
        yield "random prompts", ([common + rest for rest in rests],)


exercise(
    "common-prefix",
    common_prefix,
    results=("length",),
    cases=_prompts,
    mistakes=(
        (_alike, "somebody has no token left to read, and no logits then. Leave each prompt at least its last one."),
        (lambda prompts: max(0, _alike(prompts) - 1), "one token less is needed only where a prompt would be used up."),
        (
            lambda prompts: sum(len(set(c)) == 1 for c in zip(*[p[:-1] for p in prompts], strict=False)),
            "you count equal columns behind the parting too. A beginning ends at the first difference.",
        ),
        (lambda prompts: common_prefix(prompts[:2]), "you compare two of the prompts. All of them must agree."),
        (
            lambda prompts: common_prefix(prompts[:: max(1, len(prompts) - 1)]),
            "you compare the first and the last only.",
        ),
        (
            lambda prompts: len(set.intersection(*map(set, prompts))),
            "ids that all have are not a beginning: compare place by place.",
        ),
        (lambda prompts: min(map(len, prompts)) - 1, "so much would be possible by the lengths. Compare the ids, too."),
    ),
)

# --- repeat-rows: (rows (B, T), n) -> rows (B * n, T), prompt (B * n,), sample (B * n,) ---


def repeat_rows(rows, n):
    prompt, sample = _numbers(rows, n)
    return rows.repeat_interleave(n, 0), prompt, sample


def _numbers(rows, n):
    return torch.arange(len(rows)).repeat_interleave(n), torch.arange(n).repeat(len(rows))


def _rows():
    yield "two rows", (torch.tensor([[1, 2, 3], [4, 5, 6]]), 3)
    yield "one row", (torch.tensor([[4, 5, 6]]), 3)
    yield "one copy", (torch.tensor([[1, 2], [3, 4], [5, 6]]), 1)
    draw = random.Random(11)
    for _ in range(20):
        count, width = draw.randint(1, 4), draw.randint(1, 5)
        ids = draw.sample(range(40), count * width)
        yield "random rows", (torch.tensor(ids).view(count, width), draw.randint(1, 4))  # (B, T)


def _mixed(*results):
    """Mistakes: each result in its right way or a wrong one. A result is a list of (way, hint), the right way first.

    The hint is that of the first result that is wrong.
    """
    for chosen in list(product(*results))[1:]:
        ways, hints = zip(*chosen, strict=True)
        yield (lambda *given, ways=ways: tuple(way(*given) for way in ways), next(filter(None, hints)))


_BLOCKS = "the whole batch stands behind itself. The copies of one prompt belong together: row i*n+k is sample k of i."
_TOKENS = "you repeated tokens. Rows are dim 0."
_NUMBERS = "{} is (B * n,) int64, one number for each row of the result."
_SWAPPED = "prompt and sample are swapped: the prompt stays the same for n rows, the sample counts."

exercise(
    "repeat-rows",
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
                    "the rows are right, but the prompts' numbers do not go with them: each stays for n rows.",
                ),
                (lambda rows, n: torch.arange(len(rows)), _NUMBERS.format("prompt")),
            ],
            [
                (lambda rows, n: _numbers(rows, n)[1], None),
                (lambda rows, n: _numbers(rows, n)[0], _SWAPPED),
                (
                    lambda rows, n: torch.arange(len(rows) * n),
                    "sample counts from 0 again for each prompt. It is a place in the prompt's own n, not in all rows.",
                ),
                (
                    lambda rows, n: torch.arange(n).repeat_interleave(len(rows)),
                    "the samples of one prompt stand together: their numbers count from 0 to n - 1, then again.",
                ),
                (lambda rows, n: torch.arange(n), _NUMBERS.format("sample")),
            ],
        )
    ),
    rules=(
        ("rows", lambda rows: "rows is (B * n, T): one dimension for all copies." if rows.ndim != 2 else None),
        ("prompt", lambda p: _NUMBERS.format("prompt") if p.ndim != 1 or p.dtype != torch.int64 else None),
        ("sample", lambda s: _NUMBERS.format("sample") if s.ndim != 1 or s.dtype != torch.int64 else None),
    ),
)
