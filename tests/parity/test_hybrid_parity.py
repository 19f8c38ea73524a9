"""Equal to transformers' Qwen3.5 language model on random checkpoints written by transformers
itself."""

import json

import pytest
import torch
from helpers import difference
from small_checkpoint import VOCAB
from small_tokenizer import write_small_tokenizer

from qwenlab.engine.generation import generate
from qwenlab.engine.padding import left_pad
from qwenlab.loading import load
from qwenlab.model.config import Config
from qwenlab.model.model import Model
from qwenlab.model.weights import load_weights

transformers = pytest.importorskip("transformers")

LINEAR, FULL = "linear_attention", "full_attention"
LENGTHS = [1, 2, 3, 4, 5, 63, 64, 65, 127, 128, 129]
SHAPE = {
    "vocab_size": 200,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "layer_types": [LINEAR, LINEAR, LINEAR, FULL],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
}
SHAPES = {
    "as many value heads as key heads": {"linear_num_key_heads": 4, "linear_num_value_heads": 4},
    "more value heads, keys larger": {
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 6,
        "linear_key_head_dim": 24,
        "linear_value_head_dim": 10,
        "layer_types": [FULL, LINEAR],
        "tie_word_embeddings": True,
    },
    "values larger, wide window": {
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 2,
        "linear_value_head_dim": 32,
        "linear_conv_kernel_dim": 6,
        "layer_types": [LINEAR, FULL, LINEAR],
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e6,
            "partial_rotary_factor": 0.5,
        },
    },
    "linear only, eps that counts": {
        "layer_types": [LINEAR, LINEAR],
        "rms_norm_eps": 0.05,
        "linear_num_value_heads": 4,
        "tie_word_embeddings": True,
    },
    "full only": {"layer_types": [FULL, FULL], "num_key_value_heads": 1, "head_dim": 8},
    "no window": {
        "linear_conv_kernel_dim": 1,
        "layer_types": [LINEAR, FULL],
        "num_attention_heads": 6,
    },
}


@pytest.fixture(params=SHAPES, scope="module")
def pair(request, tmp_path_factory):
    """The reference and ours, reading the same folder."""
    shape = SHAPE | SHAPES[request.param]
    config = transformers.Qwen3_5TextConfig(num_hidden_layers=len(shape["layer_types"]), **shape)
    torch.manual_seed(len(request.param))
    reference = transformers.Qwen3_5ForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in reference.named_parameters():
            if "norm" in name:  # the weights they start from would hide a norm in the wrong place
                parameter.add_(torch.empty_like(parameter).uniform_(-0.5, 0.5))
            if name.endswith("dt_bias"):  # the decay they start from forgets within a token or two
                parameter.uniform_(-5, -1)
    folder = tmp_path_factory.mktemp("checkpoint")
    reference.save_pretrained(folder)
    ours = Model(Config.from_folder(folder))
    load_weights(ours, folder)
    return reference, ours.eval().requires_grad_(False)


@pytest.mark.parametrize("length", LENGTHS)
def test_one_pass(pair, length):
    reference, ours = pair
    ids = torch.randint(0, 200, (2, length))
    with torch.no_grad():
        assert difference(ours(ids), reference(ids, use_cache=False).logits) < 1e-4


@pytest.mark.parametrize("length", LENGTHS)
def test_prefill_then_decode(pair, length):
    """And the reference does the same by its own cache."""
    reference, ours = pair
    ids = torch.randint(0, 200, (2, length + 4))
    state = ours.new_state(2)
    got = [ours(ids[:, :length], state=state)] + [
        ours(ids[:, i : i + 1], state=state) for i in range(length, length + 4)
    ]
    with torch.no_grad():
        assert difference(torch.cat(got, 1), reference(ids, use_cache=False).logits) < 1e-4
        if FULL in ours.config.layer_types:  # the reference's cache asks for one
            held = reference(ids[:, :length], use_cache=True).cache
            theirs = reference(ids[:, length : length + 1], cache=held).logits
            assert difference(got[1], theirs) < 1e-4


def test_left_padded_prompts_and_greedy_answers(pair):
    """A first prefill is exact in the reference too: its memory is still empty when the pads pass."""
    reference, ours = pair
    prompts = [torch.randint(0, 200, (length,)).tolist() for length in (1, 5, 17, 30)]
    ids, mask = left_pad(prompts, 0)
    with torch.no_grad():
        expected = reference(ids, attention_mask=mask.long(), use_cache=False).logits
    assert difference(ours(ids, mask)[mask], expected[mask]) < 1e-4
    answers = generate(ours, prompts, max_new_tokens=8, stop=()).token_ids
    for prompt, answer in zip(prompts, answers, strict=True):
        with torch.no_grad():
            logits = reference(torch.tensor([prompt + answer]), use_cache=False).logits[
                0, len(prompt) - 1 : -1
            ]
        assert answer == logits.argmax(-1).tolist()


def test_a_multimodal_checkpoint_as_transformers_writes_it(tmp_path):
    """Text nested in config.json and under model.language_model., beside eyes, in shards."""
    config = transformers.Qwen3_5Config(
        text_config={
            **SHAPE,
            "num_hidden_layers": 4,
            "vocab_size": VOCAB,
            "tie_word_embeddings": False,
        },
        vision_config={
            "depth": 1,
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_heads": 2,
            "out_hidden_size": 48,
        },
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    reference = transformers.Qwen3_5ForConditionalGeneration(config).eval()
    reference.save_pretrained(tmp_path, max_shard_size="100KB")
    write_small_tokenizer(tmp_path)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text(encoding="utf-8"))[
        "weight_map"
    ]
    assert len(set(index.values())) > 1
    ours, _ = load(tmp_path)
    assert (
        set(ours.ignored) == {name for name in index if name.startswith("model.visual.")} != set()
    )
    ids = torch.randint(0, VOCAB, (2, 70))
    with torch.no_grad():
        assert difference(ours(ids), reference(input_ids=ids, use_cache=False).logits) < 1e-4
