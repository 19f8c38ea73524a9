"""A random Qwen3 of a few thousand parameters in Hugging Face layout, written without transformers."""

import json
from pathlib import Path

import torch
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
    """config.json (with `changes`), generation_config.json, model.safetensors and the small tokenizer in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    values = CONFIG | changes
    (folder / "config.json").write_text(json.dumps(values))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [VOCAB - 3, VOCAB - 5]}))
    torch.manual_seed(0)
    save_weights(Model(Config.from_dict(values)), folder)
    write_small_tokenizer(folder, template)
    return folder
