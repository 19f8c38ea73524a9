"""Executes a step's plan on the model: the only part of the engine that touches its tensors.

A step that decodes and prefills is two calls of the model, not one. In a single rectangle every
decoding row would be as wide as the longest piece of a prompt, and the model computes the whole
rectangle, pads included.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from qwenlab.engine.padding import right_pad
from qwenlab.engine.prefix import Prefix
from qwenlab.engine.request import Request
from qwenlab.engine.step_plan import Prefill, StepPlan
from qwenlab.model.batch import ForwardBatch
from qwenlab.model.model import Model
from qwenlab.model.state import State


class Runner:
    """Holds the state of `slots` slots, made for the first plan that computes, or the caller's."""

    def __init__(self, model: Model, slots: int, state: State | None = None) -> None:
        self.model = model
        self.slots = slots
        self.state = state
        self.saved: dict[Prefix, State] = {}  # one slot's content for each shared prefix
        self.token_ids: Tensor | None = None  # (S,) the ids sampled last, on the device ...
        self.sampled: tuple[Request, ...] = ()  # ... for these S requests

    def num_held_tokens(self, request: Request) -> int:
        """How many tokens of the request's prompt its slot in a caller's state holds; 0 if invalid.

        Raises ValueError if there is no such slot, or if it holds more than a part of the prompt.
        """
        slot = request.index
        if not 0 <= slot < min(self.slots, self.state.batch_size):
            most = min(self.slots, self.state.batch_size) - 1
            raise ValueError(
                f"request {slot} has no slot of its own: the state has slots 0..{most}"
            )
        length = 0 if slot in self.state.invalid else int(self.state.lengths[slot])
        if length >= len(request.prompt):
            raise ValueError(
                f"slot {slot} of the state holds {length} tokens, expected fewer than the prompt's "
                f"{len(request.prompt)}"
            )
        return length

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> Tensor | None:
        """Logits (S, V) float32 for the S requests of plan.sampled; None if there are none."""
        if not plan.has_work:
            return None
        self.prepare(plan)
        decoded = self.decode(plan) if plan.decode else None
        prefilled = self.prefill(plan) if plan.prefill else None
        if decoded is None or prefilled is None:
            return prefilled if decoded is None else decoded
        return torch.cat((decoded, prefilled))

    def prepare(self, plan: StepPlan) -> None:
        """Moves, empties and fills slots, before anything is computed in them."""
        if self.state is None and plan.computes:
            self.state = self.model.new_state(self.slots)
        if plan.moves:
            sources, targets = zip(*plan.moves, strict=True)
            self.state.move(list(sources), list(targets))
        if plan.resets and self.state is not None:
            self.state.reset(list(plan.resets))
        slots_of: dict[Prefix, list[int]] = {}
        for prefix, slot in plan.copies:
            slots_of.setdefault(prefix, []).append(slot)
        for prefix, slots in slots_of.items():
            self.state.put(slots, self.saved[prefix])
        for prefix in plan.drops:
            self.saved.pop(prefix, None)

    def decode(self, plan: StepPlan) -> Tensor:
        """Feeds each row the token that it sampled last. Returns logits (D, V)."""
        requests = plan.sampled[: len(plan.decode)]
        if requests != self.sampled:  # rows have come, gone or changed places since
            place = {request: i for i, request in enumerate(self.sampled)}
            order = torch.tensor([place[r] for r in requests], device=self.token_ids.device)
            self.keep(self.token_ids[order], requests)
        slots = as_range([row.slot for row in plan.decode])
        return self.compute(self.token_ids[:, None], [1] * len(slots), slots)

    def prefill(self, plan: StepPlan) -> Tensor | None:
        """Computes each row's next tokens. Returns logits (R, V) of the rows at their text's end,
        None if there are none."""
        logits = self.read(plan.prefill)
        for slot, prefix in plan.saves:
            self.saved[prefix] = self.state.select([slot])
        at_end = []  # rows
        for row, (request, _, _, end) in enumerate(plan.prefill):
            if end == request.num_tokens:
                at_end.append(row)
        if len(at_end) == len(plan.prefill):
            return logits
        return logits[torch.tensor(at_end, device=logits.device)] if at_end else None

    def read(self, rows: Sequence[Prefill]) -> Tensor:
        """Computes each row's piece of text. Returns logits (R, V) after the last token of each."""
        pieces = [tokens(row.request, row.start, row.end) for row in rows]
        slots = as_range([row.slot for row in rows])
        input_ids = right_pad(pieces).to(self.model.device)
        return self.compute(input_ids, list(map(len, pieces)), slots)

    def compute(self, input_ids: Tensor, num_tokens: list[int], slots: Sequence[int]) -> Tensor:
        batch = ForwardBatch.from_lengths(input_ids, num_tokens, self.state, slots)
        return self.model.compute(batch, last_only=True)

    def keep(self, token_ids: Tensor, requests: tuple[Request, ...]) -> None:
        """Keeps the sampled ids on the device, as the input of the next decode."""
        self.token_ids = token_ids
        self.sampled = requests


def tokens(request: Request, start: int, end: int) -> list[int]:
    """A piece of the request's prompt and answer so far."""
    if end <= len(request.prompt):
        return request.prompt[start:end]
    return (request.prompt + request.token_ids)[start:end]


def as_range(slots: list[int]) -> Sequence[int]:
    """The slots; as a range if they are adjacent, because the model then reads them as a view."""
    together = range(slots[0], slots[0] + len(slots))
    return together if slots[-1] == together[-1] else slots
