"""llama.cpp as an optional third side of `qwenlab peers --table`: the same weights as a GGUF file,
decoded by a child process."""

import json
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import torch

from qwenlab.errors import QwenlabError
from qwenlab.model.model import Model

INSTALL = "pip install llama-cpp-python gguf"
CHILD = Path(__file__).with_name("llama_child.py")


def why_not() -> str | None:
    """Why llama.cpp can't be measured, with the remedy; None if it can."""
    missing = [name for name in ("llama_cpp", "gguf") if find_spec(name) is None]
    if missing:
        return f"llama.cpp is not measured, because it is not installed: {INSTALL}"
    return None


def llama_version() -> str | None:
    """The version of the package that holds llama.cpp; None without it."""
    try:
        return version("llama-cpp-python")
    except PackageNotFoundError:
        return None


def write_gguf(model: Model, path: Path) -> None:
    """Writes a dense Qwen3 as GGUF: matrices in the model's dtype, norms in float32, and ids
    without texts for a vocabulary. Raises QwenlabError for a hybrid or another dtype."""
    import gguf

    config = model.config
    if set(config.layer_types) != {"full_attention"}:
        raise QwenlabError("the model is a hybrid, expected a dense one for llama.cpp")
    if model.dtype not in (torch.float32, torch.bfloat16):
        raise QwenlabError(f"dtype is {model.dtype}, expected float32 or bfloat16 for llama.cpp")
    half = model.dtype == torch.bfloat16
    kinds = gguf.GGMLQuantizationType
    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("no_vocab")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16 if half else gguf.LlamaFileType.ALL_F32)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, config.num_hidden_layers)
    for name, parameter in model.named_parameters():
        target = names.get_name(name, try_suffixes=(".weight",))
        tensor = parameter.detach().cpu().contiguous()
        if tensor.ndim == 2 and half:
            raw = tensor.view(torch.uint8).numpy()
            writer.add_tensor(target, raw, raw_dtype=kinds.BF16)
        else:
            writer.add_tensor(target, tensor.float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Llama:
    """The child process that decodes with one model; `close` ends it and removes its file."""

    def __init__(self, model: Model) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="qwenlab-gguf-")
        path = Path(self.folder.name) / "model.gguf"
        try:
            write_gguf(model, path)
        except BaseException:
            self.folder.cleanup()
            raise
        self.process = subprocess.Popen(
            [sys.executable, str(CHILD), str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )

    def run(
        self, prompts: list[list[int]], new_tokens: int, threads: int
    ) -> tuple[float, float, list[list[int]]]:
        """Seconds for the first token and for all of them, and the ids."""
        request = {"prompts": prompts, "new_tokens": new_tokens, "threads": threads}
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self.process.wait()
            said = self.process.stderr.read().strip().splitlines() or ["it said nothing"]
            raise QwenlabError(f"llama.cpp ended: {said[-1]}")
        answer = json.loads(line)
        return answer["one"], answer["every"], answer["ids"]

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        self.folder.cleanup()
