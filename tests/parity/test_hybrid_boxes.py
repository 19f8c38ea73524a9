"""What the boxes "In transformers" of lessons 09 and 10 say of hybrids, tried in transformers.

With `-s` it also prints how far a padded second turn is from the same turn alone.
"""

import pytest
import torch
from helpers import difference

from qwenlab import left_pad

transformers = pytest.importorskip("transformers")

LINEAR, FULL = "linear_attention", "full_attention"
PAD, NEW = 0, 6
FIRST = [[11, 12, 13, 14, 15, 16, 17, 18, 19], [21, 22, 23, 24]]
SECOND = [[31, 32, 33], [41, 42, 43, 44, 45, 46, 47, 48]]  # the shorter row is now the other one
CLOSE = 1e-4


@pytest.fixture(scope="module")
def model():
    config = transformers.Qwen3_5TextConfig(
        vocab_size=64,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        layer_types=[LINEAR, LINEAR, LINEAR, FULL],
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=16,
        linear_value_head_dim=8,
        initializer_range=0.2,
    )
    torch.manual_seed(0)
    made = transformers.Qwen3_5ForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if name.endswith("dt_bias"):  # the decay it starts from forgets within a token or two
                parameter.uniform_(-5, -1)
    made.generation_config.pad_token_id = PAD
    return made


@torch.no_grad()
def read(model, turns):
    """The last logits and the cache after some turns, each a rectangle with its mask."""
    cache = None
    seen = torch.zeros(len(turns[0][0]), 0, dtype=torch.bool)
    for ids, real in turns:
        seen = torch.cat([seen, real], dim=1)
        positions = (seen.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        output = model(
            ids,
            attention_mask=seen.long(),
            position_ids=positions,
            cache=cache,
            use_cache=True,
        )
        cache = output.cache
    return output.logits[:, -1], cache


def alone(model, *turns):
    """The same of one row's turns."""
    return read(model, [left_pad([ids], PAD) for ids in turns])


def gaps(row, logits, cache, lone):
    """How far a row's logits, tables and windows are from a row alone."""
    lone_logits, lone_cache = lone
    found = {"logits": difference(logits[row], lone_logits[0])}
    for name in ("recurrent_states", "conv_states"):
        moved = []
        for here, there in zip(cache.layers[:3], lone_cache.layers[:3], strict=True):
            moved.append(difference(getattr(here, name)[0][row], getattr(there, name)[0][0]))
        found[name] = max(moved)
    return found


# --- Lesson 09 -----------------------------------------------------------------------------------


def test_the_cache_has_a_layer_of_its_kind_for_each_layer(model):
    _, cache = alone(model, FIRST[0])
    assert type(cache) is transformers.DynamicCache
    kinds = [type(layer).__name__ for layer in cache.layers]
    assert kinds == ["LinearAttentionLayer"] * 3 + ["DynamicLayer"]
    assert cache.layers[0].recurrent_states[0].shape == (1, 4, 16, 8)
    channels = 2 * 2 * 16 + 4 * 8
    assert cache.layers[0].conv_states[0].shape == (
        1,
        channels,
        model.config.linear_conv_kernel_dim,
    )


def test_tables_are_float32_in_a_bfloat16_model(model):
    torch.manual_seed(0)
    half = transformers.Qwen3_5ForCausalLM(model.config).to(torch.bfloat16)
    _, cache = alone(half, FIRST[0])
    assert cache.layers[0].recurrent_states[0].dtype == torch.float32
    assert cache.layers[0].conv_states[0].dtype == torch.bfloat16


def test_both_model_classes_have_the_layer():
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

    assert Qwen3_5GatedDeltaNet and Qwen3NextGatedDeltaNet
    assert transformers.Qwen3_5ForCausalLM and transformers.Qwen3NextForCausalLM


def test_a_cache_made_without_the_config_knows_no_linear_layers(model):
    with pytest.raises(IndexError), torch.no_grad():
        model(torch.tensor([FIRST[0]]), cache=transformers.DynamicCache())
    made = transformers.DynamicCache(config=model.config)
    with torch.no_grad():
        model(torch.tensor([FIRST[0]]), cache=made)


def test_a_table_cannot_be_cropped(model):
    _, cache = alone(model, FIRST[0])
    with pytest.raises(RuntimeError, match="crop"):
        cache.crop(-1)


def test_without_the_packages_it_falls_back_and_says_so(model, monkeypatch):
    for package in ("fla", "causal_conv1d"):
        try:
            __import__(package)
        except ImportError:
            continue
        pytest.skip(f"{package} is installed")
    from transformers.integrations import hub_kernels

    told = []
    monkeypatch.setattr(hub_kernels.logger, "warning_once", told.append)
    read(model, [left_pad([FIRST[0]], PAD), left_pad([[5]], PAD)])
    words = "is falling back to its reference PyTorch implementation"
    assert told and all(words in text for text in told)
    for package in ("flash-linear-attention", "causal_conv1d"):
        assert any(f"`{package}` is not installed" in text for text in told)


# --- Lesson 10 -----------------------------------------------------------------------------------


def test_a_first_pass_behind_left_pads_is_right(model):
    logits, cache = read(model, [left_pad(FIRST, PAD)])
    for row, ids in enumerate(FIRST):
        assert max(gaps(row, logits, cache, alone(model, ids)).values()) < CLOSE


def test_generate_on_left_padded_prompts_gives_the_answers_alone(model):
    ids, real = left_pad(FIRST, PAD)
    options = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False}
    together = model.generate(ids, attention_mask=real.long(), **options)[:, ids.shape[1] :]
    for row, prompt in enumerate(FIRST):
        one = torch.tensor([prompt])
        answer = model.generate(one, attention_mask=torch.ones_like(one), **options)
        assert together[row].tolist() == answer[0, len(prompt) :].tolist()


def test_a_second_turn_with_pads_is_wrong_in_that_row_and_says_nothing(model):
    logits, cache = read(model, [left_pad(FIRST, PAD), left_pad(SECOND, PAD)])
    padded, full = (
        gaps(row, logits, cache, alone(model, FIRST[row], SECOND[row])) for row in (0, 1)
    )
    words = ", ".join(f"{name} {gap:.1e}" for name, gap in padded.items())
    print(f"\npadded second turn, from the row alone: {words}")
    assert min(padded.values()) > 0.01
    assert max(full.values()) < CLOSE


def test_a_right_padded_first_pass_has_right_logits_and_a_wrong_cache(model):
    short, long = SECOND
    ids = torch.tensor([short + [PAD] * (len(long) - len(short)), long])
    real = torch.tensor([[place < len(row) for place in range(len(long))] for row in SECOND])
    with torch.no_grad():
        output = model(ids, attention_mask=real.long(), use_cache=True)
    logits = torch.stack([output.logits[row, len(SECOND[row]) - 1] for row in (0, 1)])
    found = gaps(0, logits, output.cache, alone(model, short))
    assert found.pop("logits") < CLOSE and min(found.values()) > 0.01


def test_a_pass_of_one_token_is_never_masked(model):
    """A finished row that is fed a pad reads it as a token."""
    one = torch.tensor([[PAD], [50]]), torch.tensor([[False], [True]])
    logits, cache = read(model, [left_pad(FIRST, PAD), one])
    found = gaps(0, logits, cache, alone(model, FIRST[0]))
    assert found["recurrent_states"] > 0.01
    as_token = gaps(0, logits, cache, alone(model, FIRST[0], [PAD]))
    assert max(as_token[name] for name in ("recurrent_states", "conv_states")) < CLOSE


def test_the_whole_conversation_from_an_empty_cache_is_right(model):
    whole = [first + second for first, second in zip(FIRST, SECOND, strict=True)]
    logits, cache = read(model, [left_pad(whole, PAD)])
    for row in (0, 1):
        lone = alone(model, FIRST[row], SECOND[row])
        assert max(gaps(row, logits, cache, lone).values()) < CLOSE


def test_a_second_turn_of_rows_of_one_length_is_right(model):
    same = [SECOND[1], SECOND[1][::-1]]
    logits, cache = read(model, [left_pad(FIRST, PAD), left_pad(same, PAD)])
    for row in (0, 1):
        lone = alone(model, FIRST[row], same[row])
        assert max(gaps(row, logits, cache, lone).values()) < CLOSE
