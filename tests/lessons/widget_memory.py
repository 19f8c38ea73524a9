"""What the widgets of lessons 09 and 10 must show, worked out again number by number.

See widget_numbers.py.
"""

import math
from functools import cache

import torch

import qwenlab

# --- 09-linear-attention: sizes ---

LENGTHS = [1, 16, 64, 256, 1024, 4096]
# Layers with a cache, its numbers per token and layer; layers with tables, their numbers; bytes per
# number.
SHIPPED = ((3, 2 * 2 * 32), (1, 2 * 2 * 32), (3, 3 * (2 * 4 * 32 + 4 * 32), 4 * 32 * 32), 4)
PUBLISHED = (
    (28, 2 * 8 * 128),
    (6, 2 * 2 * 256),
    (18, 3 * (2 * 16 * 128 + 16 * 128), 16 * 128 * 128),
    2,
)


def three_digits(value):
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def sizes(state):
    """The curve's folded numbers; then MB of dense, hybrid, its cache and its tables."""
    dense, cached, (linear, window, memory), size = (
        SHIPPED if state["models"] == "shipped" else PUBLISHED
    )
    lines = [[], [], [], []]
    for tokens in LENGTHS:
        caches = [layers * numbers * tokens * size for layers, numbers in (dense, cached)]
        tables = linear * (window * size + memory * 4)
        for line, total in zip(
            lines, (caches[0], caches[1] + tables, caches[1], tables), strict=True
        ):
            line.append(int(state["rows"]) * total / 1e6)
    folded = [[three_digits(x) for x in column] for column in zip(LENGTHS, *lines[:2], strict=True)]
    return [folded, lines]


# --- 09-linear-attention: a small table ---

KEYS = {"Ann": [1.0, 0.0, 0.0], "Bob": [0.0, 1.0, 0.0], "Cy": [0.6, 0.0, 0.8]}
STORY = ["Ann red", "Bob green", "Cy blue", "Ann green", "Bob green"]


def table(state):
    """The table faded, and what follows.

    What it holds, should hold, and what is made good of the gap; the table after, above what
    everybody reads from it.
    """
    decay = float(state["decay"])
    beta = float(state["beta"])
    new = [[0.0] * 3 for _ in range(3)]
    for told in STORY[: int(state["token"])]:
        name, colour = told.split()
        wanted = [float(colour == one) for one in ("red", "green", "blue")]
        faded = [[decay * x for x in line] for line in new]
        said = ask(faded, KEYS[name])
        gap = [beta * (w - s) for w, s in zip(wanted, said, strict=True)]
        new = [
            [x + weight * y for x, y in zip(line, gap, strict=True)]
            for line, weight in zip(faded, KEYS[name], strict=True)
        ]
    return [faded, [said, wanted, gap], [*new, *(ask(new, key) for key in KEYS.values())]]


def ask(lines, key):
    return [
        sum(weight * x for weight, x in zip(key, column, strict=True))
        for column in zip(*lines, strict=True)
    ]


# --- 10-hiding-padding: pads between two turns ---


@cache
def talk():
    """The hybrid, its state after row 0's first turn, the second turn's ids and right logits."""
    model, tokenizer = qwenlab.load("tiny-hybrid", dtype="float32")
    question = "Tom has 6 apples and buys 38 more. He gives 41 away. How many are left?"
    asked = tokenizer.chat([{"role": "user", "content": question}])
    first = asked + qwenlab.generate(model, [asked], max_new_tokens=48).token_ids[0]
    state = model.new_state(1)
    model(torch.tensor([first]), state=state)
    second = torch.tensor([tokenizer.next_turn("Then plus 33?")])
    return model, state, second, model(second, state=state.snapshot(), last_only=True)[0]


def read_zeros(net, window, memory, pads, hidden, keep_window):
    """Window (K - 1, C) and memory (H, Dk, Dv) after so many zeroed inputs.

    Head by head, in double precision.
    """
    taps = net.conv1d.weight[:, 0].double()  # (C, K)
    memory = memory.double().clone()
    for _ in range(pads):
        inputs = torch.cat([window.double(), torch.zeros(1, window.shape[1]).double()])
        mixed = (inputs.T * taps).sum(1)
        mixed = mixed / (1 + (-mixed).exp())
        window = window if keep_window else inputs[1:]
        for head in range(net.value_heads):
            group = head * net.key_heads // net.value_heads
            k = mixed[net.key_width + group * net.head_k_dim :][: net.head_k_dim]
            k = k / math.sqrt(float(k @ k) + 1e-6)
            v = mixed[2 * net.key_width + head * net.head_v_dim :][: net.head_v_dim]
            rate = math.exp(net.A_log[head]) * math.log1p(math.exp(net.dt_bias[head]))
            memory[head] *= 1.0 if "decay" in hidden else math.exp(-rate)
            memory[head] += torch.outer(
                k, (0.0 if "beta" in hidden else 0.5) * (v - k @ memory[head])
            )
    return window.float(), memory.float()


def pads(state):
    """How far each head's table has moved; how far the windows.

    Then the logits at the end of the second turn.
    """
    model, before, second, right = talk()
    hidden = {"as they are": "", "beta 0": "beta", "decay 1": "decay", "both": "beta decay"}[
        state["gates"]
    ]
    after = before.snapshot()
    tables = []
    windows = []
    for number, (layer, old) in enumerate(zip(model.model.layers, before.layers, strict=True)):
        if "recurrent_state" in old:
            window = old["conv_state"][0]
            memory = old["recurrent_state"][0]
            keep = state["window"] == "of real inputs"
            new = read_zeros(
                layer.linear_attn, window, memory, int(state["pads"]), hidden.split(), keep
            )
            kept = after.layers[number]
            kept["conv_state"][0], kept["recurrent_state"][0] = new
            moved = (new[1] - memory).flatten(1).norm(dim=1) / memory.flatten(1).norm(dim=1)
            tables.append(moved[:4].tolist())
            windows.append(float((new[0] - window).norm() / window.norm()))
    logits = model(second, state=after, last_only=True)[0]
    gap = float((logits - right).abs().max() / right.abs().max().clamp(min=1))
    return [tables[:3], [[*windows[:3], gap if gap > 1e-5 else 0.0]]]
