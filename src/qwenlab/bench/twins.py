"""One set of weights in two libraries: ours, and transformers for comparison."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from qwenlab.engine.generation import generate
from qwenlab.engine.padding import left_pad
from qwenlab.errors import QwenlabError
from qwenlab.fast import optimize
from qwenlab.loading import choose_device, choose_dtype, find_checkpoint, first_line, load
from qwenlab.model.config import Config
from qwenlab.model.model import Model
from qwenlab.model.weights import without_storage

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# fmt: off
SHAPES = {  # as in the config.json of Qwen/Qwen3-0.6B and in the text part of Qwen/Qwen3.5-0.8B's
    "0.6b": {
        "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072,
        "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
        "head_dim": 128, "max_position_embeddings": 40960,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        "tie_word_embeddings": True,
    },
    "0.8b": {
        "model_type": "qwen3_5_text", "vocab_size": 248320, "hidden_size": 1024,
        "intermediate_size": 3584, "num_hidden_layers": 24, "num_attention_heads": 8,
        "num_key_value_heads": 2, "head_dim": 256,
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 6,
        "linear_num_key_heads": 16, "linear_num_value_heads": 16, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
        "max_position_embeddings": 262144,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25,
        },
        "tie_word_embeddings": True,
    },
}
# fmt: on


class Ours:
    """The two operations measured on our model: greedy generation without stop ids, and a prefill
    of one row."""

    def __init__(self, model: Model) -> None:
        self.model = model.eval().requires_grad_(False)

    def generate(self, prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        options = {
            "max_new_tokens": new_tokens,
            "stop": (),
            "strategy": "static",
            "slots": len(prompts),
        }
        return generate(self.model, prompts, **options).token_ids

    @torch.inference_mode()
    def prefill(self, input_ids: Tensor) -> None:
        """input_ids (1, T)."""
        self.model(input_ids, state=self.model.new_state(1), last_only=True)


class Theirs:
    """The same operations on a model of transformers, called as its users call it; its `generate`
    records no gradients anyway."""

    def __init__(self, model: "PreTrainedModel") -> None:
        from transformers import GenerationConfig

        self.model = model.eval().requires_grad_(False)
        # Without stop ids and penalties, whatever the checkpoint asks for.
        self.model.generation_config = GenerationConfig(do_sample=False, pad_token_id=0)

    def generate(self, prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        input_ids, attention_mask = left_pad(prompts, pad_id=0)
        ids = self.model.generate(
            input_ids.to(self.model.device),
            attention_mask=attention_mask.long().to(self.model.device),
            max_new_tokens=new_tokens,
        )
        return ids[:, input_ids.shape[1] :].tolist()

    @torch.no_grad()
    def prefill(self, input_ids: Tensor) -> None:
        self.model(input_ids, use_cache=True, logits_to_keep=1)


def load_twins(
    model: str | None,
    shape: str | None,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | None = None,
) -> tuple[Ours, Theirs]:
    """Both sides of a model, loaded from the same folder, or of a shape, with random weights that
    they share.

    Raises QwenlabError in one line where either can't be loaded.
    """
    if (model is None) == (shape is None):
        given = "neither a model nor a shape" if model is None else "both a model and a shape"
        raise QwenlabError(f"{given}, expected one of them")
    if shape is not None and shape not in SHAPES:
        raise QwenlabError(f"shape is {shape!r}, expected one of {', '.join(SHAPES)}")
    try:
        from transformers import AutoConfig, AutoModelForCausalLM
    except ModuleNotFoundError:
        raise QwenlabError(
            "transformers is not installed, expected: pip install 'qwenlab[peers]'"
        ) from None
    device = choose_device(device)
    dtype = choose_dtype(dtype, device)
    if shape is None:
        folder = find_checkpoint(model)
        ours, _ = load(folder, dtype, device)
        try:
            theirs = AutoModelForCausalLM.from_pretrained(
                folder, dtype=dtype, local_files_only=True
            )
        except Exception as problem:  # of kinds that differ by version
            reason = f"{type(problem).__name__}: {first_line(problem)}"
            raise QwenlabError(f"{folder}: transformers can't read it ({reason})") from None
        return Ours(ours), Theirs(theirs.to(device))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        theirs = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(**SHAPES[shape]), dtype=dtype
        ).to(device)
    with without_storage():
        ours = Model(Config.from_dict(SHAPES[shape]))
    named = dict(theirs.named_parameters())
    # The very same parameters: nothing is held twice, even where ours changes a weight's layout.
    shared = {name: named[name] for name, _ in ours.named_parameters()}
    ours.load_state_dict(shared, assign=True)
    if device.type == "cpu":
        optimize(ours)  # as `load` does
    return Ours(ours), Theirs(theirs)
