"""From a name to a model and its tokenizer: a shipped tiny model, a folder, or a checkpoint on the
Hugging Face hub."""

import re
import warnings
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import torch

from qwenlab.errors import QwenlabError, read_json
from qwenlab.fast import optimize
from qwenlab.model.config import Config, as_ids
from qwenlab.model.model import Model
from qwenlab.model.weights import (
    INDEX,
    has_own_head,
    load_weights,
    save_weights,
    without_storage,
)
from qwenlab.text.tokenizer import FILE as TOKENIZER
from qwenlab.text.tokenizer import Tokenizer

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
AUTO = "auto"
# Instructions that multiply bfloat16 numbers; without them bfloat16 is slower than float32.
BFLOAT16_INSTRUCTIONS = {
    "avx512_bf16": "_is_avx512_bf16_supported",
    "AMX": "_is_amx_tile_supported",
}
# Only these are downloaded: weights in a format that can't hold code, settings, and the chat
# template, which runs in a sandbox.
SMALL = ["*.json", "chat_template.jinja"]
WANTED = ["*.safetensors", *SMALL]


Dtype = torch.dtype | str | None
Device = torch.device | str | int | None


class CheckpointError(QwenlabError):
    """There is no such checkpoint, it can't be downloaded, or it lacks a file."""


def load(
    name: str | Path, dtype: Dtype = None, device: Device = None, fast: bool = True
) -> tuple[Model, Tokenizer | None]:
    """The model and the tokenizer of a checkpoint; the tokenizer is None, with a warning, where
    there is no tokenizer.json.

    name: a shipped model ("tiny"; a folder of that name is "./tiny"), else a folder in Hugging Face
    layout (config.json, tokenizer.json, *.safetensors), else a hub id ("Qwen/Qwen3-0.6B"), which is
    downloaded once. dtype: a torch.dtype or its name; None = float32 on a CPU, bfloat16 on a GPU;
    "auto" = bfloat16 also on a CPU that has instructions for it.
    device: None = a GPU if there is one.

    fast: whether to apply `qwenlab.fast.optimize` on a CPU; logits then differ by rounding only.

    The model is ready for inference: in `eval()`, and no parameter requires gradients, so a
    call is as fast outside torch.no_grad() as inside. Call `model.requires_grad_(True)` to train
    it, which runs the plain code. `model.stop_ids` are the ids that end an answer,
    `model.ignored` names the checkpoint's tensors that were not needed (the vision tower of a
    multimodal Qwen3.5). If config.json ties lm_head to the embedding but the stored lm_head
    differs, the stored one is used, with a warning. Raises CheckpointError, ConfigError,
    WeightsError, TokenizerError or ChatTemplateError, each in one line.
    """
    device = choose_device(device)
    dtype = choose_dtype(dtype, device)
    folder = find_checkpoint(name)
    config = Config.from_folder(folder)
    tokenizer = None
    if has_tokenizer(folder):
        tokenizer = Tokenizer.from_folder(folder, vocab_size=config.vocab_size)
    else:
        reason = (
            f"{folder}: no {TOKENIZER}, so the tokenizer is None; the model itself takes token ids"
        )
        warnings.warn(reason, stacklevel=2)
    if config.tie_word_embeddings and has_own_head(folder):
        reason = (
            f"{folder}: config.json ties lm_head to the embedding, "
            "but the stored one differs and is used"
        )
        warnings.warn(reason, stacklevel=2)
        config = replace(config, tie_word_embeddings=False)
    with without_storage():  # the file's tensors become the parameters
        model = Model(config)
    model.ignored = load_weights(model, folder, dtype=dtype, device=device)
    model.stop_ids = stop_ids(folder, config, tokenizer)
    model.folder = folder
    model.eval().requires_grad_(False)
    if fast and device.type == "cpu":
        optimize(model)
    return model, tokenizer


def load_with_tokenizer(
    name: str | Path, dtype: Dtype = None, device: Device = None, fast: bool = True
) -> tuple[Model, Tokenizer]:
    """As `load`, for work on text: raises CheckpointError if there is no tokenizer."""
    folder = find_checkpoint(name)
    if not has_tokenizer(folder):
        raise CheckpointError(
            f"{name}: no {TOKENIZER} in this checkpoint, which is needed to turn text into tokens"
        )
    return load(folder, dtype, device, fast)


def has_tokenizer(folder: Path) -> bool:
    return (folder / TOKENIZER).exists()


def save_checkpoint(model: Model, folder: str | Path, dtype: torch.dtype | None = None) -> None:
    """Writes a model that `load` returned, trained since or not, into the existing, empty `folder`,
    which `load` then reads.

    Settings and tokenizer are copied from the folder it was loaded from; the parameters are saved
    as `dtype` (None = unchanged) in one file. Raises OSError.
    """
    for path in model.folder.iterdir():
        if path.suffix in (".json", ".jinja") and path.name != INDEX:
            (Path(folder) / path.name).write_bytes(path.read_bytes())
    save_weights(model, folder, dtype)


def shipped_names() -> list[str]:
    """The names of the tiny models that come with qwenlab."""
    return sorted(path.parent.name for path in shipped_folder().glob("*/config.json"))


def shipped_folder() -> Path:
    return Path(str(files("qwenlab"))) / "checkpoints"


def stop_ids(folder: Path, config: Config, tokenizer: Tokenizer | None) -> frozenset[int]:
    """The ids that end an answer: eos_token_id in generation_config.json, else in config.json, and
    the tokenizer's own end-of-sequence token.

    Qwen3 has two, and only generation_config.json lists both. A fine-tuned model may know only the
    tokenizer's own.
    """
    path = folder / "generation_config.json"
    values = read_json(path, CheckpointError) if path.exists() else {}
    listed = as_ids(values.get("eos_token_id"), str(path), CheckpointError) or config.eos_token_id
    own = () if tokenizer is None or tokenizer.eos_id is None else (tokenizer.eos_id,)
    return frozenset((*listed, *own))


def choose_device(device: Device) -> torch.device:
    """The given device; None: a GPU if there is one, else the CPU. Raises CheckpointError."""
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(device)
        # A device that torch or the machine lacks fails here, not midway; so does one that holds
        # no data (meta).
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, TypeError) as problem:
        raise CheckpointError(
            f"device {str(device)!r} can't be used ({first_line(problem)})"
        ) from None
    return device


def choose_dtype(dtype: Dtype, device: torch.device) -> torch.dtype:
    """The given dtype; None: float32 on a CPU, bfloat16 on a GPU; "auto": see `auto_dtype`. Raises
    CheckpointError."""
    if dtype is None:
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    if dtype == AUTO:
        return auto_dtype(device)[0]
    chosen = DTYPES.get(dtype, dtype) if isinstance(dtype, str) else dtype
    if chosen not in DTYPES.values():
        expected = ", ".join([*DTYPES, AUTO])
        raise CheckpointError(f"dtype is {dtype!r}, expected one of {expected}")
    return chosen


def auto_dtype(device: torch.device) -> tuple[torch.dtype, str]:
    """bfloat16 where the device has instructions for it, else float32, and the reason in words."""
    if device.type != "cpu":
        return torch.bfloat16, f"{device} is no CPU"
    for name, test in BFLOAT16_INSTRUCTIONS.items():
        if hasattr(torch.cpu, test) and getattr(torch.cpu, test)():
            return torch.bfloat16, f"this CPU has {name}"
    return torch.float32, f"this CPU has neither {' nor '.join(BFLOAT16_INSTRUCTIONS)}"


def find_checkpoint(name: str | Path, weights: bool = True) -> Path:
    """The folder that `name` stands for; a hub id is downloaded first, with its weights or without.
    Raises CheckpointError."""
    if isinstance(name, str) and name in shipped_names():
        return shipped_folder() / name
    if not isinstance(name, str | Path) or not str(name).strip():
        raise CheckpointError(f"name is {name!r}, expected a shipped model, a folder or a hub id")
    shown = str(name) if len(str(name)) <= 200 else f"{str(name)[:200]}..."
    try:
        path = Path(name).expanduser()
        if path.is_dir():
            return path
        if path.exists():
            raise CheckpointError(f"{shown}: a file, expected the checkpoint's folder")
    except (OSError, RuntimeError) as problem:  # too long, unreadable, or ~ of an unknown user
        reason = problem.strerror if isinstance(problem, OSError) else problem
        raise CheckpointError(
            f"no checkpoint {shown!r}: not a path that can be read ({reason})"
        ) from None
    if isinstance(name, str) and re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name, re.ASCII):
        return download(name, WANTED if weights else SMALL)
    raise CheckpointError(
        f"no checkpoint {shown!r}: shipped are {', '.join(shipped_names()) or 'none'}; "
        "write a folder as ./name and a hub id as owner/name"
    )


def download(name: str, wanted: Sequence[str] = WANTED) -> Path:
    """The hub's files for `name`, from the local cache if they are there. Raises
    CheckpointError."""
    # Imported here because it takes a third of a second and the shipped models don't need it.
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub import utils as hub

    try:
        return Path(snapshot_download(name, allow_patterns=[*wanted], ignore_patterns=["*/*"]))
    except hub.HFValidationError as problem:
        raise CheckpointError(f"{name}: not a hub id ({first_line(problem)})") from None
    except hub.GatedRepoError:
        raise CheckpointError(
            f"{name}: gated; accept its terms on the hub, then set HF_TOKEN to your token"
        ) from None
    except hub.RepositoryNotFoundError:
        raise CheckpointError(
            f"{name}: not on the hub, or private (check the spelling; "
            f"no folder ./{name} exists either)"
        ) from None
    except hub.LocalEntryNotFoundError:
        how = f"{constants.ENDPOINT} can't be reached"
        if constants.HF_HUB_OFFLINE:
            how = "HF_HUB_OFFLINE is set"
        raise CheckpointError(f"{name}: not complete in the local cache, and {how}") from None
    except hub.HfHubHTTPError as problem:
        status = problem.response.status_code if problem.response is not None else "no status"
        if status in (401, 403):
            raise CheckpointError(
                f"{name}: the hub refuses access ({status}); set HF_TOKEN to a token that "
                "may read it"
            ) from None
        raise CheckpointError(
            f"{name}: the hub answered with an error ({status}); try again later"
        ) from None
    # sockets, disks, and whatever HTTP client this version of huggingface_hub uses
    except Exception as problem:
        reason = f"{type(problem).__name__}: {first_line(problem)}"
        raise CheckpointError(
            f"{name}: the download was interrupted; run again to resume it ({reason})"
        ) from None


def first_line(problem: Exception) -> str:
    return str(problem).strip().partition("\n")[0]
