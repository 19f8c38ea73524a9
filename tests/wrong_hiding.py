"""Wrong answers to the exercises of lesson 10, as readers write them, each with a word of the hint it gets."""

import torch

# --- hide-gates: (g, beta, real) -> g, beta ---


def only_beta(g, beta, real):
    return g, beta * real[:, :, None]


def only_decay(g, beta, real):
    return torch.where(real[:, :, None], g, 0.0), beta


def wipes(g, beta, real):
    pads = ~real[:, :, None]
    return g.masked_fill(pads, float("-inf")), beta.masked_fill(pads, 0)


def decay_instead_of_its_log(g, beta, real):
    pads = ~real[:, :, None]
    return g.masked_fill(pads, 1), beta.masked_fill(pads, 0)


def multiplies(g, beta, real):
    return g * real.unsqueeze(-1), beta * real.unsqueeze(-1)


def multiplies_beta(g, beta, real):
    return g.masked_fill(~real[:, :, None], 0), beta * real.unsqueeze(-1)


def multiplies_g(g, beta, real):
    return g * real.unsqueeze(-1), beta.masked_fill(~real[:, :, None], 0)


def takes_exp(g, beta, real):
    pads = ~real[:, :, None]
    return g.exp().masked_fill(pads, 1), beta.masked_fill(pads, 0)


def the_wrong_way_round(g, beta, real):
    return g.masked_fill(real[:, :, None], 0), beta.masked_fill(real[:, :, None], 0)


def whole_rows(g, beta, real):
    g, beta = g.clone(), beta.clone()
    for row in range(len(real)):
        if not real[row].all():
            g[row] = beta[row] = 0
    return g, beta


# --- next-window: (window, inputs, real) -> window ---


def last_columns(window, inputs, real):
    return torch.cat([window, inputs], dim=1)[:, -window.shape[1] :]


def zeroed_columns(window, inputs, real):
    return last_columns(window, inputs.masked_fill(~real[:, :, None], 0), real)


def by_counting(window, inputs, real):
    both, width = torch.cat([window, inputs], dim=1), window.shape[1]
    return torch.stack([row[n : n + width] for row, n in zip(both, real.sum(1).tolist(), strict=True)])


def forgets_the_old(window, inputs, real):
    answer = torch.zeros_like(window)
    for row in range(len(window)):
        new = inputs[row][real[row]][-window.shape[1] :]
        if len(new):
            answer[row, -len(new) :] = new
    return answer


def all_old_if_few(window, inputs, real):
    width = window.shape[1]
    new = [x[keep] for x, keep in zip(inputs, real, strict=True)]
    return torch.stack([x[-width:] if len(x) >= width else old for old, x in zip(window, new, strict=True)])


def the_first_ones(window, inputs, real):
    return torch.stack([torch.cat([w, x[r]])[: len(w)] for w, x, r in zip(window, inputs, real, strict=True)])


def backwards(window, inputs, real):
    rows = []
    for old, new, keep in zip(window, inputs, real, strict=True):
        every = [*old, *new[keep]][::-1]
        rows.append(torch.stack(every[: len(old)]))
    return torch.stack(rows)


# --- next-positions: (lengths, real) -> position_ids, lengths ---


def from_zero(lengths, real):
    return (real.cumsum(1) - 1).masked_fill(~real, 0), lengths + real.sum(1)


def columns(lengths, real):
    places = lengths[:, None] + torch.arange(real.shape[1])
    return places * real, lengths + real.sum(1)


def one_too_far(lengths, real):
    return (lengths[:, None] + real.cumsum(1)) * real, lengths + real.sum(1)


def pads_too(lengths, real):
    return lengths[:, None] + real.cumsum(1) - 1, lengths + real.sum(1)


def width_added(lengths, real):
    return ((lengths[:, None] + real.cumsum(1) - 1) * real), lengths + real.shape[1]


def lengths_as_before(lengths, real):
    return ((lengths[:, None] + real.cumsum(1) - 1) * real), lengths


def the_longest_for_all(lengths, real):
    return ((lengths.max() + real.cumsum(1) - 1) * real), lengths + real.sum(1)


WRONG = {
    "hide-gates": {
        only_beta: "a pad still fades",
        only_decay: "a pad still writes",
        wipes: "wipes the table",
        decay_instead_of_its_log: "g is a logarithm",
        multiplies: "Multiplying does not replace",
        multiplies_beta: "beta needs masked_fill",
        multiplies_g: "g needs masked_fill",
        takes_exp: "do not take exp",
        the_wrong_way_round: "inverted",
        whole_rows: "Hide its pads only",
    },
    "next-window": {
        last_columns: "these are the last columns",
        zeroed_columns: "pads are zeroed",
        by_counting: "you counted the real inputs",
        forgets_the_old: "not zeros",
        all_old_if_few: "the new ones still come in",
        the_first_ones: "the old window again",
        backwards: "turned round",
    },
    "next-positions": {
        from_zero: "each turn starts at 0",
        columns: "pads were counted",
        one_too_far: "off by one",
        pads_too: "Give pads 0",
        width_added: "count pads too",
        lengths_as_before: "have not grown",
        the_longest_for_all: "Each row has its own length",
    },
}
