"""`page_model`: a checkpoint that runs in the reader's page, without a kernel, server or network.

The JavaScript in `page/` computes what the library computes, under the same names, and the head of
each file says what a widget may call. The weights travel as a classic script, so that a page opened
as a file can load them: bfloat16 wherever that is exact, which holds for the shipped models, else
float32. On the site they are written once, by `sphinx_page`, and loaded when a widget first asks
for them. Live, they come in an output of their own, which is emptied as soon as the page has
answered (`show_live`), so that a saved notebook keeps the still and not the weights. A cell that
runs again finds its controls where the reader left them, until its kernel restarts.
"""

import base64
import itertools
import json
import os
import sys
import uuid
from collections.abc import Callable, Iterable
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any

import torch

from qwenlab.loading import TOKENIZER, find_checkpoint, load, shipped_names
from qwenlab.model.model import Model
from qwenlab.teach.in_kernel import running_cell, running_kernel
from qwenlab.teach.page_tokenizer import PageModelError, pack_tokenizer
from qwenlab.teach.palette import STYLE, scaled
from qwenlab.teach.pictures import Html, bare_html
from qwenlab.teach.widget_options import check_height, checked_options
from qwenlab.text.tokenizer import Tokenizer

FOLDER = Path(__file__).with_name("page")
# As they are loaded; widget_*.js come last.
SCRIPTS = (
    "lists.js",
    "text.js",
    "model.js",
    "sampling.js",
    "engine.js",
    "loader.js",
    "drawing.js",
)
MOST_BYTES = 5_000_000  # of safetensors: a page that takes longer to load is not read
RUN_ME = "<p>Saved without its model: run this cell, and trust the notebook, to use it here.</p>"
_marks = itertools.count(1)
_kernel = uuid.uuid4().hex[:8]  # another one after a restart


class PageModel(Html):
    """A model in the page, which shows itself as one line; `widget` shows what runs on it."""

    def __init__(self, name: str, packed: dict) -> None:
        self.name = name
        self.packed = packed
        count = sum(size_of(shape) for _, _, shape in packed["tensors"])
        still = f"The model {name} ({count:,} parameters) runs in the page itself."
        body = (
            f'<div class="qwl qwl-page-model" data-qwenlab-model="{escape(name)}">'
            f"<p>{escape(still)} <span>It needs scripts: switch them on, or run this cell and "
            "trust the notebook.</span></p></div>"
        )
        super().__init__(body, still)

    def script(self) -> str:
        """The weights, config and tokenizer as a classic script."""
        # No "<" at all, so that nothing inside can end a script element.
        name = json.dumps(self.name).replace("<", "\\u003c")
        value = json.dumps(self.packed, separators=(",", ":")).replace("<", "\\u003c")
        return (
            "globalThis.qwenlab = globalThis.qwenlab || {};\n"
            "qwenlab.packed = qwenlab.packed || {};\n"
            f"qwenlab.packed[{name}] = {value};\n"
        )

    def widget(
        self, name: str, *, still: Any = None, height: tuple[int, int] = (420, 560), **options: Any
    ) -> "PageWidget":
        """A widget that runs this model: page/widget_<name>.js. See page/drawing.js.

        still: what readers without scripts see, and what is printed: anything that `bare_html`
        shows. height: pixels to keep free, on a desk and on a telephone. options: the widget's own,
        as JSON. Raises ValueError, in one line, for a name that no script has and for options that
        the widget doesn't take.
        """
        return PageWidget(self, name, still, height, options)

    def _repr_html_(self) -> str:
        return super()._repr_html_() + self.brings()

    def _ipython_display_(self) -> None:
        show_live(super()._repr_html_() + once_more("announce"), self.brings, self.text)

    def brings(self, last: str = "") -> str:
        return inline_scripts(self, [], f"qwenlab.announce();{last}")


class PageWidget(Html):
    """A widget that runs a model in the page. It shows its still until its script is there."""

    def __init__(
        self, model: PageModel, name: str, still: Any, height: tuple[int, int], options: dict
    ) -> None:
        if name not in widget_names():
            raise ValueError(f"no widget {name!r}, expected one of {', '.join(widget_names())}")
        self.model = model
        self.name = name
        wide, narrow = check_height(name, height)
        data = escape(checked_options(name, options))
        self.still = bare_html(f"This picture needs scripts: {name}." if still is None else still)
        self.opening = (
            f'<div class="qwl qwl-page" data-widget="{name}" data-model="{escape(model.name)}" '
            f'data-options="{data}" style="--qwl-wide:{wide}px;--qwl-narrow:{narrow}px"'
        )
        body = self.placeholder()
        super().__init__(body, f"The widget {name}, on the model {model.name} in the page.")

    def _repr_html_(self) -> str:
        return super()._repr_html_() + self.brings()

    def _ipython_display_(self) -> None:
        kept = STYLE + self.placeholder(RUN_ME, running_cell()) + once_more("mount_all")
        show_live(kept, self.brings, self.text)

    def placeholder(self, note: str = "", cell: str | None = None) -> str:
        """The still, and a note that goes with it when the widget comes. cell: the id of the
        notebook's cell that runs."""
        style = scaled((FOLDER / "drawing.css").read_text(encoding="utf-8"))
        shown = f'<div class="qwl-still">{self.still}{note}</div>'
        place = "" if cell is None else f' data-place="{escape(f"{_kernel} {cell} {self.name}")}"'
        return f"<style>{style}</style>{self.opening}{place}>{shown}</div>"

    def brings(self, last: str = "") -> str:
        return inline_scripts(self.model, [self.name], f"qwenlab.mount_all();{last}")


def inline_scripts(model: PageModel, widgets: list[str], last: str) -> str:
    """All that an output brings along where no site has it: scripts, weights, and a `last` call."""
    if os.environ.get("QWENLAB_PAGE"):  # the site has the scripts already
        return ""
    scripts = [*page_scripts(widgets).values(), model.script(), last]
    return "".join(f"<script>{script}</script>" for script in scripts)


def once_more(call: str) -> str:
    """For an output that is shown again in a page that has the scripts already."""
    return f"<script>globalThis.qwenlab?.{call}?.();</script>"


def show_live(kept: str, brings: Callable[[str], str], text: str) -> None:
    """Shows what a notebook keeps, and in an output beside it the scripts, until they have run.

    kept: HTML. brings(last): HTML with scripts and weights, the call `last` behind them. A page can
    answer its kernel by pressing a button of ipywidgets, here a hidden one: then the output with
    the scripts is emptied, so that none of it is saved. Where nobody answers, without ipywidgets
    and in Colab (not tried), it stays, and the notebook is larger. Raises NotImplementedError,
    which makes IPython take `_repr_html_`, without a kernel and while the site is built.
    """
    if os.environ.get("QWENLAB_PAGE") or running_kernel() is None:
        raise NotImplementedError
    from IPython.display import display

    display(html_output(kept, text), raw=True)
    button = None if "google.colab" in sys.modules else answer_button()
    if button is None:
        display(html_output(brings("")), raw=True)
        return
    mark = f"qwl-came-{os.getpid()}-{next(_marks)}"
    button.add_class(mark)
    asked = display(button, display_id=True)
    html = brings(f'qwenlab.answer("{mark}");')
    brought = display(html_output(html), raw=True, display_id=True)

    def empty(_button: Any) -> None:
        for output in (brought, asked):
            output.update(html_output(""), raw=True)
        button.close()

    button.on_click(empty)


def html_output(html: str, text: str = "") -> dict[str, str]:
    return {"text/html": html, "text/plain": text}


def answer_button() -> Any:
    """A hidden button, or None without ipywidgets."""
    try:
        from ipywidgets import Button, Layout
    except ImportError:
        return None
    return Button(layout=Layout(display="none"))


def page_model(name) -> PageModel:
    """A checkpoint as a model that runs in the page. `name` as for `load`, at most 5 MB of weights.

    In JavaScript, `qwenlab.bring(name)` promises [model, tokenizer], where `name` is that of a
    shipped model or of the checkpoint's folder. On the site, models other than the shipped ones
    must be listed in `qwenlab_page_models` of _config.yml. Raises PageModelError, in one line, for
    a checkpoint that is too large, or whose tokenizer or chat template the page can't follow, and
    whatever `load` raises.
    """
    folder = find_checkpoint(name)
    stored = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    if stored > MOST_BYTES:
        raise PageModelError(
            f"{folder}: {stored:,} bytes of weights, a page takes at most {MOST_BYTES:,}"
        )
    if not (folder / TOKENIZER).exists():
        raise PageModelError(f"{folder}: no {TOKENIZER}, which the page needs to read prompts")
    model, tokenizer = load(folder, dtype="float32", device="cpu", fast=False)
    shown = name if name in shipped_names() else folder.resolve().name
    return PageModel(shown, pack(model, tokenizer))


def page_scripts(widgets: Iterable[str] | None = None) -> dict[str, str]:
    """The JavaScript of these widgets (None: of all) and of what they share, by file name, in the
    order in which a page loads it."""
    names = list(SCRIPTS)
    for widget in widget_names() if widgets is None else widgets:
        names.append(f"widget_{widget}.js")
    return {name: (FOLDER / name).read_text(encoding="utf-8") for name in names}


def widget_names() -> list[str]:
    """The widgets that `PageModel.widget` knows."""
    return sorted(path.stem.removeprefix("widget_") for path in FOLDER.glob("widget_*.js"))


def pack(model: Model, tokenizer: Tokenizer) -> dict:
    """What `qwenlab.load` of model.js reads. Raises PageModelError."""
    config = asdict(model.config)
    config["is_qwen3_5"] = model.config.is_qwen3_5
    config["rotary_dim"] = model.config.rotary_dim
    tensors, weights = pack_tensors(model)
    return {
        "config": config,
        "stop_ids": sorted(model.stop_ids),
        "tokenizer": pack_tokenizer(tokenizer, model.folder),
        "tensors": tensors,
        "weights": base64.b64encode(weights).decode("ascii"),
    }


def pack_tensors(model: Model) -> tuple[list[tuple[str, str, list[int]]], bytes]:
    """(name, dtype, shape) of each tensor, and all their bytes, little-endian, in this order."""
    tensors = []
    parts = []
    for name, parameter in model.named_parameters():
        exact = parameter.detach()
        half = exact.to(torch.bfloat16)
        if torch.equal(half.float(), exact):
            tensors.append((name, "bfloat16", list(exact.shape)))
            parts.append(half.view(torch.int16).numpy().astype("<i2").tobytes())
        else:
            tensors.append((name, "float32", list(exact.shape)))
            parts.append(exact.numpy().astype("<f4").tobytes())
    return tensors, b"".join(parts)


def size_of(shape: list[int]) -> int:
    return torch.Size(shape).numel()
