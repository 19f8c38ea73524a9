"""Qwen3.5's own: pads and the memory, interrupted calls, gradients, and checkpoints as they are
published."""

import json
import random

import pytest
import torch
from helpers import (
    HYBRID,
    alone_logits,
    difference,
    random_hybrid,
    random_model,
    random_prompts,
    rectangle,
)
from safetensors.torch import load_file, save_file
from small_checkpoint import write_multimodal_checkpoint
from torch import nn

import qwenlab
from qwenlab.loading import load
from qwenlab.model.batch import ForwardBatch
from qwenlab.model.config import Config
from qwenlab.model.deltanet import DeltaNet
from qwenlab.model.model import Model
from qwenlab.model.weights import WeightsError, load_weights, save_weights

SIDES = ["left", "right", "inner"]


@pytest.fixture(scope="module")
def hybrid():
    return random_hybrid(seed=0)


@pytest.fixture(scope="module")
def loud():
    """Ids 0 and 319 have 100 in every slot of their embedding; inside the model a pad is id 0."""
    model = random_hybrid(
        seed=0, tie_word_embeddings=False
    )  # a tied head would shout, and drown the leak
    model.model.embed_tokens.weight[[0, 319]] = 100.0
    return model


def held(state, row):
    """The row's window and memory of every linear layer."""
    return [
        layer[name][row]
        for layer in state.layers
        for name in ("conv_state", "recurrent_state")
        if name in layer
    ]


def same(state, row, other, other_row, limit=1e-5):
    pairs = zip(held(state, row), held(other, other_row), strict=True)
    return all(difference(ours, theirs) < limit for ours, theirs in pairs)


def read(model, ids):
    """A state of one row that read `ids`."""
    state = model.new_state(1)
    model(torch.tensor([ids]), state=state)
    return state


# --- Pads ---


def convolved(model, ids, mask, state):
    """Logits, and what each linear layer's convolution gave (B, W, channels)."""
    outputs = []

    def note(module, args, out):
        outputs.append(out.transpose(1, 2))

    hooks = [m.register_forward_hook(note) for m in model.modules() if isinstance(m, nn.Conv1d)]
    logits = model(ids, mask, state)
    for hook in hooks:
        hook.remove()
    return logits, outputs


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("pads", [1, 2, 3, 4, 50])
def test_loud_pads_change_nothing(loud, pads, side):
    """Convolution at the first real positions, memory and logits as alone. Without the mask it
    would show."""
    prompt, neighbour = [5, 9, 77, 3], list(range(1, 5 + pads))
    ids, mask = rectangle([prompt, neighbour], 4 + pads, side, 319, random.Random(pads))
    state, alone = loud.new_state(2), loud.new_state(1)
    logits, outputs = convolved(loud, ids, mask, state)
    expected, bare = convolved(loud, torch.tensor([prompt]), None, alone)
    assert difference(logits[0][mask[0]], expected[0]) < 1e-5 and same(state, 0, alone, 0)
    assert all(
        difference(ours[0, :3], theirs[0, :3]) < 1e-5
        for ours, theirs in zip(outputs, bare, strict=True)
    )
    off = loud.new_state(2)
    logits, outputs = convolved(loud, ids, None, off)
    assert not same(off, 0, alone, 0, 1e-2)
    assert (
        side == "right" or difference(logits[0][mask[0]], expected[0]) > 1e-2
    )  # no token sees a pad after it


@pytest.mark.parametrize("part", ["log_decay", "beta", "window"])
def test_each_part_of_the_masking_is_needed(loud, part, monkeypatch):
    """The second turn of a batch, with the masking switched off piece by piece: the shorter row's
    memory goes wrong."""
    first, second = [[5, 9, 77], [1, 2, 3]], [[8], [4, 6, 7, 2, 9]]

    def two_turns():
        state = loud.new_state(2)
        for turn in (first, second):
            loud(*rectangle(turn, max(map(len, turn)), "left", 319), state)
        return state

    alone = read(loud, first[0] + second[0])
    assert same(two_turns(), 0, alone, 0)
    fill = torch.Tensor.masked_fill

    def leaky(tensor, mask, value):
        """Leaves one of the two that DeltaNet fills as it is: the logarithms of decay are below 0,
        beta above."""
        column = mask.shape == (*tensor.shape[:-1], 1) and tensor.shape[-1] == 4
        return (
            tensor
            if column and (tensor.min() < 0) == (part == "log_decay")
            else fill(tensor, mask, value)
        )

    if part == "window":
        monkeypatch.setattr(ForwardBatch, "last_inputs", lambda b, inputs: inputs[:, b.width :])
    else:
        monkeypatch.setattr(torch.Tensor, "masked_fill", leaky)
    assert not same(two_turns(), 0, alone, 0, 1e-2)


def test_pads_before_a_row_change_nothing_in_later_steps(loud):
    """One row with 3 left pads, then two tokens in one cached step, then one."""
    state = loud.new_state(1)
    ids, mask = rectangle([[5, 9]], 5, "left", 319)
    assert difference(loud(ids, mask, state)[0, 3:], alone_logits(loud, [5, 9])) < 1e-5
    for new in ([7, 8], [4]):
        logits = loud(torch.tensor([new]), state=state)
    assert difference(logits[0], alone_logits(loud, [5, 9, 7, 8, 4])[-1:]) < 1e-5
    assert same(state, 0, read(loud, [5, 9, 7, 8, 4]), 0)


@pytest.mark.parametrize("side", SIDES)
def test_a_ragged_second_part_leaves_what_each_row_alone_would(loud, side):
    """Row 0's memory is that after its 6 real ids, its window its last 3 real inputs."""
    state = loud.new_state(2)
    loud(torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]]), state=state)
    ids, mask = rectangle([[9, 10], [11, 12, 13, 14]], 4, side, 319, random.Random(1))
    logits = loud(ids, mask, state)
    rows = [[1, 2, 3, 4, 9, 10], [5, 6, 7, 8, 11, 12, 13, 14]]
    for row, whole in enumerate(rows):
        assert same(state, row, read(loud, whole), 0)
        assert difference(logits[row][mask[row]], alone_logits(loud, whole)[4:]) < 1e-5


@pytest.mark.parametrize("steps", [[5], [1] * 5, [2, 3]])
@pytest.mark.parametrize("pad", [0, 319, 7])
def test_pads_leave_memory_and_window_bit_by_bit_as_they_were(loud, pad, steps):
    """Five masked pads after a b c, whatever their embedding, alone or beside a row that goes
    on."""
    for rows in ([0], [0, 1, 2], [2, 0, 1]):  # as a block, and one by one
        state = loud.new_state(len(rows))
        loud(torch.tensor([[5, 9, 77]] * len(rows)), state=state)
        before = [t.clone() for t in held(state, rows[0])]
        for width in steps:
            ids = torch.full((len(rows), width), pad)
            mask = torch.zeros(len(rows), width, dtype=torch.bool)
            mask[1:] = True
            loud(ids, mask, state, rows=rows if rows[0] else range(len(rows)))
        assert all(
            torch.equal(was, now) for was, now in zip(before, held(state, rows[0]), strict=True)
        )
        assert len(rows) == 1 or not torch.equal(held(state, rows[1])[1], before[1])


def test_a_window_is_the_last_real_inputs():
    inputs = torch.arange(14.0).view(2, 7, 1)  # a window of 3, then 4 tokens
    ids = torch.zeros(2, 4, dtype=torch.int64)
    ragged = ForwardBatch.from_lengths(ids, [2, 0])
    assert ragged.last_inputs(inputs)[..., 0].tolist() == [[2, 3, 4], [7, 8, 9]]
    full = ForwardBatch.from_lengths(ids, [4, 4])
    assert full.last_inputs(inputs)[..., 0].tolist() == [[4, 5, 6], [11, 12, 13]]


@pytest.mark.parametrize("rows", [None, range(2), [0, 1], [1, 0]])
def test_a_decode_step_works_in_place(hybrid, rows):
    """No tensor of the state is made anew, whether its rows are a block or named one by one."""
    state = hybrid.new_state(2, capacity=8)
    places = [t.data_ptr() for t in (*held(state, 0), *held(state, 1))]
    for width in (3, 1):
        hybrid(torch.ones(2, width, dtype=torch.long), state=state, rows=rows)
    assert [t.data_ptr() for t in (*held(state, 0), *held(state, 1))] == places
    assert all(t.any() for t in held(state, 0))


def test_in_bfloat16_the_memory_stays_float32():
    model = random_hybrid(dtype=torch.bfloat16)
    state = model.new_state(1)
    assert {name: t.dtype for layer in state.layers for name, t in layer.items()} == {
        "conv_state": torch.bfloat16,
        "recurrent_state": torch.float32,
        "keys": torch.bfloat16,
        "values": torch.bfloat16,
    }
    ids = torch.tensor([[5, 9, 77, 3, 8, 1]])
    steps = torch.cat([model(ids[:, i : i + 1], state=state) for i in range(6)], 1)
    assert difference(steps, model(ids)) < 0.1 and torch.isfinite(steps).all()


@pytest.mark.parametrize("layer_types", [["linear_attention"] * 2, ["full_attention"] * 2])
def test_layers_of_one_kind(layer_types):
    model = random_hybrid(layer_types=layer_types, num_hidden_layers=2)
    prompts = random_prompts(random.Random(0), 3, 9)
    batch = qwenlab.generate(model, prompts, max_new_tokens=4, stop=())
    assert (
        batch.token_ids
        == qwenlab.generate(
            model, prompts, max_new_tokens=4, stop=(), strategy="sequential"
        ).token_ids
    )
    state = model.new_state(1, capacity=3)
    with pytest.raises(ValueError, match="the state has room for 3"):
        model(torch.ones(1, 4, dtype=torch.long), state=state)


def test_a_mask_that_only_attention_understands_is_refused(hybrid):
    with pytest.raises(ValueError, match=r"linear attention takes no \(B, 1, T, T\) mask"):
        hybrid(torch.tensor([[1, 2]]), torch.ones(1, 1, 2, 2, dtype=torch.bool))


# --- Interrupted calls ---


def interrupted(model, state, problem, rows=None, width=1):
    """A call that breaks off in its last layer, when the memories of the others are changed
    already."""

    def broken(*_):
        raise problem

    model.attention = broken
    try:
        with pytest.raises(problem):
            model(
                torch.ones(len(rows or range(state.batch_size)), width, dtype=torch.long),
                state=state,
                rows=rows,
            )
    finally:
        model.attention = "sdpa"


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("problem", [RuntimeError, KeyboardInterrupt])
def test_an_interrupted_call_leaves_its_rows_invalid_and_says_so(model, problem, width):
    """Attention or DeltaNet: refused until they are read again. The other rows are as they were."""
    state = model.new_state(3)
    model(torch.tensor([[1, 2], [3, 4], [5, 6]]), state=state)
    kept = state.snapshot()
    interrupted(model, state, problem, [2, 1], width)
    assert state.invalid == {1, 2} and state.lengths.tolist() == [2, 2, 2]
    for rows in (None, [0, 2], range(1, 2)):
        with pytest.raises(
            ValueError, match=r"slot [12] is invalid: a call broke off .* put a snap"
        ):
            model(torch.ones(len(rows or range(3)), 1, dtype=torch.long), state=state, rows=rows)
    logits = model(torch.tensor([[9]]), state=state, rows=[0])
    assert difference(logits[0], alone_logits(model, [1, 2, 9])[-1:]) < 1e-5
    assert state.select([1, 0, 2]).invalid == {0, 2} and state.snapshot().invalid == {1, 2}
    assert state.repeat(2).invalid == {2, 3, 4, 5}
    state.put([1], kept.select([1]))
    state.reset([2])
    logits = model(torch.tensor([[9], [9]]), state=state, rows=[1, 2])
    assert difference(logits[0], alone_logits(model, [3, 4, 9])[-1:]) < 1e-5
    assert difference(logits[1], alone_logits(model, [9])) < 1e-5
    other = model.new_state(1)
    interrupted(model, other, problem)
    state.put([2], other)
    assert state.invalid == {2}


@pytest.mark.parametrize("width", [1, 2])
def test_what_is_refused_leaves_no_row_invalid(model, width):
    state = read(model, [7, 3])
    for wrong in (320, -1):
        with pytest.raises(ValueError, match=f"token id {wrong} is outside"):
            model(torch.full((1, width), wrong), state=state)
    assert not state.invalid
    assert (
        difference(model(torch.tensor([[2]]), state=state)[0], alone_logits(model, [7, 3, 2])[-1:])
        < 1e-5
    )


# --- Gradients ---


@pytest.mark.parametrize("chunk", [16, 64])
@pytest.mark.parametrize("side", SIDES)
def test_gradients_of_a_padded_batch_are_the_sum_of_the_rows(chunk, side):
    """Loud pads among them: what they would add, were they seen, could not hide."""
    model = random_hybrid(seed=3, tie_word_embeddings=False)
    for module in model.modules():
        if isinstance(module, DeltaNet):
            module.chunk_size = chunk
    model.model.embed_tokens.weight[[0, 319]] = 100.0
    prompts = [
        [rng + 1 for rng in random.Random(length).sample(range(300), length)]
        for length in (2, 33, 70)
    ]
    ids, mask = rectangle(prompts, 75, side, 319, random.Random(0))
    model.requires_grad_(True)
    (model(ids, mask)[mask].logsumexp(-1).sum()).backward()
    together = {name: p.grad for name, p in model.named_parameters()}
    model.zero_grad()
    for prompt in prompts:
        model(torch.tensor([prompt])).logsumexp(-1).sum().backward()
    for name, p in model.named_parameters():
        assert torch.isfinite(together[name]).all() and together[name].any(), name
        assert float((together[name] - p.grad).abs().max() / p.grad.abs().max()) < 1e-4, name


# --- Checkpoints ---


def test_saved_and_loaded_again(tmp_path):
    """float32 where it was published so, whatever the other tensors become."""
    model = random_hybrid()
    save_weights(model, tmp_path, torch.bfloat16)
    stored = load_file(tmp_path / "model.safetensors")
    wide = {name for name, t in stored.items() if t.dtype == torch.float32}
    assert (
        wide == {n for n in stored if n.endswith(("linear_attn.A_log", "linear_attn.norm.weight"))}
        and len(wide) == 6
    )
    for dtype in (None, torch.bfloat16):
        other = Model(Config.from_dict(HYBRID))
        assert load_weights(other, tmp_path, dtype) == []
        assert {name for name, p in other.named_parameters() if p.dtype == torch.float32} == wide
        assert torch.isfinite(other(torch.tensor([[1, 2, 3]]))).all()
    load_weights(other, tmp_path, torch.float32)
    assert {p.dtype for p in other.parameters()} == {torch.float32}


@pytest.fixture
def multimodal(tmp_path):
    return tmp_path, *write_multimodal_checkpoint(tmp_path)


def test_a_multimodal_checkpoint_gives_its_language_model(multimodal):
    folder, text, weight_map = multimodal
    for dtype in ("float32", "bfloat16"):
        model, tokenizer = load(folder, dtype)
        assert model.ignored == [
            name for name in weight_map if name.startswith(("model.visual.", "mtp."))
        ]
        assert model.stop_ids == {3, 5, tokenizer.control["<|im_end|>"]}
        kept = {name for name, p in model.named_parameters() if p.dtype == torch.float32}
        assert dtype == "float32" or all(
            name.endswith(("A_log", "linear_attn.norm.weight")) for name in kept
        )
    expected = random_model(**text)  # the one that was written, as bfloat16 rounds it
    for name, p in expected.named_parameters():
        if not name.endswith(("A_log", "linear_attn.norm.weight")):
            p.copy_(p.bfloat16())
    ids = torch.tensor([[5, 9, 7, 3]])
    assert torch.equal(load(folder, "float32")[0](ids), expected(ids))


def test_a_tensor_that_is_there_twice_and_eyes_of_a_dense_model_are_surplus(
    multimodal, tmp_path_factory
):
    folder, text, weight_map = multimodal
    file = folder / weight_map["model.language_model.norm.weight"]
    save_file(load_file(file) | {"model.norm.weight": torch.zeros(64)}, file)
    twice = weight_map | {"model.norm.weight": file.name}
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": twice}), encoding="utf-8"
    )
    with pytest.raises(WeightsError, match=r"surplus: model\.language_model\.norm\.weight"):
        load_weights(random_model(**text), folder)
    dense = tmp_path_factory.mktemp("dense")
    tensors = dict(random_model().state_dict()) | {"model.visual.proj.weight": torch.zeros(1)}
    save_file(tensors, dense / "model.safetensors")
    with pytest.raises(WeightsError, match=r"surplus: model\.visual\.proj\.weight"):
        load_weights(random_model(), dense)
