"""`explore`: a picture with controls. Live it asks the kernel; the built page contains every state.

Live, a cell that runs again, say with another draw, finds its controls where the reader left them.

The environment variable QWENLAB_PAGE, set by `sphinx_page`, tells that a page is being built.
"""

import itertools
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from types import ModuleType
from typing import TYPE_CHECKING, Any

from qwenlab.teach.in_kernel import running_cell
from qwenlab.teach.palette import STYLE
from qwenlab.teach.pictures import Html, bare_html

if TYPE_CHECKING:
    from ipywidgets import VBox

MAX_STATES = 60  # per widget
MAX_BYTES = 400_000  # of widget HTML per page; one page is one kernel
_spent = 0  # bytes of widget HTML that this kernel's page holds so far
_ids = itertools.count(1)
_left: dict[tuple, list[str]] = {}  # live: the state in which the reader left a widget


@dataclass(frozen=True)
class Control:
    """One argument of draw: its name, its values, and how it is set (slider, checkbox, radio,
    menu)."""

    name: str
    values: list
    kind: str

    @property
    def label(self) -> str:
        return self.name.replace("_", " ")


def explore(draw: Callable, **controls: bool | Iterable) -> "Html | VBox":
    """Shows draw(...) with one control per argument, each at its first value to begin with.

    draw returns a picture (anything with `_repr_html_`), a matplotlib figure or a string. controls:
    a range or a list of numbers gives a slider; True or False a checkbox; up to four short strings
    buttons; any other list a menu. Live it returns an ipywidgets box; while a page is built
    (QWENLAB_PAGE), HTML that contains every state. Raises ValueError for a control without values
    and, in a page, for more than 60 states per widget or 400 kB per page.
    """
    controls = list(itertools.starmap(_control, controls.items()))
    if os.environ.get("QWENLAB_PAGE"):
        return _page(draw, controls)
    try:
        import ipywidgets
    except ImportError:
        return Html(
            '<div class="qwl qwl-bad">explore needs ipywidgets: '
            '<code>pip install "ipywidgets&gt;=7.7"</code></div>',
            'explore needs ipywidgets: pip install "ipywidgets>=7.7"',
        )
    return _live(draw, controls, ipywidgets)


def _control(name: str, values: bool | Iterable) -> Control:
    if isinstance(values, bool):
        return Control(name, [values, not values], "checkbox")
    values = list(values)
    if not values:
        raise ValueError(f"explore: the control {name!r} has no values")
    if all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values):
        return Control(name, values, "slider")
    short = len(values) <= 4 and max(map(len, map(str, values))) <= 24
    return Control(name, values, "radio" if short else "menu")


def _words(controls: list[Control], state: Sequence) -> str:
    words = []
    for control, value in zip(controls, state, strict=True):
        words.append(f"{control.label}: {value}")
    return ", ".join(words)


def _draw(draw: Callable, controls: list[Control], state: Sequence) -> str:
    """One state as HTML without our style sheet. A figure that draw leaves open is closed, and is
    the picture if draw returns none."""
    before = _open_figures()
    arguments = {}
    for control, value in zip(controls, state, strict=True):
        arguments[control.name] = value
    try:
        shown = draw(**arguments)
        if shown is None and _open_figures() - before:
            shown = sys.modules["matplotlib.pyplot"].gcf()
        return bare_html(shown)
    finally:
        for number in _open_figures() - before:
            sys.modules["matplotlib.pyplot"].close(number)


def _open_figures() -> set[int]:
    pyplot = sys.modules.get("matplotlib.pyplot")
    return set(pyplot.get_fignums()) if pyplot else set()


def _live(draw: Callable, controls: list[Control], widgets: ModuleType) -> "VBox":
    """Uses core widgets only, present in ipywidgets 7.7 and in 8. One HTML widget holds the
    picture."""
    place = _place(draw, controls)
    left = _left.get(place, [""] * len(controls))
    made = []
    for control, text in zip(controls, left, strict=True):
        # Their values are indices, so that a control takes values of any kind.
        texts = list(map(str, control.values))
        options = list(zip(texts, itertools.count()))
        start = texts.index(text) if text in texts else 0
        if control.kind == "slider":
            made.append(
                widgets.SelectionSlider(options=options, value=start, description=control.label)
            )
        elif control.kind == "checkbox":
            checked = control.values[start]
            made.append(widgets.Checkbox(value=checked, indent=False, description=control.label))
        elif control.kind == "radio":
            made.append(
                widgets.ToggleButtons(options=options, value=start, description=control.label)
            )
            made[-1].style.button_width = "auto"
            made[-1].layout.width = "auto"
        else:
            made.append(widgets.Dropdown(options=options, value=start, description=control.label))
        made[-1].style.description_width = "initial"
    picture = widgets.HTML()

    def state_now() -> list:
        state = []
        for control, widget in zip(controls, made, strict=True):
            chosen = widget.value
            state.append(chosen if control.kind == "checkbox" else control.values[chosen])
        return state

    def show(state: list) -> None:
        try:
            html = _draw(draw, controls, state)
        except Exception as error:  # in a reader's own draw: show it, and stay alive
            line = f"{_words(controls, state)}: {type(error).__name__}: {error}"
            html = f'<div class="qwl qwl-bad">{escape(" ".join(line.split()))}</div>'
        picture.value = STYLE + html

    def move(_change: Any) -> None:
        state = state_now()
        if place is not None:
            _left[place] = list(map(str, state))
        show(state)

    for widget in made:
        widget.observe(move, names="value")
    show(state_now())
    line = widgets.Box(made, layout=widgets.Layout(flex_flow="row wrap", grid_gap="0 22px"))
    box = widgets.VBox([line, picture])
    box.add_class("qwl-live")
    return box


def _place(draw: Callable, controls: list[Control]) -> tuple | None:
    """What a widget keeps when its cell runs again: the cell, the name of draw, those of its
    controls. None where nobody says which cell runs."""
    cell = running_cell()
    if cell is None:
        return None
    names = tuple(control.name for control in controls)
    return cell, getattr(draw, "__qualname__", ""), names


def _page(draw: Callable, controls: list[Control]) -> Html:
    """Every state, computed now. Equal pictures are stored once; a <template> costs nothing until
    it is shown."""
    global _spent
    values = []
    counts = []
    inputs = ""
    name = f"qwl-{next(_ids)}"
    for i, control in enumerate(controls):
        values.append(control.values)
        counts.append(f"{len(control.values)} {control.label}")
        inputs += _input(control, f"{name}-{i}")
    states = list(itertools.product(*values))
    if len(states) > MAX_STATES:
        raise ValueError(
            f"explore: {len(states)} states ({' x '.join(counts)}), a page holds at most "
            f"{MAX_STATES} per widget"
        )
    pictures = []
    which = []
    for state in states:
        html = _draw(draw, controls, state)
        if html not in pictures:
            pictures.append(html)
        which.append(pictures.index(html))
    templates = "".join(f"<template>{html}</template>" for html in pictures[1:])
    first = escape(_words(controls, states[0]))
    body = (
        f'<div class="qwl qwl-explore" id="{name}"><div class="qwl-controls" hidden>{inputs}</div>'
        f"<noscript><p>Scripts are off, so this is the first state only. {first}</p></noscript>"
        '<div class="qwl-words" role="status"></div><div '
        f'class="qwl-state">{pictures[0]}</div>{templates}'
        f"<script>{_script(name, controls, which)}</script></div>"
    )
    size = len((STYLE + body).encode())
    if _spent + size > MAX_BYTES:
        raise ValueError(
            f"explore: this widget takes {size:,} bytes and the page's widgets before it "
            f"{_spent:,}; "
            f"a page holds at most {MAX_BYTES:,}. Draw less per state or offer fewer states."
        )
    _spent += size
    return Html(body, f"explore: {len(states)} states; the first is {_words(controls, states[0])}")


def _input(control: Control, name: str) -> str:
    """A native input, so that the keyboard works as usual. Its value is the index of the control's
    value."""
    label = escape(control.label)
    last = len(control.values) - 1
    texts = list(map(escape, map(str, control.values)))
    if control.kind == "slider":
        return (
            f'<label for="{name}">{label} <input type="range" id="{name}" min="0" max="{last}" '
            f'value="0" autocomplete="off" aria-valuetext="{texts[0]}"><output '
            f'for="{name}">{texts[0]}</output></label>'
        )
    if control.kind == "checkbox":
        checked = " checked" if control.values[0] else ""
        return (
            f'<label><input type="checkbox" id="{name}" autocomplete="off"{checked}> '
            f"{label}</label>"
        )
    if control.kind == "radio":
        buttons = ""
        for i, text in enumerate(texts):
            checked = " checked" if i == 0 else ""
            buttons += (
                f'<label><input type="radio" name="{name}" value="{i}" '
                f'autocomplete="off"{checked}> {text}</label>'
            )
        return f'<fieldset id="{name}"><legend>{label}</legend>{buttons}</fieldset>'
    options = ""
    for i, text in enumerate(texts):
        options += f'<option value="{i}">{text}</option>'
    return (
        f'<label for="{name}">{label} <select id="{name}" '
        f'autocomplete="off">{options}</select></label>'
    )


def _script(name: str, controls: list[Control], which: list[int]) -> str:
    """Reads the controls, finds the picture of that state and shows a copy of it. `which` maps
    states to pictures."""
    data = []
    for control in controls:
        data.append([control.kind, control.label, list(map(str, control.values))])
    data = json.dumps(data).replace("</", "<\\/")
    return f"""(()=>{{
const root=document.getElementById("{name}"),controls={data},which={json.dumps(which)};
const place=root.querySelector(".qwl-state"),first=place.innerHTML,\
kept=root.querySelectorAll(":scope>template");
const read=(i)=>{{const kind=controls[i][0],el=document.getElementById("{name}-"+i);
if(kind=="checkbox")return Number(el.checked!=(controls[i][2][0]=="True"));
return Number(kind=="radio"?el.querySelector(":checked").value:el.value)}};
const show=()=>{{let state=0,words=[];controls.forEach(([kind,label,texts],i)=>{{const at=read(i);
state=state*texts.length+at;words.push(label+": "+texts[at]);if(kind=="slider"){{
const el=document.getElementById("{name}-"+i);el.setAttribute("aria-valuetext",texts[at]);
el.nextElementSibling.textContent=texts[at]}}}});
place.innerHTML=which[state]?kept[which[state]-1].innerHTML:first;
root.querySelector(".qwl-words").textContent=words.join(", ")}};
root.addEventListener("input",show);root.querySelector(".qwl-controls").hidden=false}})()"""
