"""What the widget of lesson 08 must show, counted again row by row and chunk by chunk.

See widget_numbers.py.
"""

CHUNK = 256  # most tokens of a prompt that a row reads in a step
TOKEN = (
    3 * 2 * 2 * 32 * 4
)  # bytes: layers, keys and values, key/value heads, numbers a head, bytes a number
LENGTH = 8  # bytes in which a row's length is kept


def steps_to_read(tokens):
    steps = 0
    while tokens > 0:
        tokens -= CHUNK
        steps += 1
    return steps


def prefix(state):
    """Tokens read; kB held; both timelines with their legends."""
    n = int(state["answers"])
    length = int(state["prompt tokens"])
    tokens = [[0, 0, 0], [0, 0, 0]]  # once for all, by each row, in all
    for row in range(n):
        tokens[0][2] += length
        if n > 1 and row == 0:
            tokens[1][0] = length - 1
            tokens[1][2] += length - 1
        tokens[1][2] += 1 if n > 1 else length
    tokens[0][1] = length
    tokens[1][1] = 1 if n > 1 else length
    held = [n * (length * TOKEN + LENGTH)] * 2 + [length * TOKEN + LENGTH]
    apart = [["▸"] * steps_to_read(length) for _ in range(n)]
    shared = [["▸" if row == 0 else "·"] * steps_to_read(length - 1) + ["▸"] for row in range(n)]
    legend = [["▸", "\xa0", "×", "·"]]
    return [
        [[str(number) for number in line] for line in tokens],
        [[f"{number / 1e3:,.0f}"] for number in held],
        apart,
        legend,
        shared if n > 1 else apart,
        legend,
    ]
