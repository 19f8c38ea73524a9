"""Joined projections: one product for inference, the published parameters for everything else, never out of step."""

import copy

import torch
from helpers import difference, random_model

import qwenlab

IDS = torch.tensor([[5, 9, 77, 3]])


def both_ways(model):
    """Logits by the joined products (a state means inference) and by the parameters one by one (gradients on)."""
    return model(IDS, state=model.new_state(1)), model(IDS)


def test_the_two_ways_agree_and_share_memory():
    model = random_model(seed=4)
    joined, apart = both_ways(model)
    assert difference(joined, apart) < 1e-5
    attention = model.model.layers[0].self_attn
    block = attention.joined.weights()
    assert attention.q_proj.weight.data_ptr() == block.data_ptr(), "no second copy"
    assert block.shape[0] == sum(p.weight.shape[0] for p in (attention.q_proj, attention.k_proj, attention.v_proj))


def test_every_kind_of_change_is_seen():
    model = random_model(seed=4)
    before = both_ways(model)[0]
    value, gate = model.model.layers[1].self_attn.v_proj, model.model.layers[0].mlp.up_proj

    def changed(change):
        nonlocal before
        change()
        joined, apart = both_ways(model)
        assert difference(joined, apart) < 1e-5
        assert difference(joined, before) > 1e-3, "the change must show"
        before = joined

    changed(lambda: value.weight.mul_(0.5))  # in place
    changed(
        lambda: setattr(value, "weight", torch.nn.Parameter(value.weight * 3, requires_grad=False))
    )  # another parameter
    changed(lambda: setattr(gate.weight, "data", gate.weight.data + 0.1))  # other memory
    changed(lambda: model.load_state_dict(random_model(seed=5).state_dict()))
    model.to(torch.bfloat16).to(torch.float32)
    assert difference(*both_ways(model)) < 1e-5


def test_a_copy_stands_alone():
    model = random_model(seed=4)
    expected = both_ways(model)[0]
    other = copy.deepcopy(model)
    other.model.layers[0].self_attn.v_proj.weight.mul_(2)
    assert torch.equal(both_ways(model)[0], expected)
    assert difference(*both_ways(other)) < 1e-5 and difference(both_ways(other)[0], expected) > 1e-3


def test_training_after_generating_and_generating_after_training():
    """What generate leaves on the model (joined blocks, the rotary table) must be fit for gradients."""
    model = random_model(seed=6)
    prompt = [5, 9, 77]
    before = qwenlab.generate(model, [prompt], max_new_tokens=5, stop=()).token_ids[0]
    model.requires_grad_(True)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(3):
        loss = (
            model(torch.tensor([prompt + before]))
            .log_softmax(-1)[0, 2:-1]
            .gather(1, torch.tensor(before)[:, None])
            .mean()
        )
        optimiser.zero_grad()
        loss.backward()  # the loss is the log-probability itself: what it said becomes unlikely
        optimiser.step()
    model.requires_grad_(False)
    after = qwenlab.generate(model, [prompt], max_new_tokens=5, stop=()).token_ids[0]
    assert after != before
    assert difference(*both_ways(model)) < 1e-5
