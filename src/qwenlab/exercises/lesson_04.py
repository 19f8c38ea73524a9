"""The exercises of lesson 04: nan-rows and masked-softmax."""

import random
from collections.abc import Callable

import torch
from torch import Tensor

from qwenlab.engine.masks import combined_mask
from qwenlab.engine.padding import left_pad
from qwenlab.exercises import Cases, Exercise, random_numbers
from qwenlab.model.softmax import masked_softmax

EXERCISES: dict[str, Exercise] = {}

# --- nan-rows: attention_mask (B, T) bool -> (B, T) bool, True where a query sees nothing ---


def nan_rows(attention_mask: Tensor) -> Tensor:
    """The queries that see nothing under the combined mask: those before the first real token."""
    return ~combined_mask(attention_mask).any(-1)[:, 0]  # (B, 1, T, T) -> (B, T)


def _masks() -> Cases:
    yield (
        "pads inside and on each side",
        (torch.tensor([[True, False, True, False], [False, False, True, True]]),),
    )
    yield "pads on the left", (torch.tensor([[False, False, True, True], [True] * 4]),)
    yield "pads on the right", (torch.tensor([[True, True, False, False], [True] * 4]),)
    yield "a pad inside", (torch.tensor([[False, True, False, True]]),)
    yield "no pads", (torch.ones(2, 3, dtype=torch.bool),)
    yield "a row of pads only", (torch.tensor([[False] * 3, [True] * 3]),)
    draw = random.Random(6)
    for _ in range(20):
        count = draw.randint(1, 4)
        width = draw.randint(1, 7)
        real = [draw.random() < 0.5 for _ in range(count * width)]
        yield "random patterns", (torch.tensor(real).view(count, width),)  # (B, T)


def _bool_per_query(answer: Tensor) -> str | None:
    if answer.dtype != torch.bool:
        return "answer with bool: True = this query sees nothing."
    if answer.ndim != 2:
        return "one answer for each query: shape (B, T)."


EXERCISES["nan-rows"] = Exercise(
    nan_rows,
    results=("nan_rows",),
    cases=_masks,
    mistakes=(
        (
            lambda m: ~m,
            "not every pad: a pad on the right or inside still sees the real tokens before it.",
        ),
        (lambda m: m.cumsum(0) == 0, "you counted down the columns. Count along each row, dim=1."),
        (lambda m: ~nan_rows(m), "inverted: True means that the query sees nothing."),
        (
            lambda m: (~m).any(1, keepdim=True).expand(m.shape),
            "not the whole row: the others become NaN only one layer later.",
        ),
        (
            lambda m: (~m).cumsum(1) == 0,
            "you looked for the first pad. Look for the first real token.",
        ),
        (lambda m: m.cumsum(1) - m.long() == 0, "off by one: a query may see its own key."),
        (
            lambda m: nan_rows(m.flip(1)).flip(1),
            "wrong direction: a query sees what is before it, not after.",
        ),
        (
            lambda m: torch.arange(m.shape[1]) < m.int().argmax(1, keepdim=True),
            "a row of pads only has no first real token, and argmax then returns 0. None of its "
            "queries sees anything.",
        ),
        (
            torch.zeros_like,
            "you found none. A pad in front of its row's first real token sees nothing.",
        ),
    ),
    rules=(("nan_rows", _bool_per_query),),
)

# --- masked-softmax: (scores (..., Q, K), bias, float and broadcastable) -> weights (..., Q, K) ---
#     bias is added to the scores; -inf and the lowest number of its dtype hide. A query that sees
#     nothing gets zeros.


def _is_hidden(bias: Tensor) -> Tensor:
    return bias <= torch.finfo(bias.dtype).min


def biased_softmax(scores: Tensor, bias: Tensor) -> Tensor:
    biased = scores + bias.masked_fill(_is_hidden(bias), 0)
    hidden = _is_hidden(bias).expand(biased.shape)
    return masked_softmax(biased, ~hidden)


LOWEST = torch.finfo(torch.float32).min


def _as_bias(mask: Tensor, value: float) -> Tensor:
    return torch.zeros(mask.shape).masked_fill(~mask, value)


def _scores() -> Cases:
    noise = torch.Generator().manual_seed(7)
    scores = torch.tensor([[1.0, 2.0, 0.0], [3.0, 1.0, 2.0], [0.0, 2.0, 1.0]])
    hidden_first = torch.tensor([[False, False, False], [False, True, False], [False, True, True]])
    yield "-inf, and a query that sees nothing", (scores, _as_bias(hidden_first, -torch.inf))
    yield "the lowest number, and such a query", (scores, _as_bias(hidden_first, LOWEST))
    finite = torch.tensor([[0.0, -1.0, -2.0], [LOWEST, 0.0, -1.0], [LOWEST, LOWEST, 0.0]])
    yield "a finite bias", (scores, finite)
    everywhere = torch.tensor([[-1.0, -1.0, -2.0], [-9.0, -9.0, -10.0], [LOWEST, -5.0, -1.0]])
    yield "a finite bias on every key", (scores, everywhere)
    yield "all may be seen", (scores, torch.zeros(3, 3))
    large = torch.tensor([[300.0, 299.0, 0.0], [-300.0, -300.0, -301.0]])
    yield "scores of 300", (large, torch.zeros(1, 3))
    exact = scores.double()
    yield "double precision", (exact, torch.tensor([[0.0, 0.0, -torch.inf]]).double())
    yield (
        "a hidden score far above",
        (torch.tensor([[900.0, 2.0, 1.0]]), torch.tensor([[-torch.inf, 0.0, 0.0]])),
    )
    twice = _as_bias(torch.eye(3).bool(), LOWEST) + _as_bias(torch.ones(3, 3).triu().bool(), LOWEST)
    yield (
        "two masks added",
        (scores, twice.masked_fill(torch.tensor([[True], [False], [False]]), LOWEST)),
    )
    draw = random.Random(7)
    for _ in range(20):
        lengths = random_numbers(draw, 3, 5)
        mask = left_pad([[1] * length for length in lengths], 0)[1]
        queries = draw.randint(1, mask.shape[1])
        scores = 3 * torch.randn(len(mask), 2, queries, mask.shape[1], generator=noise)
        bias = _as_bias(combined_mask(mask, queries), draw.choice([-torch.inf, LOWEST]))
        yield "random batches", (scores, bias)


def _zeros_where(blind: Callable) -> Callable:
    """The softmax of the biased scores, with zeros in the rows that blind(bias) names."""

    def weights(scores: Tensor, bias: Tensor) -> Tensor:
        return (scores + bias).softmax(-1).masked_fill(blind(bias), 0)

    return weights


def _with_hidden(hidden: Callable, dim: int = -1) -> Callable:
    """A right softmax of the biased scores, but for what counts as hidden, and the dimension."""

    def weights(scores: Tensor, bias: Tensor) -> Tensor:
        biased = (scores + bias).masked_fill(hidden(bias), -torch.inf)
        return biased.softmax(dim).nan_to_num(0.0)

    return weights


def _by_hand(highest: Callable) -> Callable:
    def weights(scores: Tensor, bias: Tensor) -> Tensor:
        terms = (scores + bias - highest(scores)).exp()
        terms = terms.masked_fill(_is_hidden(bias), 0)
        return terms / terms.sum(-1, keepdim=True).clamp(min=torch.finfo(scores.dtype).tiny)

    return weights


def _larger_sum(scores: Tensor, bias: Tensor) -> Tensor:
    """Divides by a little more than the sum, so that a blind row is not 0 / 0."""
    weights = biased_softmax(scores, bias)
    biased = (scores + bias).masked_fill(_is_hidden(bias), -torch.inf)
    terms = biased - biased.amax(-1, keepdim=True)
    total = terms.nan_to_num(-torch.inf).exp().sum(-1, keepdim=True)
    return weights * total / (total + 1e-6)


def _bias_left_out(scores: Tensor, bias: Tensor) -> Tensor:
    return masked_softmax(scores, ~_is_hidden(bias).expand(scores.shape))


def _without_softmax(scores: Tensor, bias: Tensor) -> Tensor:
    """exp(score - maximum), not divided by the sum."""
    weights = biased_softmax(scores, bias)
    return weights / weights.amax(-1, keepdim=True).clamp(min=1e-30)


def _masked_afterwards(scores: Tensor, bias: Tensor) -> Tensor:
    return scores.softmax(-1).masked_fill(_is_hidden(bias), 0)


def _sees_itself(scores: Tensor, bias: Tensor) -> Tensor:
    biased = scores + bias.masked_fill(_is_hidden(bias), 0)
    return masked_softmax(biased, ~_is_hidden(bias).expand(biased.shape), "pads-see-themselves")


_AXIS = (
    "wrong axis: the weights of each query, over its keys, must add up to 1. That is the last "
    "dimension."
)

EXERCISES["masked-softmax"] = Exercise(
    biased_softmax,
    results=("weights",),
    cases=_scores,
    mistakes=(
        (
            lambda s, b: (s + b).softmax(-1).nan_to_num(0.0),
            "a row hidden by the lowest number is not NaN: its scores are all equal, so it became "
            "the mean of hidden keys. Ask the bias which rows are empty.",
        ),
        (
            lambda s, b: (s + b).softmax(-1),
            "a query that sees nothing is NaN: 0 / 0. Give it zeros.",
        ),
        (
            _with_hidden(lambda b: b < 0),
            "a bias of -1 only lowers a score. Hidden is -inf, or the lowest number of the dtype.",
        ),
        (
            _bias_left_out,
            "you used the bias only to tell what is hidden. A finite one is added to the score.",
        ),
        (
            _larger_sum,
            "you add a small number to the sum, so no row adds up to 1. Treat the rows that see "
            "nothing by themselves.",
        ),
        (_with_hidden(_is_hidden, -2), _AXIS),
        (lambda s, b: (s + b).softmax(-2), _AXIS),
        (
            _by_hand(lambda s: s.amax(-1, keepdim=True)),
            "you took the maximum over hidden keys too, and far below it every exp is 0. Take it "
            "over the visible keys.",
        ),
        (
            _by_hand(torch.amax),
            "one maximum for all rows: far below it every exp is 0. Take the maximum of each row.",
        ),
        (
            _zeros_where(lambda b: _is_hidden(b).any(-1, keepdim=True)),
            "zeros are for a query from which all keys are hidden, not for one that lacks some.",
        ),
        (
            _masked_afterwards,
            "you masked after the softmax, so the remaining weights do not add up to 1.",
        ),
        (
            _without_softmax,
            "exp is not the last step: divide by the row's sum, so that the weights add up to 1.",
        ),
        (lambda s, b: s.softmax(-1), "nothing is hidden: the bias is not used."),
        (
            _by_hand(torch.zeros_like),
            "exp of a large score is infinite. Subtract the maximum of the row first.",
        ),
        (_sees_itself, "a query that sees nothing attends to itself here. Give zeros."),
    ),
)
