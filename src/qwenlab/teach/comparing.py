"""How `check` compares a reader's result with the right one, and how it writes values.

Any number equal to the right one is right, whether it is Python's, NumPy's or a tensor without
dimensions, an integer or a float.
"""

from collections.abc import Mapping
from math import isclose, isnan
from typing import Any

RELATIVE = 1e-5  # of floats ...
PRECISE = 1e-9  # ... and in double precision
ABSOLUTE = 1e-9  # of numbers: 0.0 equals -3e-17
COUNT = 1.2e-7  # of counts, relative: as exact as float32


def plain(value: Any) -> Any:
    """A NumPy number, or a tensor or array without dimensions, as Python's own number."""
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        return value.item()
    return value


def is_number(value: Any) -> bool:
    """True and False are no numbers here."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_tensor(value: Any) -> bool:
    return hasattr(value, "is_floating_point")


def kind(value: Any) -> str:
    """What a value is, as an error names it: one number is as good as another."""
    value = plain(value)
    if isinstance(value, bool):
        return "True or False"
    if is_number(value):
        return "number"
    if isinstance(value, (list, tuple)):
        return "list"
    if isinstance(value, Mapping):
        return "dict"
    return type(value).__name__


def same(a: Any, b: Any) -> bool:
    """Equal in kind, shape, dtype and values; floats within 1e-5, tensors of float64 within 1e-9,
    NaN equal to NaN."""
    a, b = plain(a), plain(b)
    if kind(a) != kind(b):
        return False
    if is_number(a):
        return _same_number(a, b)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if is_tensor(a):
        return _same_tensor(a, b)
    return a == b


def _same_number(a: float, b: float) -> bool:
    if isinstance(a, int) or isinstance(b, int):
        return isclose(a, b, rel_tol=COUNT, abs_tol=ABSOLUTE)
    if isnan(a) or isnan(b):
        return isnan(a) and isnan(b)
    return isclose(a, b, rel_tol=RELATIVE, abs_tol=ABSOLUTE)


def _same_tensor(a: Any, b: Any) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.is_floating_point():
        tolerance = tolerance_of(a)
        return a.allclose(b, tolerance, tolerance, equal_nan=True)
    return bool((a == b).all())


def tolerance_of(tensor: Any) -> float:
    return PRECISE if str(tensor.dtype) == "torch.float64" else RELATIVE


def differences(right: Any, theirs: Any) -> list[list[int]]:
    """Where two tensors of one shape differ, as indices."""
    tolerance = tolerance_of(right)
    # On the host, because not every device has float64.
    right = right.cpu().double()
    equal = right.isclose(theirs.cpu().double(), tolerance, tolerance, equal_nan=True)
    return (~equal).nonzero().tolist()


def describe(value: Any) -> str:
    """A value for "should be ..., yours is ...": a tensor by its dtype and shape."""
    if is_tensor(value):
        return f"{str(value.dtype).removeprefix('torch.')} {shape_text(value)}"
    return repr(value)


def shape_text(tensor: Any) -> str:
    return " x ".join(map(str, tensor.shape)) or "single number"


def show(names: list[str], arguments: tuple) -> str:
    """Arguments as text, each with its name, and its shape where it has three dimensions or more;
    floats to 3 digits. Each argument, and each entry of a dict, is cut by itself."""
    shown = []
    for name, value in zip(names, arguments, strict=True):
        many = getattr(value, "ndim", 0) >= 3
        shape = f" ({shape_text(value)})" if many else ""
        shown.append(f"{name}{shape} = {_short(value)}")
    return ", ".join(shown)


def _short(value: Any) -> str:
    if isinstance(value, dict):
        entries = []
        for key, entry in value.items():
            entries.append(f"{key!r}: {_short(entry)}")
        return f"{{{', '.join(entries)}}}"
    text = repr(_rounded(value)).replace(".0,", ",").replace(".0]", "]")
    return text if len(text) <= 200 else text[:200] + " ..."


def _rounded(value: Any) -> Any:
    value = value.tolist() if hasattr(value, "tolist") else value
    if type(value) in (list, tuple):
        return type(value)(map(_rounded, value))
    if isinstance(value, float):
        return round(value, 3) or value  # a tiny one stays as it is
    return value
