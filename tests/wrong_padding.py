"""Wrong answers to the exercises of lesson 02, as readers write them, each with a word of the hint it must get."""

import torch

from qwenlab import left_pad


def pads_right(sequences, pad_id):
    width = max(len(s) for s in sequences)
    ids = torch.full((len(sequences), width), pad_id)
    mask = torch.zeros(len(sequences), width, dtype=torch.bool)
    for i, s in enumerate(sequences):
        ids[i, : len(s)] = torch.tensor(s)
        mask[i, : len(s)] = True
    return ids, mask


def from_ids(sequences, pad_id):
    width = max(len(s) for s in sequences)
    ids = torch.tensor([[pad_id] * (width - len(s)) + s for s in sequences])
    return ids, ids.ne(pad_id)


def true_is_pad(sequences, pad_id):
    width = max(len(s) for s in sequences)
    ids = torch.tensor([[pad_id] * (width - len(s)) + s for s in sequences])
    return ids, torch.tensor([[True] * (width - len(s)) + [False] * len(s) for s in sequences])


def int_mask(sequences, pad_id):
    ids, mask = left_pad(sequences, pad_id)
    return ids, mask.long()


def zipped(sequences, pad_id):
    columns = list(zip(*sequences, strict=False))  # zip stops at the shortest
    ids = torch.tensor(columns).T
    return ids, torch.ones(ids.shape, dtype=torch.bool)


def fixed_width(sequences, pad_id):
    width = max(len(s) for s in sequences) + 1
    return left_pad([[pad_id] * (width - len(s)) + s for s in sequences], pad_id)[0], torch.tensor(
        [[False] * (width - len(s)) + [True] * len(s) for s in sequences]
    )


def pads_are_zero(sequences, pad_id):
    width = max(len(s) for s in sequences)
    ids = torch.zeros(len(sequences), width, dtype=torch.long)
    for i, s in enumerate(sequences):
        ids[i, width - len(s) :] = torch.tensor(s)
    return ids, left_pad(sequences, pad_id)[1]


def mask_first(sequences, pad_id):
    ids, mask = left_pad(sequences, pad_id)
    return mask, ids


def one_too_far(sequences, pad_id):
    input_ids, real = left_pad(sequences, pad_id)
    return input_ids, torch.arange(real.shape[1]) > (~real).sum(1, keepdim=True)


def column_numbers(mask):
    return torch.stack([torch.arange(mask.shape[1])] * len(mask))


def minus_one(mask):
    return mask.int().cumsum(dim=1) - 1


def one_based(mask):
    return mask.cumsum(1) * mask


def not_shifted(mask):
    return torch.arange(mask.shape[1]).expand_as(mask) * mask


def counts_pads(mask):
    return torch.cumsum(~mask, 1)


def as_floats(mask):
    return (mask.float().cumsum(1) - 1).clamp(min=0)


WRONG = {
    "left-pad": {
        pads_right: "pads are on the right",
        from_ids: "made from ids",
        true_is_pad: "inverted",
        mask_first: "swapped",
        int_mask: "the mask is bool",
        zipped: "no token may be lost",
        fixed_width: "as wide as the longest",
        one_too_far: "first real token",
        pads_are_zero: "Fill with pad_id",
    },
    "position-ids": {
        column_numbers: "column numbers",
        minus_one: "pads got -1",
        one_based: "off by one",
        not_shifted: "Count only the real ones",
        counts_pads: "counted the pads",
        as_floats: "int64",
    },
}
