"""What the widget of lesson 15 must show, worked out row by row. See widget_numbers.py."""

from bisect import bisect_left
from pathlib import Path

import qwenlab
from qwenlab.bench import DEVICES, SHAPES, decode_bound, memory_plan
from qwenlab.model.config import Config
from qwenlab.teach.curves import number

MOST_ROWS = 4096
TINY = Config.from_folder(Path(qwenlab.__file__).parent / "checkpoints" / "tiny")


def budget(state):
    """The folded numbers of the curve."""
    config, device, context, plan = planned(state)
    return [numbers_of_the_curve(config, device, context, plan)]


def title(state):
    """The picture's title: how many rows fit, what they get, and how long each waits."""
    config, device, context, plan = planned(state)
    step = max(decode_bound(config, device, plan.rows, context))
    speed = f"{plan.rows / step:,.0f} tokens/s, {1e3 * step:,.3g} ms a token"
    return f"{plan.rows:,} rows fit: {speed}"


def longest(state):
    """What takes longest when the memory is full."""
    config, device, context, plan = planned(state)
    read, compute = decode_bound(config, device, plan.rows, context)
    return "arithmetic" if compute >= read else "reading"


def planned(state):
    config = {**SHAPES, "tiny": TINY}[state["model"]]
    device = DEVICES[state["device"]]
    context = min(int(state["context"]), config.max_position_embeddings)
    plan = memory_plan(config, device.memory, context, device.dtype, grows=False)
    return config, device, context, plan


def numbers_of_the_curve(config, device, context, plan):
    fits = min(plan.rows, MOST_ROWS)
    shown = {1, 4, 16, 64, 256, 1024, 4096, fits, bend_of(config, device, context)}
    table = []
    for rows in sorted(shown):
        read, compute = decode_bound(config, device, rows, context)
        gained = number(100 * compute / max(read, compute))
        taken = 100 * plan.bytes(rows) / device.memory
        memory = number(taken) if rows <= fits and taken >= 0.1 else ""
        cells = [number(rows), gained if rows <= fits else "", memory]
        if fits < MOST_ROWS:
            cells.append(gained if rows >= fits else "")
        table.append(cells)
    return table


def bend_of(config, device, context):
    """The rows at which the two times are closest to equal, up to what the picture shows."""

    def ahead(rows):
        read, compute = decode_bound(config, device, rows, context)
        return compute - read

    first = bisect_left(range(1, MOST_ROWS), 0, key=ahead) + 1
    if first in (1, MOST_ROWS):
        return first
    return first if ahead(first) <= -ahead(first - 1) else first - 1
