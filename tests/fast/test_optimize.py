"""`fast.optimize` changes speed only: same logits as the plain model, and `restore` undoes it."""

import copy
import random

import pytest
import torch
from helpers import FAMILIES, count, difference, rectangle
from torch import nn

import qwenlab
from qwenlab import fast

SIDES = ["left", "right", "inner"]


def script(model, seed: int) -> list[torch.Tensor]:
    """The logits of a random course of calls: ragged, chunked, in any order of slots."""
    rng = random.Random(seed)
    state = model.new_state(4)
    logits = []
    for _ in range(8):
        slots = rng.sample(range(4), rng.randint(1, 4))
        if rng.random() < 0.3:
            slots = range(rng.randint(1, 4))
        if rng.random() < 0.5:  # a decode step
            ids = torch.tensor([[rng.randrange(300)] for _ in slots])
            logits.append(model(ids, state=state, rows=slots))
            continue
        rows = [[rng.randrange(300) for _ in range(rng.randint(1, 20))] for _ in slots]
        ids, mask = rectangle(rows, 20, rng.choice(SIDES), 301, rng)
        logits.append(model(ids, mask, state, rows=slots))
    return logits


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", range(count(4, 100)))
def test_the_fast_model_computes_what_the_plain_one_does(family, attention, seed):
    plain = FAMILIES[family](seed=seed, fast=False)
    quick = FAMILIES[family](seed=seed)
    plain.attention = quick.attention = attention
    for ours, reference in zip(script(quick, seed), script(plain, seed), strict=True):
        assert difference(ours, reference) < 1e-5


@pytest.mark.parametrize("family", FAMILIES)
def test_optimize_and_restore_keep_every_parameter_and_its_name(family):
    model = FAMILIES[family](fast=False)
    before = copy.deepcopy(model.state_dict())
    parameters = dict(model.named_parameters())
    classes = [type(module) for module in model.modules()]
    assert fast.optimize(model) is model
    assert [type(module) for module in model.modules()] != classes
    assert dict(model.named_parameters()).keys() == parameters.keys()
    assert all(p is parameters[name] for name, p in model.named_parameters())
    assert fast.restore(fast.optimize(model)) is model
    assert [type(module) for module in model.modules()] == classes
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, before[name]), name
    attributes = {name for module in model.modules() for name in vars(module)}
    assert attributes.isdisjoint({"fused", "table"})


def test_load_optimizes_unless_told_otherwise():
    quick, tokenizer = qwenlab.load("tiny")
    plain, _ = qwenlab.load("tiny", fast=False)
    assert type(plain) is qwenlab.Model and type(quick) is not qwenlab.Model
    prompts = [tokenizer.chat([{"role": "user", "content": text}]) for text in ("2+2?", "3+4+5?")]
    answers = [qwenlab.generate(m, prompts, max_new_tokens=40).token_ids for m in (quick, plain)]
    assert answers[0] == answers[1]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_reader_s_attention_always_gets_a_boolean_mask(family):
    """In prefill, chunks, decode and training; and what the mask allows is what a query sees."""
    model = FAMILIES[family]()
    seen = []

    def mine(q, k, v, mask, scale):
        seen.append((q.shape[2], k.shape[2], mask))
        return qwenlab.model.attention.eager(q, k, v, mask, scale)

    expected = model(torch.tensor([[5, 9, 77, 3]]))
    model.attention = mine
    layers = model.config.layer_types.count("full_attention")
    state = model.new_state(2)
    ids = torch.tensor([[5, 9], [8, 1]])
    model(ids, state=state)  # prefill
    model(ids, torch.tensor([[True, True], [True, False]]), state)  # a ragged chunk
    model(ids[:, :1], state=state)  # decode
    with torch.enable_grad():
        logits = model.requires_grad_(True)(torch.tensor([[5, 9, 77, 3]]))  # training
    assert difference(logits.detach(), expected) < 1e-5
    assert [call[:2] for call in seen[::layers]] == [(2, 2), (2, 4), (1, 5), (4, 4)]
    for queries, keys, mask in seen:
        assert mask.dtype == torch.bool and mask.shape[1:] == (1, queries, keys)
    prefill, chunk, decode, training = (mask for _, _, mask in seen[::layers])
    assert torch.equal(prefill[0, 0], torch.ones(2, 2).tril().bool())
    assert chunk[0, 0].tolist() == [[True] * 3 + [False], [True] * 4]
    assert decode[:, 0, 0].tolist() == [[True] * 5, [True] * 4 + [False]]
    assert torch.equal(training[0, 0], torch.ones(4, 4).tril().bool())


def test_a_hooked_module_runs_plain():
    model = FAMILIES["dense"]()
    seen = []
    expected = model(torch.tensor([[5, 9, 77]]))
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(lambda module, args, out: seen.append(out.shape))
    assert difference(model(torch.tensor([[5, 9, 77]])), expected) < 1e-5
    assert len(seen) == 7 * model.config.num_hidden_layers


def test_positions_are_rotated_as_the_module_says_now():
    """Its table is for one theta; another theta needs another."""
    model, plain = FAMILIES["dense"](), FAMILIES["dense"](fast=False)
    ids = torch.tensor([[5, 9, 77, 3]])
    before = model(ids)
    for each in (model, plain):
        each.model.rotary.theta = 50.0
    assert difference(model(ids), before) > 1e-3
    assert difference(model(ids), plain(ids)) < 1e-5
