"""`fast.optimize` changes speed only: same logits as the plain model, and `restore` undoes it."""

import copy
import random

import pytest
import torch
from helpers import FAMILIES, count, difference, needs_float64, rectangle
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrize

import qwenlab
from qwenlab import fast
from qwenlab.model.attention import eager
from qwenlab.model.batch import ForwardBatch

F64 = torch.float64
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


LONG = [400, 9, 250, 3]  # tokens: enough keys to group queries, and unlike enough to split rows


@pytest.mark.parametrize("family", FAMILIES)
def test_the_fast_model_does_so_for_long_rows_too(family, monkeypatch):
    """Where it groups queries by key head, and where it splits a batch by length."""
    plain, quick = FAMILIES[family](fast=False), FAMILIES[family]()
    shapes = []
    sdpa = functional.scaled_dot_product_attention

    def watched(q, k, *args, **options):
        shapes.append((tuple(q.shape), tuple(k.shape)))
        return sdpa(q, k, *args, **options)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", watched)
    states = [model.new_state(4) for model in (plain, quick)]
    ids = torch.arange(max(LONG))[None] * 7 % 300
    for slot, length in enumerate(LONG):
        logits = [
            model(ids[:, :length], state=state, rows=[slot])
            for model, state in zip((plain, quick), states, strict=True)
        ]
        assert difference(logits[1], logits[0]) < 1e-5
    shapes.clear()
    for rows in ([0, 1, 2, 3], [2, 0], [3, 1], [0], range(1, 4)):
        new = torch.full((len(rows), 1), 11)
        expected, ours = (
            model(new, state=state, rows=rows)
            for model, state in zip((plain, quick), states, strict=True)
        )
        assert difference(ours, expected) < 1e-5, rows
    level = [model.new_state(4) for model in (plain, quick)]
    for tokens in (ids[:, :200].repeat(4, 1), ids[:, 7:8].repeat(4, 1)):
        expected, ours = (
            model(tokens, state=state) for model, state in zip((plain, quick), level, strict=True)
        )
        assert difference(ours, expected) < 1e-5
    heads = plain.config.num_attention_heads
    kv_heads = plain.config.num_key_value_heads
    grouped = [q for q, k in shapes if q[1:3] == (kv_heads, heads // kv_heads)]
    split = [q for q, k in shapes if q[2] == 1 and k[1] == kv_heads]
    assert grouped and split, "neither path was reached: choose other lengths"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_call_needs_no_no_grad_to_be_fast(family):
    """What `load` gives asks for no gradient, so gradient mode alone changes nothing."""
    model = FAMILIES[family]()
    ids = torch.tensor([[5, 9, 77, 3]])
    with torch.no_grad():
        expected = model(ids)
    with torch.enable_grad():
        assert torch.equal(model(ids), expected)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("place", ["a weight", "a hook", "an attention function"])
def test_a_gradient_arrives_wherever_one_is_asked_for(family, place):
    """One tensor in the middle of a model that asks for none."""
    gradients = []
    for fast_one in (False, True):
        model = FAMILIES[family](fast=fast_one)
        asked = torch.zeros(model.config.hidden_size, requires_grad=True)
        if place == "a weight":
            asked = model.model.layers[-1].mlp.up_proj.weight.requires_grad_(True)
        elif place == "a hook":
            model.model.layers[0].register_forward_hook(lambda _, args, out, v=asked: out + v)
        else:

            def mine(q, k, v, mask, scale, asked=asked):
                return eager(q, k, v + asked[: v.shape[-1]], mask, scale)

            model.attention = mine
        model(torch.tensor([[5, 9, 77, 3]])).logsumexp(-1).sum().backward()
        gradients.append(asked.grad)
    assert gradients[0].any() and difference(gradients[1], gradients[0]) < 1e-5


@needs_float64
@pytest.mark.parametrize("family", FAMILIES)
def test_a_float64_model_computes_in_float64(family):
    """To the last digits, plain and fast alike, and hardly other than in float32."""
    ids = torch.tensor([[5, 9, 77, 3]])
    narrow = FAMILIES[family](fast=False).model
    hidden = []
    for fast_one in (False, True):
        model = FAMILIES[family](dtype=torch.float64, fast=fast_one)
        assert model.model.layers[0].input_layernorm(torch.ones(1, 64).double() / 3).dtype == F64
        state = model.new_state(1)
        read = [model(ids[:, at : at + 1], state=state, hidden_only=True) for at in range(4)]
        hidden += [model(ids, hidden_only=True), torch.cat(read, dim=1)]
    for other in hidden[1:]:
        assert other.dtype == F64 and float((other - hidden[0]).abs().max()) < 1e-11
    rounded = narrow(ForwardBatch.from_lengths(ids, [4]))
    assert 1e-9 < float((rounded - hidden[0]).abs().max()) < 1e-3


@pytest.mark.parametrize("family", FAMILIES)
def test_restore_knows_a_parametrized_module(family):
    """PyTorch gives such a module a class of its own."""
    model = FAMILIES[family]()
    plain = type(FAMILIES[family](fast=False).model.layers[0])
    layer = model.model.layers[0]
    mixer = layer.linear_attn if layer.is_linear else layer.self_attn.q_proj
    name = "dt_bias" if layer.is_linear else "weight"
    parametrize.register_parametrization(mixer, name, nn.Identity())
    ids = torch.tensor([[5, 9, 77, 3]])
    before = model(ids)
    fast.restore(model)
    kinds = {base for module in model.modules() for base in type(module).__mro__}
    assert not [kind for kind in kinds if kind.__module__.startswith("qwenlab.fast")]
    assert type(layer) is plain and difference(model(ids), before) < 1e-5
    parametrize.remove_parametrizations(mixer, name)
    assert difference(model(ids), before) < 1e-5
    assert not [m for m in model.modules() if type(m).__module__.startswith("qwenlab.fast")]


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
