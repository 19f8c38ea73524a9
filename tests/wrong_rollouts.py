"""Wrong answers to the exercises of lesson 13, as readers write them, each with a word of the hint it gets."""

import torch

# --- group-advantages: rewards (P, N) -> advantages (P, N) ---


def by_group(one):
    """Applies `one`, list of rewards -> list of advantages, to each group."""
    return lambda rewards: torch.tensor([one(group) for group in rewards.tolist()])


def root(squares, count):
    return (sum(squares) / max(1, count)) ** 0.5 + 1e-4


@by_group
def biased(group):
    centre = sum(group) / len(group)
    deviation = root([(reward - centre) ** 2 for reward in group], len(group))
    return [0.0 if min(group) == max(group) else (reward - centre) / deviation for reward in group]


def over_the_batch(rewards):
    return (rewards - rewards.mean()) / (torch.std(rewards) + 0.0001)


def batch_mean(rewards):
    deviation = torch.stack([group.std() if len(group) > 1 else group.sum() * 0 for group in rewards])
    return (rewards - rewards.mean()) / (deviation[:, None] + 1e-4)


def down_the_columns(rewards):
    return (rewards - rewards.mean(0)) / (rewards.std(dim=0, correction=int(len(rewards) > 1)) + 1e-4)


@by_group
def not_divided(group):
    return [reward - sum(group) / len(group) for reward in group]


@by_group
def by_variance(group):
    centre = sum(group) / len(group)
    variance = sum((reward - centre) ** 2 for reward in group) / max(1, len(group) - 1)
    return [(reward - centre) / (variance + 1e-4) if variance > 1e-9 else 0.0 for reward in group]


def lone_answer_nan(rewards):
    return (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)


def last_bit(rewards):
    apart, count = rewards - rewards.mean(1, keepdim=True), max(2, rewards.shape[1])
    return apart / ((apart.square().sum(1, keepdim=True) / (count - 1)).sqrt() + 1e-4)


# --- completion-mask: (ids (B, T), width, stop_ids) -> (B, T) bool ---


def by_rows(one):
    """Marks row by row the places of the answer that one(answer, is_stop) gives, a set of stop ids being known."""

    def marked(ids, width, stop_ids):
        mask = torch.zeros(ids.shape, dtype=torch.bool)
        for row, answer in enumerate(ids[:, width:].tolist()):
            for place in one(answer, [token_id in stop_ids for token_id in answer]):
                mask[row, width + place] = True
        return mask

    return marked


def first(is_stop):
    return is_stop.index(True) if True in is_stop else len(is_stop)


right_mask = by_rows(lambda answer, is_stop: range(min(first(is_stop) + 1, len(answer))))
stop_left_out = by_rows(lambda answer, is_stop: range(first(is_stop)))
stops_filtered = by_rows(lambda answer, is_stop: [i for i, stop in enumerate(is_stop) if not stop])
inverted = by_rows(lambda answer, is_stop: range(first(is_stop), len(answer)))


def one_stop_id(ids, width, stop_ids):
    return right_mask(ids, width, stop_ids[:1])


def from_the_start(ids, width, stop_ids):
    mask = right_mask(ids, 0, stop_ids)
    mask[:, :width] = False
    return mask


def prompt_in(ids, width, stop_ids):
    mask = right_mask(ids, width, stop_ids)
    mask[:, :width] = True
    return mask


def as_numbers(ids, width, stop_ids):
    return right_mask(ids, width, stop_ids).int()


# --- average-loss: (mask (B, T), how, tokens, rows, cap) -> weights (B, T) ---


def weights(token=None, sequence=None, fixed=None):
    """Each token's weight where it counts, by a function of (row's tokens, mask, tokens, rows, cap)."""
    token = token or (lambda own, mask, tokens, rows, cap: 1 / tokens)
    sequence = sequence or (lambda own, mask, tokens, rows, cap: 1 / own / rows)
    fixed = fixed or (lambda own, mask, tokens, rows, cap: 1 / rows / cap)
    ways = {"token": token, "sequence": sequence, "fixed": fixed}

    def average(mask, how, tokens, rows, cap):
        each = [ways[how](int(row.sum()), mask, tokens, rows, cap) for row in mask]
        return mask.float() * torch.tensor(each)[:, None]

    return average


mean_of_means = weights(token=lambda own, mask, tokens, rows, cap: 1 / float(mask.sum()))
own_rows = weights(
    sequence=lambda own, mask, tokens, rows, cap: 1 / own / len(mask),
    fixed=lambda own, mask, tokens, rows, cap: 1 / len(mask) / cap,
)
fixed_by_width = weights(fixed=lambda own, mask, tokens, rows, cap: 1 / rows / mask.shape[1])
sequence_as_token = weights(sequence=lambda own, mask, tokens, rows, cap: 1 / tokens)
sequence_by_width = weights(sequence=lambda own, mask, tokens, rows, cap: 1 / mask.shape[1] / rows)


def pads_count(mask, how, tokens, rows, cap):
    right = weights()(mask, how, tokens, rows, cap)
    return right.amax(1, keepdim=True).expand(mask.shape).clone()


def one_number(mask, how, tokens, rows, cap):
    return weights()(mask, how, tokens, rows, cap).sum()


WRONG = {
    "group-advantages": {
        biased: "divides by n - 1",
        over_the_batch: "mean and deviation of the whole batch",
        batch_mean: "for being easy",
        down_the_columns: "down the columns",
        not_divided: "did not divide",
        by_variance: "the variance",
        lone_answer_nan: "NaN",
        last_bit: "off in its last bit",
    },
    "completion-mask": {
        stop_left_out: "itself is left out",
        stops_filtered: "only the stop ids are gone",
        inverted: "inverted",
        one_stop_id: "one of the stop ids only",
        from_the_start: "begin at width",
        prompt_in: "the prompt is in",
        as_numbers: "the mask is bool",
    },
    "average-loss": {
        mean_of_means: "a mean of means",
        own_rows: "the rows of your own part",
        fixed_by_width: "not by the width of this part",
        sequence_as_token: "counts each answer alike",
        sequence_by_width: "not by the width of the rectangle",
        pads_count: "must count 0",
        one_number: "one weight a token",
    },
}
