"""Joined projections: one block of memory beneath several parameters, which stay the ones that count."""

import copy

import pytest
import torch
from helpers import difference, random_model
from torch import nn

from qwenlab.model.weights import load_weights, save_weights

IDS = torch.tensor([[7, 3, 9, 1], [4, 4, 2, 8]])


def agree(model) -> None:
    """The joined product against the parameters one by one, which is how gradients are made."""
    with torch.no_grad():
        joined = model(IDS)
    with torch.enable_grad():
        assert difference(joined, model(IDS).detach()) < 1e-5


@pytest.fixture
def used():
    """A model whose blocks have been laid out."""
    model = random_model(seed=6)
    with torch.no_grad():
        model(IDS)
    return model


def replace_parameter(model):
    model.model.layers[1].self_attn.k_proj.weight = nn.Parameter(torch.randn(64, 64))


def replace_data(model):
    model.model.layers[0].mlp.up_proj.weight.data = torch.randn(96, 64)


def change_in_place(model):
    with torch.no_grad():
        model.model.layers[2].self_attn.v_proj.weight.mul_(3)


def there_and_back(model):
    model.to(torch.bfloat16)
    with torch.no_grad():
        model(IDS)
    model.to(torch.float32)


def load_another(model):
    model.load_state_dict(random_model(seed=7).state_dict())


@pytest.mark.parametrize(
    "change", [replace_parameter, replace_data, change_in_place, there_and_back, load_another], ids=lambda f: f.__name__
)
def test_a_changed_weight_counts_at_once(used, change):
    with torch.no_grad():
        before = used(IDS)
    change(used)
    with torch.no_grad():
        assert difference(used(IDS), before) > 1e-4, "the change must show"
    agree(used)


def test_a_copy_is_independent(used):
    other = copy.deepcopy(used)
    with torch.no_grad():
        before = used(IDS)
        other(IDS)
        other.model.layers[0].self_attn.v_proj.weight.zero_()
        assert torch.equal(used(IDS), before)
    agree(other)


def test_weights_are_saved_and_loaded_after_joining(used, tmp_path):
    save_weights(used, tmp_path)
    other = random_model(seed=8)
    with torch.no_grad():
        other(IDS)
        load_weights(other, tmp_path)
        assert torch.equal(other(IDS), used(IDS))


def test_training_after_joining_trains_what_is_computed(used):
    used.requires_grad_(True)
    optimiser = torch.optim.AdamW(used.parameters(), lr=1e-2)
    for _ in range(2):
        used(IDS).logsumexp(-1).sum().backward()
        optimiser.step()
        optimiser.zero_grad()
        agree(used.requires_grad_(True))
