"""One set of weights in two libraries: ours, and transformers as the one to be measured beside."""

from pathlib import Path

import torch
from torch import Tensor

from qwenlab.batching.generation import generate
from qwenlab.batching.padding import left_pad
from qwenlab.errors import QwenlabError
from qwenlab.model.config import Config
from qwenlab.model.loading import find_checkpoint, first_line, load
from qwenlab.model.model import Model

# The config.json of Qwen/Qwen3-0.6B, without what only its trained weights need.
SHAPES = {
    "0.6b": {
        "model_type": "qwen3",
        "vocab_size": 151936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40960,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        "tie_word_embeddings": True,
    },
}


class Ours:
    """qwenlab's model, and the two things that are measured of it."""

    def __init__(self, model: Model):
        self.model = model

    def say(self, prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        """The greedy ids of each prompt, `new_tokens` a row: no stop ids."""
        options = {"max_new_tokens": new_tokens, "stop": (), "strategy": "static", "slots": len(prompts)}
        return generate(self.model, prompts, **options).token_ids

    @torch.inference_mode()
    def read(self, input_ids: Tensor) -> None:
        """One pass over input_ids (1, T) that keeps the keys and values and computes the last logits."""
        self.model(input_ids, state=self.model.new_state(1), last_only=True)


class Theirs:
    """The same of a model of transformers, called as its users call it: `generate` keeps no gradients by itself."""

    def __init__(self, model):
        from transformers import GenerationConfig

        self.model = model.eval().requires_grad_(False)
        self.model.generation_config = GenerationConfig(do_sample=False, pad_token_id=0)  # no stop ids, no penalties

    def say(self, prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        input_ids, attention_mask = (t.to(self.model.device) for t in left_pad(prompts, pad_id=0))
        ids = self.model.generate(input_ids, attention_mask=attention_mask.long(), max_new_tokens=new_tokens)
        return ids[:, input_ids.shape[1] :].tolist()

    @torch.no_grad()
    def read(self, input_ids: Tensor) -> None:
        self.model(input_ids, use_cache=True, logits_to_keep=1)


def require_transformers() -> None:
    try:
        import transformers  # noqa: F401
    except ModuleNotFoundError:
        raise QwenlabError("transformers is not installed, expected: pip install 'qwenlab[peers]'") from None


def find_config(model: str | None, shape: str | None) -> tuple[Config, Path | None]:
    """The config of the model, with its folder, or of the shape. QwenlabError unless one of them is named and known."""
    if (model is None) == (shape is None):
        raise QwenlabError(f"{'both' if shape else 'neither'} a model and a shape, expected one of them")
    if shape is None:
        folder = find_checkpoint(model)
        return Config.from_folder(folder), folder
    if shape not in SHAPES:
        raise QwenlabError(f"shape is {shape!r}, expected one of {', '.join(SHAPES)}")
    return Config.from_dict(SHAPES[shape]), None


def read_twins(folder: Path, dtype: torch.dtype, device: torch.device) -> tuple[Ours, Theirs]:
    """Both read the same folder. QwenlabError in one line where either can't."""
    from transformers import AutoModelForCausalLM

    ours, _ = load(folder, dtype, device)
    try:
        theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
    except Exception as problem:  # each of its versions has its own kinds
        reason = f"{type(problem).__name__}: {first_line(problem)}"
        raise QwenlabError(f"{folder}: transformers can't read it ({reason})") from None
    return Ours(ours), Theirs(theirs.to(device))


def random_twins(shape: str, dtype: torch.dtype, device: torch.device) -> tuple[Ours, Theirs]:
    """Random weights that both share: the very same parameters, so that nothing is held twice, even where ours lays
    out a weight anew."""
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.random.fork_rng():
        torch.manual_seed(0)
        theirs = AutoModelForCausalLM.from_config(AutoConfig.for_model(**SHAPES[shape]), dtype=dtype).to(device)
    with torch.device("meta"):  # shapes without numbers, as in `load`
        ours = Model(Config.from_dict(SHAPES[shape]))
    named = dict(theirs.named_parameters())
    ours.load_state_dict({name: named[name] for name, _ in ours.named_parameters()}, assign=True)
    return Ours(ours.eval().requires_grad_(False)), Theirs(theirs)
