"""The shape of a model, read from a checkpoint's config.json. Field names are config.json's own."""

from dataclasses import dataclass, field
from pathlib import Path

from qwenlab.errors import QwenlabError, read_json

KINDS = ("full_attention", "linear_attention")
SUPPORTED = ("qwen3", "qwen3_5", "qwen3_5_text")
# No checkpoint is larger. Beyond these limits a model takes minutes to create, or its sizes
# overflow PyTorch's.
MOST_LAYERS = 1000
MOST_FEATURES = 2**24
MOST_TOKENS = 2**31 - 1


class ConfigError(QwenlabError):
    """config.json is missing, isn't JSON, lacks a field, or asks for what qwenlab
    doesn't compute."""


@dataclass(frozen=True)
class Config:
    """Shape of a Qwen3 (arXiv:2505.09388) or the text part of a Qwen3.5 (the checkpoints'
    config.json).

    Sizes are counts of features or heads. `head_dim` is independent: in the 0.6B the query width
    (16 heads x 128) exceeds `hidden_size` (1024). `max_position_embeddings` is the context limit in
    tokens. `layer_types` names each layer "full_attention" or "linear_attention"; the linear_...
    sizes are those of the latter.
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
    # False is transformers' class default; published small models say true in the JSON.
    tie_word_embeddings: bool = False
    initializer_range: float = 0.02
    eos_token_id: tuple[int, ...] = field(default=())
    layer_types: tuple[str, ...] = field(default=())
    partial_rotary_factor: float = 1.0  # the fraction of head_dim that RoPE rotates
    linear_num_key_heads: int = 0
    linear_num_value_heads: int = 0
    linear_key_head_dim: int = 0
    linear_value_head_dim: int = 0
    linear_conv_kernel_dim: int = 0

    def __post_init__(self) -> None:
        if not self.is_qwen3_5:  # here, so that a copy with another number of layers is right too
            object.__setattr__(self, "layer_types", KINDS[:1] * self.num_hidden_layers)
        elif len(self.layer_types) != self.num_hidden_layers:
            raise ConfigError(
                f"layer_types has {len(self.layer_types)} entries for "
                f"{self.num_hidden_layers} layers"
            )

    @property
    def is_qwen3_5(self) -> bool:
        """Norms whose weight is centred on 0, and attention with an output gate."""
        return self.model_type != "qwen3"

    @property
    def rotary_dim(self) -> int:
        """How many features of a head RoPE rotates."""
        return int(self.head_dim * self.partial_rotary_factor)

    @property
    def conv_channels(self) -> int:
        """Channels of DeltaNet's short convolution: queries, keys and values side by side."""
        key_width = self.linear_num_key_heads * self.linear_key_head_dim
        return 2 * key_width + self.linear_num_value_heads * self.linear_value_head_dim

    @classmethod
    def from_folder(cls, folder: str | Path) -> "Config":
        """Reads `folder/config.json`. Raises ConfigError in one line that names the file."""
        path = Path(folder) / "config.json"
        return cls.from_dict(read_json(path, ConfigError), source=str(path))

    @classmethod
    def from_dict(cls, values: dict, source: str = "config.json") -> "Config":
        """Checks and picks the fields that qwenlab uses; `source` names them in errors. Raises
        ConfigError."""
        values = text_part(values, source)
        model_type = values.get("model_type")
        if model_type not in SUPPORTED:
            raise ConfigError(
                f"{source}: model_type is {model_type!r}, expected one of {', '.join(SUPPORTED)}"
            )
        refuse_what_is_not_computed(values, source)
        stop = as_ids(values.get("eos_token_id"), source, ConfigError)
        values = {**values, **find_rope(values), "eos_token_id": stop}
        values["layer_types"] = find_layer_types(values, source)
        linear = "linear_attention" in values["layer_types"]
        picked = {}
        for name, kind in cls.__annotations__.items():
            value = values.get(name)
            if value is None:
                if name in OPTIONAL or (name.startswith("linear_") and not linear):
                    continue
                raise ConfigError(f"{source}: field {name!r} is missing")
            if kind is bool and not isinstance(value, bool):
                raise ConfigError(f"{source}: {name} is {value!r}, expected true or false")
            if kind is int:
                refuse_size(name, value, source)
            in_float32 = is_number(value) and 0 < value < 1e38
            if kind is float and not in_float32:
                raise ConfigError(f"{source}: {name} is {value!r}, expected a number above 0")
            picked[name] = float(value) if kind is float else value
        config = cls(**picked)
        refuse_what_does_not_fit(config, source)
        return config


OPTIONAL = {"rms_norm_eps", "tie_word_embeddings", "initializer_range", "eos_token_id"}


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_whole_number(value: object) -> bool:
    return is_number(value) and isinstance(value, int) and value >= 1


def refuse_size(name: str, value: object, source: str) -> None:
    """Raises ConfigError unless `value` is a size that a model can have."""
    if not is_whole_number(value):
        raise ConfigError(f"{source}: {name} is {value!r}, expected a whole number of at least 1")
    most = {"num_hidden_layers": MOST_LAYERS, "max_position_embeddings": MOST_TOKENS}.get(
        name, MOST_FEATURES
    )
    if value > most:
        raise ConfigError(f"{source}: {name} is {shown(value)}, expected at most {most}")


def shown(number: int) -> str:
    """A whole number, or its order of magnitude if its digits would fill the line."""
    return str(number) if number < 10**20 else f"above 10^{int(number.bit_length() * 0.30102) - 1}"


def text_part(values: dict, source: str) -> dict:
    """The fields of the language model: a multimodal file has them in `text_config`, but a
    tie_word_embeddings beside that wins."""
    inner = values.get("text_config")
    if inner is None:
        return values
    if not isinstance(inner, dict):
        raise ConfigError(f"{source}: text_config is {inner!r}, expected a dict")
    tied = values.get("tie_word_embeddings", inner.get("tie_word_embeddings"))
    return {**values, **inner, "tie_word_embeddings": tied}


def find_rope(values: dict) -> dict:
    """RoPE's settings: in newer files inside `rope_parameters`, in older ones at the top level.

    A `rope_scaling` beside `rope_parameters` replaces it, as in transformers.
    """
    merged = {**values, **(values.get("rope_scaling") or values.get("rope_parameters") or {})}
    share = 1.0 if values["model_type"] == "qwen3" else merged.get("partial_rotary_factor", 0.25)
    return {"rope_theta": merged.get("rope_theta"), "partial_rotary_factor": share}


def find_layer_types(values: dict, source: str) -> tuple[str, ...]:
    """Each layer's kind: listed, or for Qwen3.5 every `full_attention_interval`-th (4 where absent)
    full attention."""
    layers = values.get("num_hidden_layers")
    listed = values.get("layer_types")
    if not is_whole_number(layers) or layers > MOST_LAYERS:
        return ()  # refused by name a moment later
    if listed is None:
        every = 1 if values["model_type"] == "qwen3" else values.get("full_attention_interval", 4)
        if not is_whole_number(every):
            raise ConfigError(
                f"{source}: full_attention_interval is {every!r}, "
                "expected a whole number of at least 1"
            )
        return tuple(KINDS[(number + 1) % every > 0] for number in range(layers))
    if len(listed) != layers:
        raise ConfigError(f"{source}: layer_types has {len(listed)} entries for {layers} layers")
    return tuple(listed)


def as_ids(value: object, source: str, error: type[QwenlabError]) -> tuple[int, ...]:
    """The eos_token_id of a JSON file (None, one id or a list) as a tuple. Raises `error`, naming
    the file."""
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for id in ids:
        if isinstance(id, bool) or not isinstance(id, int) or not 0 <= id <= MOST_TOKENS:
            raise error(
                f"{source}: eos_token_id holds {id!r}, expected whole numbers of at least 0"
            )
    return tuple(ids)


def refuse_what_is_not_computed(values: dict, source: str) -> None:
    """Raises ConfigError for a setting that, if ignored, would silently give wrong numbers."""
    for name, kind in {"rope_parameters": dict, "rope_scaling": dict, "layer_types": list}.items():
        if not isinstance(values.get(name) or kind(), kind):
            raise ConfigError(f"{source}: {name} is {values[name]!r}, expected a {kind.__name__}")
    older = values["model_type"] == "qwen3"
    model = f"model_type {values['model_type']!r}"
    for place in ("rope_parameters", "rope_scaling"):
        rope = values.get(place) or {}
        rope_type = rope.get("rope_type", rope.get("type"))
        if rope_type not in (None, "default"):
            raise ConfigError(
                f"{source}: {place} of rope_type {rope_type!r} is not supported for {model}"
            )
        for name, value in rope.items():
            if isinstance(value, dict):
                raise ConfigError(
                    f"{source}: {place} with settings of its own for {name!r} is not supported"
                )
    computed = {
        "hidden_act": ["silu"],
        "attention_bias": [False],
        "use_sliding_window": [False],
        "attn_output_gate": [not older],
    }
    for name, known in computed.items():
        value = values.get(name)
        if value is not None and value not in known:
            raise ConfigError(f"{source}: {name} {value!r} is not supported for {model}")
    for kind in values.get("layer_types") or ():
        if kind not in (KINDS[:1] if older else KINDS):
            raise ConfigError(f"{source}: layer_types {kind!r} is not supported for {model}")


def refuse_what_does_not_fit(config: Config, source: str) -> None:
    """Raises ConfigError for sizes that contradict each other or exceed what a model can have."""
    pairs = {
        "num_attention_heads": "num_key_value_heads",
        "linear_num_value_heads": "linear_num_key_heads",
    }
    for whole, part in pairs.items():
        many = getattr(config, whole)
        few = getattr(config, part)
        if few and many % few:
            raise ConfigError(f"{source}: {whole} {many} is not a multiple of {part} {few}")
    widths = {
        "num_attention_heads": "head_dim",
        "linear_num_key_heads": "linear_key_head_dim",
        "linear_num_value_heads": "linear_value_head_dim",
    }
    for heads, size in widths.items():
        width = getattr(config, heads) * getattr(config, size)
        if width > MOST_FEATURES:
            raise ConfigError(
                f"{source}: {heads} times {size} is {width}, expected at most {MOST_FEATURES}"
            )
    if config.head_dim % 2:
        raise ConfigError(
            f"{source}: head_dim is {config.head_dim}, expected an even number (rotary pairs)"
        )
    if not 2 <= config.rotary_dim <= config.head_dim or config.rotary_dim % 2:
        raise ConfigError(
            f"{source}: partial_rotary_factor {config.partial_rotary_factor} "
            f"of head_dim {config.head_dim} is {config.rotary_dim} features, "
            f"expected an even number from 2 to {config.head_dim}"
        )
