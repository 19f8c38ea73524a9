"""Weights to and from safetensors: one file or several, checked whole before the model takes any of
them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import nn
from torch.overrides import TorchFunctionMode

from qwenlab.errors import QwenlabError, read_json, refuse_lfs_pointer
from qwenlab.files import replacing
from qwenlab.model.config import Config
from qwenlab.model.deltanet import KEPT_FLOAT32

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
FLOATS = ("F64", "F32", "F16", "BF16")
# where a multimodal Qwen3.5 keeps what a text-only file has under "model."
NESTED = "model.language_model."
OTHER_PARTS = ("model.visual.", "mtp.")  # the vision tower and the multi-token-prediction head
HEAD = "lm_head.weight"
EMBEDDING = "model.embed_tokens.weight"
# RoPE's frequencies, which old checkpoints store and config.json determines
COMPUTED = "rotary_emb.inv_freq"


class WeightsError(QwenlabError):
    """A weights file is missing, broken, or doesn't fit the model that config.json describes."""


class Undrawn(TorchFunctionMode):
    """Draws no initial weights. Without storage there is nothing to draw, yet torch would import
    its compiler, which would cost every program that loads a model more than a second."""

    def __torch_function__(
        self,
        function: Callable,
        types: tuple,
        arguments: tuple = (),
        options: dict[str, Any] | None = None,
    ) -> Any:
        options = options or {}
        if function is nn.init.normal_:
            return arguments[0] if arguments else options["tensor"]
        return function(*arguments, **options)


@contextmanager
def without_storage() -> Iterator[None]:
    """A model made inside has shapes only, on the meta device; `load_weights` fills it."""
    with torch.device("meta"), Undrawn():
        yield


def load_weights(
    model: nn.Module,
    folder: str | Path,
    dtype: torch.dtype | None = None,
    device: str | torch.device = "cpu",
) -> list[str]:
    """Fills `model` (which may live on the meta device) from the safetensors in `folder`.

    Tensors become `dtype` (None = as stored; DeltaNet's float32 ones stay so) on `device`. All are
    checked before any is loaded: one WeightsError lists what is missing, surplus, misshapen or
    quantised (no float), or says that a tied model's file stores another `lm_head`. Returns the
    names that were ignored: of a multimodal Qwen3.5 all but the language model, of a tied model an
    `lm_head` equal to the embedding, and stored RoPE frequencies.
    """
    folder = Path(folder)
    if model.config.tie_word_embeddings and has_own_head(folder):
        raise WeightsError(
            f"{folder}: {HEAD} differs from {EMBEDDING}, though config.json ties the two"
        )
    published, ignored = language_model(tensor_files(folder), model.config)
    expected = dict(model.named_parameters())
    opened: dict[Path, safe_open] = {}
    stored = {}
    for name, (theirs, path) in published.items():
        if path not in opened:
            opened[path] = open_file(path)
        stored[name] = opened[path].get_slice(theirs)
    if problems := misfits(stored, expected):
        raise WeightsError(f"{folder}: the tensors don't fit config.json: {problems}")
    for name, (theirs, path) in published.items():
        owner, _, leaf = name.rpartition(".")
        tensor = opened[path].get_tensor(theirs).to(device=device, dtype=dtype_of(name, dtype))
        parameter = expected[name]
        if parameter.dtype == tensor.dtype and parameter.device == tensor.device:
            parameter.data.copy_(tensor)  # in place: fused weights stay fused
        else:
            new = nn.Parameter(tensor, requires_grad=parameter.requires_grad)
            setattr(model.get_submodule(owner), leaf, new)
    return ignored


def save_weights(model: nn.Module, folder: str | Path, dtype: torch.dtype | None = None) -> Path:
    """Writes `folder`/model.safetensors (parameters as `dtype`, None = as they are).

    The file appears whole or not at all. Raises OSError.
    """
    path = Path(folder) / SINGLE
    tensors = {
        name: p.detach().to("cpu", dtype_of(name, dtype)).contiguous()
        for name, p in model.named_parameters()
    }
    with replacing(path) as part:  # not save_file: it makes files that only we may read
        part.write_bytes(save(tensors, metadata={"format": "pt"}))
    return path


def has_own_head(folder: str | Path) -> bool:
    """Whether the checkpoint stores an `lm_head` that differs from the embedding, whatever
    config.json says.

    Raises WeightsError.
    """
    files = tensor_files(Path(folder))
    embedding = EMBEDDING if EMBEDDING in files else EMBEDDING.replace("model.", NESTED, 1)
    if HEAD not in files or embedding not in files:
        return False
    ours = open_file(files[HEAD]).get_slice(HEAD)
    theirs = open_file(files[embedding]).get_slice(embedding)
    same_kind = ours.get_dtype() == theirs.get_dtype() and ours.get_dtype() in FLOATS
    if ours.get_shape() != theirs.get_shape() or len(ours.get_shape()) != 2 or not same_kind:
        return True
    # Piece by piece, so that two large tensors needn't fit into memory beside each other.
    for start in range(0, ours.get_shape()[0], 4096):
        if not torch.equal(ours[start : start + 4096], theirs[start : start + 4096]):
            return True
    return False


def dtype_of(name: str, dtype: torch.dtype | None) -> torch.dtype | None:
    """The dtype of one tensor of a model in `dtype`."""
    return torch.float32 if dtype is not None and name.endswith(KEPT_FLOAT32) else dtype


def language_model(
    files: dict[str, Path], config: Config
) -> tuple[dict[str, tuple[str, Path]], list[str]]:
    """Our name of each tensor to its name in the file and the file, and the names of the tensors
    that the model doesn't use."""
    unused = OTHER_PARTS if config.is_qwen3_5 else ()
    published = {}
    ignored = []
    for name, path in files.items():
        ours = name.replace(NESTED, "model.", 1)
        tied_head = name == HEAD and config.tie_word_embeddings
        if name.startswith(unused) or name.endswith(COMPUTED) or tied_head:
            ignored.append(name)
        elif ours != name and ours in files:  # there twice: one is surplus
            published[name] = (name, path)
        else:
            published[ours] = (name, path)
    if config.tie_word_embeddings and HEAD in files and EMBEDDING not in published:
        # One tensor under the name of the other, as some tools save a tied pair.
        ignored.remove(HEAD)
        published[EMBEDDING] = (HEAD, files[HEAD])
    return published, ignored


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
            raise WeightsError(
                f"{index}: {name} points to {file!r}, expected a .safetensors file "
                "inside the folder"
            )
        files[name] = folder / file
    for path in dict.fromkeys(files.values()):
        held = set(open_file(path).keys())
        for name, file in files.items():
            if file == path and name not in held:
                raise WeightsError(f"{path}: {name} is not in this file, though {INDEX} says so")
    return files


def open_file(path: Path) -> safe_open:
    """An open safetensors file, or WeightsError in one line that names it."""
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as problem:
        refuse_lfs_pointer(path, WeightsError)
        raise WeightsError(f"{path}: not a whole safetensors file ({problem})") from None


def misfits(stored: dict[str, Any], expected: dict[str, nn.Parameter]) -> str:
    """How slices of stored tensors differ from the parameters that they are to fill:
    `missing: a, b and 3 more; surplus: c`. Empty where nothing is wrong."""
    problems = {"missing": [], "surplus": [], "misshapen": [], "quantised": []}
    for name, parameter in expected.items():
        if name not in stored:
            problems["missing"].append(name)
            continue
        shape = tuple(stored[name].get_shape())
        if shape != tuple(parameter.shape):
            problems["misshapen"].append(f"{name} {shape} instead of {tuple(parameter.shape)}")
    for name, tensor in stored.items():
        if name not in expected:
            problems["surplus"].append(name)
        if tensor.get_dtype() not in FLOATS:
            problems["quantised"].append(f"{name} {tensor.get_dtype()}")
    parts = []
    for kind, names in problems.items():
        if names:
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            parts.append(f"{kind}: {', '.join(names[:5])}{more}")
    return "; ".join(parts)
