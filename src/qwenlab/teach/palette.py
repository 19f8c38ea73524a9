"""The palette and visual language of all pictures: CSS variables for HTML, the same values for
matplotlib.

A real token is a filled cell with its text, a pad a pale hatched cell. A masked pair is a dark
cell, an allowed one light. NaN is written on the alarm colour, which nothing else uses. A prefill
step is a dark cell with ▸, a decode step a plain one; a wasted step is cross-hatched with ×, an
idle one empty and dashed. Colour is never the only signal: every cell has its text, pads and wasted
steps are hatched, curves differ by marker and line style. Colour-blind readers can tell the hues
apart (blue against amber, as in Okabe and Ito, "Color Universal Design", 2008).
"""

import re

LIGHT = {
    "ink": "#1c2127",  # text
    "paper": "#ffffff",  # behind the picture
    "muted": "#59636e",  # axis labels
    "line": "#c3cad2",  # cell borders
    "token": "#a5d0f0",
    "accent": "#1f6fb2",  # sliders and buttons
    "pad": "#f3f2ed",
    "hatch": "#d3d1c7",
    "pad-ink": "#5b594f",
    "allowed": "#fbf3dc",
    "masked": "#3b424b",
    "alarm": "#b5004f",
    "good": "#00664b",  # a check that passed
    "prefill": "#00498a",
    "wasted": "#f6dcc0",
    "cross": "#d39a63",  # the hatch of wasted steps
    "curve-0": "#00498b",
    "curve-1": "#a85800",
    "curve-2": "#4b5560",
    "curve-3": "#14706a",
}
DARK = LIGHT | {
    "ink": "#e8ebee",
    "paper": "#14181e",
    "muted": "#a9b3bd",
    "line": "#5a636d",
    "token": "#8dbfe4",
    "accent": "#8dbfe4",
    "pad": "#d6d4cb",
    "hatch": "#b9b6aa",
    "pad-ink": "#45433b",
    "allowed": "#e9dfc2",
    "masked": "#39414b",
    "good": "#5fd0a8",
    "wasted": "#e6c9a8",
    "cross": "#bf8a55",
    "curve-0": "#7cb8ec",
    "curve-1": "#f0a75e",
    "curve-2": "#c3cad2",
    "curve-3": "#62c9c0",
}
# CSS class of a kind of cell -> its colour, and of those hatched in print -> (pattern, colour).
KINDS = {"t": "token", "p": "pad", "a": "allowed", "m": "masked", "n": "alarm"}
KINDS |= {"f": "prefill", "d": "token", "u": "wasted", "i": "paper", "o": "paper"}
HATCHES = {"p": ("////", "hatch"), "u": ("xxxx", "cross")}
# Numbers keep one scale in both themes: LOW at 0, PLUS or MINUS at the largest absolute value.
LOW = "#e8eef5"
PLUS = "#00498a"
MINUS = "#a85800"
FAINT = 0.35  # how opaque the cells of a row are that stands for orientation only


def rgb(colour: str) -> tuple[float, float, float]:
    """'#rrggbb' -> three floats in [0, 1]."""
    red, green, blue = bytes.fromhex(colour[1:])
    return red / 255, green / 255, blue / 255


def mix(level: float, high: str) -> str:
    """The colour `level` per cent (0 to 100) of the way from LOW to `high`, as computed by CSS
    color-mix(in srgb)."""
    mixed = "#"
    for low, top in zip(rgb(LOW), rgb(high), strict=True):
        mixed += f"{round(255 * (low + (top - low) * level / 100)):02x}"
    return mixed


def luminance(colour: str) -> float:
    """Relative luminance of a colour (WCAG 2.1)."""
    red, green, blue = map(_linear, rgb(colour))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _linear(channel: float) -> float:
    """One sRGB channel without its gamma."""
    return channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4


def ink_on(colour: str) -> str:
    """Black or white, whichever reads better on `colour`: at least 4.5 to 1 on any colour."""
    return "#ffffff" if luminance(colour) < 0.179 else "#000000"


def _variables(colours: dict[str, str]) -> str:
    return "".join(f"--qwl-{name}:{value};" for name, value in colours.items())


# What marks a page as dark: the book theme, JupyterLab, Colab, VS Code; else the reader's system.
_DARK_PAGES = (
    "html[data-theme=dark]",
    "body[data-jp-theme-light=false]",
    "html[theme=dark]",
    "body.vscode-dark",
)
_UNMARKED = (
    "html:not([data-theme=light]):not([data-theme=dark]) "
    "body:not([data-jp-theme-light]):not(.vscode-light)"
)

# A mask's picked row outlines what it may see and underlines those columns. CSS needs one rule per
# column; 12 are enough.
_PICKED = "tr:is(:hover,:focus)"
_SEEN = ",".join(
    f".see:has({_PICKED}>:nth-child({n}).a)>thead th:nth-child({n})" for n in range(2, 14)
)

# Faint cells mix their colour with the paper, rather than fade with their text, which stays dark
# enough to read.
_SCALED = "color-mix(in srgb,{} calc(var(--v)*1%)," + LOW + ")"
_COLOURS = {
    "t": "var(--qwl-token)",
    "a": "var(--qwl-allowed)",
    "m": "var(--qwl-masked)",
    "p": "var(--qwl-pad)",
    "v": _SCALED.format(PLUS),
    "g": _SCALED.format(MINUS),
}
_FAINT_CELLS = "\n".join(
    f".qwl.qwl .qwl-grid .faint>td.{kind}"
    f"{{background:color-mix(in srgb,{colour} {FAINT:.0%},var(--qwl-paper))}}"
    for kind, colour in _COLOURS.items()
)


def scaled(css: str) -> str:
    """The sizes of a style sheet in --qwl-px, which grows with the letters of the page around it:
    a projector's audience enlarges them. Thin lines stay as they are."""
    return re.sub(
        r"@media[^{]*|(?<![\w.-])([4-9]|\d\d+)px",
        lambda found: f"calc({found[1]}*var(--qwl-px))" if found[1] else found[0],
        css,
    )


# Class names are doubled (.qwl.qwl) so that they win over the table rules of the book theme and of
# JupyterLab.
_SHEET = f"""<style>
.qwl{{{_variables(LIGHT)}}}
@media(prefers-color-scheme:dark){{{_UNMARKED} .qwl{{{_variables(DARK)}}}}}
{",".join(f"{page} .qwl" for page in _DARK_PAGES)}{{{_variables(DARK)}}}
.qwl.qwl{{color:var(--qwl-ink);background:var(--qwl-paper);font:14px/1.4 system-ui,sans-serif;\
max-width:100%;print-color-adjust:exact;-webkit-print-color-adjust:exact;
margin:0;padding:6px;border-radius:6px;box-sizing:border-box}}
.qwl.qwl .qwl{{padding:0}}
.qwl-side{{display:flex;flex-wrap:wrap;gap:8px 24px;align-items:flex-start}}
.qwl-side>*{{min-width:0}}
.qwl.qwl figcaption{{font-weight:600;margin:0 0 2px;color:inherit;text-align:left}}
.qwl-box{{overflow-x:auto;max-width:100%}}
.qwl.qwl .qwl-grid{{border-collapse:separate;border-spacing:2px;margin:0;width:auto;border:0;\
background:none;
table-layout:auto}}
.qwl.qwl .qwl-grid tr{{background:none}}
.qwl.qwl .qwl-grid :is(td,th){{padding:0 5px;height:25px;min-width:16px;border:0;\
text-align:center;white-space:pre;
vertical-align:middle;font:12px/1 ui-monospace,Menlo,Consolas,monospace;\
color:var(--qwl-muted);background:none}}
.qwl.qwl .qwl-grid tbody th{{position:sticky;left:0;background:var(--qwl-paper);text-align:right}}
.qwl.qwl .qwl-grid td{{border:1px solid var(--qwl-line);border-radius:3px;color:#000}}
.qwl.qwl .qwl-grid :is(td.t,td.d){{background:var(--qwl-token)}}
.qwl.qwl .qwl-grid td.f{{background:var(--qwl-prefill);color:#fff;font-weight:700}}
.qwl.qwl .qwl-grid td.u{{\
background:repeating-linear-gradient(45deg,var(--qwl-cross) 0 1.5px,transparent 1.5px 6px),
repeating-linear-gradient(135deg,var(--qwl-cross) 0 1.5px,var(--qwl-wasted) 1.5px 6px)}}
.qwl.qwl .qwl-grid.steps :is(td,th){{padding:0 2px;min-width:18px}}
.qwl.qwl .qwl-grid td.i{{border-style:dashed;color:var(--qwl-muted)}}
.qwl.qwl .qwl-grid td.o{{border-color:transparent;color:inherit}}
.qwl.qwl .qwl-grid td.p{{color:var(--qwl-pad-ink);background:repeating-linear-gradient(
135deg,var(--qwl-hatch) 0 1.5px,var(--qwl-pad) 1.5px 6px)}}
.qwl.qwl .qwl-grid td.a{{background:var(--qwl-allowed)}}
.qwl.qwl .qwl-grid td.m{{background:var(--qwl-masked);color:#fff}}
.qwl.qwl .qwl-grid td.n{{background:var(--qwl-alarm);color:#fff;font-weight:700}}
.qwl.qwl .qwl-grid td.v{{background:color-mix(in srgb,{PLUS} calc(var(--v)*1%),{LOW})}}
.qwl.qwl .qwl-grid td.g{{background:color-mix(in srgb,{MINUS} calc(var(--v)*1%),{LOW})}}
.qwl.qwl .qwl-grid td.w{{color:#fff}}
.qwl.qwl .qwl-grid .faint>td{{color:var(--qwl-ink)}}
{_FAINT_CELLS}
.qwl.qwl .qwl-grid td.x{{outline:3px solid var(--qwl-ink);outline-offset:-3px}}
.qwl.qwl .qwl-grid :is(td.m,td.n,td.f,td.w).x{{outline:2px solid #fff;outline-offset:-4px}}
.qwl.qwl svg{{width:100%;min-width:440px;max-width:640px;height:auto;stroke-linejoin:round}}
.qwl.qwl summary{{cursor:pointer;color:inherit}}
.qwl.qwl .see {_PICKED}>.a{{outline:3px solid #000;outline-offset:-3px}}
.qwl.qwl .see {_PICKED}>th,.qwl.qwl :is({_SEEN}){{\
color:var(--qwl-ink);text-decoration:underline 2px}}
.qwl.qwl .see tr:focus{{outline:2px solid var(--qwl-ink)}}
.qwl.qwl img{{width:calc(var(--w)*var(--qwl-px));max-width:100%;height:auto;background:#fff}}
.qwl-controls{{display:flex;flex-wrap:wrap;gap:6px 22px;align-items:center;margin:0 0 8px}}
.qwl-controls[hidden]{{display:none}}
.qwl-controls :is(label,fieldset){{display:inline-flex;flex-wrap:wrap;gap:7px;\
align-items:center;margin:0;padding:0;
border:0;min-width:0;color:inherit}}
.qwl-controls legend{{float:left;padding:0;margin:0;width:auto;font:inherit;color:inherit}}
.qwl-controls :is(input,select){{accent-color:var(--qwl-accent);margin:0;min-height:24px}}
.qwl-controls select{{color:var(--qwl-ink);background:var(--qwl-paper);\
border:1px solid var(--qwl-line)}}
.qwl-controls output{{min-width:2.5em;font-weight:600}}
.qwl-controls :focus-visible{{outline:2px solid var(--qwl-ink);outline-offset:2px}}
.qwl-live{{--jp-widgets-font-size:13px;--jp-widgets-inline-height:28px;\
--jp-widgets-inline-width:300px}}
.qwl-live .widget-toggle-buttons{{display:flex;flex-wrap:wrap;gap:0 6px}}
.qwl-words{{position:absolute;width:1px;height:1px;overflow:hidden;\
clip-path:inset(50%);white-space:nowrap}}
.qwl-bad{{border-left:4px solid var(--qwl-muted);padding-left:8px}}
.qwl-good{{border-left:4px solid var(--qwl-good);padding-left:8px}}
.qwl.qwl p{{margin:3px 0}}
.qwl.qwl-quiz{{font:inherit;max-width:46rem;border:0;min-width:0}}
.qwl-quiz legend{{float:left;width:100%;padding:0;margin:0 0 6px;font:inherit;font-weight:600;\
color:inherit}}
.qwl.qwl.qwl.qwl-quiz details{{clear:both;margin:0 0 6px;border:1px solid var(--qwl-line);\
border-radius:6px;
background:none;overflow-wrap:anywhere}}
.qwl.qwl-quiz summary{{position:relative;list-style:none;padding:6px 10px 6px 1.9em;\
border-radius:6px}}
.qwl-quiz summary::-webkit-details-marker{{display:none}}
.qwl-quiz summary::before{{content:"▸";content:"▸"/"";position:absolute;left:.7em}}
.qwl-quiz [open]>summary::before{{content:"▾";content:"▾"/""}}
.qwl.qwl-quiz summary:focus-visible{{outline:2px solid var(--qwl-ink);outline-offset:-2px}}
.qwl.qwl-quiz details p{{margin:0 10px 8px}}
@media print{{html:not(.qwl-solutions) .qwl-quiz details>p{{display:none}}
.qwl-quiz.qwl-quiz summary::before{{content:"☐"}}}}
.qwl-answer-key td{{width:50%;overflow-wrap:anywhere}}
.qwl-answer-key :is(td,th){{padding:3px 8px 3px 0;vertical-align:top;text-align:left}}
.qwl.qwl code{{font-size:12px;color:inherit;background:none;border:0;padding:0}}
.qwl.qwl-quiz code,.qwl.qwl-answer-key code{{font-size:.9em}}
</style>"""

# JupyterLab's presentation mode, or its settings, change the size of its letters; elsewhere it is
# 14px, as here. In its notebooks a widget is never higher than what its bars leave of the window:
# the picture scrolls, so that its controls stay in view. A curve is drawn smaller instead.
_UNIT = ".qwl,.qwl-live{--qwl-px:calc(var(--jp-content-font-size1,14px)/14)}"
_ROOM = """.jp-Notebook :is(.qwl-live,.qwl-page){max-height:calc(100vh - 130px)}
.jp-Notebook .qwl select{font-size:calc(13*var(--qwl-px))}
.jp-Notebook .qwl-live>:first-child{flex:none}
.jp-Notebook .qwl-live .qwl.qwl svg{max-height:max(180px,100vh - 260px)}
.jp-Notebook .qwl-live>:last-child{flex:0 1 auto;min-height:0;height:auto;overflow:auto}
.jp-Notebook .qwl.qwl.qwl-page{min-height:min(var(--qwl-wide),100vh - 130px);overflow:auto}
.jp-Notebook .qwl-page .qwl-controls{position:sticky;top:0;z-index:2;background:var(--qwl-paper)}"""
STYLE = scaled(_SHEET).replace("<style>", f"<style>{_UNIT}\n{_ROOM}")
