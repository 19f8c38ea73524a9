"""Wrong answers to the exercises of lesson 08, as readers write them, each with a word of the hint it gets."""

import torch

# --- common-prefix: (prompts) -> how many tokens can be read once for all ---


def agreeing(prompts):
    first, length = prompts[0], 0
    while all(ids[: length + 1] == first[: length + 1] and length < len(ids) for ids in prompts):
        length += 1
    return length


def all_of_the_shortest(prompts):
    return agreeing(prompts)


def always_one_less(prompts):
    return max(agreeing(prompts) - 1, 0)


def goes_on_behind_a_difference(prompts):
    shortest = min(map(len, prompts)) - 1
    return sum(all(ids[place] == prompts[0][place] for ids in prompts) for place in range(shortest))


def first_two(prompts):
    two = prompts[:2]
    return min(agreeing(two), min(map(len, two)) - 1)


def ids_in_all(prompts):
    return len([token for token in dict.fromkeys(prompts[0]) if all(token in ids for ids in prompts)])


def lengths_only(prompts):
    return sorted(len(ids) for ids in prompts)[0] - 1


def first_and_last(prompts):
    two = [prompts[0], prompts[-1]]
    return min(agreeing(two), min(map(len, two)) - 1)


# --- repeat-rows: (rows (B, T), n) -> rows (B * n, T), prompt (B * n,), sample (B * n,) ---


def numbers(count, n):
    pairs = [(i, k) for i in range(count) for k in range(n)]
    return torch.tensor([i for i, _ in pairs]), torch.tensor([k for _, k in pairs])


def behind_itself(rows, n):
    prompt, sample = numbers(len(rows), n)
    return torch.cat([rows] * n), prompt, sample


def tokens_repeated(rows, n):
    return rows.repeat_interleave(n, dim=-1), *numbers(len(rows), n)


def numbers_swapped(rows, n):
    prompt, sample = numbers(len(rows), n)
    return rows[prompt], sample, prompt


def prompts_go_round(rows, n):
    prompt, sample = numbers(len(rows), n)
    return rows[prompt], torch.arange(len(rows) * n) % len(rows), sample


def samples_go_on(rows, n):
    prompt, _ = numbers(len(rows), n)
    return rows[prompt], prompt, torch.arange(len(prompt))


def three_dimensions(rows, n):
    return rows[:, None].expand(-1, n, -1), *numbers(len(rows), n)


def prompt_as_a_column(rows, n):
    prompt, sample = numbers(len(rows), n)
    return rows[prompt], prompt[:, None], sample


def all_go_round(rows, n):
    return rows.repeat(n, 1), torch.arange(len(rows)).repeat(n), torch.arange(n).repeat(len(rows))


def side_by_side(rows, n):
    return torch.cat([rows] * n, 1), *numbers(len(rows), n)


def samples_in_blocks(rows, n):
    prompt, _ = numbers(len(rows), n)
    return rows[prompt], prompt, torch.arange(len(prompt)) // len(rows)


def a_number_a_prompt(rows, n):
    prompt, sample = numbers(len(rows), n)
    return rows[prompt], torch.arange(len(rows)), sample


def a_number_a_copy(rows, n):
    prompt, _ = numbers(len(rows), n)
    return rows[prompt], prompt, torch.arange(n)


# --- prefill-tokens: (lengths, common, n) -> tokens read apart, with answers sharing, with all sharing ---


def apart(lengths, n):
    return sum(n * length for length in lengths)


def answers(lengths, n):
    return sum(length - 1 + n for length in lengths)


def all_of(lengths, common, n):
    return common + answers([length - common for length in lengths], n)


def without_the_last(lengths, common, n):
    return apart(lengths, n), sum(lengths), common + sum(length - common for length in lengths)


def last_twice(lengths, common, n):
    everybody = common + sum(length - common + n for length in lengths)
    return apart(lengths, n), sum(length + n for length in lengths), everybody


def common_each_time(lengths, common, n):
    rests = answers([length - common for length in lengths], n)
    return apart(lengths, n), answers(lengths, n), common * len(lengths) + rests


def answers_once(lengths, common, n):
    rests = sum(length - common - 1 for length in lengths)
    return apart(lengths, n), sum(length - 1 for length in lengths) + n, common + rests + n


def last_once(lengths, common, n):
    return apart(lengths, n), sum(lengths) - 1 + n, all_of(lengths, common, n)


def rests_apart(lengths, common, n):
    everybody = common + n * sum(length - common for length in lengths)
    return apart(lengths, n), answers(lengths, n), everybody


def one_answer_apart(lengths, common, n):
    return sum(lengths), answers(lengths, n), all_of(lengths, common, n)


def other_order(lengths, common, n):
    return apart(lengths, n), all_of(lengths, common, n), answers(lengths, n)


def turned_round(lengths, common, n):
    return all_of(lengths, common, n), answers(lengths, n), apart(lengths, n)


def common_forgotten(lengths, common, n):
    return apart(lengths, n), answers(lengths, n), answers([length - common for length in lengths], n)


def common_twice(lengths, common, n):
    return apart(lengths, n), answers(lengths, n), common + answers(lengths, n)


def all_without_the_last(lengths, common, n):
    return apart(lengths, n), answers(lengths, n), common + sum(length - common for length in lengths)


def pads_counted(lengths, common, n):
    return n * max(lengths) * len(lengths), answers(lengths, n), all_of(lengths, common, n)


WRONG = {
    "common-prefix": {
        all_of_the_shortest: "no token left",
        always_one_less: "used up",
        goes_on_behind_a_difference: "first difference",
        first_two: "two of the prompts",
        ids_in_all: "place by place",
        lengths_only: "by the lengths",
        first_and_last: "the first and the last",
    },
    "repeat-rows": {
        behind_itself: "behind itself",
        tokens_repeated: "you repeated tokens",
        numbers_swapped: "are swapped",
        prompts_go_round: "do not go with them",
        samples_go_on: "counts from 0 again",
        three_dimensions: "one dimension for all copies",
        prompt_as_a_column: "prompt is (B * n,)",
        all_go_round: "behind itself",
        side_by_side: "you repeated tokens",
        samples_in_blocks: "then again",
        a_number_a_prompt: "prompt is (B * n,)",
        a_number_a_copy: "sample is (B * n,)",
    },
    "prefill-tokens": {
        without_the_last: "a copy has no logits",
        last_twice: "once too often",
        common_each_time: "not once a prompt",
        rests_apart: "what is left of it",
        one_answer_apart: "n times all lengths",
        other_order: "the order is",
        answers_once: "you add n once",
        last_once: "for each prompt: one row",
        turned_round: "the order is",
        common_forgotten: "must read the common part",
        common_twice: "T - common tokens are left",
        all_without_the_last: "a copy has no logits",
        pads_counted: "pads are no tokens",
    },
}
