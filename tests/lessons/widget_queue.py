"""What the widget of lesson 07 must show, worked out again: who is where, one step after another.

No model is run.
"""

LENGTHS = {
    "one long": [12, 3, 3, 3, 3, 3, 3, 3],
    "mixed": [3, 8, 4, 12, 3, 6, 5, 4],
    "all equal": [5, 5, 5, 5, 5, 5, 5, 5],
}
GAPS = {"all at once": 0, "one in 2 steps": 2}
NAMES = "ABCDEFGHIJ"


def simulate(lengths, gap, slots, strategy):
    """The text of each slot's cell, slot by slot, and when requests began and ended.

    A request begins in the step of its first token and ends in that of its last.
    """
    left = list(lengths)
    line = []
    running = [None] * slots
    begun = {}
    ended = {}
    cells = [[] for _ in range(slots)]
    coming = 0
    step = 0
    while True:
        while coming < len(lengths) and coming * gap <= step:
            line.append(coming)
            coming += 1
        talking = [who for who in running if who is not None and left[who] > 0]
        for slot, who in enumerate(running):  # who leaves
            if who is not None and left[who] == 0 and (strategy != "static" or not talking):
                running[slot] = None
        if strategy == "continuous" or all(who is None for who in running):  # who is admitted
            for slot in range(slots):
                if running[slot] is None and line:
                    running[slot] = line.pop(0)
                    begun[running[slot]] = step
        if all(who is None for who in running):
            return cells, begun, ended
        for slot, who in enumerate(running):
            if who is None:
                cells[slot].append("·")
            elif left[who] == 0:
                cells[slot].append("×" + NAMES[who])
            else:
                cells[slot].append("▸" * (begun[who] == step) + NAMES[who])
                left[who] -= 1
                ended[who] = step
        step += 1


def worked_out(state):
    lengths = LENGTHS[state["lengths"]]
    gap = GAPS[state["arrivals"]]
    cells, begun, ended = simulate(lengths, gap, int(state["slots"]), state["strategy"])
    return lengths, gap, cells, begun, ended


def queue(state):
    """Slots over steps; the legend's signs; when each request comes, begins and is done."""
    lengths, gap, cells, begun, ended = worked_out(state)
    everybody = range(len(lengths))
    times = [
        [gap * i for i in everybody],
        [begun[i] for i in everybody],
        [ended[i] for i in everybody],
    ]
    return [cells, [["▸", "\xa0", "×", "·"]], times]


def titles(state):
    """What stands above the two tables, with their sums."""
    lengths, gap, cells, begun, _ = worked_out(state)
    waits = [begun[i] - gap * i for i in range(len(lengths))]
    words = f"{state['strategy']}, {state['slots']} slots, {state['lengths']}, {state['arrivals']}"
    return [
        f"{words}: {len(cells[0])} steps",
        f"in step; mean wait {sum(waits) / len(waits):.2f} steps",
    ]
