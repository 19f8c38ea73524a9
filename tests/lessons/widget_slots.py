"""What the widget of lesson 06 must show, worked out slot by slot and step by step.

See widget_numbers.py.
"""


def slots(state):
    """Each slot's cells, the legend's signs, the counts.

    The counts are steps, row-steps computed, real, wasted, idle, and rows per step.
    """
    longest = int(state["longest"])
    lengths = {
        "uneven": [4, longest // 2 + 1, 5, longest],
        "one long": [4, 4, 4, longest],
        "equal": [longest] * 4,
    }[state["lengths"]]
    lines = STRATEGIES[state["strategy"]](lengths)
    cells = [cell for line in lines for cell in line]
    wasted = sum(cell[0] == "×" for cell in cells)
    idle = cells.count("·")
    real = len(cells) - wasted - idle
    steps = len(lines[0])
    counts = [steps, real + wasted, real, wasted, idle]
    return [
        lines,
        [["▸", "\xa0", "×", "·"]],
        [[*map(str, counts), f"{(real + wasted) / steps:.2f}"]],
    ]


def static(lengths):
    lines = []
    for name, length in zip("ABCD", lengths, strict=True):
        line = ["▸" + name]
        while len(line) < max(lengths):
            line.append(name if len(line) < length else "×" + name)
        lines.append(line)
    return lines


def early_stop(lengths):
    """A request beyond the rows that are left takes the first free slot among them."""
    lines = [[], [], [], []]
    running = [0, 1, 2, 3]  # the request in each slot, None = empty
    for step in range(max(lengths)):
        running = [who if who is not None and step < lengths[who] else None for who in running]
        left = sum(who is not None for who in running)
        for slot in range(left, 4):
            if running[slot] is not None:
                free = running.index(None)
                running[free] = running[slot]
                running[slot] = None
        for line, who in zip(lines, running, strict=True):
            line.append("·" if who is None else "ABCD"[who] if step else "▸" + "ABCD"[who])
    return lines


def sequential(lengths):
    line = []
    for name, length in zip("ABCD", lengths, strict=True):
        line += ["▸" + name] + [name] * (length - 1)
    return [line]


STRATEGIES = {"static": static, "early-stop": early_stop, "sequential": sequential}
