"""What the widget of lesson 14 must show, worked out token by token. See widget_numbers.py."""

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
