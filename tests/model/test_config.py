"""config.json: both places of rope_theta, and one clear line for what we don't compute."""

import dataclasses
import json

import pytest
import torch
from helpers import HYBRID, SHAPE

from qwenlab.model.config import Config, ConfigError
from qwenlab.model.model import Model


def test_both_places_of_rope_theta():
    inner = {**SHAPE, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
    del inner["rope_theta"]
    assert Config.from_dict(inner).rope_theta == 1e6
    assert Config.from_dict({**SHAPE, "rope_theta": 1000000}).rope_theta == 1e6
    assert Config.from_dict({**inner, "rope_theta": 5.0}).rope_theta == 1e6, (
        "the newer place counts"
    )


def test_one_stop_id_or_several():
    assert Config.from_dict({**SHAPE, "eos_token_id": 5}).eos_token_id == (5,)
    assert Config.from_dict({**SHAPE, "eos_token_id": None}).eos_token_id == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "llama"}, "model_type is 'llama', expected one of qwen3, qwen3_5"),
        ({"model_type": None}, "model_type is None"),
        ({"hidden_size": None}, "field 'hidden_size' is missing"),
        ({"rope_theta": None}, "field 'rope_theta' is missing"),
        ({"head_dim": "32"}, "head_dim is '32', expected a whole number"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings is 1, expected true or false"),
        ({"rms_norm_eps": -1}, "rms_norm_eps is -1"),
        (
            {"num_key_value_heads": 3},
            "num_attention_heads 4 is not a multiple of num_key_value_heads 3",
        ),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan, expected a number above 0"),
        ({"rope_theta": float("inf")}, "rope_theta is inf, expected a number above 0"),
        ({"rope_theta": 10**400}, "rope_theta is 1000"),
        ({"rope_parameters": "default"}, "rope_parameters is 'default', expected a dict"),
        ({"rope_scaling": ["yarn"]}, "rope_scaling is \\['yarn'\\], expected a dict"),
        ({"layer_types": 3}, "layer_types is 3, expected a list"),
        ({"eos_token_id": "</s>"}, "eos_token_id holds '</s>', expected whole numbers"),
        ({"eos_token_id": [5, [6]]}, "eos_token_id holds \\[6\\], expected whole numbers"),
        ({"eos_token_id": True}, "eos_token_id holds True"),
        ({"head_dim": 31}, "head_dim is 31, expected an even number"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ({"attention_bias": True}, "attention_bias True is not supported"),
        ({"use_sliding_window": True}, "use_sliding_window True"),
        (
            {"rope_scaling": {"type": "yarn", "factor": 4.0}},
            "rope_scaling of rope_type 'yarn' is not supported",
        ),
        ({"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4}}, "rope_type 'linear'"),
        (
            {"layer_types": ["full_attention", "sliding_attention"]},
            "layer_types 'sliding_attention'",
        ),
        (
            {"layer_types": ["full_attention", None, "full_attention"]},
            "layer_types None is not supported",
        ),
        ({"num_hidden_layers": 10**5}, "num_hidden_layers is 100000, expected at most 1000"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000, expected at most 1000"),
        ({"hidden_size": 10**30}, r"hidden_size is above 10\^29, expected at most"),
        ({"vocab_size": 10**5000}, r"vocab_size is above 10\^4998, expected at most"),
        (
            {"num_attention_heads": 2**20},
            r"num_attention_heads times head_dim is 33554432, expected at most",
        ),
        (
            {"max_position_embeddings": 10**30},
            r"max_position_embeddings is above 10\^29, expected at most",
        ),
        ({"eos_token_id": [-1]}, "eos_token_id holds -1, expected whole numbers of at least 0"),
        ({"eos_token_id": 10**30}, "eos_token_id holds 1000"),
    ],
)
def test_refused_by_name(changes, message):
    with pytest.raises(ConfigError, match=message) as caught:
        Config.from_dict({**SHAPE, **changes}, source="somewhere/config.json")
    assert str(caught.value).startswith("somewhere/config.json: ") and "\n" not in str(caught.value)


def test_the_text_part_of_a_multimodal_file():
    """Fields in text_config; the outer file says whether the head is tied."""
    inner = {**HYBRID, "model_type": "qwen3_5_text"}
    outer = {"model_type": "qwen3_5", "text_config": inner, "vision_config": {"hidden_size": 7}}
    assert (
        Config.from_dict(outer)
        == Config.from_dict(inner)
        != Config.from_dict(HYBRID | {"vocab_size": 5})
    )
    untied = Config.from_dict({**outer, "tie_word_embeddings": False})
    assert inner["tie_word_embeddings"] is True and untied.tie_word_embeddings is False
    with pytest.raises(ConfigError, match="text_config is 'small', expected a dict"):
        Config.from_dict({**outer, "text_config": "small"})


def test_layers_are_listed_or_counted():
    bare = {name: value for name, value in HYBRID.items() if name != "layer_types"}
    assert Config.from_dict({**bare, "num_hidden_layers": 5}).layer_types == (
        "linear_attention",
        "linear_attention",
        "linear_attention",
        "full_attention",
        "linear_attention",
    )
    every_second = Config.from_dict({**bare, "full_attention_interval": 2})
    assert every_second.layer_types == ("linear_attention", "full_attention") * 2
    assert Config.from_dict(SHAPE).layer_types == ("full_attention",) * 3
    only_full = {name: value for name, value in bare.items() if not name.startswith("linear_")}
    assert Config.from_dict({**only_full, "full_attention_interval": 1}).linear_num_key_heads == 0


def test_a_copy_with_another_number_of_layers():
    assert (
        dataclasses.replace(Config.from_dict(SHAPE), num_hidden_layers=5).layer_types
        == ("full_attention",) * 5
    )
    with pytest.raises(ConfigError, match="layer_types has 4 entries for 5 layers"):
        dataclasses.replace(Config.from_dict(HYBRID), num_hidden_layers=5)


def test_how_much_of_a_head_positions_turn():
    assert Config.from_dict(SHAPE).rotary_dim == 32
    bare = {**HYBRID, "rope_theta": 1e4, "rope_parameters": None}
    assert Config.from_dict(bare).rotary_dim == 8, "a quarter, as transformers has it"
    assert Config.from_dict({**bare, "partial_rotary_factor": 0.5}).rotary_dim == 16
    inner = {
        "rope_parameters": {
            "rope_theta": 1e4,
            "partial_rotary_factor": 1.0,
            "mrope_section": [2, 1, 1],
        }
    }
    assert Config.from_dict({**HYBRID, **inner}).rotary_dim == 32


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"linear_key_head_dim": None}, "field 'linear_key_head_dim' is missing"),
        ({"linear_conv_kernel_dim": 0}, "linear_conv_kernel_dim is 0, expected a whole number"),
        (
            {"linear_num_key_heads": 3},
            "linear_num_value_heads 4 is not a multiple of linear_num_key_heads 3",
        ),
        ({"layer_types": ["full_attention"]}, "layer_types has 1 entries for 4 layers"),
        ({"layer_types": ["mamba"] * 4}, "layer_types 'mamba' is not supported"),
        (
            {"layer_types": None, "full_attention_interval": 0},
            "full_attention_interval is 0, expected a whole number",
        ),
        ({"attn_output_gate": False}, "attn_output_gate False is not supported"),
        (
            {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.1}},
            "is 3 features, expected an even",
        ),
        (
            {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 2}},
            "is 64 features, expected an even",
        ),
    ],
)
def test_a_hybrid_refused_by_name(changes, message):
    with pytest.raises(ConfigError, match=message):
        Config.from_dict({**HYBRID, **changes})


def test_files_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"config\.json: no such file"):
        Config.from_folder(tmp_path)
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"config\.json: not readable as JSON"):
        Config.from_folder(tmp_path)
    for unreadable in ("[" * 100_000, '{"vocab_size": ' + "9" * 5000 + "}"):
        (tmp_path / "config.json").write_text(unreadable, encoding="utf-8")
        with pytest.raises(ConfigError, match=r"config\.json: not readable as JSON") as caught:
            Config.from_folder(tmp_path)
        assert "\n" not in str(caught.value)
    (tmp_path / "config.json").write_text("[]", encoding="utf-8")
    with pytest.raises(ConfigError, match="expected a JSON object, found list"):
        Config.from_folder(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**SHAPE, "unknown": 1}), encoding="utf-8")
    assert Config.from_folder(tmp_path).vocab_size == SHAPE["vocab_size"]


ROPE = {"rope_theta": 1e4, "partial_rotary_factor": 0.5}


@pytest.mark.parametrize("shape", [SHAPE, HYBRID], ids=["dense", "hybrid"])
@pytest.mark.parametrize(
    "scaled", [{"rope_type": "yarn", "factor": 4.0}, {"type": "dynamic"}, {"rope_type": "mrope"}]
)
def test_a_rope_that_is_not_computed_is_refused_wherever_it_stands(shape, scaled):
    rope_type = next(iter(scaled.values()))
    for places in (
        {"rope_scaling": scaled, "rope_parameters": {**ROPE, "rope_type": "default"}},
        {"rope_scaling": scaled, "rope_parameters": None},
        {"rope_scaling": None, "rope_parameters": {**ROPE, **scaled}},
        {"rope_scaling": {"rope_type": "default"}, "rope_parameters": {**ROPE, **scaled}},
    ):
        with pytest.raises(
            ConfigError, match=f"of rope_type '{rope_type}' is not supported for model_type"
        ):
            Config.from_dict({**shape, **places})
    with pytest.raises(
        ConfigError, match="rope_parameters with settings of its own for 'full_attention'"
    ):
        Config.from_dict({**shape, "rope_parameters": {"full_attention": {**ROPE, **scaled}}})


@pytest.mark.parametrize("kind", ["Qwen3Config", "Qwen3_5TextConfig"])
def test_the_place_that_sets_rope_is_that_of_transformers(kind):
    import transformers

    shape = {
        **(SHAPE if kind == "Qwen3Config" else HYBRID),
        "rope_theta": 7e3,
        "rope_parameters": None,
    }
    for places in (
        {"rope_parameters": {**ROPE, "rope_theta": 5e6}},
        {
            "rope_parameters": {**ROPE, "rope_theta": 5e6},
            "rope_scaling": {"rope_type": "default", "rope_theta": 9e5},
        },
        {"rope_parameters": {**ROPE, "rope_theta": 5e6}, "rope_scaling": {"rope_type": "default"}},
        {"rope_scaling": {"type": "default", "partial_rotary_factor": 1.0}},
        {"partial_rotary_factor": 0.5},
        {},
    ):
        theirs = getattr(transformers, kind)(
            **json.loads(json.dumps({**shape, **places}))
        ).rope_parameters
        ours = Config.from_dict({**shape, **places})
        assert ours.rope_theta == theirs["rope_theta"], places
        if kind != "Qwen3Config":
            assert ours.partial_rotary_factor == theirs["partial_rotary_factor"], places


def test_the_largest_sizes_are_those_of_a_model_that_can_be_laid_out():
    """On the meta device: no size that the config accepts overflows PyTorch's."""
    most = 2**24
    heads = {"num_attention_heads": 4, "head_dim": most // 4, "num_key_value_heads": 4}
    linear = {
        "linear_key_head_dim": most // 2,
        "linear_value_head_dim": most // 4,
        "linear_conv_kernel_dim": most,
    }
    sizes = {
        "vocab_size": most,
        "hidden_size": most,
        "intermediate_size": most,
        "max_position_embeddings": 2**31 - 1,
    }
    with torch.device("meta"):
        model = Model(Config.from_dict({**HYBRID, **heads, **linear, **sizes}))
    assert model.model.embed_tokens.weight.shape == (most, most)
