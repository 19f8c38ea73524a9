"""Wrong answers that no known mistake of an exercise foresees, with a word of their hints.

The known mistakes themselves stand beside the exercises, in `qwenlab.exercises`, and are tried from
there. These here break a rule (a type, a shape), or give the same as a mistake only where they
first fail. Each stands in one place: test_exercises.py sees to that.
"""

import torch

from qwenlab import combined_mask, left_pad, position_ids
from qwenlab.exercises.lesson_01 import bytes_per_step
from qwenlab.exercises.lesson_03 import packed_mask
from qwenlab.exercises.lesson_05 import cut_at_stop, decode_step
from qwenlab.exercises.lesson_06 import scatter_back, survivors
from qwenlab.exercises.lesson_08 import prefill_tokens, repeat_rows
from qwenlab.exercises.lesson_09 import delta_step, state_bytes
from qwenlab.exercises.lesson_11 import last_box
from qwenlab.exercises.lesson_13 import average_loss, completion_mask, silent_groups
from qwenlab.exercises.lesson_14 import part_factors, turn_mask
from qwenlab.exercises.lesson_15 import batch_bytes
from qwenlab.exercises.lesson_16 import may_flip

# --- Lesson 01 ---


def two_matrices_in_the_mlp(config, rows, context, size):
    matrix = config["hidden_size"] * config["intermediate_size"]
    right = bytes_per_step(config, rows, context, size)
    return right - size * config["num_hidden_layers"] * matrix


# --- Lesson 02 ---


def a_mask_of_integers(sequences, pad_id):
    ids, mask = left_pad(sequences, pad_id)
    return ids, mask.long()


def positions_as_floats(mask):
    return position_ids(mask).float()


# --- Lesson 03 ---


def without_heads(mask, queries):
    return combined_mask(mask, queries)[:, 0]


def zeros_and_ones(mask, queries):
    return combined_mask(mask, queries).long()


def packed_without_heads(text_ids):
    return packed_mask(text_ids)[:, 0]


def packed_zeros_and_ones(text_ids):
    return packed_mask(text_ids).long()


# --- Lesson 04 ---


def counted(mask):
    return (mask.cumsum(1) == 0).int()


def one_answer_a_row(mask):
    return ~mask[:, 0]


def one_maximum(scores, bias):
    terms = torch.exp(scores + bias - scores.max()) * (bias > torch.finfo(bias.dtype).min)
    return terms / (terms.sum(-1, keepdim=True) + 1e-9)


# --- Lesson 05 ---


def flat(*given):
    ids, done = decode_step(*given)
    return ids[:, 0], done


def done_first(*given):
    ids, done = decode_step(*given)
    return done, ids


def done_as_a_column(*given):
    ids, done = decode_step(*given)
    return ids, done[:, None]


def keep_as_numbers(token_ids, stop_ids):
    keep, stopped = cut_at_stop(token_ids, stop_ids)
    return keep.long(), stopped


def one_stopped_for_all(token_ids, stop_ids):
    keep, stopped = cut_at_stop(token_ids, stop_ids)
    return keep, stopped.any()


# --- Lesson 06 ---


def a_mask(rows, done):
    return ~done, rows[~done]


def a_column(rows, done):
    return (~done).nonzero(), rows[~done]


def empty_without_dtype(rows, done):
    keep = [place for place, one in enumerate(done.tolist()) if not one]
    return torch.tensor(keep), rows[~done]


def squeezed(rows, done):
    keep = survivors(rows, done)[0].squeeze()
    return keep, rows[keep]


def narrow(rows, done):
    keep, left = survivors(rows, done)
    return keep.int(), left.int()


def sampled_as_floats(*given):
    return scatter_back(*given).float()


def sampled_as_a_column(*given):
    return scatter_back(*given)[:, None]


# --- Lesson 08 ---


def three_dimensions(rows, n):
    repeated, prompt, sample = repeat_rows(rows, n)
    return repeated.view(len(rows), n, -1), prompt, sample


def prompt_as_a_column(rows, n):
    repeated, prompt, sample = repeat_rows(rows, n)
    return repeated, prompt[:, None], sample


def last_token_once(lengths, common, n):
    apart, _, everybody = prefill_tokens(lengths, common, n)
    return apart, sum(lengths) - 1 + n, everybody


# --- Lesson 09 ---


def by_columns(q, k, v, decay, beta, memory):
    memory = decay[:, None, None] * memory
    gap = beta[:, None] * (v - (memory @ k[:, :, None])[:, :, 0])
    memory = memory + gap[:, :, None] * k[:, None, :]
    return memory, (memory @ q[:, :, None])[:, :, 0]


def outer_product_the_wrong_way_round(q, k, v, decay, beta, memory):
    faded = decay[:, None, None] * memory
    written = delta_step(q, k, v, decay, beta, memory)[0] - faded
    memory = faded + written.mT
    return memory, (q[:, None] @ memory)[:, 0]


def one_token_more(config, tokens, size):
    return state_bytes(config, tokens + 1, size)


# --- Lesson 10 ---


def only_beta_multiplied(g, beta, real):
    return g, beta * real[:, :, None]


def rows_joined_into_one(window, inputs, real):
    return inputs[real][-window.shape[1] :]


def counted_in_floats(lengths, real):
    positions = lengths[:, None] + real.float().cumsum(1) - 1
    return positions.masked_fill(~real, 0), lengths + real.sum(1)


# --- Lesson 11 ---


def keeps_an_open_box(text):
    return last_box(text) or text.rpartition("\\boxed{")[2].strip("} ")


def with_the_box_itself(text):
    held = last_box(text)
    return f"\\boxed{{{held}}}" if held else ""


# --- Lesson 13 ---


def in_per_cent(rates, n):
    return 100 * silent_groups(rates, n)


def a_mask_of_numbers(ids, width, stop_ids):
    return completion_mask(ids, width, stop_ids).int()


def one_weight(*given):
    return average_loss(*given).sum()


# --- Lesson 14 ---


def turns_as_numbers(turns):
    return turn_mask(turns).long()


def one_factor(counts):
    return part_factors(counts).sum()


def whole_factors(counts):
    return counts * len(counts) // counts.sum()


# --- Lesson 15 ---


def rows_not_rounded(device, weights, token, fixed, moment, context):
    return max(0, device - weights) / (fixed + context * token + moment)


def numbers_of_weights(weights, config, rows, context, size):
    return batch_bytes(weights * size, config, rows, context, size)


# --- Lesson 16 ---


def flips_as_numbers(logits, moved):
    return may_flip(logits, moved).long()


def flips_as_a_column(logits, moved):
    return may_flip(logits, moved)[:, None]


ANSWERS = {
    "bytes-per-step": {two_matrices_in_the_mlp: "count the matrices"},
    "left-pad": {a_mask_of_integers: "the mask is bool"},
    "position-ids": {positions_as_floats: "int64"},
    "combined-mask": {without_heads: "dimension for the heads", zeros_and_ones: "a mask is bool"},
    "packed-mask": {
        packed_without_heads: "dimension for the heads",
        packed_zeros_and_ones: "a mask is bool",
    },
    "nan-rows": {counted: "answer with bool", one_answer_a_row: "shape (B, T)"},
    "masked-softmax": {one_maximum: "one maximum for all"},
    "decode-step": {
        flat: "input_ids is (B, 1)",
        done_first: "are swapped",
        done_as_a_column: "done is bool",
    },
    "cut-at-stop": {keep_as_numbers: "keep is bool", one_stopped_for_all: "stopped is bool"},
    "survivors": {
        a_mask: "turns a mask into",
        a_column: "gives (K, 1)",
        empty_without_dtype: "makes floats",
        squeezed: "takes that away",
        narrow: "the dtype of an index",
    },
    "scatter-back": {sampled_as_floats: "int64", sampled_as_a_column: "one id per request"},
    "repeat-rows": {
        three_dimensions: "one dimension for all copies",
        prompt_as_a_column: "prompt is (B * n,)",
    },
    "prefill-tokens": {last_token_once: "for each prompt: one row"},
    "delta-step": {by_columns: "transposed", outer_product_the_wrong_way_round: "wrong way round"},
    "state-bytes": {one_token_more: "print your three parts"},
    "hide-gates": {only_beta_multiplied: "a pad still fades"},
    "next-window": {rows_joined_into_one: "Go row by row"},
    "next-positions": {counted_in_floats: "int64"},
    "last-box": {
        keeps_an_open_box: "whatever it holds so far",
        with_the_box_itself: "between the braces",
    },
    "silent-groups": {in_per_cent: "from 0 to 1"},
    "completion-mask": {a_mask_of_numbers: "the mask is bool"},
    "average-loss": {one_weight: "one weight per token"},
    "turn-mask": {turns_as_numbers: "of dtype bool"},
    "part-factors": {one_factor: "one factor per micro-batch", whole_factors: "are float32"},
    "rows-that-fit": {rows_not_rounded: "round down"},
    "batch-bytes": {numbers_of_weights: "print the two parts"},
    "may-flip": {
        flips_as_numbers: "answer with bool",
        flips_as_a_column: "one answer for each step",
    },
}
