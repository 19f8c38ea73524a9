"""Lesson 14: the exercise answer-mask."""

import random

import torch

from qwenlab.teach.checking import exercise

STOP, PAD = 91, 90

# --- answer-mask: (input_ids (B, T), prompts, lengths, pad_id) -> mask (B, T - 1) bool ---


def answer_mask(input_ids, prompts, lengths, pad_id):
    """Which targets input_ids[:, 1:] count: column j is token j + 1. From lengths alone, whatever the ids are."""
    token = torch.arange(1, input_ids.shape[1])  # (T - 1,)
    prompts, lengths = torch.tensor(prompts)[:, None], torch.tensor(lengths)[:, None]  # (B, 1)
    return (token >= prompts) & (token < lengths)


def _batch(*rows, pad_id=PAD):
    """rows: (prompt, answer) -> the arguments."""
    width = max(len(prompt) + len(answer) for prompt, answer in rows)
    ids = [[*prompt, *answer, *[pad_id] * (width - len(prompt) - len(answer))] for prompt, answer in rows]
    prompts = [len(prompt) for prompt, _ in rows]
    return torch.tensor(ids), prompts, [len(prompt) + len(answer) for prompt, answer in rows], pad_id


def _batches():
    yield "two rows", _batch(([1, 2], [3, 4, STOP]), ([5, 6, 7], [8, 9, 3, STOP]))
    yield "the stop id is the pad id", _batch(([1, 2], [3, 4, PAD]), ([5, 6, 7], [8, 9, 3, PAD]))
    yield "an answer cut off, without a stop", _batch(([1, 2, 3], [4, 5, 6]), ([7], [8, 9, 2, 3, STOP]))
    yield "the pad id within an answer", _batch(([1, PAD], [3, PAD, 4, STOP]), ([5], [6, 7, 8, 9, 2, 3, STOP]))
    draw = random.Random(14)
    for _ in range(20):
        row = lambda: [draw.choice([1, 2, 3, STOP, PAD]) for _ in range(draw.randint(1, 5))]  # noqa: E731
        yield "random rows", _batch(*((row(), row()) for _ in range(draw.randint(1, 4))))


def _unshifted(input_ids, prompts, lengths, pad_id):
    token = torch.arange(input_ids.shape[1])
    return ((token >= torch.tensor(prompts)[:, None]) & (token < torch.tensor(lengths)[:, None]))[:, :-1]


def _changed(prompt=0, length=0, ids=False):
    """Mistaken bounds; with `ids` a pad is known by its id."""

    def wrong(input_ids, prompts, lengths, pad_id):
        lengths = [input_ids.shape[1]] * len(lengths) if ids or length is None else [n + length for n in lengths]
        prompts = [1] * len(prompts) if prompt is None else [n + prompt for n in prompts]
        mask = answer_mask(input_ids, prompts, lengths, pad_id)
        return mask & (input_ids[:, 1:] != pad_id) if ids else mask

    return wrong


def _shape(value):
    if value.dtype != torch.bool:
        return "mask is of dtype bool: True where the target counts."
    return "mask has one column a target: T - 1 of them, since no token comes before the first." if value.ndim else None


exercise(
    "answer-mask",
    answer_mask,
    results=("mask",),
    cases=_batches,
    mistakes=(
        (_changed(ids=True), "a pad is not known by its id: an answer may end in that id, or hold it. Use lengths."),
        (_unshifted, "off by one. Column j of the targets is token j + 1, which the logits at j are asked for."),
        (_changed(prompt=None), "the prompt's tokens count too. The student would learn to write questions."),
        (_changed(prompt=None, length=None), "everything counts, prompts and pads. Only answers should."),
        (_changed(length=None), "the pads behind the answer count too."),
        (_changed(length=-1), "the answer's last token is missing. It is the stop id: unlearnt, nobody stops."),
        (_changed(prompt=1), "the answer's first token is missing. The prompt's last logits are asked for it."),
    ),
    rules=(("mask", _shape),),
)
