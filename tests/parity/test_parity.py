"""Equal to transformers' Qwen3 on random checkpoints written by transformers itself."""

import pytest
import torch
from helpers import difference

from qwenlab.engine.generation import generate
from qwenlab.engine.padding import left_pad
from qwenlab.model.config import Config
from qwenlab.model.model import Model
from qwenlab.model.weights import load_weights

transformers = pytest.importorskip("transformers")

SHAPES = {
    "grouped, tied": {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "tie_word_embeddings": True,
    },
    "wide heads": {
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "tie_word_embeddings": False,
    },
    "every head its own": {
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "head_dim": 8,
        "rms_norm_eps": 0.1,
    },
    "narrow heads, theta 1e6": {
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    },
    "one layer, tied": {"num_hidden_layers": 1, "head_dim": 64, "tie_word_embeddings": True},
    "deep": {
        "num_hidden_layers": 7,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 10,
    },
}


@pytest.fixture(params=SHAPES, scope="module")
def pair(request, tmp_path_factory):
    """The reference and ours, reading the same folder; half of the folders carry the older place of
    rope_theta."""
    shape = {"num_attention_heads": 4, "num_key_value_heads": 2, **SHAPES[request.param]}
    config = transformers.Qwen3Config(
        **{
            "vocab_size": 200,
            "hidden_size": 48,
            "intermediate_size": 80,
            "num_hidden_layers": 3,
            **shape,
        },
        max_position_embeddings=256,
        initializer_range=0.2,
    )
    torch.manual_seed(len(request.param))
    reference = transformers.Qwen3ForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in reference.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)  # ones would hide a norm in the wrong place
    folder = tmp_path_factory.mktemp("checkpoint")
    reference.save_pretrained(folder)
    values = __import__("json").loads((folder / "config.json").read_text(encoding="utf-8"))
    if list(SHAPES).index(request.param) % 2:
        values["rope_theta"] = values.pop("rope_parameters")["rope_theta"]
    ours = Model(Config.from_dict(values))
    load_weights(ours, folder)
    return reference, ours.eval().requires_grad_(False)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_alone(pair, attention):
    reference, ours = pair
    ours.attention = attention
    ids = torch.randint(0, 200, (2, 23))
    with torch.no_grad():
        assert difference(ours(ids), reference(ids).logits) < 1e-4
    ours.attention = "sdpa"


def test_left_padded(pair):
    reference, ours = pair
    prompts = [torch.randint(0, 200, (length,)).tolist() for length in (1, 5, 17, 30)]
    ids, mask = left_pad(prompts, 0)
    positions = (mask.long().cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        expected = reference(ids, attention_mask=mask.long(), position_ids=positions).logits
    got = ours(ids, mask)
    assert difference(got[mask], expected[mask]) < 1e-4
    assert not got[~mask].any()


def test_prefill_and_decode(pair):
    """The same ids token by token, and through generate beside transformers' own greedy generation."""
    reference, ours = pair
    ids = torch.randint(0, 200, (3, 12))
    state = ours.new_state(3)
    pieces = [ours(ids[:, :5], state=state)] + [
        ours(ids[:, i : i + 1], state=state) for i in range(5, 12)
    ]
    with torch.no_grad():
        assert difference(torch.cat(pieces, 1), reference(ids).logits) < 1e-4
        expected = reference.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=10,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    assert (
        generate(ours, ids.tolist(), max_new_tokens=10, stop=()).token_ids
        == expected[:, 12:].tolist()
    )


def test_gradients_of_a_padded_batch_are_the_sum_of_the_rows(pair):
    _, ours = pair
    prompts = [torch.randint(0, 200, (length,)).tolist() for length in (2, 9, 5)]
    ids, mask = left_pad(prompts, 0)
    ours.requires_grad_(True)
    ours.zero_grad()
    ours(ids, mask).logsumexp(-1)[mask].sum().backward()
    together = {name: p.grad.clone() for name, p in ours.named_parameters()}
    ours.zero_grad()
    for prompt in prompts:
        ours(torch.tensor([prompt])).logsumexp(-1).sum().backward()
    for name, p in ours.named_parameters():
        assert torch.isfinite(together[name]).all()
        assert difference(together[name], p.grad) < 1e-4, name
    ours.requires_grad_(False)
