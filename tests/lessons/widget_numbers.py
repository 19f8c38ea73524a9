"""What the widgets of the lessons must show, worked out again by plain loops.

EXPECTED[lesson] has one function for each widget of the page, in order: it takes the state,
{control's label: text}, and gives one list of rows for each table of the picture, top to bottom,
left to right. Cells are numbers, or texts.
"""

import itertools
import math
from functools import cache

import torch
import widget_answers
import widget_memory
import widget_prefix
import widget_queue
import widget_records
import widget_rollouts
import widget_slots
import widget_votes
from lesson_cells import lesson_of_a_page, pictures

import qwenlab


def number(text):
    """What a cell says, as a number."""
    return float(text)  # also "NaN" and "-inf"


def same(shown, expected):
    """Whether a cell says the expected text, or the expected number up to its own digits."""
    if isinstance(expected, str):
        return shown == expected
    shown = number(shown)
    if math.isnan(expected) or math.isinf(expected):
        return math.isnan(shown) if math.isnan(expected) else shown == expected
    return abs(shown - expected) <= max(
        0.0051, 0.06 * abs(expected) if abs(expected) < 0.01 else 5e-4 * abs(expected)
    )


# --- 03-combined-mask ---


WIDTH = 8  # columns of the rectangle
PADS = [2, 1, 0]  # of its rows


def step_of_a_square(state):
    """Why each cell of the whole square is dark, and the same of a cached step's mask."""
    pads = PADS[int(state["row"])]
    new = int(state["new tokens"])
    own = range(WIDTH) if state["corner"] == "top-left" else range(WIDTH - new, WIDTH)
    square = [[reason(key > query, key < pads) for key in range(WIDTH)] for query in range(WIDTH)]
    step = [[reason(key > own[n], key < pads) for key in range(WIDTH)] for n in range(new)]
    return [square, step]


def reason(later, pad):
    word = "both" if later and pad else "later" if later else "pad" if pad else ""
    return word


# --- 04-nan-rows: the microscope ---

LOWEST = -3.4028234663852886e38  # of float32


@cache
def tiny():
    return qwenlab.load("tiny", dtype="float32")


@cache
def raw_scores(pads):
    """Scores of the first layer's first head for `2+2=` behind pads, a product at a time.

    Every pad is at position 0.
    """
    model, tokenizer = tiny()
    ids = [tokenizer.pad_id] * pads + tokenizer.encode("2+2=")
    kept = []

    def keep(q, k, v, mask, scale):
        kept.append((q[0, 0].tolist(), k[0, 0].tolist(), scale))
        return torch.zeros_like(q)

    positions = torch.tensor([[max(0, place - pads) for place in range(len(ids))]])
    model.attention = keep
    try:
        model(
            torch.tensor([ids]), torch.ones(1, 1, len(ids), len(ids)).bool(), position_ids=positions
        )
    finally:
        model.attention = "sdpa"
    q, k, scale = kept[0]
    return [[scale * sum(a * b for a, b in zip(x, y, strict=True)) for y in k] for x in q]


@cache
def alone_sizes():
    """Root mean square of each token's vector after each layer, for `2+2=` by itself."""
    model, tokenizer = tiny()
    sizes = []
    hooks = [
        layer.register_forward_hook(
            lambda layer, inputs, out: sizes.append(out.square().mean(-1).sqrt())
        )
        for layer in model.model.layers
    ]
    model(torch.tensor([tokenizer.encode("2+2=")]))
    for hook in hooks:
        hook.remove()
    return [size.flatten().tolist() for size in sizes]


def minus(a, b):
    return math.nan if math.isinf(a) and math.isinf(b) else a - b


def microscope(state):
    """Masked scores, maximum, exp, sum, weights; then sizes.

    Of the sizes only NaN and the real tokens' are known here.
    """
    pads = int(state["pads"])
    cure = state["cure"]
    tables = [[], [], [], [], []]
    for query, scores in enumerate(raw_scores(pads)):
        seen = [pads <= key <= query for key in range(len(scores))]
        if cure == "pads-see-themselves" and not any(seen):
            seen[query] = True
        low = LOWEST if cure == "finfo.min" else -math.inf  # twice the lowest is -inf
        masked = [score if see else low for score, see in zip(scores, seen, strict=True)]
        highest = max(masked)
        if cure == "log-sum-exp" and not any(seen):
            highest = LOWEST
        shifted = [minus(score, highest) for score in masked]
        terms = [math.exp(x) for x in shifted]
        total = sum(terms)
        if cure == "log-sum-exp" and total == 0:
            total = 1.0
        for table, row in zip(
            tables, (masked, [highest], terms, [total], [t / total for t in terms]), strict=True
        ):
            table.append(row)
    poisoned = pads > 0 and cure in ("-inf", "finfo.min twice")
    sizes = []
    for layer, row in enumerate(alone_sizes()):
        at_pads = math.nan if poisoned else None  # finite, whatever it is
        sizes.append([at_pads] * pads + ([math.nan] * len(row) if poisoned and layer > 0 else row))
    return [*tables, sizes]


# --- 05-batched-generation: who says what at which step ---

QUESTIONS = {
    "6*12?": "10*6=",
    "34+17?": "",
    "Solve x+7=12.": "",
    "Tom has 14 apples and buys 23 more. He gives 9 away. How many are left? "
    "Please reason step by step, and put your final answer within \\boxed{}.": "14+23=",
}


@cache
def words_of(row, mask_kept):
    """What a row says up to its stop, by itself behind its pads.

    Its mask comes from plain loops, and there is no cache.
    """
    model, tokenizer = tiny()
    prompts = []
    for question, begun in QUESTIONS.items():
        chat = tokenizer.chat([{"role": "user", "content": question}])
        prompts.append([*chat, tokenizer.control["<think>"], *tokenizer.encode("\n" + begun)])
    width = max(map(len, prompts))
    pads = width - len(prompts[row])
    ids = [tokenizer.pad_id] * pads + prompts[row]
    words = []
    while len(words) < 30 and words[-1:] != ["stop"]:
        mask = torch.zeros(1, 1, len(ids), len(ids), dtype=torch.bool)
        for query in range(len(ids)):
            for key in range(query + 1):
                mask[0, 0, query, key] = key >= pads or (query >= width and not mask_kept)
        positions = torch.tensor([[max(0, place - pads) for place in range(len(ids))]])
        ids.append(int(model(torch.tensor([ids]), mask, position_ids=positions)[0, -1].argmax()))
        words.append(
            "stop" if ids[-1] in model.stop_ids else tokenizer.decode(ids[-1:]).replace("\n", "⏎")
        )
    return len(prompts[row]), words


def steps(state):
    """What goes in and comes out of each row at this step.

    Then every row's words so far, and the legend's signs.
    """
    step = int(state["step"])
    now = []
    so_far = []
    for row, name in enumerate("ABCD"):
        length, words = words_of(row, state["mask"] == "kept")
        if step >= len(words):
            now.append(["anything", "ignored"])
        else:
            now.append([words[step - 1] if step else f"{length} tokens", words[step]])
        cells = ["▸" + words[0], *words[1 : step + 1]]
        so_far.append(cells + ["×" + name] * (step + 1 - len(cells)))
    return [now, so_far, [["▸", "\xa0", "×", "·"]]]


EXPECTED = {
    "03-combined-mask": [step_of_a_square],
    "04-nan-rows": [microscope],
    "05-batched-generation": [steps],
    "06-early-stop": [widget_slots.slots],
    "07-continuous-batching": [widget_queue.queue],
    "08-shared-prefix": [widget_prefix.prefix],
    "09-linear-attention": [widget_memory.table, widget_memory.sizes],
    "10-hiding-padding": [widget_memory.pads],
    "11-evaluation": [widget_records.records],
    "12-self-consistency": [widget_votes.votes],
    "13-grpo": [widget_rollouts.groups, widget_rollouts.training],
    "14-distillation": [widget_answers.heard, widget_answers.average],
}


def wrong_cells(tables, expected):
    """(table, row, column, shown, expected) of every cell that isn't as expected.

    An expected None stands for any finite number.
    """
    assert [[len(row) for row in table] for table in tables] == [
        [len(row) for row in table] for table in expected
    ]
    return [
        (t, i, j, shown, value)
        for t, (table, right) in enumerate(zip(tables, expected, strict=True))
        for i, (row, right_row) in enumerate(zip(table, right, strict=True))
        for j, (shown, value) in enumerate(zip(row, right_row, strict=True))
        if not (math.isfinite(number(shown)) if value is None else same(shown.strip(" "), value))
    ]


def states_of(widget, controls):
    """(state, picture, tables) of each state of a widget's page; a state names its controls' values
    as the widget says them. Equal pictures would be stored once, so no two are alike."""
    labels = [label.replace("_", " ") for label in controls]
    states = list(itertools.product(*controls.values()))
    drawn = pictures(widget._repr_html_())
    assert len(drawn) == len(states)
    for state, (picture, tables) in zip(states, drawn, strict=True):
        yield dict(zip(labels, map(str, state), strict=True)), picture, tables


def every_state_is_right(name, until, fewest):
    """Each widget of a lesson shows, in each of its states, the right numbers, and no two alike."""
    lesson = lesson_of_a_page(name, until)
    assert len(lesson.widgets) == len(EXPECTED[name])
    size = 0
    for (widget, controls), expected in zip(lesson.widgets, EXPECTED[name], strict=True):
        size += len(widget._repr_html_().encode())
        states = list(states_of(widget, controls))
        assert len(states) >= fewest
        for state, _, tables in states:
            assert wrong_cells(tables, expected(state)) == [], state
    assert size < 300_000, "what a page spends on widgets"
