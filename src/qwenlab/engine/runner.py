"""Carries out a step's plan on the model: the only part of the engine that touches its tensors.

A step that decodes and prefills is two calls of the model, not one. In a single rectangle every
decoding row would be as wide as the longest piece of a prompt, and the model computes the whole
rectangle, pads included.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from qwenlab.engine.padding import right_pad
from qwenlab.engine.request import Request
from qwenlab.engine.step_plan import StepPlan
from qwenlab.model.batch import ForwardBatch
from qwenlab.model.state import State


class Runner:
    """`slots` rows of a state, made when the first plan comes; or a `state` of the caller's."""

    def __init__(self, model, slots: int, state: State | None = None) -> None:
        self.model = model
        self.slots = slots
        self.state = state
        self.saved: dict[int, State] = {}  # one row per shared prefix, by key
        self.token_ids: Tensor | None = None  # (S,) what was sampled last, on the device ...
        self.sampled: tuple[Request, ...] = ()  # ... for these

    def held(self, request: Request) -> int:
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
        if not plan:
            return None
        self.prepare(plan)
        parts = []
        if plan.decode:
            parts.append(self.decode(plan))
        if plan.prefill:
            parts.append(self.prefill(plan))
        parts = [logits for logits in parts if len(logits)]
        if len(parts) > 1:
            return torch.cat(parts)
        return parts[0] if parts else None

    def prepare(self, plan: StepPlan) -> None:
        """Moves, empties and fills slots."""
        if self.state is None and plan.computes:
            self.state = self.model.new_state(self.slots)
        if plan.moves:
            sources, targets = zip(*plan.moves, strict=True)
            self.state.move(list(sources), list(targets))
        if plan.resets and self.state is not None:
            self.state.reset(list(plan.resets))
        for key in dict.fromkeys(key for key, _ in plan.copies):
            slots = [slot for wanted, slot in plan.copies if wanted == key]
            self.state.put(slots, self.saved[key])
        for key in plan.drops:
            self.saved.pop(key, None)

    def decode(self, plan: StepPlan) -> Tensor:
        """One token of each row, the one sampled last. Returns logits (D, V)."""
        requests = plan.sampled[: len(plan.decode)]
        if requests != self.sampled:
            place = {request: i for i, request in enumerate(self.sampled)}
            order = torch.tensor([place[r] for r in requests], device=self.token_ids.device)
            self.keep(self.token_ids[order], requests)
        slots = as_range([slot for _, slot in plan.decode])
        return self.compute(self.token_ids[:, None], [1] * len(slots), slots)

    def prefill(self, plan: StepPlan) -> Tensor:
        """The next piece of each row's text. Returns logits (R, V) of the rows that are done."""
        pieces = [tokens(request, start, end) for request, _, start, end in plan.prefill]
        input_ids = right_pad(pieces).to(self.model.device)
        slots = as_range([slot for _, slot, _, _ in plan.prefill])
        logits = self.compute(input_ids, [len(piece) for piece in pieces], slots)
        for slot, key in plan.saves:
            self.saved[key] = self.state.select([slot])
        ends = [end for _, _, _, end in plan.prefill]
        lengths = [request.num_tokens for request, _, _, _ in plan.prefill]
        done = [row for row, end in enumerate(ends) if end == lengths[row]]
        if len(done) == len(ends):
            return logits
        return logits[torch.tensor(done, dtype=torch.int64, device=logits.device)]

    def compute(self, input_ids: Tensor, num_tokens: list[int], slots: Sequence[int]) -> Tensor:
        batch = ForwardBatch.from_lengths(input_ids, num_tokens, self.state, slots)
        return self.model.compute(batch, last_only=True)

    def keep(self, token_ids: Tensor, requests: tuple[Request, ...]) -> None:
        """Keeps what was sampled on the device, as the input of the next decode."""
        self.token_ids = token_ids
        self.sampled = requests


def tokens(request: Request, start: int, end: int) -> list[int]:
    """A piece of the request's prompt and answer so far."""
    if end <= len(request.prompt):
        return request.prompt[start:end]
    return (request.prompt + request.token_ids)[start:end]


def as_range(slots: list[int]) -> Sequence[int]:
    """The slots, as a range where they stand together, which the model reads as a view."""
    together = range(slots[0], slots[0] + len(slots))
    return together if slots[-1] == together[-1] else slots
