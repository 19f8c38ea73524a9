"""Wrong answers to the exercises of lessons 03 and 04, as readers write them, each with a word of the hint it gets."""

import math

import torch

from qwenlab import combined_mask

# --- cached-mask: (queries, keys) -> (Q, K) bool ---


def anchored_top_left(queries, keys):
    return torch.ones(queries, keys).tril().bool()


def one_short(queries, keys):
    return torch.arange(keys)[None] < torch.arange(keys - queries, keys)[:, None]


def one_too_far(queries, keys):
    return torch.arange(keys)[None] <= torch.arange(keys - queries, keys)[:, None] + 1


def true_hides(queries, keys):
    return torch.ones(queries, keys, dtype=torch.bool).triu(keys - queries + 1)


def keys_first(queries, keys):
    return torch.arange(keys)[:, None] <= torch.arange(keys - queries, keys)[None]


def whole_square(queries, keys):
    return torch.ones(keys, keys, dtype=torch.bool).tril()


def moved_by_queries(queries, keys):
    return torch.ones(queries, keys).tril(queries).bool()


def everything(queries, keys):
    return torch.full((queries, keys), True)


def as_numbers(queries, keys):
    return torch.ones(queries, keys).tril(keys - queries)


def minus_infinity(queries, keys):
    return torch.full((queries, keys), -math.inf).triu(keys - queries + 1)


# --- combined-mask: (attention_mask (B, K) bool, queries) -> (B, 1, Q, K) bool ---


def causal(mask, queries):
    keys = mask.shape[1]
    return torch.arange(keys)[None] <= torch.arange(keys - queries, keys)[:, None]


def transposed(mask, queries):
    return combined_mask(mask, queries).transpose(2, 3)


def padding_on_queries(mask, queries):
    return causal(mask, queries)[None, None] & mask[:, None, :, None][:, :, -queries:]


def hides_where_true(mask, queries):
    return ~(causal(mask, queries)[None, None] & mask[:, None, None])


def top_left_and_padding(mask, queries):
    return torch.ones(queries, mask.shape[1], dtype=torch.bool).tril() & mask[:, None, None]


def square_with_padding(mask, queries):
    return combined_mask(mask)


def no_head_dimension(mask, queries):
    return causal(mask, queries) & mask[:, None]


def float_mask(mask, queries):
    return torch.zeros(len(mask), 1, queries, mask.shape[1]).masked_fill(~combined_mask(mask, queries), -math.inf)


def zeros_and_ones(mask, queries):
    return combined_mask(mask, queries).long()


def order_only(mask, queries):
    return causal(mask, queries).expand(len(mask), 1, -1, -1)


def padding_on_both(mask, queries):
    return (combined_mask(mask) & mask[:, None, :, None])[:, :, -queries:]


def padding_only(mask, queries):
    return mask[:, None, None].expand(-1, 1, queries, -1)


def either_allows(mask, queries):
    return causal(mask, queries)[None, None] | mask[:, None, None]


# --- nan-rows: attention_mask (B, T) -> (B, T) bool ---


def every_pad(mask):
    return ~mask


def sees_something(mask):
    return combined_mask(mask).any(-1).squeeze(1)


def whole_rows(mask):
    return (~mask).any(1)[:, None].repeat(1, mask.shape[1])


def first_real_too(mask):
    return mask.long().cumsum(1) <= mask.long()


def from_the_right(mask):
    return mask.flip(1).cumsum(1).flip(1) == 0


def none_found(mask):
    return torch.full(mask.shape, False)


def down_the_columns(mask):
    return mask.long().cumsum(0) < 1


def counted(mask):
    return (mask.cumsum(1) == 0).int()


def before_the_first(mask):
    return torch.arange(mask.shape[1])[None] < mask.byte().argmax(1)[:, None]


def per_row(mask):
    return ~mask[:, 0]


# --- masked-softmax: (scores, mask) -> weights ---


def textbook(scores, mask):
    return torch.softmax(scores.masked_fill(~mask, -math.inf), dim=-1)


def over_queries(scores, mask):
    return torch.softmax(scores.masked_fill(~mask, -math.inf), dim=-2)


def minus_a_billion(scores, mask):
    return torch.softmax(torch.where(mask, scores, torch.tensor(-1e9)), dim=-1)


def finfo_min(scores, mask):
    return torch.softmax(scores.masked_fill(~mask, torch.finfo(scores.dtype).min), dim=-1)


def masked_afterwards(scores, mask):
    return torch.softmax(scores, dim=-1).masked_fill(~mask, 0.0)


def scores_times_mask(scores, mask):
    return torch.softmax(scores * mask, dim=-1)


def no_maximum(scores, mask):
    terms = torch.exp(scores) * mask
    return terms / terms.sum(-1, keepdim=True).clamp(min=1e-30)


def maximum_over_all(scores, mask):
    terms = torch.exp(scores - scores.max(-1, keepdim=True).values) * mask
    return terms / terms.sum(-1, keepdim=True).clamp(min=1e-30)


def not_divided(scores, mask):
    highest = torch.where(mask, scores, -torch.inf).max(-1, keepdim=True).values
    return torch.where(mask, torch.exp(scores - highest), 0.0)


def one_maximum(scores, mask):
    terms = torch.exp(scores - scores.max()) * mask
    return terms / (terms.sum(-1, keepdim=True) + 1e-9)


def ignores_the_mask(scores, mask):
    return torch.softmax(scores, dim=-1)


WRONG = {
    "cached-mask": {
        anchored_top_left: "anchored top-left",
        one_short: "stops one short",
        one_too_far: "one key after themselves",
        true_hides: "inverted",
        keys_first: "transposed",
        whole_square: "the whole square",
        moved_by_queries: "not queries",
        everything: "nothing is hidden",
        as_numbers: "a mask is bool",
        minus_infinity: "float mask",
    },
    "combined-mask": {
        transposed: "transposed",
        padding_on_queries: "padding on the queries",
        hides_where_true: "mask is inverted",
        top_left_and_padding: "anchored top-left",
        square_with_padding: "the whole square",
        no_head_dimension: "dimension for the heads",
        float_mask: "float mask",
        zeros_and_ones: "a mask is bool",
        order_only: "pads can be seen",
        padding_on_both: "on the queries too",
        padding_only: "pads are hidden",
        either_allows: "ONE of the two",
    },
    "nan-rows": {
        every_pad: "not every pad",
        sees_something: "inverted",
        whole_rows: "not the whole row",
        first_real_too: "off by one",
        from_the_right: "wrong direction",
        none_found: "you find none",
        down_the_columns: "down the columns",
        counted: "answer with bool",
        before_the_first: "argmax",
        per_row: "shape (B, T)",
    },
    "masked-softmax": {
        textbook: "0 / 0",
        over_queries: "wrong axis",
        minus_a_billion: "mean of hidden keys",
        masked_afterwards: "after the softmax",
        scores_times_mask: "is not hidden",
        no_maximum: "Subtract the maximum",
        maximum_over_all: "over hidden keys too",
        not_divided: "divide by the sum",
        one_maximum: "one maximum for all",
        ignores_the_mask: "the mask is not used",
    },
}
