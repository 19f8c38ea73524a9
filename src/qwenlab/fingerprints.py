"""Which weights, which problems: a few letters that change with any of them."""

from collections.abc import Iterable
from hashlib import sha256

import torch
from torch import nn


def fingerprint(pieces: Iterable[bytes]) -> str:
    """16 letters that change with any byte: the start of the SHA-256 of all pieces in a row."""
    digest = sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()[:16]


def all_weights(model: nn.Module) -> str:
    """A fingerprint of every bit of the parameters. Takes a second for every gigabyte or so."""
    named = sorted(model.named_parameters())
    tensors = (parameter.detach().cpu().contiguous().flatten() for _, parameter in named)
    return fingerprint(tensor.view(torch.uint8).numpy().data for tensor in tensors)


def some_weights(model: nn.Module, values: int = 64) -> str:
    """A fingerprint of about so many values of each parameter, in float32: training moves them all.

    Quick for a model of any size, and read only from where the weights are.
    """
    some = []
    for parameter in model.parameters():
        stride = max(1, parameter.numel() // values)
        some.append(parameter.detach().flatten()[::stride].to("cpu", torch.float32))
    return fingerprint(tensor.numpy().tobytes() for tensor in some)
