"""What many lessons do, in one place: ask the model, show its ids as text, compare a batch with
each prompt alone, and say which of two ways was faster.

All of it returns values and prints nothing: a cell prints what it wants to show.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

import torch

from qwenlab.bench.timing import Spread

if TYPE_CHECKING:
    from qwenlab.text.tokenizer import Tokenizer

SAME = "same as alone"
DIFFERENT = "DIFFERENT"


def ask(tokenizer: "Tokenizer", question: str, begun: str | None = None) -> list[int]:
    """Ids of a chat that asks `question`, ready for the answer.

    With `begun`, the model is already thinking, and this is the line that it has begun: it goes on
    from there, so that its next token is one of the answer's own.
    """
    chat = tokenizer.chat([{"role": "user", "content": question}])
    if begun is None:
        return chat
    return [*chat, tokenizer.control["<think>"], *tokenizer.encode("\n" + begun)]


def shown(tokenizer: "Tokenizer", ids: Sequence[int]) -> str:
    """Ids as text on one line: a new line is shown as ⏎."""
    return tokenizer.decode(list(ids)).replace("\n", "⏎")


def until_stop(ids: Iterable[int], stop_ids: Collection[int]) -> list[int]:
    """The ids before the first stop id; all of them where there is none."""
    kept = []
    for token_id in ids:
        if int(token_id) in stop_ids:
            break
        kept.append(int(token_id))
    return kept


def compare(
    tokenizer: "Tokenizer",
    names: Sequence[str],
    alone: Sequence[Sequence[int]],
    answers: Sequence[Sequence[int]],
    width: int = 60,
) -> str:
    """A text that says of each row whether its answer is the one that it gets alone, and shows the
    first `width` characters of both where it is not.

    names: what to call each row. Raises ValueError unless there are as many answers as names.
    """
    lines = []
    column = max(map(len, names), default=0)
    for name, lone, answer in zip(names, alone, answers, strict=True):
        same = list(lone) == list(answer)
        lines.append(f"{name:{column}}  {SAME if same else DIFFERENT}")
        if same:
            lines.append(f"    {shown(tokenizer, answer)[:width]}")
        else:
            lines.append(f"    alone  {shown(tokenizer, lone)[:width]}")
            lines.append(f"    here   {shown(tokenizer, answer)[:width]}")
    return "\n".join(lines)


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    """max|a - b| / max(1, max|b|): the largest difference, relative where values are large."""
    return ((a - b).abs().max() / b.abs().max().clamp(min=1)).item()


def speed_verdict(before: Sequence[float], after: Sequence[float]) -> str:
    """How fast `after` is beside `before`, in words that the measurement chose.

    before, after: seconds of the same work, one pair a repeat. The verdict goes by the spread of
    the ratios before/after: "3.2 times as fast (2.9 to 3.4)", "no clear difference: 1.02 times as
    fast (0.95 to 1.10)", "slower: 0.61 times as fast (0.55 to 0.66)".
    """
    ratios = [slow / fast for slow, fast in zip(before, after, strict=True)]
    spread = Spread.of(ratios)
    digits = 1 if spread.median >= 1.95 else 2
    told = f"{spread.median:.{digits}f} times as fast"
    told += f" ({spread.low:.{digits}f} to {spread.high:.{digits}f})"
    if spread.low > 1:
        return told
    if spread.high < 1:
        return f"slower: {told}"
    return f"no clear difference: {told}"
