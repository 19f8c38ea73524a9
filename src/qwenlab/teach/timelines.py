"""`timeline`: who was in which row at which step, and which row-steps paid.
Drawn as a heatmap is."""

from collections import Counter

from qwenlab.teach.heatmaps import Cell, Heatmap, token_text

# Kind of a step -> its class in the palette, and the sign before the name: the four differ without
# any colour.
KINDS = {"prefill": ("f", "▸"), "decode": ("d", ""), "wasted": ("u", "×"), "idle": ("i", "·")}


class Timeline(Heatmap):
    """What `timeline` returns: a Heatmap whose cells are steps, with a legend that counts each
    kind."""

    def __init__(self, cells, rows, columns, title, alt, counts):
        self.counts = counts  # {"prefill": row-steps, ...}
        super().__init__(cells, rows, columns, title, alt, set())

    def _body(self):
        legend = "".join(
            f'<td class="{KINDS[kind][0]}">{KINDS[kind][1] or "&nbsp;"}</td><th>{kind}: '
            f"{count}</th>"
            for kind, count in self.counts.items()
        )
        legend = (
            f'<table class="qwl-grid" role="presentation"><tbody><tr>{legend}</tr></tbody></table>'
        )
        grid = super()._body().replace('"qwl-grid', '"qwl-grid steps', 1)
        return grid.replace("</figure>", f'<div class="qwl-box">{legend}</div></figure>')

    def _plain(self):
        return f"{super()._plain()}\n{_legend(self.counts)}"

    def figure(self):
        figure = super().figure()
        width, height = figure.get_size_inches()
        figure.set_size_inches(max(width, 4.6), height + 0.2)  # the legend has room
        figure.axes[0].set_xlabel(_legend(self.counts), fontsize=9)
        return figure


def timeline(run, *, by="slot", names=None, said=None, title="", alt=None):
    """Draw a run of the generation loop: one line a slot (or request), one column a step.

    run: the list of events of `result.stats`, or that Stats or Result itself. An event is (step,
    slot, request,
        kind); a part of the list draws that part. by: "slot" (rows of the state) or "request".
    names: what request i is called in the cells (default: its number). said: said[i] lists what
    request i sampled, in order; its cells then show that in place of its name. A cell shows ▸
    before a prefill and × before a wasted step; an idle slot is a dashed cell, empty but for a
    request that waits in it for others to read what they share. A prompt that is read in parts says
    nothing before the last. A request that was in no slot at a step has no cell there. Raises
    ValueError for an empty list, an unknown kind or `by`, and a request without a name.
    """
    events = list(getattr(getattr(run, "stats", run), "events", run))
    if not events:
        raise ValueError("timeline: there are no events to draw")
    if by not in ("slot", "request"):
        raise ValueError(f'timeline: by is {by!r}, expected "slot" or "request"')
    events.sort(key=lambda event: event[:2])
    lines = {}
    sampled = Counter()
    partly = _partly(events)
    for step, slot, request, kind in events:
        if kind not in KINDS:
            raise ValueError(
                f"timeline: step {step}, slot {slot} is {kind!r}, "
                f"expected one of {', '.join(KINDS)}"
            )
        text = (
            ""
            if request is None
            else str(_of(names, request, "names") if names is not None else request)
        )
        if said is not None and kind in ("prefill", "decode") and (step, slot) not in partly:
            text = str(_of(_of(said, request, "said"), sampled[request], f"said[{request}]"))
            sampled[request] += 1
        if by == "slot" or request is not None:
            line = lines.setdefault(slot if by == "slot" else request, {})
            line[step] = Cell(KINDS[kind][1] + token_text(text), KINDS[kind][0])
    steps = range(min(event[0] for event in events), max(event[0] for event in events) + 1)
    counts = Counter(event[3] for event in events)
    counts = {kind: counts[kind] for kind in KINDS}
    cells = []
    for key in sorted(lines):
        cells.append([lines[key].get(step, Cell("", "o")) for step in steps])
    labels = [f"{by} {names[key] if names and by == 'request' else key}" for key in sorted(lines)]
    alt = (
        alt
        or f"{title or 'Timeline'}: {len(lines)} {by}s over {len(steps)} steps; {_legend(counts)}."
    )
    return Timeline(cells, labels, [str(step) for step in steps], title, alt, counts)


def _partly(events):
    """The (step, slot) of prefills that the same request followed up by another: they read a part
    and said nothing."""
    after = {}
    partly = set()
    for step, slot, request, kind in reversed(events):
        if kind == "prefill" and after.get(request) == "prefill":
            partly.add((step, slot))
        if kind != "idle":
            after[request] = kind
    return partly


def _legend(counts):
    return ", ".join(
        f"{(KINDS[kind][1] + ' ' + kind).strip()}: {count}" for kind, count in counts.items()
    )


def _of(values, i, name):
    if i >= len(values):
        raise ValueError(f"timeline: {name} has {len(values)} entries, the events need number {i}")
    return values[i]
