"""What a model remembers between calls, slot by slot, in one object."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from qwenlab.model.config import Config

GROWING = ("keys", "values")  # these have room for each token; the others keep their size
Slots = Sequence[int] | Sequence[bool] | Tensor  # by number, or one bool per slot


class State:
    """What `batch_size` slots hold. Made by `model.new_state`, used by `model(..., state=state)`.

    A slot is an index into the first dimension of every tensor here. A row is an index into the
    batch of one call; the call's `rows=` gives, for each row, its slot.

    `lengths` (slots,) int64, on the host: real tokens that each slot holds. `layers[n]` holds layer
    n's tensors by name: the cache, "keys" and "values" (slots, KVH, C, D), of which slot s uses the
    first `lengths[s]` positions; or "conv_state" (slots, taps - 1, channels) and "recurrent_state"
    (slots, heads, Dk, Dv) in float32 at least, as large after a million tokens as after one. No pad
    is stored.

    With `capacity` (tokens per slot) the tensors are made once and a longer row is refused; with
    None they start empty and double when needed.

    One rule for calls that fail or are interrupted: `invalid` holds the slots that a call is
    working on, and its last act is to take them out. If the call is broken off, its slots stay
    invalid, and are refused, until they are reset or replaced by `put`.

    The tensors are ordinary ones even if inference mode was on when they were made.
    """

    @torch.inference_mode(False)
    @torch.no_grad()
    def __init__(
        self,
        config: Config,
        batch_size: int,
        capacity: int | None,
        dtype: torch.dtype,
        device: torch.device,
    ):
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}, expected at least 1 slot")
        if capacity is not None and capacity < 1:
            raise ValueError(
                f"capacity is {capacity}, expected at least 1 token per slot, or None to grow"
            )
        self.made_for = (config, dtype, device)
        self.fixed_capacity = capacity
        self.lengths = torch.zeros(batch_size, dtype=torch.int64)
        self.invalid: set[int] = set()
        self.layers: list[dict[str, Tensor]] = []
        # At least float32 whatever the model is, because rounding would add up over the tokens.
        recurrent_dtype = torch.promote_types(dtype, torch.float32)
        for kind in config.layer_types:
            tensors = {}
            for name, shape in shapes(config, capacity or 0)[kind].items():
                tensor_dtype = recurrent_dtype if name == "recurrent_state" else dtype
                # Zeros, not empty: a masked weight of 0 times a NaN in unused memory is NaN.
                tensors[name] = torch.zeros(batch_size, *shape, dtype=tensor_dtype, device=device)
            self.layers.append(tensors)

    @property
    def batch_size(self) -> int:
        return len(self.lengths)

    @property
    def capacity(self) -> int | None:
        """Tokens a slot can hold before the tensors must grow; None where nothing limits it."""
        for layer in self.layers:
            if "keys" in layer:
                return layer["keys"].shape[2]
        return self.fixed_capacity

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors held, `lengths` included."""
        return self.lengths.nbytes + sum(t.nbytes for layer in self.layers for t in layer.values())

    # --- Slots chosen, copied, emptied ---

    def select(self, slots: Slots) -> "State":
        """A new state of the slots named by an index tensor or list (repeats allowed) or a bool
        tensor (batch_size,)."""
        index = self.index_of(slots)
        new = self._map(lambda t: t.index_select(0, index.to(t.device)))
        for copy, slot in enumerate(index.tolist()):
            if slot in self.invalid:
                new.invalid.add(copy)
        return new

    def repeat(self, n: int) -> "State":
        """A new state in which slot i has become slots i*n .. i*n+n-1."""
        if n < 1:
            raise ValueError(f"n is {n}, expected at least 1 copy of each slot")
        return self.select(torch.arange(self.batch_size).repeat_interleave(n))

    def snapshot(self) -> "State":
        """A copy that later calls leave as it is."""
        new = self._map(torch.clone)
        new.invalid = set(self.invalid)
        return new

    def reset(self, slots: Slots | None = None) -> None:
        """Empties the slots in place (all, if None): length 0, nothing left of the last request."""
        index = self.index_of(slots)
        self.invalid.update(index.tolist())
        self.lengths[index] = 0
        for layer in self.layers:
            for t in layer.values():
                t.index_fill_(0, index.to(t.device), 0)
        self.invalid.difference_update(index.tolist())

    def put(self, slots: Slots, other: "State") -> None:
        """Copies the slots of `other`, in order, over the slots named here, in place; if it has a
        single one, over each of them."""
        index = self.index_of(slots)
        if other.batch_size not in (1, len(index)):
            raise ValueError(f"put got {len(index)} slots for a state of {other.batch_size}")
        if len(index.unique()) != len(index):
            raise ValueError(f"put names a slot twice: {index.tolist()}")
        if other._kind() != self._kind():
            raise ValueError("put got a state of another shape or dtype")
        if other is self:
            other = self.snapshot()
        used = int(other.lengths.max())
        self.make_room(used, int(index[int(other.lengths.argmax())]))
        self.invalid.update(index.tolist())
        self.lengths[index] = other.lengths
        for mine, theirs in zip(self.layers, other.layers, strict=True):
            for name, t in mine.items():
                target = index.to(t.device)
                source = theirs[name]
                if name in GROWING:  # only the tokens in use, (N, KVH, used, D): beyond is empty
                    t[:, :, used:].index_fill_(0, target, 0)
                    t = t[:, :, :used]
                    source = source[:, :, :used]
                t.index_copy_(0, target, source.expand(len(index), *source.shape[1:]))
        for number, slot in enumerate(index.tolist()):
            if number % other.batch_size not in other.invalid:
                self.invalid.discard(slot)

    def move(self, sources: Slots, targets: Slots) -> None:
        """Copies slots over others of the same state, in place. The sources still hold what they
        held."""
        source = self.index_of(sources)
        target = self.index_of(targets)
        used = int(self.lengths[torch.cat((source, target))].max())  # beyond it both are empty
        invalid = [slot in self.invalid for slot in source.tolist()]
        self.invalid.update(target.tolist())
        self.lengths[target] = self.lengths[source]
        for layer in self.layers:
            for name, t in layer.items():
                t = t.narrow(2, 0, used) if name in GROWING else t
                t.index_copy_(0, target.to(t.device), t.index_select(0, source.to(t.device)))
        for slot, stays_invalid in zip(target.tolist(), invalid, strict=True):
            if not stays_invalid:
                self.invalid.discard(slot)

    # --- One call's slots ---

    def check_made_for(self, config: Config, dtype: torch.dtype, device: torch.device) -> None:
        """Raises ValueError unless the state was made for such a model."""
        if self.made_for != (config, dtype, device):
            raise ValueError(
                f"the state is for {described(*self.made_for)}, the model is "
                f"{described(config, dtype, device)}: make a new state with model.new_state"
            )

    def begin(self, slots: Sequence[int]) -> None:
        """Marks the slots that a call is about to write as invalid until `commit`."""
        self.invalid.update(slots)

    def commit(self, slots: Sequence[int], num_tokens: Sequence[int]) -> None:
        """The call's last act: its slots hold that many more tokens, and are valid again."""
        added = num_tokens[0] if len(set(num_tokens)) == 1 else torch.tensor(num_tokens)
        if isinstance(slots, range):
            self.lengths[slots.start : slots.stop].add_(added)
        else:
            self.lengths[slots] += added
        self.invalid.difference_update(slots)

    @torch.inference_mode(False)
    @torch.no_grad()
    def make_room(self, length: int, slot: int = 0) -> None:
        """Lets each slot hold `length` tokens. Raises ValueError, naming `slot`, if the capacity is
        fixed."""
        capacity = self.capacity
        if capacity is None or length <= capacity:
            return
        if self.fixed_capacity is not None:
            raise ValueError(
                f"slot {slot} would hold {length} tokens, the state has room for {capacity}"
            )
        grown = max(length, 2 * capacity)
        layers = []
        for layer in self.layers:
            tensors = dict(layer)
            for name in layer.keys() & set(GROWING):
                slots, kv_heads, _, head_dim = layer[name].shape
                tensors[name] = layer[name].new_zeros(slots, kv_heads, grown, head_dim)
                tensors[name][:, :, :capacity] = layer[name]
            layers.append(tensors)
        self.layers = layers  # all at once: if memory runs out before, the state is as it was

    def lengths_of(self, slots: Sequence[int]) -> list[int]:
        """Tokens that each of the slots holds."""
        lengths = self.lengths.tolist()
        return [lengths[slot] for slot in slots]

    def slots_of(self, slots: Slots | None, batch: int) -> Sequence[int]:
        """For each of a call's `batch` rows its slot; `slots` is the call's `rows=` (None = all, in
        order).

        Raises ValueError for slots that don't exist, are named twice or are invalid.
        """
        if slots is None:
            slots = range(self.batch_size)
        simple = isinstance(slots, range) and slots.step == 1
        if not (simple and 0 <= slots.start < slots.stop <= self.batch_size):
            slots = self.index_of(slots).tolist()
            if len(set(slots)) != len(slots):
                raise ValueError(f"rows names a slot twice: {slots}")
        lost = self.invalid.intersection(slots)
        if lost:
            raise ValueError(
                f"slot {min(lost)} is invalid: a call broke off while it changed the slot; reset "
                "the slot and read its tokens again, or put a snapshot back"
            )
        if len(slots) != batch:
            raise ValueError(f"input_ids has {batch} rows, but rows names {len(slots)} slots")
        return slots

    def index_of(self, slots: Slots | None) -> Tensor:
        """`slots` (None, int list, index or bool tensor) as numbers (N,) int64 on the host. Raises
        ValueError."""
        if slots is None:
            return torch.arange(self.batch_size)
        unfit = f"{slots!r} names no slots, expected slot numbers or one bool per slot"
        try:
            index = torch.as_tensor(slots).cpu().reshape(-1)
        except (TypeError, ValueError, RuntimeError):
            raise ValueError(unfit) from None
        if index.dtype == torch.bool:
            if len(index) != self.batch_size:
                raise ValueError(
                    f"a bool choice of slots has {len(index)} entries, "
                    f"the state {self.batch_size} slots"
                )
            index = index.nonzero()[:, 0]
        if len(index) == 0:
            raise ValueError("no slot was chosen")
        if index.is_floating_point():
            raise ValueError(unfit)
        index = index.long()
        if index.min() < 0 or index.max() >= self.batch_size:
            raise ValueError(f"slots {index.tolist()} are not all within 0..{self.batch_size - 1}")
        return index

    def _kind(self) -> list[tuple]:
        """All that two states must share to exchange slots: their shapes, whatever the number of
        slots and tokens."""
        kinds = []
        for layer in self.layers:
            for name, t in layer.items():
                after_tokens = t.shape[3:] if name in GROWING else t.shape[2:]
                kinds.append((name, t.dtype, t.shape[1], after_tokens))
        return kinds

    @torch.inference_mode(False)
    @torch.no_grad()
    def _map(self, change: Callable[[Tensor], Tensor]) -> "State":
        new = object.__new__(State)
        new.made_for = self.made_for
        new.fixed_capacity = self.fixed_capacity
        new.lengths = change(self.lengths)
        new.invalid = set()
        new.layers = []
        for layer in self.layers:
            new.layers.append({name: change(t) for name, t in layer.items()})
        return new


def described(config: Config, dtype: torch.dtype, device: torch.device) -> str:
    """In words, what a state depends on in a model."""
    return (
        f"{config.model_type} with {config.num_hidden_layers} layers of {config.hidden_size} in "
        f"{str(dtype).removeprefix('torch.')} on {device}"
    )


def shapes(config: Config, capacity: int) -> dict[str, dict[str, tuple[int, ...]]]:
    """The shapes of what a slot holds, by kind of layer and tensor."""
    cache = (config.num_key_value_heads, capacity, config.head_dim)
    heads = config.linear_num_value_heads
    recurrent = (heads, config.linear_key_head_dim, config.linear_value_head_dim)
    return {
        "full_attention": {"keys": cache, "values": cache},
        "linear_attention": {
            "conv_state": (config.linear_conv_kernel_dim - 1, config.conv_channels),
            "recurrent_state": recurrent,
        },
    }
