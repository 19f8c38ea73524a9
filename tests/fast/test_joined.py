"""Joined projections: one block of memory beneath several parameters, which stay the ones that
count."""

import copy

import pytest
import torch
from helpers import difference, plainly, random_model
from torch import nn

from qwenlab.engine.generation import generate
from qwenlab.model.weights import load_weights, save_weights

IDS = torch.tensor([[7, 3, 9, 1], [4, 4, 2, 8]])


def agree(model) -> None:
    """The joined product against the parameters one by one, which is how gradients are made."""
    with torch.no_grad():
        joined = model(IDS)
    with plainly(model):
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
    "change",
    [replace_parameter, replace_data, change_in_place, there_and_back, load_another],
    ids=lambda f: f.__name__,
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


def test_no_second_copy(used):
    attention = used.model.layers[0].self_attn
    parts = [attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]
    storages = {
        part.untyped_storage().data_ptr(): part.untyped_storage().nbytes() for part in parts
    }
    assert list(storages.values()) == [sum(part.nbytes for part in parts)]


def test_a_replaced_projection_or_a_hook_takes_part(used):
    """An adapter in place of a projection, or a hook on it, must not be passed over."""

    class Doubled(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return 2 * self.inner(x)

    with torch.no_grad():
        before = used(IDS)
        mlp, attention = used.model.layers[0].mlp, used.model.layers[1].self_attn
        mlp.up_proj = Doubled(mlp.up_proj)
        adapted = used(IDS)
        seen = []
        attention.v_proj.register_forward_hook(lambda module, args, out: seen.append(out.shape))
        hooked = used(IDS)
    assert difference(adapted, before) > 1e-3
    assert seen == [(2, 4, 64)] and difference(hooked, adapted) < 1e-5
    agree(used)


def test_generating_leaves_the_model_fit_for_training():
    """What generate leaves behind (joined blocks, the rotary table) must serve gradients, and the
    other way round."""
    model = random_model(seed=6)
    prompt = [5, 9, 77]
    said = generate(model, [prompt], max_new_tokens=5, stop=()).token_ids[0]
    model.requires_grad_(True)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(3):
        logprobs = model(torch.tensor([prompt + said])).log_softmax(-1)[0, 2:-1]  # (5, V)
        logprobs.gather(
            1, torch.tensor(said)[:, None]
        ).mean().backward()  # what it said becomes unlikely
        optimiser.step()
        optimiser.zero_grad()
    agree(model.requires_grad_(False))
    assert generate(model, [prompt], max_new_tokens=5, stop=()).token_ids[0] != said
