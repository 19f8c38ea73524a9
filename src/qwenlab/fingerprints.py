"""Fingerprints of weights and problems: short hashes that change with any of them."""

import re
from collections.abc import Iterable
from hashlib import sha256

import torch
from torch import Tensor, nn

DIGITS = 16  # of a fingerprint, hexadecimal
COUNTED = re.compile(r"(\d+ \w+), ([0-9a-f]{16})")


def fingerprint(pieces: Iterable[bytes | memoryview]) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of all pieces, one after another."""
    digest = sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()[:DIGITS]


def list_fingerprints(items: Iterable[object]) -> list[str]:
    """The fingerprint of the list of the first item, of the first two, and so on: each that of the
    list's repr. A longer list is known to continue a shorter one by them."""
    digest = sha256(b"[")
    separator = ""
    found = []
    for item in items:
        digest.update((separator + repr(item)).encode("utf-8", "replace"))
        separator = ", "
        closed = digest.copy()
        closed.update(b"]")
        found.append(closed.hexdigest()[:DIGITS])
    return found


def counted(many: int, name: str, of: str) -> str:
    """A fingerprint that also says how many things it is of: "50 problems, 0123456789abcdef"."""
    return f"{many} {name}{'' if many == 1 else 's'}, {of}"


def taken_apart(value: object) -> tuple[str, object]:
    """The count and the fingerprint in what `counted` made; any other value has the count ""."""
    match = COUNTED.fullmatch(value) if isinstance(value, str) else None
    return (match[1], match[2]) if match else ("", value)


def all_weights(model: nn.Module) -> str:
    """A fingerprint of every bit of the parameters, at about a second per gigabyte."""
    parameters = dict(model.named_parameters())
    return fingerprint(all_bytes(parameters[name]) for name in sorted(parameters))


def all_bytes(tensor: Tensor) -> memoryview:
    flat = tensor.detach().cpu().contiguous().flatten()
    return flat.view(torch.uint8).numpy().data


def some_weights(model: nn.Module, values: int = 64) -> str:
    """A fingerprint of about `values` numbers of each parameter, as float32. Training changes all
    of them, so these are enough to recognise a model.

    Quick for a model of any size, because only those numbers leave the device.
    """
    samples = []
    for parameter in model.parameters():
        stride = max(1, parameter.numel() // values)
        sample = parameter.detach().flatten()[::stride].to("cpu", torch.float32)
        samples.append(sample.numpy().tobytes())
    return fingerprint(samples)
