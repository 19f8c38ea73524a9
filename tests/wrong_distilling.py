"""Wrong answers to the exercises of lesson 14, as readers write them, each with a word of the hint it gets."""

import torch

# --- answer-mask: (input_ids (B, T), prompts, lengths, pad_id) -> mask (B, T - 1) ---


def marked(input_ids, counts):
    """counts(row, token) says of each target, by its place in the row, whether it counts."""
    rows, width = input_ids.shape
    return torch.tensor([[counts(row, token) for token in range(1, width)] for row in range(rows)])


def mask_from_ids(input_ids, prompts, lengths, pad_id):
    real = input_ids != pad_id
    return torch.stack([row & (torch.arange(len(row)) >= n) for row, n in zip(real, prompts, strict=True)])[:, 1:]


def off_by_one(input_ids, prompts, lengths, pad_id):
    return marked(input_ids, lambda row, token: prompts[row] <= token - 1 < lengths[row])


def prompt_counts(input_ids, prompts, lengths, pad_id):
    return marked(input_ids, lambda row, token: token < lengths[row])


def all_counts(input_ids, prompts, lengths, pad_id):
    return torch.ones_like(input_ids[:, 1:]).bool()


def pads_count(input_ids, prompts, lengths, pad_id):
    return marked(input_ids, lambda row, token: token >= prompts[row])


def no_stop(input_ids, prompts, lengths, pad_id):
    return marked(input_ids, lambda row, token: prompts[row] <= token < lengths[row] - 1)


def first_token_lost(input_ids, prompts, lengths, pad_id):
    return marked(input_ids, lambda row, token: prompts[row] < token < lengths[row])


def ones_and_zeros(input_ids, prompts, lengths, pad_id):
    return marked(input_ids, lambda row, token: int(prompts[row] <= token < lengths[row]))


def as_wide_as_the_ids(input_ids, prompts, lengths, pad_id):
    mask = torch.zeros(input_ids.shape, dtype=torch.bool)
    for row, (start, end) in enumerate(zip(prompts, lengths, strict=True)):
        mask[row, start:end] = True
    return mask


# --- truncate: (traces, stop_id, max_length) -> rows, tokens, dropped ---


def cut(traces, row_of, dropped_if=lambda prompt, ids: len(ids) == len(prompt), counted=None):
    rows, tokens, dropped = [], [], []
    for place, trace in enumerate(traces):
        ids, prompt = row_of(*trace), trace[0]
        if dropped_if(prompt, ids):
            dropped += [place]
            continue
        rows += [ids]
        tokens += [len(ids[len(prompt) :]) if counted is None else counted(ids)]
    return rows, tokens, dropped


def whole(prompt, answer, finished, stop_id):
    return [*prompt, *answer, stop_id] if finished else [*prompt, *answer]


def made_up_stop(traces, stop_id, max_length):
    def row_of(*trace):
        ids = whole(*trace, stop_id)
        return ids if len(ids) <= max_length else [*ids[: max_length - 1], stop_id]

    return cut(traces, row_of, lambda prompt, ids: len(ids) <= len(prompt))


def stop_for_the_unfinished(traces, stop_id, max_length):
    return cut(
        traces,
        lambda prompt, answer, finished: [*prompt, *answer, stop_id][:max_length],
        lambda prompt, ids: len(ids) <= len(prompt),
    )


def stop_forgotten(traces, stop_id, max_length):
    return cut(
        traces,
        lambda prompt, answer, finished: [*prompt, *answer][:max_length],
        lambda prompt, ids: len(ids) <= len(prompt),
    )


def empty_rows_stay(traces, stop_id, max_length):
    rows = [whole(*trace, stop_id)[:max_length] for trace in traces]
    return rows, [len(ids) - len(trace[0]) for ids, trace in zip(rows, traces, strict=True)], []


def one_token_is_too_few(traces, stop_id, max_length):
    return cut(
        traces,
        lambda *trace: whole(*trace, stop_id)[:max_length],
        lambda prompt, ids: not len(ids) > len(prompt) + 1,
    )


def too_long_is_dropped(traces, stop_id, max_length):
    rows, tokens, dropped = [], [], []
    for place, trace in enumerate(traces):
        ids = whole(*trace, stop_id)
        if len(ids) > max_length:
            dropped.append(place)
        else:
            rows.append(ids)
            tokens.append(len(ids) - len(trace[0]))
    return rows, tokens, dropped


def front_cut_off(traces, stop_id, max_length):
    rows, tokens, dropped = [], [], []
    for place, trace in enumerate(traces):
        ids = whole(*trace, stop_id)
        while len(ids) > max_length:
            ids = ids[1:]
        if len(ids) > len(trace[0]):
            rows.append(ids)
            tokens.append(len(ids) - len(trace[0]))
        else:
            dropped.append(place)
    return rows, tokens, dropped


def limit_of_the_answer(traces, stop_id, max_length):
    def row_of(prompt, answer, finished):
        return [*prompt, *whole([], answer, finished, stop_id)[:max_length]]

    return cut(traces, row_of)


def prompt_counted(traces, stop_id, max_length):
    return cut(
        traces,
        lambda *trace: whole(*trace, stop_id)[:max_length],
        lambda prompt, ids: len(ids) <= len(prompt),
        len,
    )


# --- token-mean: (losses, masks) -> parts (N,) ---


def sums_and_counts(losses, masks):
    return [(float((loss * mask).sum()), int(mask.sum())) for loss, mask in zip(losses, masks, strict=True)]


def mean_of_means(losses, masks):
    return torch.tensor(
        [total / count / len(losses) if count else 0.0 for total, count in sums_and_counts(losses, masks)]
    )


def means(losses, masks):
    return torch.tensor([total / count if count else 0.0 for total, count in sums_and_counts(losses, masks)])


def sums(losses, masks):
    return torch.tensor([total for total, _ in sums_and_counts(losses, masks)])


def by_rows(losses, masks):
    return sums(losses, masks) / sum(len(loss) for loss in losses)


def by_places(losses, masks):
    return sums(losses, masks) / sum(loss.shape[0] * loss.shape[1] for loss in losses)


def pads_in_the_sum(losses, masks):
    return torch.tensor([float(loss.sum()) for loss in losses]) / sum(float(mask.sum()) for mask in masks)


def weighted_means(losses, masks):
    count = torch.tensor([float(mask.sum()) for mask in masks])
    own = torch.tensor([float(loss[mask].mean()) for loss, mask in zip(losses, masks, strict=True)])
    return own * count / count.sum()


def one_number(losses, masks):
    return sums(losses, masks).sum() / sum(float(mask.sum()) for mask in masks)


WRONG = {
    "answer-mask": {
        mask_from_ids: "not known by its id",
        off_by_one: "off by one",
        prompt_counts: "learn to write questions",
        all_counts: "everything counts",
        pads_count: "the pads behind the answer",
        no_stop: "It is the stop id",
        first_token_lost: "the answer's first token",
        ones_and_zeros: "of dtype bool",
        as_wide_as_the_ids: "one column a target",
    },
    "truncate": {
        made_up_stop: "where the answer was cut off",
        stop_for_the_unfinished: "that is not finished got a stop",
        stop_forgotten: "where the teacher did stop",
        empty_rows_stay: "Its mean is 0/0",
        one_token_is_too_few: "is of use",
        too_long_is_dropped: "is cut, not dropped",
        front_cut_off: "cut off the front",
        limit_of_the_answer: "for prompt and answer together",
        prompt_counted: "counts the prompt too",
    },
    "token-mean": {
        mean_of_means: "that is the mean of the means",
        means: "a mean by itself",
        sums: "these are sums",
        by_rows: "divide by rows",
        by_places: "divide by all places",
        pads_in_the_sum: "are in your sum",
        weighted_means: "adds 0",
        one_number: "one number a micro-batch",
    },
}
