"""What lessons show and how answers are checked: heatmap, timeline, fixed_slots, curve,
side_by_side, image, explore, page_model, check, exercise, quiz, stored; and what many lessons do:
ask, shown, until_stop, compare, difference, speed_verdict.

Nothing heavy is loaded here: only the calls that need matplotlib or ipywidgets import them.
"""

from importlib import import_module
from typing import Any

_HOME = {
    "ask": "lesson_tools",
    "check": "checking",
    "compare": "lesson_tools",
    "curve": "curves",
    "difference": "lesson_tools",
    "exercise": "own_exercises",
    "explore": "exploring",
    "fixed_slots": "timelines",
    "heatmap": "heatmaps",
    "image": "pictures",
    "page_model": "in_page",
    "quiz": "questions",
    "shown": "lesson_tools",
    "side_by_side": "pictures",
    "speed_verdict": "lesson_tools",
    "stored": "keeping",
    "timeline": "timelines",
    "until_stop": "lesson_tools",
}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"qwenlab.teach has no {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(f"qwenlab.teach.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
