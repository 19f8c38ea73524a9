"""`page_model`: a checkpoint that runs in the reader's page, without a kernel, server or network.

The JavaScript in `page/` computes what the library computes, under the same names, and the head of
each file says what a widget may call. The weights travel as a classic script, so that a page opened
as a file can load them: bfloat16 wherever that is exact, which holds for the shipped models, else
float32. On the site they are written once, by `sphinx_page`, and loaded when a widget first asks
for them. Live, they come in an output of their own, which is emptied as soon as the page has
answered (`show_live`), so that a saved notebook keeps the still and not the weights.
"""

import base64
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import lru_cache
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, normalizers

from qwenlab.errors import QwenlabError, read_json
from qwenlab.loading import TOKENIZER, find_checkpoint, load, shipped_folder, shipped_names
from qwenlab.model.model import Model
from qwenlab.teach.palette import STYLE
from qwenlab.teach.pictures import Html, bare_html
from qwenlab.text.tokenizer import Tokenizer
from qwenlab.text.vocabulary import BYTE_OF

FOLDER = Path(__file__).with_name("page")
# As they are loaded; widget_*.js come last.
SCRIPTS = ("text.js", "model.js", "sampling.js", "engine.js", "loader.js", "drawing.js")
MOST_BYTES = 5_000_000  # of safetensors: a page that takes longer to load is not read
# Where the tables of Unicode differ: what these mean in a tokenizer's pattern is packed.
CLASSES = (r"\s", r"\p{L}", r"\p{N}")
RUN_ME = "<p>Saved without its model: run this cell, and trust the notebook, to use it here.</p>"
_marks = itertools.count(1)


class PageModelError(QwenlabError):
    """The checkpoint is too large for a page, or of a kind that the page doesn't compute."""


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
        as JSON. Raises ValueError for a name that no script has.
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
        wide, narrow = height
        data = escape(json.dumps(options))
        self.still = bare_html(f"This picture needs scripts: {name}." if still is None else still)
        self.opening = (
            f'<div class="qwl qwl-page" data-widget="{name}" data-model="{escape(model.name)}" '
            f'data-options="{data}" style="--qwl-wide:{wide}px;--qwl-narrow:{narrow}px">'
        )
        body = self.placeholder()
        super().__init__(body, f"The widget {name}, on the model {model.name} in the page.")

    def _repr_html_(self) -> str:
        return super()._repr_html_() + self.brings()

    def _ipython_display_(self) -> None:
        kept = STYLE + self.placeholder(RUN_ME) + once_more("mount_all")
        show_live(kept, self.brings, self.text)

    def placeholder(self, note: str = "") -> str:
        """The still, and a note that goes with it when the widget comes."""
        style = (FOLDER / "drawing.css").read_text(encoding="utf-8")
        shown = f'<div class="qwl-still">{self.still}{note}</div>'
        return f"<style>{style}</style>{self.opening}{shown}</div>"

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
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if os.environ.get("QWENLAB_PAGE") or getattr(shell, "kernel", None) is None:
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


# --- Tokenizer -----------------------------------------------------------------------------------


def pack_tokenizer(tokenizer: Tokenizer, folder: Path) -> dict:
    """What the Tokenizer of text.js is made from. Raises PageModelError for other kinds."""
    spec = read_json(folder / TOKENIZER, PageModelError)
    pattern, normal_form = text_rules(spec, folder)
    words = [t["content"] for t in spec["added_tokens"] if t["content"] not in tokenizer.control]
    known = set(tokenizer.text_of.values())
    if words or spec["model"].get("ignore_merges") or not BYTE_OF.keys() <= known:
        raise PageModelError(
            f"{folder / TOKENIZER}: added words, ignore_merges or a vocabulary without all bytes, "
            "which the page doesn't compute"
        )
    merges = []
    for pair in spec["model"]["merges"]:
        merges.append(pair if isinstance(pair, str) else " ".join(pair))
    classes = {}
    for name in CLASSES:
        if used(name, pattern):
            classes[name] = character_class(name)
    return {
        "tokens": [tokenizer.text_of.get(id) for id in range(max(tokenizer.text_of) + 1)],
        "merges": merges,
        "control": tokenizer.control,
        "special": sorted(tokenizer.special),
        "pad_id": tokenizer.pad_id,
        "eos_id": tokenizer.eos_id,
        "vocab_size": tokenizer.vocab_size,
        "normal_form": normal_form,
        "split": pattern,
        "classes": classes,
        "chat": has_known_template(folder),
    }


def text_rules(spec: dict, folder: Path) -> tuple[str, str | None]:
    """The pattern that splits text, and the Unicode normal form (None: as it is)."""
    steps = spec.get("pre_tokenizer") or {}
    steps = steps.get("pretokenizers", [steps])
    normalizer = spec.get("normalizer")
    kinds = [step.get("type") for step in steps]
    known = kinds == ["Split", "ByteLevel"] and normalizer in (None, {"type": "NFC"})
    if known:
        split, to_bytes = steps
        pattern = split["pattern"].get("Regex", "")
        known = split["behavior"] == "Isolated" and not split["invert"] and bool(pattern)
        known = known and not to_bytes["add_prefix_space"] and not to_bytes["use_regex"]
        known = known and not unknown_escapes(pattern)
    if not known:
        raise PageModelError(
            f"{folder / TOKENIZER}: not split and normalised as the page does it, expected NFC or "
            "none, then Split by a pattern of \\s, \\p{L}, \\p{N}, then ByteLevel"
        )
    return pattern, normalizer and normalizer["type"]


def unknown_escapes(pattern: str) -> bool:
    """Whether a pattern has escapes that may mean something else in JavaScript."""
    for name in (*CLASSES, *map(negated, CLASSES), r"\n", r"\r", r"\t"):
        pattern = pattern.replace(name, "")
    return "\\" in pattern


def negated(name: str) -> str:
    return name[0] + name[1].upper() + name[2:]


def used(name: str, pattern: str) -> bool:
    return name in pattern or negated(name) in pattern


@lru_cache
def character_class(name: str) -> str:
    r"""The characters that `name` (`\s`, for example) means to the tokenizers library, as ranges of
    a JavaScript class: asked of the library, because every regex engine has tables of its own."""
    points = [*range(0xD800), *range(0xE000, 0x110000)]  # no halves of surrogate pairs
    without = normalizers.Replace(Regex(f"{name}+"), "").normalize_str
    inside: list[int] = []
    for start in range(0, len(points), 4096):  # the library is slow on long texts
        chunk = points[start : start + 4096]
        outside = without("".join(map(chr, chunk)))
        if len(outside) < len(chunk):
            inside += sorted(set(chunk).difference(map(ord, outside)))
    ranges = []
    for _, run in groupby(enumerate(inside), lambda pair: pair[1] - pair[0]):
        members = [point for _, point in run]
        ranges.append(f"\\u{{{members[0]:x}}}-\\u{{{members[-1]:x}}}")
    return "".join(ranges)


def has_known_template(folder: Path) -> bool:
    """Whether there is a chat template. Raises PageModelError for one that text.js doesn't write:
    it has that of the shipped models."""
    template = template_text(folder)
    if template is None:
        return False
    if template != template_text(shipped_folder() / "tiny"):
        raise PageModelError(
            f"{folder}: its chat template is not that of the shipped models, "
            "the one that the page writes"
        )
    return True


def template_text(folder: Path) -> str | None:
    alone = folder / "chat_template.jinja"
    if alone.exists():
        return alone.read_text(encoding="utf-8")
    settings = folder / "tokenizer_config.json"
    return read_json(settings, PageModelError).get("chat_template") if settings.exists() else None
