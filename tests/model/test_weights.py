"""Safetensors in and out: single and sharded, checked whole, errors in one line."""

import json

import pytest
import torch
from helpers import random_config, random_model
from safetensors.torch import load_file, save_file

from qwenlab.model.model import Model
from qwenlab.model.weights import WeightsError, load_weights, save_weights

IDS = torch.tensor([[1, 2, 3]])


def shard(folder, tensors):
    """The tensors in two files and an index, as large checkpoints are published."""
    names = sorted(tensors)
    parts = {
        "model-00001-of-00002.safetensors": names[::2],
        "model-00002-of-00002.safetensors": names[1::2],
    }
    for file, held in parts.items():
        save_file({name: tensors[name] for name in held}, folder / file)
    weight_map = {name: file for file, held in parts.items() for name in held}
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": weight_map}), encoding="utf-8"
    )
    return weight_map


@pytest.mark.parametrize("tied", [True, False])
def test_round_trip_single_and_sharded(tmp_path, tied):
    model = random_model(tie_word_embeddings=tied, fast=False)
    save_weights(model, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    assert ("lm_head.weight" in tensors) is not tied
    other = Model(random_config(tie_word_embeddings=tied))
    load_weights(other, tmp_path)
    assert torch.equal(other(IDS), model(IDS))
    (tmp_path / "model.safetensors").unlink()
    shard(tmp_path, tensors)
    with torch.device("meta"):
        third = Model(random_config(tie_word_embeddings=tied))
    load_weights(third, tmp_path)
    assert torch.equal(third(IDS), model(IDS))


def test_dtype_conversion(tmp_path):
    model = random_model()
    save_weights(model, tmp_path, torch.bfloat16)
    stored = Model(random_config())
    load_weights(stored, tmp_path)
    assert stored.dtype == torch.bfloat16 and stored(IDS).dtype == torch.float32
    wide = Model(random_config())
    load_weights(wide, tmp_path, torch.float32)
    assert wide.dtype == torch.float32
    assert torch.equal(wide.model.norm.weight, model.model.norm.weight.bfloat16().float())


def test_a_tied_file_may_carry_the_embedding_as_its_head_too(tmp_path):
    model = random_model(fast=False)
    tensors = dict(model.state_dict())
    embedding = tensors["model.embed_tokens.weight"]
    tensors["lm_head.weight"] = embedding.clone()
    save_file(tensors, tmp_path / "model.safetensors")
    other = Model(random_config())
    assert load_weights(other, tmp_path) == ["lm_head.weight"]
    assert torch.equal(other(IDS), model(IDS))
    del tensors["model.embed_tokens.weight"]  # or under that name alone
    save_file(tensors, tmp_path / "model.safetensors")
    other = Model(random_config())
    assert load_weights(other, tmp_path) == []
    assert torch.equal(other(IDS), model(IDS))


@pytest.mark.parametrize("change", [1e-3, torch.inf, None])
def test_a_tied_model_does_not_ignore_another_head(tmp_path, change):
    tensors = dict(random_model(fast=False).state_dict())
    head = tensors["model.embed_tokens.weight"].clone()
    head[-1, -1] += change or 0
    tensors["lm_head.weight"] = head if change else head[:-1]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(
        WeightsError,
        match=r"lm_head\.weight differs from model\.embed_tokens\.weight, though config",
    ):
        load_weights(Model(random_config()), tmp_path)


@pytest.mark.parametrize(
    "name", ["model.rotary_emb.inv_freq", "model.layers.0.self_attn.rotary_emb.inv_freq"]
)
def test_stored_frequencies_are_not_surplus(tmp_path, name):
    model = random_model(fast=False)
    save_file({**model.state_dict(), name: torch.ones(16)}, tmp_path / "model.safetensors")
    other = Model(random_config())
    assert load_weights(other, tmp_path) == [name]
    assert torch.equal(other(IDS), model(IDS))


def test_all_misfits_in_one_error_and_nothing_taken(tmp_path):
    tensors = dict(random_model(fast=False).state_dict())
    tensors["model.layers.0.mlp.extra"] = torch.ones(2)
    tensors["model.norm.weight"] = torch.ones(65)
    del tensors["model.layers.1.self_attn.q_norm.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    model = random_model(seed=9)
    before = model(IDS)
    with pytest.raises(WeightsError) as caught:
        load_weights(model, tmp_path)
    text = str(caught.value)
    assert "missing: model.layers.1.self_attn.q_norm.weight" in text
    assert "surplus: model.layers.0.mlp.extra" in text
    assert "misshapen: model.norm.weight (65,) instead of (64,)" in text and "\n" not in text
    assert torch.equal(model(IDS), before)


@pytest.mark.parametrize(
    ("dtype", "name"), [(torch.int8, "I8"), (torch.bool, "BOOL"), (torch.float8_e4m3fn, "F8")]
)
def test_quantised_tensors_are_not_taken_for_weights(tmp_path, dtype, name):
    """Without its scales such a tensor gives wrong numbers in silence."""
    tensors = dict(random_model(fast=False).state_dict())
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(dtype)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=f"quantised: model.norm.weight {name}"):
        load_weights(random_model(fast=False), tmp_path, torch.float32)


def test_many_missing_are_counted(tmp_path):
    save_file({"a": torch.ones(1)}, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=r"missing: .* and 30 more; surplus: a"):
        load_weights(random_model(), tmp_path)


@pytest.mark.parametrize("keep", [0, 7, 100, -10])
def test_truncated(tmp_path, keep):
    path = save_weights(random_model(), tmp_path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(
        WeightsError, match=r"model\.safetensors: not a whole safetensors file"
    ) as caught:
        load_weights(random_model(), tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "file", ["../other.safetensors", "/etc/passwd", "a/../../b.safetensors", "weights.bin", 5]
)
def test_the_index_may_not_leave_the_folder(tmp_path, file):
    weight_map = shard(tmp_path, dict(random_model().state_dict()))
    weight_map["model.norm.weight"] = file
    (tmp_path / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": weight_map}), encoding="utf-8"
    )
    with pytest.raises(WeightsError, match=r"model\.norm\.weight points to"):
        load_weights(random_model(), tmp_path)


def test_a_shard_that_is_absent_or_lacks_a_tensor(tmp_path):
    weight_map = shard(tmp_path, dict(random_model().state_dict()))
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"model-00002-of-00002\.safetensors"):
        load_weights(random_model(), tmp_path)
    shard(tmp_path, dict(random_model().state_dict()))
    moved = next(name for name, file in weight_map.items() if file.startswith("model-00001"))
    weight_map[moved] = "model-00002-of-00002.safetensors"
    (tmp_path / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": weight_map}), encoding="utf-8"
    )
    with pytest.raises(WeightsError, match="is not in this file"):
        load_weights(random_model(), tmp_path)


def test_no_weights_at_all(tmp_path):
    with pytest.raises(
        WeightsError, match=r"neither model\.safetensors nor model\.safetensors\.index\.json"
    ):
        load_weights(random_model(), tmp_path)


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = save_weights(random_model(seed=1), tmp_path)
    old = path.read_bytes()

    def broken(*args, **kwargs):
        raise OSError("disk full")

    monkeypatch.setattr("qwenlab.model.weights.save", broken)
    with pytest.raises(OSError):
        save_weights(random_model(seed=2), tmp_path)
    assert path.read_bytes() == old and [p.name for p in tmp_path.iterdir()] == [
        "model.safetensors"
    ]
