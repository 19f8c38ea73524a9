"""A device without float64, as Apple's MPS: see simulated.py beside this file."""

import sys
from pathlib import Path

import torch
from torch.overrides import TorchFunctionMode

TORCH = str(Path(torch.__file__).parent)
MESSAGE = (
    "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64. "
    "Please use float32 instead."
)


class Refusing(TorchFunctionMode):
    """Raises TypeError where qwenlab makes a tensor of float64 that may lie on a device.

    A tensor lies on the host if it was made from numbers without a `device`, or moved by `.cpu()`,
    or computed from such tensors only; tensors that a test made may lie anywhere. What tests and
    cells compute in float64 is their own affair.
    """

    def __torch_function__(self, function, types, arguments=(), options=None):
        options = options or {}
        result = function(*arguments, **options)
        if not isinstance(result, torch.Tensor):
            return result
        on_host = function is torch.Tensor.cpu or (
            options.get("device") is None and all(map(is_on_host, (*arguments, *options.values())))
        )
        if result.dtype == torch.float64 and not on_host and asked_by_qwenlab():
            raise TypeError(MESSAGE)
        result.on_host = on_host
        return result


def is_on_host(value) -> bool:
    """Whether an argument is no tensor, or one on the host."""
    if isinstance(value, torch.Tensor):
        return getattr(value, "on_host", False)
    if isinstance(value, (list, tuple)):
        return all(map(is_on_host, value))
    return True


def asked_by_qwenlab() -> bool:
    """Whether the code that called torch is the library's."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(TORCH):
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__", "").startswith("qwenlab.")


def float64() -> None:
    """Refuses it in this process from now on."""
    Refusing().__enter__()
