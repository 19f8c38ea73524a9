"""`timeline`: which request was in which slot at which step, and which row-steps were useful, drawn
as a heatmap. `fixed_slots`: the same run with each request in one slot until it ends."""

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from qwenlab.teach.heatmaps import Cell, Heatmap, token_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Kind of a step -> its class in the palette and the sign before the name, which differ even without
# colour.
KINDS = {"prefill": ("f", "▸"), "decode": ("d", ""), "wasted": ("u", "×"), "idle": ("i", "·")}


class Timeline(Heatmap):
    """What `timeline` returns: a Heatmap whose cells are steps, with a legend that counts each
    kind."""

    def __init__(
        self,
        cells: list[list[Cell]],
        rows: list[str],
        columns: list[str],
        title: str,
        alt: str,
        counts: dict[str, int],
    ) -> None:
        self.counts = counts  # {"prefill": row-steps, ...}
        super().__init__(cells, rows, columns, title, alt, set())

    def _body(self) -> str:
        legend = ""
        for kind, count in self.counts.items():
            style, sign = KINDS[kind]
            legend += f'<td class="{style}">{sign or "&nbsp;"}</td><th>{kind}: {count}</th>'
        legend = (
            f'<table class="qwl-grid" role="presentation"><tbody><tr>{legend}</tr></tbody></table>'
        )
        grid = super()._body().replace('"qwl-grid', '"qwl-grid steps', 1)
        box = f'<div class="qwl-box" tabindex="0" role="group" aria-label="Legend">{legend}</div>'
        return grid.replace("</figure>", f"{box}</figure>")

    def _plain(self) -> str:
        return f"{super()._plain()}\n{_legend(self.counts)}"

    def figure(self) -> "Figure":
        figure = super().figure()
        width, height = figure.get_size_inches()
        figure.set_size_inches(max(width, 4.6), height + 0.2)  # room for the legend
        figure.axes[0].set_xlabel(_legend(self.counts), fontsize=9)
        return figure


def timeline(
    run: Any,
    *,
    by: str = "slot",
    names: Sequence[str] | None = None,
    sampled: Sequence[Sequence[str]] | None = None,
    title: str = "",
    alt: str | None = None,
) -> Timeline:
    """Draws a run of the generation loop: one line per slot (or request), one column per step.

    run: the list of events of `result.stats`, or that Stats or Result itself. An event is (step,
    slot, request, kind); a part of the list draws that part. by: "slot" (of the state) or
    "request". names: what request i is called in the cells (default: its number). sampled:
    sampled[i] lists the tokens of request i in order; its cells show them in place of its name.

    A cell shows ▸ before a prefill and × before a wasted step. An idle slot is a dashed cell, empty
    unless a request waits in it for others to prefill the prefix that they share. A prompt read in
    parts samples nothing before the last part. A request that was in no slot at a step has no cell
    there. Raises ValueError for an empty list, an unknown kind or `by`, and a request without a
    name.
    """
    events = list(getattr(getattr(run, "stats", run), "events", run))
    if not events:
        raise ValueError("timeline: there are no events to draw")
    if by not in ("slot", "request"):
        raise ValueError(f'timeline: by is {by!r}, expected "slot" or "request"')
    events.sort(key=lambda event: event[:2])
    lines = {}
    shown = Counter()  # tokens of each request
    partly = _partly(events)
    for step, slot, request, kind in events:
        if kind not in KINDS:
            raise ValueError(
                f"timeline: step {step}, slot {slot} is {kind!r}, "
                f"expected one of {', '.join(KINDS)}"
            )
        text = "" if request is None else str(request)
        if names is not None and request is not None:
            text = str(_of(names, request, "names"))
        if sampled is not None and kind in ("prefill", "decode") and (step, slot) not in partly:
            tokens = _of(sampled, request, "sampled")
            text = str(_of(tokens, shown[request], f"sampled[{request}]"))
            shown[request] += 1
        if by == "slot" or request is not None:
            line = lines.setdefault(slot if by == "slot" else request, {})
            line[step] = Cell(KINDS[kind][1] + token_text(text), KINDS[kind][0])
    steps = range(events[0][0], events[-1][0] + 1)
    counts = dict.fromkeys(KINDS, 0)
    for *_, kind in events:
        counts[kind] += 1
    cells = []
    labels = []
    for key in sorted(lines):
        cells.append([lines[key].get(step, Cell("", "o")) for step in steps])
        labels.append(f"{by} {names[key] if names and by == 'request' else key}")
    size = f"{len(lines)} {by}s over {len(steps)} steps"
    alt = alt or f"{title or 'Timeline'}: {size}; {_legend(counts)}."
    return Timeline(cells, labels, list(map(str, steps)), title, alt, counts)


def fixed_slots(run: Any) -> list[tuple]:
    """A run's events, for `timeline`, with each request in the slot that it took until it ends.

    The engine moves rows together in its state when a request leaves, which says nothing about
    who waited for whom. Here a request takes the lowest slot that is free. run: as for `timeline`.
    """
    events = []
    slot_of = {}  # by request
    recorded = list(getattr(getattr(run, "stats", run), "events", run))
    for step, entries in groupby(recorded, lambda event: event[0]):
        entries = list(entries)
        kind_of = {}
        for _, _, request, kind in entries:
            if request is not None:  # the slot isn't empty
                kind_of[request] = kind
        for request in slot_of.keys() - kind_of.keys():  # those that have ended
            del slot_of[request]
        for request in sorted(kind_of.keys() - slot_of.keys()):
            free = set(range(len(entries))) - set(slot_of.values())
            slot_of[request] = min(free)
        request_in = {slot: request for request, slot in slot_of.items()}
        for slot in range(len(entries)):
            request = request_in.get(slot)
            events.append((step, slot, request, kind_of.get(request, "idle")))
    return events


def _partly(events: Sequence[tuple]) -> set[tuple[int, int]]:
    """The (step, slot) of prefills that the same request followed with another: they read a part
    of the prompt and sampled nothing."""
    after = {}
    partly = set()
    for step, slot, request, kind in reversed(events):
        if kind == "prefill" and after.get(request) == "prefill":
            partly.add((step, slot))
        if kind != "idle":
            after[request] = kind
    return partly


def _legend(counts: dict[str, int]) -> str:
    entries = []
    for kind, count in counts.items():
        entries.append(f"{KINDS[kind][1]} {kind}: {count}".strip())
    return ", ".join(entries)


def _of(values: Sequence, i: int, name: str) -> Any:
    if i >= len(values):
        raise ValueError(f"timeline: {name} has {len(values)} entries, none for number {i}")
    return values[i]
