"""What a step does, as a value: the scheduler makes it, the runner executes it, stats count it."""

from dataclasses import dataclass
from typing import NamedTuple

from qwenlab.engine.request import Request


class Event(NamedTuple):
    """What one slot did in one step.

    `kind` is "prefill" (read its prompt or a part of it), "decode", "wasted" (a finished row was
    still computed) or "idle" (nobody there, `request` is None; or waiting for a shared prefix).
    """

    step: int
    slot: int
    request: int | None
    kind: str


@dataclass(frozen=True)
class StepPlan:
    """Who decodes, who reads which tokens, and what must be moved, emptied and copied before that.

    From `moves` to `saves`, the fields are in the order in which the runner goes through them.
    `sampled` lists the requests that get a token by this step: those that decode, then those that
    have read their whole text. The rest is for events and counts.
    """

    slots: int
    moves: tuple[tuple[int, int], ...] = ()  # (from slot, to slot), all at once
    resets: tuple[int, ...] = ()  # slots to empty
    copies: tuple[tuple[int, int], ...] = ()  # (prefix key, slot it is copied to)
    drops: tuple[int, ...] = ()  # keys of prefixes that nobody needs any more
    decode: tuple[tuple[Request, int], ...] = ()  # (request, slot), by slot
    prefill: tuple[tuple[Request, int, int, int], ...] = ()  # (request, slot, start, end), by slot
    saves: tuple[tuple[int, int], ...] = ()  # (slot, prefix key): a copy to keep after the prefill
    sampled: tuple[Request, ...] = ()
    held_back: tuple[tuple[Request, int], ...] = ()  # in a slot, while another reads their prefix
    wasted: frozenset[int] = frozenset()  # slots of finished requests that still decode
    preempted: tuple[Request, ...] = ()

    @property
    def computes(self) -> bool:
        """Whether the model is called."""
        return bool(self.decode or self.prefill)

    def __bool__(self) -> bool:
        return bool(self.computes or self.moves or self.resets or self.copies or self.drops)

    @property
    def prefill_tokens(self) -> int:
        return sum(end - start for _, _, start, end in self.prefill)

    @property
    def padded_tokens(self) -> int:
        """Pads beside the prefill's real tokens, in one rectangle."""
        widths = [end - start for _, _, start, end in self.prefill]
        return len(widths) * max(widths, default=0) - sum(widths)

    def kinds(self) -> list[tuple[int | None, str]]:
        """What each slot does: the request's index, or None, and an event's kind."""
        entries: list[tuple[int | None, str]] = [(None, "idle")] * self.slots
        for request, slot in self.held_back:
            entries[slot] = (request.index, "idle")
        for request, slot in self.decode:
            entries[slot] = (request.index, "wasted" if slot in self.wasted else "decode")
        for request, slot, _, _ in self.prefill:
            entries[slot] = (request.index, "prefill")
        return entries
