"""`load`: names to folders, settings of the model it returns, and what is said when a checkpoint is
not whole."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from helpers import FAMILIES, HYBRID, SHAPE, difference
from small_checkpoint import CONFIG, VOCAB, write_small_checkpoint
from small_tokenizer import write_small_tokenizer

from qwenlab import loading
from qwenlab.errors import QwenlabError
from qwenlab.loading import CheckpointError, load, save_checkpoint, shipped_names
from qwenlab.model.weights import save_weights

QWEN3 = os.environ.get("QWENLAB_QWEN3_TOKENIZER")


@pytest.fixture
def folder(tmp_path) -> Path:
    return write_small_checkpoint(tmp_path / "small")


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(name):
        raise AssertionError(f"{name} was looked up on the hub")

    monkeypatch.setattr(loading, "download", refuse)


def test_a_folder_is_loaded_ready_for_inference(folder):
    model, tokenizer = load(folder)
    assert not model.training and not any(p.requires_grad for p in model.parameters())
    assert {p.dtype for p in model.parameters()} == {torch.float32} and model.device.type == "cpu"
    assert tokenizer.decode(tokenizer.encode("the é")) == "the é"
    logits = model(torch.tensor([tokenizer.chat([{"role": "user", "content": "hi"}])]))
    assert logits.shape[-1] == VOCAB and logits.isfinite().all()


def test_training_is_one_call_away(folder):
    model, _ = load(folder)
    model.requires_grad_(True)
    model(torch.tensor([[1, 2, 3]])).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("dtype", ["bfloat16", torch.bfloat16, "float16", "float32"])
def test_dtype_by_name_or_object(folder, dtype):
    model, _ = load(str(folder), dtype=dtype)
    assert model.dtype == (getattr(torch, dtype) if isinstance(dtype, str) else dtype)


@pytest.mark.parametrize("has", ["_is_avx512_bf16_supported", "_is_amx_tile_supported", None])
def test_auto_is_bfloat16_where_the_cpu_has_instructions_for_it(folder, monkeypatch, has):
    for name, test in loading.BFLOAT16_INSTRUCTIONS.items():
        monkeypatch.setattr(torch.cpu, test, lambda test=test: test == has, raising=False)
        if test == has:
            reason = f"this CPU has {name}"
    model, _ = load(folder, dtype="auto", device="cpu")
    chosen = loading.auto_dtype(torch.device("cpu"))
    if has is None:
        assert chosen == (torch.float32, "this CPU has neither avx512_bf16 nor AMX")
    else:
        assert chosen == (torch.bfloat16, reason)
    assert model.dtype == chosen[0]


@pytest.mark.parametrize("dtype", ["int8", "double", torch.int64, 7, ["float32"]])
def test_another_dtype_is_refused(folder, dtype):
    with pytest.raises(CheckpointError, match="expected one of float32, bfloat16, float16, auto"):
        load(folder, dtype=dtype)


@pytest.mark.parametrize("device", ["gpu", "cuda:99", "xpu", 3.5])
def test_a_device_that_is_not_there_is_refused(folder, device):
    with pytest.raises(CheckpointError, match=f"^device '{device}' can't be used"):
        load(folder, device=device)


def test_stop_ids_come_from_generation_config_then_from_config(folder):
    assert load(folder)[0].stop_ids == frozenset({VOCAB - 3, VOCAB - 5})
    settings = folder / "generation_config.json"
    settings.write_text(json.dumps({"eos_token_id": VOCAB - 5}), encoding="utf-8")
    assert load(folder)[0].stop_ids == frozenset({VOCAB - 3, VOCAB - 5}), (
        "the tokenizer's own <|im_end|> too"
    )
    (folder / "config.json").write_text(json.dumps(CONFIG | {"eos_token_id": 7}), encoding="utf-8")
    assert load(folder)[0].stop_ids == frozenset({VOCAB - 3, VOCAB - 5})
    settings.write_text("{}", encoding="utf-8")
    assert load(folder)[0].stop_ids == frozenset({VOCAB - 3, 7})
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    assert load(folder)[0].stop_ids == frozenset({VOCAB - 3})
    settings.unlink()
    assert load(folder)[0].stop_ids == frozenset({VOCAB - 3})
    settings.write_text(json.dumps({"eos_token_id": ["7"]}), encoding="utf-8")
    with pytest.raises(
        CheckpointError,
        match=r"generation_config\.json: eos_token_id holds '7', expected whole numbers",
    ):
        load(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(QwenlabError, match=name.replace(".", r"\.")) as caught:
        load(folder)
    assert "\n" not in str(caught.value) and str(folder) in str(caught.value)


def test_pickled_weights_are_not_read(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(QwenlabError, match="safetensors"):
        load(folder)


def test_a_folder_named_like_a_shipped_model_is_written_with_a_dot(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    for name in ("small", "./small", Path("small")):
        assert load(name)[0].config.vocab_size == VOCAB
    if shipped_names():
        shipped = shipped_names()[0]
        shutil.copytree(folder, shipped)
        assert load(shipped)[0].config.vocab_size != VOCAB
        assert load(f"./{shipped}")[0].config.vocab_size == VOCAB
        assert load(Path(shipped))[0].config.vocab_size == VOCAB


def test_a_checkpoint_without_a_tokenizer_gives_the_model_and_says_what_is_missing(
    folder, tmp_path, run
):
    expected = load(folder)[0](torch.tensor([[1, 2, 3]]))
    (folder / "tokenizer.json").unlink()
    with pytest.warns(UserWarning, match=r"small: no tokenizer\.json, so the tokenizer is None"):
        model, tokenizer = load(folder)
    assert tokenizer is None and torch.equal(model(torch.tensor([[1, 2, 3]])), expected)
    assert model.stop_ids == {VOCAB - 3, VOCAB - 5}
    (tmp_path / "prompts.txt").write_text("hi\n", encoding="utf-8")
    for command in (("generate", "prompts.txt"), ("chat",), ("evaluate", "--data", "tiny-test")):
        code, out, err = run(*command, "--model", "./small")
        assert code == 2 and not out
        assert (
            err.startswith("qwenlab: ./small: no tokenizer.json in this checkpoint")
            and err.count("\n") == 1
        )


@pytest.mark.parametrize("family", ["dense", "hybrid"])
def test_a_stored_head_counts_though_the_config_ties_it(tmp_path, family):
    """As in transformers, whose model of the same folder gives the same logits."""
    from transformers import AutoModelForCausalLM

    shape = {"vocab_size": VOCAB, "tie_word_embeddings": False}
    untied = FAMILIES[family](**shape)
    values = {**(SHAPE if family == "dense" else HYBRID), **shape, "tie_word_embeddings": True}
    save_weights(untied, tmp_path)
    write_small_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(values), encoding="utf-8")
    with pytest.warns(
        UserWarning, match="config.json ties lm_head to the embedding, but the stored one differs"
    ):
        model, _ = load(tmp_path)
    ids = torch.tensor([[1, 2, 3, 4]])
    assert torch.equal(model(ids), untied(ids)) and model.config.tie_word_embeddings is False
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    assert difference(model(ids), theirs(ids).logits.detach()) < 1e-4
    (tmp_path / "again").mkdir()
    save_checkpoint(model, tmp_path / "again")
    with pytest.warns(UserWarning, match="ties lm_head"):
        again, _ = load(tmp_path / "again")
    assert torch.equal(again(ids), model(ids))


@pytest.mark.parametrize(
    "name", ["model.safetensors", "tokenizer.json", "config.json", "chat_template.jinja"]
)
def test_a_git_lfs_pointer_is_called_that(folder, name):
    pointer = (
        f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 1503300328\n"
    )
    (folder / name).write_text(pointer, encoding="utf-8")
    with pytest.raises(
        QwenlabError, match=r"^[^\n]*: a Git LFS pointer, not the file itself; [^\n]*$"
    ) as caught:
        load(folder)
    assert str(caught.value).startswith(str(folder / name))


@pytest.mark.parametrize(
    "name", ["~nosuchuser/x", "a" * 5000, "a" * 300 + "/b", "./" + "b/" * 3000]
)
def test_a_name_that_can_be_no_path_is_refused_in_one_short_line(name):
    with pytest.raises(CheckpointError, match=r"^no checkpoint '.*': ") as caught:
        load(name)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "name", ["tinny", "./nowhere", "/nowhere/at/all", "a/b/c", "some one/x", "someone/..", "../x"]
)
def test_a_name_that_leads_nowhere_lists_what_there_is(name):
    with pytest.raises(
        CheckpointError, match=r"no checkpoint '.*': shipped are .*; write a folder as ./name"
    ):
        load(name)


@pytest.mark.parametrize("name", ["", "  ", None, 5])
def test_what_is_no_name_is_refused(name):
    with pytest.raises(CheckpointError, match="expected a shipped model, a folder or a hub id"):
        load(name)


def test_a_file_is_no_folder(folder):
    with pytest.raises(
        CheckpointError, match=r"config\.json: a file, expected the checkpoint's folder"
    ):
        load(folder / "config.json")


def test_every_shipped_model_loads():
    for name in shipped_names():
        model, tokenizer = load(name)
        assert model.stop_ids and tokenizer.pad_id < model.config.vocab_size


@pytest.mark.parametrize("shards", [1, 3])
def test_a_checkpoint_saved_by_transformers_gives_its_words(tmp_path, shards):
    """The 0.6B's published names and layout at width 16, with the real tokenizer where it is at
    hand."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(shards)
    vocab_size = 151_936 if QWEN3 else VOCAB
    values = CONFIG | {"vocab_size": vocab_size, "hidden_size": 16, "head_dim": 8}
    theirs = Qwen3ForCausalLM(Qwen3Config(**values)).eval()
    size = sum(p.numel() * p.element_size() for p in theirs.parameters())
    theirs.save_pretrained(
        tmp_path, max_shard_size=f"{size // 1000 // 2 + 1}KB" if shards > 1 else "5GB"
    )
    assert (tmp_path / "model.safetensors.index.json").exists() == (shards > 1)
    if QWEN3:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(Path(QWEN3) / name, tmp_path)
        (tmp_path / "generation_config.json").write_text(
            json.dumps({"eos_token_id": [151645, 151643]}), encoding="utf-8"
        )
    else:
        write_small_tokenizer(tmp_path)

    model, tokenizer = load(tmp_path)
    assert set(dict(model.named_parameters())) == {
        n for n, _ in theirs.named_parameters() if n != "lm_head.weight"
    }
    if QWEN3:
        assert model.stop_ids == {151645, 151643} and tokenizer.pad_id == 151643
    ids = tokenizer.chat([{"role": "user", "content": "What is 12 + 30?"}])
    expected = theirs.generate(
        torch.tensor([ids]), max_new_tokens=12, do_sample=False, eos_token_id=None
    )[0].tolist()
    ours = list(ids)
    for _ in range(12):
        ours.append(int(model(torch.tensor([ours]), last_only=True).argmax()))
    assert ours == expected


def test_a_saved_checkpoint_is_loaded_as_it_was(tmp_path):
    model, _ = load("tiny")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 1e-3
    save_checkpoint(model, tmp_path)
    again, tokenizer = load(tmp_path, dtype="float32")
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True)
    )
    assert again.stop_ids == model.stop_ids and len(model.stop_ids) == 2
    assert tokenizer.chat([{"role": "user", "content": "1+1?"}]) and again.config == model.config
