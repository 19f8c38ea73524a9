"""The rows of a state at work: whoever decodes says one token a step, whoever reads takes in a part of its text.

That is two passes a step, not one. In a single rectangle every decoding row would be as wide as the part that is read,
and what the model computes is the rectangle, pads included.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from qwenlab.batching.padding import left_pad
from qwenlab.batching.prefix import keep, may_start, source
from qwenlab.batching.request import Request
from qwenlab.batching.results import Stats
from qwenlab.batching.scheduler import Scheduler
from qwenlab.model.state import State


class Rows:
    """`slots` rows of a state, made when the first request comes, or a `state` of the caller's, in which a row holds
    the beginning of its request's prompt already."""

    def __init__(self, model, slots: int, chunk: int, state: State | None):
        self.model, self.slots, self.chunk, self.state = model, slots, chunk, state
        self.own = state is None
        self.ids: Tensor | None = None  # (N,) what was said last ...
        self.sayers: list[Request] = []  # ... by these

    def settle(self, scheduler: Scheduler) -> None:
        """Moves the rows that must move, and empties those whose request has gone."""
        moves, dirty = scheduler.schedule(), scheduler.dirty
        if self.state is None and scheduler.running:
            self.state = self.model.new_state(self.slots)
        if moves:
            self.state.move(list(moves), list(moves.values()))
        if dirty and self.state is not None:
            self.state.reset(sorted(dirty))
            dirty.clear()

    def decode(self, requests: list[Request]) -> Tensor:
        """Gives each row the id it said last. Logits (D, V)."""
        if requests != self.sayers:
            place = {request: i for i, request in enumerate(self.sayers)}
            order = torch.tensor([place[request] for request in requests], device=self.ids.device)
            self.ids, self.sayers = self.ids[order], requests
        return self.model(self.ids[:, None], state=self.state, rows=span(requests), last_only=True)

    def parts(self, reading: list[Request]) -> list[tuple[Request, int]]:
        """Who reads in this step, and up to which token: a chunk, or less where a shared beginning or the text ends."""
        able, copies = [], {}
        for request in reading:
            if request.read == 0:
                if not self.own:
                    request.read = int(self.state.lengths[request.row])
                if not may_start(request):
                    continue
                if prefix := source(request):
                    copies.setdefault(prefix, []).append(request)
            able.append(request)
        for prefix, requests in copies.items():
            self.state.put([request.row for request in requests], prefix.state)
            for request in requests:
                request.read = prefix.length
                keep(request, self.state)
        return [(r, min([r.read + self.chunk, r.size, *(prefix.length for prefix in r.prefixes)])) for r in able]

    def read(self, parts: list[tuple[Request, int]], stats: Stats) -> tuple[Tensor, list[Request]]:
        """Reads a part of each text. Logits (F, V) of the requests that are done with reading, and those."""
        requests = [request for request, _ in parts]
        pieces = [(request.prompt + request.token_ids)[request.read : end] for request, end in parts]
        input_ids, attention_mask = left_pad(pieces, pad_id=0)
        real = sum(map(len, pieces))
        pads = input_ids.numel() - real
        stats.prefill_tokens += real
        stats.padded_tokens += pads
        mask = attention_mask if pads else None  # to look at a mask the host would wait for the device
        logits = self.model(input_ids, mask, self.state, rows=span(requests), last_only=True)
        for request, end in parts:
            request.read = end
            request.decoding = end == request.size
            keep(request, self.state)
        ready = [i for i, request in enumerate(requests) if request.decoding]
        if len(ready) < len(requests):
            logits = logits[torch.tensor(ready, dtype=torch.int64, device=logits.device)]
        return logits, [requests[i] for i in ready]


def span(requests: list[Request]) -> Sequence[int]:
    """Their rows, in order: as a range, which the model reads as a view, where they stand together."""
    rows = range(requests[0].row, requests[-1].row + 1)
    return rows if len(rows) == len(requests) else [request.row for request in requests]
