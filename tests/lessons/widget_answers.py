"""What the widgets of lesson 14 must show, worked out token by token. See widget_numbers.py."""

import torch

import qwenlab

COUNTED = {
    "answers only": ("answer",),
    "all but pads": ("prompt", "answer"),
    "everything": ("prompt", "answer", "pad"),
}


def heard(state, rows):
    """What the loss hears of each kind; then the tokens, six from the last of the shortest prompt
    and the last seven. rows: (ids, prompt's length) of each."""
    model, tokenizer = qwenlab.load("tiny-base", dtype="float32")
    width = max(len(ids) for ids, _ in rows)
    first = min(prompt for _, prompt in rows) - 1
    losses = {"prompt": [], "answer": [], "pad": []}
    cells = []
    for ids, prompt in rows:
        kinds = ["prompt"] * prompt + ["answer"] * (len(ids) - prompt)
        kinds += ["pad"] * (width - len(ids))
        padded = [*ids, *[tokenizer.pad_id] * (width - len(ids))]
        with torch.no_grad():
            chances = model(torch.tensor([padded]))[0].log_softmax(-1)
        words = []
        for place, (token_id, kind) in enumerate(zip(padded, kinds, strict=True)):
            if place:
                losses[kind].append(-chances[place - 1, token_id].item())
            text = tokenizer.decode([token_id]).replace("\n", "⏎").replace(" ", "␣")
            stop = "stop" if token_id in model.stop_ids else text
            words.append("pad" if kind == "pad" else stop.replace("<|im_start|>", "start"))
        cells.append(words[first : first + 6] + words[-7:])
    counted = COUNTED[state["counts"]]
    total = sum(sum(losses[kind]) for kind in counted)
    lines = []
    for kind, values in losses.items():
        mine = values if kind in counted else []
        lines.append([f"{len(mine)}", f"{100 * sum(mine) / total:.0f}%"])
    return [lines, cells]


ROWS = {  # prompt and answer tokens of A, B and C
    "even": [(4, 12), (4, 12), (4, 12)],
    "one long": [(4, 3), (5, 3), (2, 14)],
    "long prompt": [(9, 7), (3, 5), (2, 4)],
}
LOSS = {"A": 2.0, "B": 1.0, "C": 0.5}


def average(state):
    """Each place of the batch; then the rows.

    For each row its tokens that count, their loss and weight, what they add, the share.
    """
    most = int(state["max length"])
    by_row = state["average"] == "every row"
    places = []
    counted = {}
    for name, (prompt, answer) in zip(LOSS, ROWS[state["lengths"]], strict=True):
        row = []
        for place in range(min(most, prompt + answer)):
            row.append("p" if place < prompt else "stop" if place == prompt + answer - 1 else "a")
        places.append(row)
        counted[name] = sum(place != "p" for place in row)
    width = max(len(row) for row in places)
    places = [row + ["pad"] * (width - len(row)) for row in places]
    # One loss after the other: the mean over tokens, or over the rows' own means.
    tokens = [(name, LOSS[name]) for name in LOSS for _ in range(counted[name])]
    rows = [name for name in LOSS if counted[name]]
    adds = dict.fromkeys(LOSS, 0.0)
    for name, loss in tokens:
        adds[name] += loss / counted[name] / len(rows) if by_row else loss / len(tokens)
    lines = []
    for name, loss in LOSS.items():
        weight = adds[name] / loss / counted[name] if counted[name] else 0.0
        share = adds[name] / sum(adds.values())
        lines.append(
            [
                f"{counted[name]}",
                f"{loss:.1f}",
                f"{weight:.3f}",
                f"{adds[name]:.3f}",
                f"{100 * share:.0f}%",
            ]
        )
    return [places, lines]
