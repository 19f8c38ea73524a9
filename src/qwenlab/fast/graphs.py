"""The decode step as one graph, compiled by `torch.compile`: opt-in, for CPUs.

A step of one token per row does little work in many small operations. Compiled, they become a few
loops, and a product with a few rows becomes one loop that reads each weight once, at nearly the
rate at which the machine reads memory.

What is compiled are the plain modules. They run on a `DecodeStep`, which says with tensors what
`ForwardBatch` says with numbers of the host, so a graph serves rows of any length, any slots and
any capacity of the state. Weights are looked up at every step and the state is written in place, so
a step that is not compiled may follow one that is, and the reverse.
"""

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from types import FunctionType

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from qwenlab.fast.fused import FORWARDS
from qwenlab.fast.model import FastModel
from qwenlab.model.attention import Attention, sdpa
from qwenlab.model.batch import ForwardBatch
from qwenlab.model.model import Layer, Model
from qwenlab.model.weights import EMBEDDING, HEAD, without_storage

BUCKETS = (1, 2, 4)  # rows of a graph; with more of them, the ordinary step is as fast
WHOLE = 4  # layers: in a larger model one graph serves each layer in turn, compiled once
CAPACITY = 16  # of the state that a graph is traced with; any other will do
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class DecodeStep:
    """One token for each of B rows, as the plain modules see it.

    position_ids (B, 1); first_lines (B, KVH): where a head's keys begin in a cache seen as lines of
    one head of one token; keys (K,), the numbers 0..K-1; caches: for each layer the lines (L, D) of
    its keys and of its values.
    """

    attention: Callable | None = None

    def __init__(
        self,
        position_ids: Tensor,
        first_lines: Tensor,
        keys: Tensor,
        caches: Sequence[tuple[Tensor, Tensor]],
    ) -> None:
        self.new_lines = first_lines + position_ids  # (B, KVH)
        self.lines = first_lines[..., None] + keys  # (B, KVH, K)
        self.attention_mask = (keys <= position_ids)[:, None, None]  # (B, 1, 1, K)
        self.caches = caches

    def update_cache(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """As `ForwardBatch.update_cache`."""
        cached = []
        for lines, new in zip(self.caches[layer], (keys, values), strict=True):
            lines[self.new_lines] = new[:, 0]
            cached.append(lines[self.lines])  # (B, KVH, K, D)
        return cached[0], cached[1]


class Product(nn.Linear):
    """nn.Linear for a few rows, as sums that become one loop over the weights."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight.float()
        rows = stored(x).float().view(-1, x.shape[-1])  # (rows, K)
        sums = [(weight * row).sum(-1) for row in rows.unbind()]
        return torch.stack(sums).to(x.dtype).view(*x.shape[:-1], -1)


def stored(x: Tensor) -> Tensor:
    """x, computed once: a compiler would compute it anew in every loop that reads it, but what is
    read by strides must be in memory."""
    x = x.contiguous()
    return x.as_strided(x.shape, x.stride())


def grouped(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    """`qwenlab.model.attention.eager` for one query per row, as sums: q (B, H, 1, D) to the same;
    k, v (B, KVH, K, D); mask (B, 1, 1, K)."""
    rows, heads, _, head_dim = q.shape
    kv_heads = k.shape[1]
    q = stored(q).view(rows, kv_heads, heads // kv_heads, 1, head_dim)
    scores = (q.float() * k[:, :, None].float()).sum(-1) * scale  # (B, KVH, G, K)
    weights = stored(scores.masked_fill(~mask, float("-inf")).softmax(-1))
    out = (weights[..., None] * v[:, :, None].float()).sum(-2)  # (B, KVH, G, D)
    return out.view(rows, heads, 1, head_dim).to(v.dtype)


class Layers(nn.Module):
    """Some layers, one after another: x (B, 1, hidden) to the same. `step` makes a DecodeStep."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, *step: Tensor) -> Tensor:
        batch = DecodeStep(*step)
        for layer in self.layers:
            x = layer(x, batch, cos, sin)
        return x


class Head(nn.Module):
    """The final norm and the head: x (B, 1, hidden) to logits (B, vocab) float32."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.norm = model.model.norm
        self.lm_head = model.lm_head

    def forward(self, x: Tensor) -> Tensor:
        return self.lm_head(self.norm(x[:, 0])).float()


class Whole(nn.Module):
    """A small model: input_ids (B, 1), position_ids (B, 1) and the rest of a DecodeStep to logits
    (B, vocab)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.embed_tokens = model.model.embed_tokens
        self.rotary = model.model.rotary
        self.layers = Layers(model.model.layers)
        self.head = Head(model)

    def forward(self, input_ids: Tensor, position_ids: Tensor, *step: Tensor) -> Tensor:
        x = self.embed_tokens(input_ids)  # (B, 1, hidden)
        cos, sin = self.rotary.angles(position_ids, x.dtype)
        return self.head(self.layers(x, cos, sin, position_ids, *step))


def shape_of(model: Model) -> Model:
    """The same model without storage, plain, with products as sums; its head is always its own."""
    config = model.config
    with without_storage():
        shape = Model(config)
        if shape.lm_head is None:
            shape.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
    shape.to(model.dtype).eval().requires_grad_(False)
    shape.attention = grouped
    for module in shape.modules():
        if type(module) is nn.Linear:
            module.__class__ = Product
    return shape


def graph_of(part: nn.Module, backend: str) -> Callable:
    """A function of the weights, in the order of `part.parameters()`, and of what `part` takes. It
    is compiled when it is first called."""
    names = [name for name, _ in part.named_parameters()]

    def call(weights: Sequence[Tensor], *arguments: Tensor) -> Tensor:
        return torch.func.functional_call(part, dict(zip(names, weights, strict=True)), arguments)

    # Compiled graphs belong to a function's code, so each graph needs code of its own.
    own = FunctionType(call.__code__.replace(), call.__globals__, "call", None, call.__closure__)
    options: dict[str, object] = {}
    if hasattr(torch.compiler, "skip_all_guards_unsafe"):
        # `Graphs` checks what may change, and the sizes that vary are dynamic.
        options["guard_filter_fn"] = torch.compiler.skip_all_guards_unsafe
    if backend == "inductor":
        options["cpp.enable_floating_point_contract_flag"] = "fast"  # multiply and add in one
    return torch.compile(own, fullgraph=True, dynamic=False, backend=backend, options=options)


class Graphs:
    """The compiled step of one model, for the modules that the model has when this is made.

    A copy or a pickle of it is empty, so a copied model runs as `optimize` made it.
    """

    def __init__(self, model: Model | None = None, backend: str = "inductor") -> None:
        self.buckets: dict[int, list[Callable]] = {}  # a graph of each part, by number of rows
        if model is None:
            return
        self.backend = backend
        self.decoder = model.model
        shape = shape_of(model)
        layers = shape.model.layers
        self.is_whole = len(layers) <= WHOLE
        self.parts = [Whole(shape)] if self.is_whole else [Layers(layers[:1]), Head(shape)]
        modules = list(model.modules())
        self.modules = []  # each with the class and the children that it must still have
        for module in modules:
            kind = CompiledModel if module is model else type(module)
            self.modules.append((module, kind, dict(module._modules)))
        self.hooks = [vars(module)[name] for module in modules for name in HOOKS]
        self.attentions = [module for module in modules if isinstance(module, Attention)]
        names = {id(weight): name for name, weight in shape.named_parameters()}
        self.places = []  # for each call of a graph, where the model holds its weights
        for part in self.parts:
            own = [names[id(weight)] for weight in part.parameters()]
            if isinstance(part, Layers):
                for number in range(len(layers)):
                    prefix = f".layers.{number}."
                    its = [name.replace(".layers.0.", prefix) for name in own]
                    self.places.append([place(model, name) for name in its])
            else:
                self.places.append([place(model, name) for name in own])
        self.kinds = kinds(self.weights())

    def __reduce__(self) -> tuple:
        return Graphs, ()

    def weights(self) -> list[list[Tensor]]:
        """The weights for each call of a graph, as the model holds them now."""
        return [[held[name] for held, name in places] for places in self.places]

    def fits(self, batch: ForwardBatch) -> bool:
        """Whether the batch is one token for each of a few rows, and the model has the modules that
        were compiled, without hooks or a reader's attention."""
        if not self.buckets or len(batch.slots) > max(self.buckets):
            return False
        if batch.state is None or batch.width > 1 or batch.valid_mask is not None:
            return False
        if batch.attention is not None or batch.num_keys < 2:  # varying sizes are 2 or more
            return False
        if any(self.hooks) or _has_any_global_hook() or torch.is_autocast_enabled("cpu"):
            return False
        for kind, forward in FORWARDS.items():
            if kind.forward is not forward:
                return False
        for module, kind, children in self.modules:
            own = module.__dict__
            if type(module) is not kind or own["_modules"] != children or "forward" in own:
                return False
        return all(attention.function is sdpa for attention in self.attentions)

    def step(self, batch: ForwardBatch) -> Tensor | None:
        """Logits (B, vocab) after the batch's tokens, whose keys and values the state then holds;
        None where the weights have another dtype or shape than when they were compiled."""
        weights = self.weights()
        if kinds(weights) != self.kinds:
            return None
        rows = len(batch.slots)
        bucket = min(bucket for bucket in self.buckets if bucket >= rows)
        return self.run(self.buckets[bucket], weights, *tensors(batch, bucket))[:rows]

    def run(
        self,
        graphs: Sequence[Callable],
        weights: Sequence[Sequence[Tensor]],
        input_ids: Tensor,
        position_ids: Tensor,
        first_lines: Tensor,
        keys: Tensor,
        caches: Sequence[tuple[Tensor, Tensor]],
    ) -> Tensor:
        if self.is_whole:
            return graphs[0](weights[0], input_ids, position_ids, first_lines, keys, caches)
        layer, head = graphs
        x = F.embedding(input_ids, self.decoder.embed_tokens.weight)  # (B, 1, hidden)
        cos, sin = self.decoder.rotary.angles(position_ids, x.dtype)
        for own, cache in zip(weights[:-1], caches, strict=True):
            x = layer(own, x, cos, sin, position_ids, first_lines, keys, [cache])
        return head(weights[-1], x)

    def add(self, rows: int, model: Model) -> None:
        """Compiles the step for that many rows, on a state of its own."""
        graphs = [graph_of(part, self.backend) for part in self.parts]
        state = model.new_state(rows, CAPACITY)
        state.lengths.fill_(CAPACITY // 4)
        input_ids = torch.zeros(rows, 1, dtype=torch.int64)
        batch = ForwardBatch.from_lengths(input_ids, [1] * rows, state)
        *others, keys, caches = tensors(batch, rows)
        torch._dynamo.mark_dynamic(keys, 0)
        for cache in caches:
            for lines in cache:
                torch._dynamo.mark_dynamic(lines, 0)
        self.run(graphs, self.weights(), *others, keys, caches)
        self.buckets[rows] = graphs


def place(model: Model, name: str) -> tuple[dict[str, Tensor], str]:
    """The dictionary that holds a parameter, and its name there; of a tied head the embedding's."""
    if name == HEAD and model.lm_head is None:
        name = EMBEDDING
    owner, _, leaf = name.rpartition(".")
    return model.get_submodule(owner)._parameters, leaf


def kinds(weights: Sequence[Sequence[Tensor]]) -> list[tuple]:
    return [(w.dtype, w.shape, w.stride(), w.is_cpu) for own in weights for w in own]


def tensors(batch: ForwardBatch, bucket: int) -> tuple:
    """What `Graphs.run` takes for `bucket` rows. Missing rows repeat the last one: they write what
    it writes."""
    slots = list(batch.slots)
    lengths = list(batch.num_computed_tokens)
    input_ids = batch.input_ids
    missing = bucket - len(slots)
    if missing:
        slots += slots[-1:] * missing
        lengths += lengths[-1:] * missing
        input_ids = torch.cat((input_ids, input_ids[-1:].expand(missing, 1)))
    layers = batch.state.layers
    _, kv_heads, capacity, size = layers[0]["keys"].shape
    first = [[(slot * kv_heads + head) * capacity for head in range(kv_heads)] for slot in slots]
    caches = [(layer["keys"].view(-1, size), layer["values"].view(-1, size)) for layer in layers]
    position_ids = torch.tensor(lengths)[:, None]
    return input_ids, position_ids, torch.tensor(first), torch.arange(batch.num_keys), caches


class CompiledModel(FastModel):
    """Runs a decode step of a few rows as a graph, anything else as FastModel does."""

    graphs = Graphs()

    def outputs(self, batch: ForwardBatch, last_only: bool, hidden_only: bool) -> Tensor:
        if last_only and not hidden_only and self.graphs.fits(batch):
            logits = self.graphs.step(batch)
            if logits is not None:
                return logits
        return super().outputs(batch, last_only, hidden_only)


def refusal(model: Model, backend: str) -> str | None:
    """Why a model can't be compiled here; None if it can."""
    if model.device.type != "cpu":
        return f"the model is on {model.device}, expected a CPU"
    if "linear_attention" in model.config.layer_types:
        return "the model is a hybrid, expected a dense one"
    if model.dtype == torch.float64:
        return "the model is in float64, expected float32, bfloat16 or float16"
    if backend == "inductor" and not any(map(shutil.which, compilers())):
        return f"there is no C++ compiler (looked for {', '.join(compilers())})"
    return None


def compilers() -> list[str]:
    """The commands that PyTorch may call to compile C++."""
    if os.environ.get("CXX"):
        return [os.environ["CXX"]]
    return ["cl"] if sys.platform == "win32" else ["g++", "clang++", "c++"]
