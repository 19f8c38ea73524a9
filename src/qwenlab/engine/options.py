"""The values that a caller gives for an option: checked, and spread over the prompts of a call.

Arrays and tensors count as lists.
"""

from collections.abc import Callable, Sequence
from numbers import Integral, Real
from operator import index
from typing import Any

LARGE = 1e38  # numbers stay below it, because sampling computes with them in float32


def plain(value: Any) -> Any:
    """An array or tensor as Python's own lists and numbers; anything else as it is."""
    return value.tolist() if hasattr(value, "tolist") else value


def is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def within(value: Any, name: str, expected: str, fits: Callable[[float], bool]) -> float:
    """`value` as a float. Raises ValueError, by `name`, unless it is a number that fits."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or not abs(value) < LARGE or not fits(value):
        raise ValueError(f"{name} is {value!r}, expected {expected}")
    return float(value)


def stop_set(stop: Any, name: str) -> frozenset[int]:
    """A collection of ids as a set. Raises ValueError, by `name`, if it is anything else."""
    try:
        return frozenset(map(index, plain(stop)))
    except TypeError:
        raise ValueError(f"{name} is {stop!r}, expected token ids") from None


def spread(value: Any, name: str, count: int) -> list:
    """One value for all prompts, or the caller's own list with one per prompt."""
    value = plain(value)
    if not is_list(value):
        return [value] * count
    if len(value) != count:
        raise ValueError(f"{name} has {len(value)} values for {count} prompts")
    return list(value)


def spread_stop(stop: Any, name: str, count: int) -> list:
    """A collection of ids is one set for all; a list of anything else has one per prompt."""
    stop = plain(stop)
    if is_list(stop) and not all(isinstance(entry, Integral) for entry in stop):
        return spread(stop, name, count)
    return [None if stop is None else stop_set(stop, name)] * count
