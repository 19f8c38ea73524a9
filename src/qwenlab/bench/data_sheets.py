"""Published models and devices to plan with when neither is at hand: shapes from the models'
config.json, memory and rates from the makers' data sheets."""

from dataclasses import dataclass

from qwenlab.bench.roofline import Machine
from qwenlab.model.config import Config

GIGA = 10**9


@dataclass(frozen=True)
class Device(Machine):
    """A machine by its data sheet: rates that its maker states, and its memory in bytes."""

    memory: int


# AMD Ryzen 7 7840U: 128 bits of LPDDR5x-7500; 8 cores at 3.3 GHz, two 256-bit multiply-adds per
# cycle. Its memory is what a laptop may have.
LAPTOP = Device("laptop, 32 GB", "float32", 16 * 7500e6, 8 * 3.3e9 * 32, 32 * GIGA)
# NVIDIA Ada GPU architecture, appendix A: bfloat16 with float32 sums, without sparsity.
CARD = Device("RTX 4090, 24 GB", "bfloat16", 1008e9, 165.2e12, 24 * GIGA)
# NVIDIA's page of the H100 SXM, which states the rate with sparsity: twice this one.
H100 = Device("H100, 80 GB", "bfloat16", 3.35e12, 989e12, 80 * GIGA)

DEVICES = {device.name: device for device in (LAPTOP, CARD, H100)}

QWEN3_06B = {
    "model_type": "qwen3",
    "vocab_size": 151_936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40_960,
    "rope_theta": 1e6,
    "tie_word_embeddings": True,
}
QWEN3_4B = {
    **QWEN3_06B,
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
}
QWEN35_08B = {
    "model_type": "qwen3_5_text",
    "vocab_size": 248_320,
    "hidden_size": 1024,
    "intermediate_size": 3584,
    "num_hidden_layers": 24,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "max_position_embeddings": 262_144,
    "rope_theta": 1e7,
    "partial_rotary_factor": 0.25,
    "tie_word_embeddings": True,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}
SHAPES = {
    "Qwen3-0.6B": Config.from_dict(QWEN3_06B),
    "Qwen3-4B": Config.from_dict(QWEN3_4B),
    "Qwen3.5-0.8B": Config.from_dict(QWEN35_08B),
}
