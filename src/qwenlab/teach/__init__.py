"""What lessons show and how answers are checked: heatmap, timeline, fixed_slots, curve,
side_by_side, image, explore, page_model, check, stored.

Nothing heavy is loaded here: only the calls that need matplotlib or ipywidgets import them.
"""

from importlib import import_module
from typing import Any

_HOME = {
    "check": "checking",
    "curve": "curves",
    "explore": "exploring",
    "fixed_slots": "timelines",
    "heatmap": "heatmaps",
    "image": "pictures",
    "page_model": "in_page",
    "side_by_side": "pictures",
    "stored": "keeping",
    "timeline": "timelines",
}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"qwenlab.teach has no {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(f"qwenlab.teach.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
