"""A compiled step computes what the model computes, whatever happens around it.

Most tests take a backend that only traces the step, so they need no C++ compiler; one takes the
real one.
"""

import copy
import random
import warnings
from functools import cache

import pytest
import torch
from helpers import difference, random_hybrid, random_model

import qwenlab
from qwenlab import fast
from qwenlab.fast import graphs
from qwenlab.fast.graphs import CompiledModel, Graphs
from qwenlab.model.attention import eager

TRACED = "eager"


@cache
def traced(layers: int, dtype: torch.dtype = torch.float32):
    model = random_model(num_hidden_layers=layers, dtype=dtype)
    return fast.compile(model, 4, TRACED)


@pytest.fixture
def steps(monkeypatch):
    """How many rows each compiled step had."""
    counted = []
    run = Graphs.step

    def counting(self, batch):
        counted.append(len(batch.slots))
        return run(self, batch)

    monkeypatch.setattr(Graphs, "step", counting)
    return counted


def course(model, seed: int) -> list[torch.Tensor]:
    """Logits of a random course of calls: prompts, and steps of some slots in any order."""
    rng = random.Random(seed)
    state = model.new_state(5)
    state_ids = torch.tensor([[rng.randrange(300) for _ in range(9)] for _ in range(5)])
    mask = torch.arange(9) < torch.tensor([9, 1, 4, 2, 7])[:, None]
    logits = [model(state_ids, mask, state, last_only=True)]
    for _ in range(20):
        slots = rng.sample(range(5), rng.randint(1, 5))
        width = rng.choice([1, 1, 1, 30])
        ids = torch.tensor([[rng.randrange(300) for _ in range(width)] for _ in slots])
        logits.append(model(ids, state=state, rows=slots, last_only=True))
    return logits


@pytest.mark.parametrize("layers", [2, 5], ids=["one graph", "a graph per layer"])
@pytest.mark.parametrize("seed", range(3))
def test_logits_are_those_of_the_plain_model(layers, seed, steps):
    plain = random_model(num_hidden_layers=layers, fast=False)
    for ours, reference in zip(course(traced(layers), seed), course(plain, seed), strict=True):
        assert difference(ours, reference) < 1e-5
    assert {1, 2, 3, 4} >= set(steps)
    assert steps


def test_ids_are_the_same_whoever_joins_and_leaves(steps):
    rng = random.Random(0)
    prompts = [[rng.randrange(300) for _ in range(rng.randint(1, 40))] for _ in range(9)]
    prompts += [[*prompts[0][:20], 7], [*prompts[0][:20], 8]]  # they share a prefix
    plain = random_model(num_hidden_layers=2)
    options = {"slots": 4, "max_new_tokens": 30, "temperature": 0.7, "seed": 1}
    expected = qwenlab.generate(plain, prompts, **options)
    got = qwenlab.generate(traced(2), prompts, **options)
    assert got.token_ids == expected.token_ids
    assert len(set(steps)) > 1


def test_weights_may_change_afterwards(steps):
    model = fast.compile(random_model(num_hidden_layers=2), 1, TRACED)
    other = random_model(seed=1, num_hidden_layers=2)
    model.load_state_dict(other.state_dict())
    model.model.norm.weight = torch.nn.Parameter(torch.full((64,), 2.0), requires_grad=False)
    other.model.norm.weight.data.fill_(2)
    assert difference(course(model, 0)[-1], course(other, 0)[-1]) < 1e-5
    assert steps


def test_another_dtype_runs_as_before():
    model = fast.compile(random_model(num_hidden_layers=2), 1, TRACED).bfloat16()
    expected = random_model(num_hidden_layers=2).bfloat16()
    for ours, reference in zip(course(model, 0), course(expected, 0), strict=True):
        assert torch.equal(ours, reference)


def hook(model):
    seen = []
    model.model.layers[1].mlp.down_proj.register_forward_hook(lambda *_: seen.append(1))
    return lambda: seen


def replaced_attention(model):
    seen = []

    def attention(*arguments):
        seen.append(1)
        return eager(*arguments)

    model.attention = attention
    return lambda: seen


def replaced_module(model):
    class Doubled(torch.nn.Linear):
        def forward(self, x):
            seen.append(1)
            return super().forward(x)

    seen = []
    mine = Doubled(64, 96, bias=False).requires_grad_(False)
    mine.weight = model.model.layers[0].mlp.up_proj.weight
    model.model.layers[0].mlp.up_proj = mine
    return lambda: seen


@pytest.mark.parametrize("change", [hook, replaced_attention, replaced_module])
def test_what_a_reader_puts_in_is_called(change, steps):
    model = copy.copy(fast.compile(random_model(num_hidden_layers=2), 1, TRACED))
    state = model.new_state(1)
    model(torch.tensor([[5, 6, 7]]), state=state)
    seen = change(model)
    model(torch.tensor([[8]]), state=state, last_only=True)
    assert seen() and not steps


def test_restore_and_a_copy_are_not_compiled(steps):
    model = fast.compile(random_model(num_hidden_layers=2), 1, TRACED)
    twin = copy.deepcopy(model)
    course(twin, 0)
    assert isinstance(model, CompiledModel)
    fast.restore(model)
    assert type(model) is qwenlab.model.model.Model
    course(model, 0)
    assert not steps


def test_where_it_cannot_be_done_one_line_says_so(monkeypatch):
    hybrid = random_hybrid()
    with pytest.warns(UserWarning, match="not compiled: the model is a hybrid"):
        assert fast.compile(hybrid) is hybrid
    monkeypatch.setenv("CXX", "no-such-compiler")
    dense = random_model()
    with pytest.warns(UserWarning, match=r"no C\+\+ compiler \(looked for no-such-compiler\)"):
        fast.compile(dense)
    assert not isinstance(dense, CompiledModel)
    with pytest.raises(ValueError, match="rows is 3, expected one of 1, 2, 4"):
        fast.compile(dense, 3)


def test_a_compiler_that_fails_leaves_the_model_as_it_was():
    def broken(graph, inputs):
        raise RuntimeError("no header\nand more")

    model = random_model(num_hidden_layers=1)
    with pytest.warns(UserWarning, match="not compiled: .*") as caught:
        fast.compile(model, 1, broken)
    assert "\n" not in str(caught[0].message)
    assert not isinstance(model, CompiledModel)


@pytest.mark.skipif(
    not any(map(graphs.shutil.which, graphs.compilers())), reason="needs a C++ compiler"
)
def test_the_real_compiler_does_so_too(steps):
    model = random_model(num_hidden_layers=1)
    plain = random_model(num_hidden_layers=1, fast=False)
    with warnings.catch_warnings(record=True) as caught:
        fast.compile(model, 1)
    assert "not compiled" not in " ".join(str(warning.message) for warning in caught)
    for ours, reference in zip(course(model, 1), course(plain, 1), strict=True):
        assert difference(ours, reference) < 1e-5
    assert set(steps) == {1}
