"""Whatever is done to a model after it was loaded, inference computes with what training would see.

Inference may join weights, choose kernels and keep what it has once laid out. Whether it may is
told by one comparison: with a model that is built afresh from the same state_dict and computes with
gradients enabled and without a state.
"""

import copy
import functools
import gc
import io
import pickle
import random
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from helpers import HYBRID, alone_greedy, count, difference, plainly
from small_checkpoint import VOCAB, write_small_checkpoint
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils import parametrize, prune, vector_to_parameters
from torch.utils._python_dispatch import TorchDispatchMode

import qwenlab
from qwenlab.fast import optimize
from qwenlab.model.attention import Attention
from qwenlab.model.layers import MLP, RMSNorm
from qwenlab.model.model import Layer, Model

CHECKPOINTS = {
    "dense": {"num_hidden_layers": 2},  # tied embeddings
    "hybrid": {**HYBRID, "vocab_size": VOCAB, "eos_token_id": 3, "num_hidden_layers": 2}
    | {"layer_types": ["linear_attention", "full_attention"], "tie_word_embeddings": False},
}
ROWS = [[7, 3, 9, 1, 12], [4, 2, 8]]
INFERENCE = (torch.no_grad, torch.inference_mode)
LEAVES = (nn.Linear, nn.Conv1d, nn.Embedding, RMSNorm)


@pytest.fixture(scope="module", params=CHECKPOINTS)
def original(request, tmp_path_factory):
    """A model as people get it, no weight of which is all zeros or ones."""
    folder = tmp_path_factory.mktemp(request.param) / "small"
    write_small_checkpoint(folder, **CHECKPOINTS[request.param])
    model, _ = qwenlab.load(folder, torch.float32, "cpu")
    for weight in model.parameters():
        weight.add_(noise(weight))
    return model


@pytest.fixture
def model(original):
    return used(original)


def used(original: Model) -> Model:
    """A model by itself in which whatever inference lays out was laid out."""
    model = copy.deepcopy(original)
    use(model)
    return model


@torch.no_grad()
def use(model: Model) -> torch.Tensor:
    return model(*qwenlab.left_pad(ROWS, 0))


# --- the comparison ------------------------------------------------------------------------------


@dataclass
class Case:
    """A model, and in `structure` what was done to it that no state_dict tells."""

    model: Model
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    structure: list[Callable[[Model], object]] = field(default_factory=list)
    views: list[torch.Tensor] = field(default_factory=list)

    def restructure(self, change: Callable, *arguments) -> None:
        self.structure.append(lambda model: change(model, *arguments))
        self.structure[-1](self.model)


def agree(model: Model) -> None:
    """The short check: the same call as for inference and as for training."""
    with plainly(model):
        expected = model(*qwenlab.left_pad(ROWS, 0)).detach()
    assert difference(use(model), expected) < 1e-5


def plain_copy(case: Case) -> Model:
    """A new model, to which the same was done, with the same weights."""
    fresh = Model(case.model.config).eval()
    for change in case.structure:
        change(fresh)
    fresh.load_state_dict(case.model.state_dict())
    return fresh.requires_grad_(True)


def check(case: Case) -> None:
    """Inference as training, within 1e-5: a rectangle with pads, prefill and decode, `generate`."""
    plain = plain_copy(case)
    model = case.model
    with torch.enable_grad():
        expected = [plain(torch.tensor([row]))[0].detach() for row in ROWS]
    for mode in INFERENCE:
        with mode():
            padded = model(*qwenlab.left_pad(ROWS, 0))
        for row, logits in enumerate(expected):
            assert difference(padded[row, -len(logits) :], logits) < 1e-5, (
                f"{mode.__name__}, row {row}"
            )
    for mode in INFERENCE:
        with mode():
            state = model.new_state(2)
            prefill = model(torch.tensor([row[:2] for row in ROWS]), state=state)
            decode = model(torch.tensor([row[2:3] for row in ROWS]), state=state)
        for row, logits in enumerate(expected):
            got = torch.cat((prefill[row], decode[row]))
            assert difference(got, logits[:3]) < 1e-5, f"{mode.__name__} with a state, row {row}"
    with torch.enable_grad():
        tokens = [alone_greedy(plain, row, 3) for row in ROWS]
    assert qwenlab.generate(model, ROWS, max_new_tokens=3, stop=()).token_ids == tokens


# --- what can be done to weights -----------------------------------------------------------------


def any_weight(case: Case) -> nn.Parameter:
    return case.rng.choice(list(case.model.parameters()))


def leaves(model: Model, kinds=LEAVES) -> dict[str, nn.Module]:
    """By name the modules that nothing was put around yet but for a hook or another `forward`."""
    named = {name: module for name, module in model.named_modules() if type(module) in kinds}
    return {
        name: module for name, module in named.items() if isinstance(module.weight, nn.Parameter)
    }


def any_leaf(case: Case, kinds=LEAVES) -> str:
    return case.rng.choice(list(leaves(case.model, kinds)))


def noise(weight: torch.Tensor) -> torch.Tensor:
    return 0.1 * torch.randn(weight.shape, dtype=weight.dtype)


def add_to_data(case):
    any_weight(case).data.add_(0.1)


def add_under_no_grad(case):
    weight = any_weight(case)
    with torch.no_grad():
        weight.add_(noise(weight))


def hold_views(case):
    case.views = [case.rng.choice([p.detach(), p.data]) for p in case.model.parameters()]


def change_held_views(case):
    for view in case.views:
        view.add_(noise(view))


def step_an_optimizer(case):
    weights = case.model.requires_grad_(True).parameters()
    kind = case.rng.choice([torch.optim.SGD, torch.optim.AdamW])
    optimizer = kind(weights, lr=1e-2)
    case.model(torch.tensor(ROWS[:1])).logsumexp(-1).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def other_weights(case) -> dict:
    return {name: t + noise(t) for name, t in case.model.state_dict().items()}


def load_others(case):
    case.model.load_state_dict(other_weights(case))


def load_others_by_assigning(case):
    case.model.load_state_dict(other_weights(case), assign=True)


def to_bfloat16_and_back(case):
    case.model.to(torch.bfloat16)
    if case.rng.random() < 0.5:
        use(case.model)
    case.model.to(torch.float32)


def to_half_and_back(case):
    case.model.half().float()


def to_the_same(case):
    case.model.to(torch.float32).cpu()


def deep_copied(case):
    case.model = copy.deepcopy(case.model)


def deep_copied_twice(case):
    """The second where the first's original was."""
    case.model = copy.deepcopy(case.model)
    case.model = copy.deepcopy(case.model)


def pickled(case):
    case.model = pickle.dumps(case.model)
    case.model = pickle.loads(case.model)


def saved_and_loaded(case):
    file = io.BytesIO()
    torch.save(case.model, file)
    file.seek(0)
    case.model = None
    case.model = torch.load(file, weights_only=False)


def where_possible(copying):
    """PyTorch copies no model with a pruned weight, and pickles none with a parametrized one."""

    def change(case):
        modules = list(case.model.modules())
        plain = not any(parametrize.is_parametrized(m) or prune.is_pruned(m) for m in modules)
        del modules  # the original is to go while its copy is made
        if plain:
            case.views = []
            copying(case)

    change.__name__ = copying.__name__
    return change


def replace_a_parameter(case):
    module = case.model.get_submodule(any_leaf(case))
    module.weight = nn.Parameter(module.weight.detach() + noise(module.weight))


def replace_data(case):
    weight = any_weight(case)
    weight.data = weight.data + noise(weight)


def transpose_a_square(case):
    """The same memory, read otherwise."""
    weights = [p for p in case.model.parameters() if p.dim() == 2 and p.shape[0] == p.shape[1]]
    weight = case.rng.choice(weights)
    weight.data = weight.data.t()


def pairs(case) -> list[tuple[nn.Module, nn.Module]]:
    """Plain modules with weights of one shape."""
    found = leaves(case.model).values()
    alike = [(a, b) for a in found for b in found if a.weight.shape == b.weight.shape]
    return [(a, b) for a, b in alike if a is not b]


def tie_two(case):
    a, b = case.rng.choice(pairs(case))
    a.weight = b.weight


def tie_memory_of_two(case):
    a, b = case.rng.choice(pairs(case))
    a.weight.data = b.weight.data


def swap_two(case):
    a, b = case.rng.choice(pairs(case))
    a.weight, b.weight = b.weight, a.weight


def lay_into_one_vector(case):
    """As flattening optimizers do: all parameters become views of one vector."""
    vector = torch.cat([p.detach().flatten() for p in case.model.parameters()])
    vector_to_parameters(vector, case.model.parameters())
    case.views = [vector]


def share_memory(case):
    case.model.share_memory()


def switch_training(case):
    case.model.train(case.rng.random() < 0.5)


def switch_gradients(case):
    case.model.requires_grad_(case.rng.random() < 0.5)


def change_an_eps(case):
    def change(model, name, eps):
        model.get_submodule(name).eps = eps

    case.restructure(change, any_leaf(case, [RMSNorm]), case.rng.choice([1e-3, 1e-1]))


# --- what can be put around a module; each makes its output or its weight louder -----------------


def louder(x: torch.Tensor) -> torch.Tensor:
    """Not by a factor alone, which a norm behind it would take back."""
    return 1.5 * x + 0.1


class Louder:
    def forward(self, x):
        return louder(super().forward(x))


class LouderLinear(Louder, nn.Linear):
    pass


class LouderConv1d(Louder, nn.Conv1d):
    pass


class LouderEmbedding(Louder, nn.Embedding):
    pass


class LouderRMSNorm(Louder, RMSNorm):
    pass


SUBCLASSES = dict(
    zip(LEAVES, (LouderLinear, LouderConv1d, LouderEmbedding, LouderRMSNorm), strict=True)
)


class Adapter(nn.Module):
    """As LoRA is put around a layer: the layer inside, its weight to be seen from outside."""

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    @property
    def weight(self):
        return self.inner.weight

    def forward(self, x):
        return louder(self.inner(x))


class Scale(nn.Module):
    def forward(self, weight):
        return louder(weight)


def louder_output(module, args, output):
    return louder(output)


def other_input(module, args):
    x = args[0]
    return (x + 0.5 if x.is_floating_point() else (x + 1) % VOCAB,)


def louder_forward(module, x):
    return louder(type(module).forward(module, x))


def hook(model, name):
    model.get_submodule(name).register_forward_hook(louder_output)


def pre_hook(model, name):
    model.get_submodule(name).register_forward_pre_hook(other_input)


def replace_forward(model, name):
    module = model.get_submodule(name)
    module.forward = functools.partial(louder_forward, module)


def replace_by_a_subclass(model, name):
    module = copy.copy(model.get_submodule(name))
    module.__class__ = SUBCLASSES[type(module)]
    model.set_submodule(name, module)


def put_into_an_adapter(model, name):
    model.set_submodule(name, Adapter(model.get_submodule(name)))


def parametrize_weight(model, name):
    parametrize.register_parametrization(model.get_submodule(name), "weight", Scale())


def prune_weight(model, name):
    prune.l1_unstructured(model.get_submodule(name), "weight", 0.5)


AROUND = (
    hook,
    pre_hook,
    replace_forward,
    replace_by_a_subclass,
    put_into_an_adapter,
    parametrize_weight,
    prune_weight,
)


def put_around(change):
    def around_any(case):
        case.restructure(change, any_leaf(case))

    around_any.__name__ = change.__name__
    return around_any


COPIES = (deep_copied, deep_copied_twice, pickled, saved_and_loaded)
CHANGES = [
    add_to_data,
    add_under_no_grad,
    hold_views,
    change_held_views,
    step_an_optimizer,
    load_others,
    load_others_by_assigning,
    to_bfloat16_and_back,
    to_half_and_back,
    to_the_same,
    *(where_possible(copying) for copying in COPIES),
    replace_a_parameter,
    replace_data,
    transpose_a_square,
    tie_two,
    tie_memory_of_two,
    swap_two,
    lay_into_one_vector,
    share_memory,
    switch_training,
    switch_gradients,
    change_an_eps,
    *(put_around(change) for change in AROUND),
]


# --- the properties ------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(count(6, 300)))
def test_inference_sees_what_training_sees_whatever_is_done_to_the_weights(original, seed):
    case = Case(used(original), random.Random(seed))
    torch.manual_seed(seed)
    done = []
    for _ in range(case.rng.randint(2, 8)):
        change = case.rng.choice(CHANGES)
        done.append(change.__name__)
        change(case)
        if case.rng.random() < 0.5:
            use(case.model)
    try:
        check(case)
    except AssertionError as problem:
        raise AssertionError(f"{problem} after {', '.join(done)}") from None


def test_after_any_change_weights_can_be_trained_in_place(original):
    for change in CHANGES:
        case = Case(used(original))
        change(case)
        use(case.model)
        with torch.no_grad():
            for weight in case.model.parameters():
                weight.add_(noise(weight))
        agree(case.model)


@pytest.mark.parametrize("copying", COPIES, ids=lambda change: change.__name__)
def test_a_copy_whose_original_is_gone_is_trained_in_place(original, copying):
    """Whether a copy gets its original's memory is the allocator's affair, so many are made."""
    for _ in range(count(10, 200)):
        case = Case(used(original))
        copying(case)
        before = use(case.model)
        for weight in case.model.parameters():
            weight.mul_(1.5)
        assert difference(use(case.model), before) > 1e-3
        agree(case.model)


@pytest.mark.parametrize("change", AROUND, ids=lambda change: change.__name__)
def test_what_is_put_around_any_module_counts_in_inference_as_in_training(original, change):
    before = use(original)
    passed_over = []
    for name in leaves(original):
        other = used(original)
        change(other, name)
        if difference(use(other), before) < 1e-4:
            passed_over.append(name)
        agree(other)
    assert not passed_over


def test_hooks_on_every_module_are_called_in_training_and_in_inference(model):
    forward, backward = [], []
    for name, module in leaves(model).items():
        module.register_forward_hook(lambda *_, name=name: forward.append(name))
        module.register_full_backward_hook(lambda *_, name=name: backward.append(name))
    model.requires_grad_(True)(torch.tensor(ROWS[:1])).logsumexp(-1).sum().backward()
    assert sorted(forward) == sorted(backward) == sorted(leaves(model))
    forward.clear()
    use(model)
    assert sorted(forward) == sorted(leaves(model))


def test_a_hook_on_all_modules_counts(model):
    def on_linear(module, args, output):
        return louder(output) if isinstance(module, nn.Linear) else output

    before = use(model)
    handle = register_module_forward_hook(on_linear)
    try:
        assert difference(use(model), before) > 1e-3
        check(Case(model))
    finally:
        handle.remove()
    assert torch.equal(use(model), before)


@pytest.mark.parametrize(
    "kind", [nn.Linear, RMSNorm, Attention, MLP, Layer, Model], ids=lambda kind: kind.__name__
)
def test_a_forward_replaced_for_all_modules_of_a_kind_counts(model, monkeypatch, kind):
    forward = kind.forward

    def louder_of_all(module, *args, **options):
        return louder(forward(module, *args, **options))

    before = use(model)
    monkeypatch.setattr(kind, "forward", louder_of_all)
    assert difference(use(model), before) > 1e-3
    agree(model)


def test_weights_given_for_one_call_count_in_that_call(model):
    weights = {name: p + noise(p) for name, p in model.named_parameters()}
    before = use(model)
    ids = torch.tensor(ROWS[:1])
    with torch.no_grad():
        got = torch.func.functional_call(model, weights, (ids,))
    assert torch.equal(use(model), before)
    model.load_state_dict(weights)
    assert difference(got, model.requires_grad_(True)(ids).detach()) < 1e-5


# --- memory that somebody else sees too ----------------------------------------------------------


def test_two_models_on_the_same_memory_stay_so(original):
    a, b = used(original), used(original)
    b.load_state_dict(a.state_dict(), assign=True)
    assert difference(use(b), use(a)) < 1e-5
    with torch.no_grad():
        for weight in a.parameters():
            weight.add_(noise(weight))
    assert difference(use(b), use(a)) < 1e-5
    check(Case(b))


def test_memory_shared_among_processes_stays_shared(original):
    """Also where a parameter was replaced before: what is joined afterwards would leave it."""
    for changed in (False, True):
        case = Case(used(original))
        if changed:
            load_others_by_assigning(case)
        case.model.share_memory()
        use(case.model.to(torch.float32))
        assert all(p.is_shared() for p in case.model.parameters())
        use(case.model)
        assert all(p.is_shared() for p in case.model.parameters())


def test_inference_moves_no_weight(original):
    """NumPy, an optimizer or another thread may be looking at it."""
    for change in CHANGES:
        case = Case(used(original))
        change(case)
        plain = [p for p in case.model.parameters() if not p.requires_grad]
        seen = [p.numpy() for p in plain if p.dtype is torch.float32]
        use(case.model)
        for array, weight in zip(seen, plain, strict=True):
            assert np.shares_memory(array, weight.numpy()), change.__name__


def test_the_first_call_moves_no_weight_either(tmp_path):
    """Another thread may be in its own first call."""
    for changes in CHECKPOINTS.values():
        write_small_checkpoint(tmp_path / "small", **changes)
        model, _ = qwenlab.load(tmp_path / "small", torch.float32, "cpu")
        before = [p.data_ptr() for p in model.parameters()]
        use(model)
        assert [p.data_ptr() for p in model.parameters()] == before


def test_a_weight_is_held_once(model):
    """Joining takes no second copy: all storages together are as large as the weights."""
    storages = {}
    for weight in model.parameters():
        storage = weight.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    assert sum(storages.values()) == sum(weight.nbytes for weight in model.parameters())


def storages_of(model: Model) -> list[torch.UntypedStorage]:
    """Each block of memory that the parameters lie in, once."""
    storages = [weight.untyped_storage() for weight in model.parameters()]
    return list({storage.data_ptr(): storage for storage in storages}.values())


def test_weights_replaced_by_assignment_are_let_go(model):
    """Nothing of the old ones stays in memory, and another `optimize` fuses the new ones."""
    fused = len(storages_of(model))
    old = [weakref.ref(storage) for storage in storages_of(model)]
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    expected = use(model)
    model.load_state_dict(weights, assign=True)
    gc.collect()
    assert not any(storage() for storage in old)
    assert len(storages_of(model)) > fused and torch.allclose(use(model), expected, atol=1e-5)
    assert len(storages_of(optimize(model))) == fused
    agree(model)


def test_weights_that_went_elsewhere_are_fused_again_when_they_return(model):
    """The device without numbers stands for a GPU."""
    fused = len(storages_of(model))
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    model.to("meta").to_empty(device="cpu")
    assert len(storages_of(model)) == fused
    model.load_state_dict(weights)
    agree(model)


def test_weights_may_be_moved_while_a_module_has_a_hook(model):
    fused = len(storages_of(model))
    projection = next(m for m in model.modules() if type(m) is nn.Linear)
    handle = projection.register_forward_hook(louder_output)
    model.to(torch.bfloat16).to(torch.float32)
    handle.remove()
    assert len(storages_of(model)) == fused
    agree(model)


# --- kernels -------------------------------------------------------------------------------------


class Products(TorchDispatchMode):
    """Notes the shape of the first factor of each matrix product, attention's batches apart."""

    def __init__(self):
        super().__init__()
        self.firsts = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.mm.default:
            self.firsts.append(args[0].shape)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(("kernel", "rows"), [("transposed", 6), ("shared", 10)])
def test_a_kernel_chosen_on_the_cpu_is_not_taken_elsewhere(tmp_path, monkeypatch, kernel, rows):
    """There F.linear computes, the rows first. The device without numbers stands for a GPU."""
    sizes = {"hidden_size": 40, "intermediate_size": 56, "num_hidden_layers": 1}  # no other test's
    model, _ = qwenlab.load(write_small_checkpoint(tmp_path / "small", **sizes), device="cpu")
    ids = torch.full((rows, 1), 3)
    monkeypatch.setenv("QWENLAB_LINEAR", kernel)
    with torch.no_grad():
        model(ids)
        monkeypatch.delenv("QWENLAB_LINEAR")
        model.to("meta")
        with Products() as products:
            model(ids)
    assert {first[0] for first in products.firsts} == {rows}


def test_the_kernel_that_is_forced_is_for_the_cpu_only(tmp_path, monkeypatch):
    monkeypatch.setenv("QWENLAB_LINEAR", "transposed")
    model, _ = qwenlab.load(write_small_checkpoint(tmp_path / "small"), device="cpu")
    with torch.no_grad(), Products() as products:
        model.to("meta")(torch.full((7, 1), 3))
    assert {first[0] for first in products.firsts} == {7}
