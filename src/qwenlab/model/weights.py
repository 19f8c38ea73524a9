"""Weights to and from safetensors: one file or several, checked whole before the model takes any of them."""

import os
from pathlib import Path, PurePosixPath

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import nn

from qwenlab.errors import QwenlabError, read_json

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
FLOATS = ("F64", "F32", "F16", "BF16")


class WeightsError(QwenlabError):
    """A weights file is missing, broken, or doesn't fit the model that config.json describes."""


def load_weights(model: nn.Module, folder, dtype: torch.dtype | None = None, device="cpu") -> None:
    """Fills `model` (which may live on the meta device) from the safetensors in `folder`.

    Tensors become `dtype` (None = as stored) on `device`. All are checked before the first is taken: one WeightsError
    lists what is missing, surplus, misshapen or quantised (no float). A tied model ignores a stored `lm_head`.
    """
    folder = Path(folder)
    files = tensor_files(folder)
    expected = dict(model.named_parameters())
    if model.config.tie_word_embeddings:
        files.pop("lm_head.weight", None)
    opened = {path: open_file(path) for path in dict.fromkeys(files.values())}
    stored = {name: opened[path].get_slice(name) for name, path in files.items()}
    shapes = {name: tuple(tensor.get_shape()) for name, tensor in stored.items()}
    problems = describe(
        missing=[name for name in expected if name not in files],
        surplus=[name for name in files if name not in expected],
        misshapen=[
            f"{name} {shapes[name]} instead of {tuple(parameter.shape)}"
            for name, parameter in expected.items()
            if name in files and shapes[name] != tuple(parameter.shape)
        ],
        quantised=[
            f"{name} {tensor.get_dtype()}" for name, tensor in stored.items() if tensor.get_dtype() not in FLOATS
        ],
    )
    if problems:
        raise WeightsError(f"{folder}: the tensors don't fit config.json: {problems}")
    for name, path in files.items():
        owner, _, leaf = name.rpartition(".")
        tensor = opened[path].get_tensor(name).to(device=device, dtype=dtype)
        trained = expected[name].requires_grad
        setattr(model.get_submodule(owner), leaf, nn.Parameter(tensor, requires_grad=trained))


def save_weights(model: nn.Module, folder, dtype: torch.dtype | None = None) -> Path:
    """Writes `folder`/model.safetensors (parameters as `dtype`, None = as they are); the file appears whole or not."""
    path = Path(folder) / SINGLE
    part = path.with_name(SINGLE + ".part")
    tensors = {name: p.detach().to("cpu", dtype).contiguous() for name, p in model.named_parameters()}
    try:
        part.write_bytes(save(tensors, metadata={"format": "pt"}))  # not save_file: it makes files only we may read
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return path


def tensor_files(folder: Path) -> dict[str, Path]:
    """Which file of `folder` holds each tensor. Raises WeightsError."""
    single = folder / SINGLE
    if single.exists():
        return dict.fromkeys(open_file(single).keys(), single)
    index = folder / INDEX
    if not index.exists():
        raise WeightsError(f"{folder}: neither {SINGLE} nor {INDEX} is there")
    weight_map = read_json(index, WeightsError).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise WeightsError(f"{index}: field 'weight_map' is missing or empty")
    files = {}
    for name, file in weight_map.items():
        inside = isinstance(file, str) and file.endswith(".safetensors") and "\\" not in file
        if not inside or PurePosixPath(file).is_absolute() or ".." in PurePosixPath(file).parts:
            raise WeightsError(f"{index}: {name} points to {file!r}, expected a .safetensors file inside the folder")
        files[name] = folder / file
    for path in dict.fromkeys(files.values()):
        held = set(open_file(path).keys())
        absent = [name for name, file in files.items() if file == path and name not in held]
        if absent:
            raise WeightsError(f"{path}: {absent[0]} is not in this file, though {INDEX} says so")
    return files


def open_file(path: Path):
    """An open safetensors file, or WeightsError in one line that names it."""
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as problem:
        raise WeightsError(f"{path}: not a whole safetensors file ({problem})") from None


def describe(**problems: list[str]) -> str:
    """`missing: a, b and 3 more; surplus: c`; empty where nothing is wrong."""
    parts = []
    for kind, names in problems.items():
        if names:
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            parts.append(f"{kind}: {', '.join(names[:5])}{more}")
    return "; ".join(parts)
