"""Random checkpoints of a few thousand parameters in Hugging Face layout, written without
transformers."""

import json
from pathlib import Path

import torch
from helpers import HYBRID, random_model
from safetensors.torch import save_file
from small_tokenizer import CONTROL, TEMPLATE, small_spec, write_small_tokenizer

from qwenlab.model.config import Config
from qwenlab.model.model import Model
from qwenlab.model.weights import save_weights

VOCAB = len(small_spec()["model"]["vocab"]) + len(CONTROL)
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "initializer_range": 0.2,
    "eos_token_id": VOCAB - 3,
}


def write_small_checkpoint(folder: Path, template=TEMPLATE, **changes) -> Path:
    """config.json (with `changes`), generation_config.json, model.safetensors and the small
    tokenizer in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    values = CONFIG | changes
    (folder / "config.json").write_text(json.dumps(values), encoding="utf-8")
    (folder / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [VOCAB - 3, VOCAB - 5]}), encoding="utf-8"
    )
    torch.manual_seed(0)
    save_weights(Model(Config.from_dict(values)), folder)
    write_small_tokenizer(folder, template)
    return folder


def write_multimodal_checkpoint(folder: Path) -> tuple[dict, dict]:
    """A Qwen3.5 in the published layout: text fields nested, eyes and a second head beside the
    text, in three shards.

    Returns the text fields, with which `random_model` makes the same model, and which file holds
    which tensor.
    """
    text = {**HYBRID, "vocab_size": VOCAB, "eos_token_id": 3}
    model = random_model(**text)
    tensors = {
        name.replace("model.", "model.language_model.", 1): p
        for name, p in model.named_parameters()
    }
    tensors = {
        n: p if n.endswith(("A_log", "linear_attn.norm.weight")) else p.bfloat16()
        for n, p in tensors.items()
    }
    for name in (
        "model.visual.patch_embed.proj.weight",
        "model.visual.blocks.0.attn.qkv.weight",
        "mtp.fc.weight",
    ):
        tensors[name] = torch.randn(3, 3)
    tensors["mtp.layers.0.self_attn.q_proj.weight"] = torch.ones(
        2, dtype=torch.uint8
    )  # may even be quantised
    weight_map = {
        name: f"model-0000{number % 3 + 1}-of-00003.safetensors"
        for number, name in enumerate(sorted(tensors))
    }
    for file in set(weight_map.values()):
        save_file(
            {name: tensors[name].contiguous() for name in tensors if weight_map[name] == file},
            folder / file,
        )
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": weight_map}), encoding="utf-8"
    )
    outer = {
        "model_type": "qwen3_5",
        "text_config": text,
        "vision_config": {},
        "tie_word_embeddings": True,
    }
    (folder / "config.json").write_text(json.dumps(outer), encoding="utf-8")
    (folder / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [5, 3]}), encoding="utf-8"
    )
    write_small_tokenizer(folder)
    return text, weight_map
