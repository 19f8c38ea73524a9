"""An exercise of lesson 10: prefill-tokens."""

import random

from qwenlab.teach.checking import exercise

# --- prefill-tokens: (lengths, common, n) -> tokens read apart, with answers sharing, with all sharing ---


def prefill_tokens(lengths, common, n):
    return _count(lengths, common, n, lambda tokens: tokens - 1 + n)


def _count(lengths, common, n, answers, times=1):
    """answers(T): tokens that n answers to T tokens read together. The common part is read so many times."""
    rests = [length - common for length in lengths]
    return n * sum(lengths), sum(map(answers, lengths)), times * common + sum(map(answers, rests))


def _lengths():
    yield "one prompt, one answer", ([9], 8, 1)
    yield "one prompt, four answers", ([9], 8, 4)
    yield "three prompts, one answer", ([9, 12, 7], 5, 1)
    yield "three prompts, four answers", ([9, 12, 7], 5, 4)
    yield "a prompt that is the beginning of another", ([6, 9], 5, 3)
    draw = random.Random(12)
    for _ in range(20):
        lengths = [draw.randint(1, 60) for _ in range(draw.randint(1, 5))]
        common = min(lengths) - 1 if len(lengths) == 1 else draw.randint(0, min(lengths) - 1)
        yield "random prompts", (lengths, common, draw.randint(1, 6))


def _changed(change):
    """The right counts after change(apart, answers, all, lengths, common, n)."""
    return lambda *given: change(*prefill_tokens(*given), *given)


def _less(answers, everybody, lengths, n):
    added = (len(lengths) - 1) * n
    return answers - added, everybody - added


def _rests_apart(apart, answers, everybody, lengths, common, n):
    return apart, answers, common + n * sum(length - common for length in lengths)


exercise(
    "prefill-tokens",
    prefill_tokens,
    results=("apart", "answers", "all"),
    cases=_lengths,
    mistakes=(
        (
            lambda lengths, common, n: _count(lengths, common, n, lambda tokens: tokens),
            "a copy has no logits. Each row reads its prompt's last token by itself: T - 1 once, and n.",
        ),
        (
            lambda lengths, common, n: _count(lengths, common, n, lambda tokens: tokens + n),
            "the last token is counted once too often: T - 1 tokens are shared, not T.",
        ),
        (
            lambda lengths, common, n: _count(lengths, common, n, lambda t: t - 1 + n, times=len(lengths)),
            "with all prompts sharing, the common part is read once, not once a prompt.",
        ),
        (_changed(_rests_apart), "behind the common part, the answers of a prompt still share what is left of it."),
        (
            _changed(lambda apart, answers, everybody, lengths, *_: (sum(lengths), answers, everybody)),
            "apart, each answer reads its own prompt: n times all lengths.",
        ),
        (
            _changed(lambda apart, answers, everybody, *_: (apart, everybody, answers)),
            "the order is apart, answers, all.",
        ),
        (
            _changed(lambda apart, answers, everybody, lengths, _, n: (apart, *_less(answers, everybody, lengths, n))),
            "you add n once. Each prompt has n rows of its own, and each of them reads a last token.",
        ),
    ),
    rules=(("answers", lambda _: "for each prompt: one row reads all but the last token, then n rows read one each."),),
)
