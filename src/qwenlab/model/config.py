"""The shape of a model, read from a checkpoint's config.json. Field names are config.json's own."""

from dataclasses import dataclass, field
from pathlib import Path

from qwenlab.errors import QwenlabError, read_json

SUPPORTED = ("qwen3",)


class ConfigError(QwenlabError):
    """config.json is missing, isn't JSON, lacks a field, or asks for what qwenlab doesn't compute."""


@dataclass(frozen=True)
class Config:
    """Shape of a dense Qwen3 model (Qwen3 technical report, arXiv:2505.09388; the checkpoints' config.json).

    Sizes are counts of features or heads. `head_dim` stands alone: in the 0.6B the query width
    (16 heads x 128) exceeds `hidden_size` (1024). `max_position_embeddings` is the context limit in tokens.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rope_theta: float
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False  # transformers' class default; published small models say true in the JSON
    initializer_range: float = 0.02
    eos_token_id: tuple[int, ...] = field(default=())

    @classmethod
    def from_folder(cls, folder) -> "Config":
        """Reads `folder/config.json`. Raises ConfigError in one line that names the file."""
        path = Path(folder) / "config.json"
        return cls.from_dict(read_json(path, ConfigError), source=str(path))

    @classmethod
    def from_dict(cls, values: dict, source: str = "config.json") -> "Config":
        """Checks and picks the fields that qwenlab uses; `source` names them in errors. Raises ConfigError."""
        model_type = values.get("model_type")
        if model_type not in SUPPORTED:
            raise ConfigError(f"{source}: model_type is {model_type!r}, expected one of {', '.join(SUPPORTED)}")
        refuse_what_is_not_computed(values, source)
        stop = as_ids(values.get("eos_token_id"), source, ConfigError)
        values = {**values, "rope_theta": find_rope_theta(values), "eos_token_id": stop}
        picked = {}
        for name, kind in cls.__annotations__.items():
            value = values.get(name)
            if value is None:
                if name in OPTIONAL:
                    continue
                raise ConfigError(f"{source}: field {name!r} is missing")
            if kind is bool and not isinstance(value, bool):
                raise ConfigError(f"{source}: {name} is {value!r}, expected true or false")
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if kind is int and not (number and isinstance(value, int) and value >= 1):
                raise ConfigError(f"{source}: {name} is {value!r}, expected a whole number of at least 1")
            if kind is float and not (number and 0 < value < 1e38):  # the model works in float32
                raise ConfigError(f"{source}: {name} is {value!r}, expected a number above 0")
            picked[name] = float(value) if kind is float else value
        config = cls(**picked)
        if config.num_attention_heads % config.num_key_value_heads:
            raise ConfigError(
                f"{source}: num_attention_heads {config.num_attention_heads} is not a multiple of "
                f"num_key_value_heads {config.num_key_value_heads}"
            )
        if config.head_dim % 2:
            raise ConfigError(f"{source}: head_dim is {config.head_dim}, expected an even number (rotary pairs)")
        return config


OPTIONAL = {"rms_norm_eps", "tie_word_embeddings", "initializer_range", "eos_token_id"}


def find_rope_theta(values: dict):
    """`rope_theta` sits inside `rope_parameters` in newer files and at the top level in older ones."""
    inner = values.get("rope_parameters") or {}
    return inner.get("rope_theta", values.get("rope_theta"))


def as_ids(value, source: str, error: type[QwenlabError]) -> tuple[int, ...]:
    """The eos_token_id of a JSON file (None, one id or a list) as a tuple. Raises `error`, naming the file."""
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for id in ids:
        if isinstance(id, bool) or not isinstance(id, int):
            raise error(f"{source}: eos_token_id holds {id!r}, expected whole numbers")
    return tuple(ids)


def refuse_what_is_not_computed(values: dict, source: str) -> None:
    """A switch we'd ignore would give wrong numbers in silence: name it instead."""
    for name, kind in {"rope_parameters": dict, "rope_scaling": dict, "layer_types": list}.items():
        if not isinstance(values.get(name) or kind(), kind):
            raise ConfigError(f"{source}: {name} is {values[name]!r}, expected a {kind.__name__}")
    rope = values.get("rope_parameters") or values.get("rope_scaling") or {}
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    wrong = {
        "rope_type": rope_type if rope_type != "default" else None,
        "hidden_act": values.get("hidden_act") if values.get("hidden_act", "silu") != "silu" else None,
        "attention_bias": values.get("attention_bias") or None,
        "use_sliding_window": values.get("use_sliding_window") or None,
    }
    others = [kind for kind in values.get("layer_types") or () if kind != "full_attention"]
    wrong["layer_types"] = others[0] if others else None
    for name, value in wrong.items():
        if value is not None:
            raise ConfigError(f"{source}: {name} {value!r} is not supported for model_type {values['model_type']!r}")
