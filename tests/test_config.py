"""config.json: both places of rope_theta, and one clear line for what we don't compute."""

import dataclasses
import json

import pytest
from helpers import HYBRID, SHAPE

from qwenlab.model.config import Config, ConfigError


def test_both_places_of_rope_theta():
    inner = {**SHAPE, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
    del inner["rope_theta"]
    assert Config.from_dict(inner).rope_theta == 1e6
    assert Config.from_dict({**SHAPE, "rope_theta": 1000000}).rope_theta == 1e6
    assert Config.from_dict({**inner, "rope_theta": 5.0}).rope_theta == 1e6, "the newer place counts"


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
        ({"num_key_value_heads": 3}, "num_attention_heads 4 is not a multiple of num_key_value_heads 3"),
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
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_type 'yarn' is not supported"),
        ({"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4}}, "rope_type 'linear'"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types 'sliding_attention'"),
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
    assert Config.from_dict(outer) == Config.from_dict(inner) != Config.from_dict(HYBRID | {"vocab_size": 5})
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
    assert dataclasses.replace(Config.from_dict(SHAPE), num_hidden_layers=5).layer_types == ("full_attention",) * 5
    with pytest.raises(ConfigError, match="layer_types has 4 entries for 5 layers"):
        dataclasses.replace(Config.from_dict(HYBRID), num_hidden_layers=5)


def test_how_much_of_a_head_positions_turn():
    assert Config.from_dict(SHAPE).rotary_dim == 32
    bare = {**HYBRID, "rope_theta": 1e4, "rope_parameters": None}
    assert Config.from_dict(bare).rotary_dim == 8, "a quarter, as transformers has it"
    assert Config.from_dict({**bare, "partial_rotary_factor": 0.5}).rotary_dim == 16
    inner = {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 1.0, "mrope_section": [2, 1, 1]}}
    assert Config.from_dict({**HYBRID, **inner}).rotary_dim == 32


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"linear_key_head_dim": None}, "field 'linear_key_head_dim' is missing"),
        ({"linear_conv_kernel_dim": 0}, "linear_conv_kernel_dim is 0, expected a whole number"),
        ({"linear_num_key_heads": 3}, "linear_num_value_heads 4 is not a multiple of linear_num_key_heads 3"),
        ({"layer_types": ["full_attention"]}, "layer_types has 1 entries for 4 layers"),
        ({"layer_types": ["mamba"] * 4}, "layer_types 'mamba' is not supported"),
        ({"layer_types": None, "full_attention_interval": 0}, "full_attention_interval is 0, expected a whole number"),
        ({"attn_output_gate": False}, "attn_output_gate False is not supported"),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.1}}, "is 3 features, expected an even"),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 2}}, "is 64 features, expected an even"),
    ],
)
def test_a_hybrid_refused_by_name(changes, message):
    with pytest.raises(ConfigError, match=message):
        Config.from_dict({**HYBRID, **changes})


def test_files_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"config\.json: no such file"):
        Config.from_folder(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"config\.json: not readable as JSON"):
        Config.from_folder(tmp_path)
    for unreadable in ("[" * 100_000, '{"vocab_size": ' + "9" * 5000 + "}"):
        (tmp_path / "config.json").write_text(unreadable)
        with pytest.raises(ConfigError, match=r"config\.json: not readable as JSON") as caught:
            Config.from_folder(tmp_path)
        assert "\n" not in str(caught.value)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ConfigError, match="expected a JSON object, found list"):
        Config.from_folder(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**SHAPE, "unknown": 1}))
    assert Config.from_folder(tmp_path).vocab_size == SHAPE["vocab_size"]
