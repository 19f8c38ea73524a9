"""Fingerprints of weights and problems: short hashes that change with any of them."""

from collections.abc import Iterable
from hashlib import sha256

import torch
from torch import Tensor, nn


def fingerprint(pieces: Iterable[bytes | memoryview]) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of all pieces, one after another."""
    digest = sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()[:16]


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
