"""What a batch of rows remembers between calls, in one object, and how many tokens each row holds."""

from collections.abc import Sequence

import torch
from torch import Tensor

from qwenlab.model.config import Config

GROWING = ("keys", "values")  # the tensors with a place for every token; the others keep their size


class State:
    """The memory of `batch_size` rows. Made by `model.new_state`, read and written by `model(..., state=state)`.

    `lengths` (B,) int64: real tokens each row holds, kept on the host so that a decode step knows its shapes
    without asking the device. `layers[n]` holds layer n's tensors by name, rows first:
    "keys" and "values" (B, KVH, C, D), of which row b has `lengths[b]` positions in use; or "window" (B, K - 1,
    channels) and "memory" (B, heads, Dk, Dv) float32, which are as large after a million tokens as after one. No pad
    is ever stored.

    With `capacity` (tokens a row) the tensors are made once and a longer row is refused; with None they start
    empty and double when needed.

    `invalid` is the set of rows that nobody can vouch for: a call, or a `reset`, `put` or `move`, broke off while it
    changed them. They are refused until they are reset, or put back from a snapshot. A row is in the set from before
    its first change to after its last, so it doesn't matter where an exception strikes.

    The tensors are ordinary ones even if inference mode was on when they were made.
    """

    @torch.inference_mode(False)
    @torch.no_grad()
    def __init__(self, config: Config, batch_size: int, capacity: int | None, dtype: torch.dtype, device: torch.device):
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}, expected at least 1 row")
        if capacity is not None and capacity < 1:
            raise ValueError(f"capacity is {capacity}, expected at least 1 token a row, or None to grow")
        self.made_for = (config, dtype, device)
        self.fixed = capacity is not None
        self.lengths = torch.zeros(batch_size, dtype=torch.int64)
        self.capacity = capacity or 0  # tokens a row can hold before the tensors must grow
        self.invalid: set[int] = set()
        # Zeros, not empty: a masked weight of 0 times a NaN left in unused memory would still be NaN. A memory is
        # float32 whatever the model is: its rounding would add up from token to token.
        kinds, wide = shapes(config, self.capacity), {"memory": torch.float32}
        self.layers = [
            {
                name: torch.zeros(batch_size, *shape, dtype=wide.get(name, dtype), device=device)
                for name, shape in kinds[kind].items()
            }
            for kind in config.layer_types
        ]
        self.lines = lines_of(self.layers)

    @property
    def batch_size(self) -> int:
        return len(self.lengths)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors held, `lengths` included."""
        return self.lengths.nbytes + sum(t.nbytes for layer in self.layers for t in layer.values())

    def select(self, rows) -> "State":
        """A new state of the rows named by an index tensor or list (repeats allowed) or a bool tensor (B,)."""
        index = self.row_index(rows)
        new = self._map(lambda t: t.index_select(0, index.to(t.device)))
        new.invalid = {place for place, row in enumerate(index.tolist()) if row in self.invalid}
        return new

    def repeat(self, n: int) -> "State":
        """A new state in which row i has become rows i*n .. i*n+n-1."""
        if n < 1:
            raise ValueError(f"n is {n}, expected at least 1 copy a row")
        return self.select(torch.arange(self.batch_size).repeat_interleave(n))

    def snapshot(self) -> "State":
        """A copy that later calls leave as it is."""
        new = self._map(torch.clone)
        new.invalid = set(self.invalid)
        return new

    def reset(self, rows=None) -> None:
        """Empties the rows in place (all, if None): length 0 and nothing of the last request left behind."""
        index = self.row_index(rows)
        changing = set(index.tolist())
        self.invalid |= changing
        self.lengths[index] = 0
        for layer in self.layers:
            for t in layer.values():
                t.index_fill_(0, index.to(t.device), 0)
        self.invalid -= changing

    def put(self, rows, other: "State") -> None:
        """Copies the rows of `other`, in order, over the rows named here, in place; a single row over all of them."""
        index = self.row_index(rows)
        if other.batch_size not in (1, len(index)):
            raise ValueError(f"put got {len(index)} rows for a state of {other.batch_size}")
        if len(index.unique()) != len(index):
            raise ValueError(f"put names a row twice: {index.tolist()}")
        if other._kind() != self._kind():
            raise ValueError("put got a state of another shape or dtype")
        if other is self:
            other = self.snapshot()
        used = int(other.lengths.max())
        self.make_room(used, index[int(other.lengths.argmax())])
        sources = list(range(other.batch_size)) * (len(index) // other.batch_size)
        pairs = zip(index.tolist(), sources, strict=True)
        valid = {row for row, source in pairs if source not in other.invalid}
        self.invalid.update(index.tolist())
        self.lengths[index] = other.lengths
        for mine, theirs in zip(self.layers, other.layers, strict=True):
            for name, t in mine.items():
                target, source = index.to(t.device), theirs[name]
                if name in GROWING:  # only the tokens in use, (N, KVH, used, D): beyond them it is empty
                    t[:, :, used:].index_fill_(0, target, 0)
                    t, source = t[:, :, :used], source[:, :, :used]
                t.index_copy_(0, target, source.expand(len(index), *source.shape[1:]))
        self.invalid -= valid

    def move(self, sources, targets) -> None:
        """Copies rows over others of the same state, in place. What the sources held they still hold."""
        source, target = self.row_index(sources), self.row_index(targets)
        used = int(self.lengths[torch.cat((source, target))].max())  # beyond it both are empty
        pairs = zip(source.tolist(), target.tolist(), strict=True)
        valid = {new for old, new in pairs if old not in self.invalid}
        self.invalid.update(target.tolist())
        self.lengths[target] = self.lengths[source]
        for layer in self.layers:
            for name, t in layer.items():
                t = t.narrow(2, 0, used) if name in GROWING else t
                t.index_copy_(0, target.to(t.device), t.index_select(0, source.to(t.device)))
        self.invalid -= valid

    def begin(self, rows) -> None:
        """Notes that a call begins to change the rows (None = all): they are invalid until `advance`."""
        self.invalid.update(self.row_numbers(rows))

    def advance(self, rows, counts: Tensor) -> None:
        """Notes that the rows (None = all) hold `counts` (B,) more tokens, and are valid."""
        if rows is None:
            self.lengths += counts
        else:
            self.lengths[rows] += counts
        self.invalid.difference_update(self.row_numbers(rows))

    @torch.inference_mode(False)
    @torch.no_grad()
    def make_room(self, length: int, row: int = 0) -> None:
        """Makes sure that a row can hold `length` tokens. Raises ValueError, naming `row`, if capacity is fixed."""
        if length <= self.capacity:
            return
        if self.fixed:
            raise ValueError(f"row {int(row)} would hold {length} tokens, its state has room for {self.capacity}")
        grown = max(length, 2 * self.capacity)
        layers = []
        for layer in self.layers:
            layers.append({})
            for name, t in layer.items():
                if name in GROWING:
                    bigger = t.new_zeros(*t.shape[:2], grown, t.shape[3])  # (B, KVH, C', D)
                    bigger[:, :, : t.shape[2]] = t
                    t = bigger
                layers[-1][name] = t
        lines = lines_of(layers)
        # One statement, so that nothing can strike between them: what breaks off before leaves the state as it was.
        self.layers, self.lines, self.capacity = layers, lines, grown

    def row_numbers(self, rows) -> Sequence[int]:
        """A call's rows (None = all, a slice or an index tensor), which were checked, as numbers."""
        if isinstance(rows, Tensor):
            return rows.tolist()
        return range(self.batch_size)[slice(None) if rows is None else rows]

    def row_index(self, rows) -> Tensor:
        """`rows` (None, int list, index or bool tensor) as host row numbers (N,) int64. Raises ValueError."""
        if rows is None:
            return torch.arange(self.batch_size)
        try:
            index = torch.as_tensor(rows).cpu().reshape(-1)
        except (TypeError, ValueError, RuntimeError):
            raise ValueError(f"rows is {rows!r}, expected row numbers or one bool a row") from None
        if index.dtype == torch.bool:
            if len(index) != self.batch_size:
                raise ValueError(f"a bool choice of rows has {len(index)} entries, the state {self.batch_size} rows")
            index = index.nonzero()[:, 0]
        if len(index) == 0:
            raise ValueError("no row was chosen")
        if index.is_floating_point():
            raise ValueError(f"rows is {rows!r}, expected row numbers or one bool a row")
        index = index.long()
        if index.min() < 0 or index.max() >= self.batch_size:
            raise ValueError(f"rows {index.tolist()} are not all within 0..{self.batch_size - 1}")
        return index

    def _kind(self) -> list:
        """All that two states must share to exchange rows: every tensor's shape but for rows and tokens."""
        tensors = [(name, t) for layer in self.layers for name, t in layer.items()]
        return [(name, t.dtype, t.shape[1], t.shape[2 + (name in GROWING) :]) for name, t in tensors]

    @torch.inference_mode(False)
    @torch.no_grad()
    def _map(self, change) -> "State":
        new = object.__new__(State)
        new.made_for, new.fixed, new.capacity = self.made_for, self.fixed, self.capacity
        new.lengths = change(self.lengths)
        new.layers = [{name: change(t) for name, t in layer.items()} for layer in self.layers]
        new.lines = lines_of(new.layers)
        return new


def lines_of(layers: list[dict[str, Tensor]]) -> Tensor:
    """(B, 1, KVH): where each head's first position stands when keys are read as lines (B * KVH * C, D)."""
    keys = next((layer["keys"] for layer in layers if "keys" in layer), None)
    if keys is None:
        memory = layers[0]["memory"]
        return torch.zeros(len(memory), 1, 0, dtype=torch.int64, device=memory.device)
    rows, heads, capacity, _ = keys.shape
    return torch.arange(rows * heads, device=keys.device).view(rows, 1, heads) * capacity


def shapes(config: Config, capacity: int) -> dict[str, dict[str, tuple[int, ...]]]:
    """What a row keeps for a layer of each kind: its tensors' shapes."""
    heads, key_dim, value_dim = config.linear_num_value_heads, config.linear_key_head_dim, config.linear_value_head_dim
    channels = 2 * config.linear_num_key_heads * key_dim + heads * value_dim
    return {
        "full_attention": dict.fromkeys(GROWING, (config.num_key_value_heads, capacity, config.head_dim)),
        "linear_attention": {
            "window": (config.linear_conv_kernel_dim - 1, channels),
            "memory": (heads, key_dim, value_dim),
        },
    }
