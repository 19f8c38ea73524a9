"""fast.pack: the same logits from packed copies, which are used only while they are right."""

import copy
import pickle
import warnings

import pytest
import torch

import qwenlab
from qwenlab import fast
from qwenlab.fast import linear, packed, swap
from qwenlab.fast.linear import forced_to

pytestmark = pytest.mark.skipif(not packed.can_pack(), reason="PyTorch without oneDNN")
IDS = torch.randint(0, 300, (3, 7), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def always_packed(monkeypatch):
    """Every product by a packed copy where there is one, and those that were computed so."""
    used = []
    choose = linear.choose

    def packed_first(rows, weight, copy=None):
        return "packed" if copy is not None else choose(rows, weight)

    product = packed.Packed.product
    monkeypatch.setattr(linear, "choose", packed_first)
    monkeypatch.setattr(linear, "known", {})
    monkeypatch.setattr(
        packed.Packed, "product", lambda self, x: (used.append(len(x)), product(self, x))[1]
    )
    return used


def load(name="tiny", dtype="float32"):
    return qwenlab.load(name, dtype=dtype, device="cpu")[0]


def logits(model, ids=IDS):
    with torch.inference_mode():
        return model(ids)


def plain(model):
    """The logits of the same weights without any trick."""
    return logits(fast.restore(copy.deepcopy(model)))


def difference(a, b):
    return ((a - b).abs().max() / b.abs().max().clamp(min=1)).item()


@pytest.mark.parametrize("name", ["tiny", "tiny-hybrid"])
def test_logits_are_those_of_the_plain_model(name, always_packed):
    model = fast.pack(load(name), least_bytes=0)
    for shape in ((1, 1), (3, 1), (16, 1), (10, 7)):
        ids = torch.randint(0, 300, shape, generator=torch.Generator().manual_seed(2))
        expected = logits(fast.restore(load(name)), ids)
        assert difference(logits(model, ids), expected) < 1e-5
    matrices = len(swap.matrices_of(model))
    assert len(always_packed) == 3 * matrices and set(always_packed) == {3, 16, 70}  # not one row


def test_bfloat16_is_no_further_from_float32_than_without(always_packed):
    exact = logits(load())
    without = difference(logits(load(dtype="bfloat16")), exact)
    model = fast.pack(load(dtype="bfloat16"), least_bytes=0)
    assert difference(logits(model), exact) < 2 * without and always_packed


def scaled(model):
    with torch.no_grad():
        model.model.layers[0].self_attn.k_proj.weight.mul_(1.5)
        model.model.layers[1].mlp.up_proj.weight.mul_(0.5)
        model.model.embed_tokens.weight.mul_(1.1)


def loaded(model):
    model.load_state_dict({name: 0.9 * tensor for name, tensor in model.state_dict().items()})


def replaced(model):
    old = model.model.layers[0].mlp.down_proj.weight
    model.model.layers[0].mlp.down_proj.weight = torch.nn.Parameter(2 * old.detach())


def cast_and_back(model):
    scaled(model.to(torch.float64).to(torch.float32))


def trained(model, fused=False):
    model.requires_grad_(True)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=fused)
    model(IDS).square().mean().backward()
    optimizer.step()
    model.requires_grad_(False)


def trained_by_a_fused_optimizer(model):
    trained(model, fused=True)  # PyTorch doesn't count its changes


def scaled_as_data(model):
    for parameter in model.parameters():
        parameter.data.mul_(1.1)


CHANGES = [
    scaled,
    loaded,
    replaced,
    cast_and_back,
    trained,
    trained_by_a_fused_optimizer,
    scaled_as_data,
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_weight_is_never_computed_from_its_old_copy(change, always_packed):
    model = fast.pack(load(), least_bytes=0)
    before = logits(model)
    change(model)
    after = logits(model)
    assert difference(after, plain(model)) < 1e-5
    assert difference(after, before) > 1e-5
    again = logits(fast.pack(model, least_bytes=0))
    assert difference(again, after) < 1e-5


def test_memory_that_a_weight_is_given_again_is_not_taken_for_the_old_weight():
    weight = torch.nn.Parameter(torch.randn(64, 32), requires_grad=False)
    weight.packed = packed.Packed(weight)
    assert linear.packed_copy(weight) is weight.packed
    values = weight.data
    weight.data = torch.zeros(64, 32)
    weight.data = values.mul_(2)  # where it was, and counted as often as it was
    assert linear.packed_copy(weight) is None and "packed" not in vars(weight)


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (64, 1), (96, 32), (1000, 1024)])
def test_a_sample_lies_within_the_weight_and_is_spread_over_its_columns(shape):
    weight = torch.arange(shape[0] * shape[1]).view(shape)
    sample = packed.sample_of(weight)
    assert len(sample.unique()) == min(packed.SAMPLES, weight.numel())
    assert 0 <= sample.min() and sample.max() < weight.numel()
    assert len((sample % shape[1]).unique()) >= min(len(sample), shape[1]) / 2


def test_copies_and_pickles_have_none(always_packed):
    model = fast.pack(load(), least_bytes=0)
    expected = logits(model)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        always_packed.clear()
        assert fast.packed_bytes(other) == 0
        assert difference(logits(other), expected) < 1e-5 and always_packed == []
    assert difference(logits(model), expected) == 0 and always_packed


def test_restore_drops_the_copies(always_packed):
    model = fast.restore(fast.pack(load(), least_bytes=0))
    assert all("packed" not in vars(weight) for weight, _ in swap.matrices_of(model))
    logits(model)
    assert always_packed == []


def test_a_forced_kernel_wins(always_packed):
    model = fast.pack(load(), least_bytes=0)
    with forced_to("linear"):
        logits(model)
    assert always_packed == []


def test_small_matrices_stay_single():
    model = fast.pack(load())
    assert fast.packed_bytes(model) == 0
    weights = sum(p.nbytes for p in model.parameters() if p.ndim == 2)
    assert fast.packed_bytes(fast.pack(model, least_bytes=0)) == weights


def test_the_table_names_it_where_it_was_measured(monkeypatch):
    monkeypatch.setattr(linear, "chosen", {})
    weight = torch.ones(64, 32)
    copy_of_it = packed.Packed(weight)
    with torch.inference_mode():  # as in a step
        name = linear.choose(4, weight, copy_of_it)
    assert name in {*linear.KERNELS, "packed"}
    assert list(linear.chosen) == [linear.describe(4, weight) + ", packed"]


def test_what_can_t_be_packed_says_so_in_one_line():
    with pytest.warns(UserWarning, match=r"not packed: the model is in torch.float16, expected"):
        fast.pack(load(dtype="float16"))


def test_greedy_ids_stay_the_same(always_packed):
    prompts = [[5, 6, 7], [9] * 11, [3]]
    expected = qwenlab.generate(load(), prompts, max_new_tokens=12, stop=()).token_ids
    model = fast.pack(load(), least_bytes=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = qwenlab.generate(model, prompts, max_new_tokens=12, stop=()).token_ids
    assert found == expected and always_packed
