"""An exercise of lesson 08: prefill-tokens."""

import random

from qwenlab.teach.checking import exercise

# --- prefill-tokens: (lengths, common, n) -> tokens read apart, with answers sharing, with all sharing ---


def prefill_tokens(lengths, common, n):
    return n * sum(lengths), _answers(lengths, n), common + _answers(_rests(lengths, common), n)


def _answers(lengths, n):
    """Per prompt: one row reads all but the last token, then n rows read one each."""
    return sum(length - 1 + n for length in lengths)


def _rests(lengths, common):
    return [length - common for length in lengths]


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


def _padded(lengths, common, n):
    return n * len(lengths) * max(lengths)


def _shared(wrong):
    """wrong(lengths, n), tokens that answers share, used where they share, where all share, and in both."""
    yield lambda lengths, common, n: (
        n * sum(lengths),
        wrong(lengths, n),
        common + wrong(_rests(lengths, common), n),
    )
    yield _changed(lambda apart, answers, everybody, lengths, common, n: (apart, wrong(lengths, n), everybody))
    yield _changed(
        lambda apart, answers, everybody, lengths, common, n: (
            apart,
            answers,
            common + wrong(_rests(lengths, common), n),
        )
    )


def _all(wrong):
    """wrong(lengths, common, n): tokens read with all prompts sharing."""
    return _changed(lambda apart, answers, everybody, *given: (apart, answers, wrong(*given)))


_LOGITS = "a copy has no logits. Each row reads its prompt's last token by itself: T - 1 once, and n."
_TWICE = "the last token is counted once too often: T - 1 tokens are shared, not T."
_ONCE = "you add n once. Each prompt has n rows of its own, and each of them reads a last token."
_ORDER = "the order is apart, answers, all."

exercise(
    "prefill-tokens",
    prefill_tokens,
    results=("apart", "answers", "all"),
    cases=_lengths,
    mistakes=(
        *((wrong, _LOGITS) for wrong in _shared(lambda lengths, n: sum(lengths))),
        *((wrong, _LOGITS) for wrong in _shared(lambda lengths, n: _answers(lengths, 0))),
        *((wrong, _TWICE) for wrong in _shared(lambda lengths, n: _answers(lengths, n + 1))),
        (
            _all(lambda lengths, common, n: common * len(lengths) + _answers(_rests(lengths, common), n)),
            "with all prompts sharing, the common part is read once, not once a prompt.",
        ),
        (
            _all(lambda lengths, common, n: common + n * sum(_rests(lengths, common))),
            "behind the common part, the answers of a prompt still share what is left of it.",
        ),
        (
            _all(lambda lengths, common, n: _answers(_rests(lengths, common), n)),
            "with all prompts sharing, somebody must read the common part, too: once.",
        ),
        (
            _all(lambda lengths, common, n: common + _answers(lengths, n)),
            "behind the common part only T - common tokens are left of a prompt.",
        ),
        (
            _changed(lambda apart, answers, everybody, lengths, *_: (sum(lengths), answers, everybody)),
            "apart, each answer reads its own prompt: n times all lengths.",
        ),
        (
            _changed(lambda apart, *both_and_given: (_padded(*both_and_given[2:]), *both_and_given[:2])),
            "pads are no tokens of a prompt: add up the lengths as they are.",
        ),
        (_changed(lambda apart, answers, everybody, *_: (apart, everybody, answers)), _ORDER),
        (lambda *given: prefill_tokens(*given)[::-1], _ORDER),
        *((wrong, _ONCE) for wrong in _shared(lambda lengths, n: _answers(lengths, 0) + n)),
    ),
    rules=(("answers", lambda _: "for each prompt: one row reads all but the last token, then n rows read one each."),),
)
