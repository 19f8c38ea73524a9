"""qwenlab: batched inference for Qwen models, from scratch in PyTorch.

Names are looked up on first use, so that `import qwenlab` stays light.
"""

from importlib import import_module

__version__ = "0.1.0"

HOME = {
    "load": "qwenlab.loading",
    "Config": "qwenlab.model.config",
    "Model": "qwenlab.model.model",
    "State": "qwenlab.model.state",
    "Tokenizer": "qwenlab.text.tokenizer",
    "masked_softmax": "qwenlab.model.softmax",
    "left_pad": "qwenlab.engine.padding",
    "position_ids": "qwenlab.engine.padding",
    "causal_mask": "qwenlab.engine.masks",
    "combined_mask": "qwenlab.engine.masks",
    "generate": "qwenlab.engine.generation",
    "Engine": "qwenlab.engine.engine",
    "SamplingParams": "qwenlab.engine.request",
    "RequestOutput": "qwenlab.engine.request",
    "sample": "qwenlab.engine.sampling",
    "Chat": "qwenlab.chat.conversation",
    "QwenlabError": "qwenlab.errors",
}
PACKAGES = ("bench", "engine", "evaluation", "fast", "model", "teach", "text", "training")

__all__ = sorted(HOME)


def __getattr__(name: str) -> object:
    if name in HOME:
        value = getattr(import_module(HOME[name]), name)
    elif name in PACKAGES:
        value = import_module(f"qwenlab.{name}")
    else:
        raise AttributeError(f"module 'qwenlab' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *HOME, *PACKAGES])
