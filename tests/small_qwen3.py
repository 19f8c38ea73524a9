"""A small random Qwen3 of transformers, on which the boxes "In transformers" are tried."""

import pytest
import torch

transformers = pytest.importorskip("transformers")


def small_qwen3(**options):
    """options: further entries of its configuration."""
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        initializer_range=0.3,
        **options,
    )
    return transformers.Qwen3ForCausalLM(config).eval()
