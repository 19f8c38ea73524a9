"""What a step does, as a value: the scheduler makes it, the runner executes it, stats count it."""

from dataclasses import dataclass
from typing import NamedTuple

from qwenlab.engine.prefix import Prefix
from qwenlab.engine.request import Request


class Move(NamedTuple):
    """The content of a slot goes to another; all moves of a step happen at once."""

    source: int
    target: int


class Copy(NamedTuple):
    """A slot starts with the saved copy of a shared prefix."""

    prefix: Prefix
    slot: int


class Decode(NamedTuple):
    """A row of one token: the one that was sampled last."""

    request: Request
    slot: int


class Prefill(NamedTuple):
    """A row of tokens start..end-1 of the request's prompt and answer so far."""

    request: Request
    slot: int
    start: int
    end: int


class Save(NamedTuple):
    """After the prefill the slot holds exactly a shared prefix, of which a copy is kept."""

    slot: int
    prefix: Prefix


class HeldBack(NamedTuple):
    """A request that has a slot, but waits while another prefills a prefix that both share."""

    request: Request
    slot: int


class Event(NamedTuple):
    """What one slot did in one step.

    `kind` is "prefill" (of its prompt or a part of it), "decode", "wasted" (a finished row was
    still computed) or "idle" (an empty slot, `request` is None; or a request that is held back).
    """

    step: int
    slot: int
    request: int | None
    kind: str


@dataclass(frozen=True)
class StepPlan:
    """Which rows decode, which prefill, and what happens to the slots before and after that.

    From `moves` to `saves`, the fields are in the order in which the runner executes them.
    `sampled` lists the requests that get a token: those that decode, then those whose prefill
    reaches the end of their text. The rest is for events and counts.
    """

    slots: int
    moves: tuple[Move, ...] = ()
    resets: tuple[int, ...] = ()  # slots to empty
    copies: tuple[Copy, ...] = ()
    drops: tuple[Prefix, ...] = ()  # whose copies nobody needs any more
    decode: tuple[Decode, ...] = ()  # by slot
    prefill: tuple[Prefill, ...] = ()  # by slot
    saves: tuple[Save, ...] = ()
    sampled: tuple[Request, ...] = ()
    held_back: tuple[HeldBack, ...] = ()
    wasted: frozenset[int] = frozenset()  # slots of finished requests that still decode
    preempted: tuple[Request, ...] = ()

    @property
    def computes(self) -> bool:
        """Whether the model is called."""
        return bool(self.decode or self.prefill)

    @property
    def has_work(self) -> bool:
        """Whether the runner has anything to do. A save follows a prefill, so it needn't count."""
        return bool(self.computes or self.moves or self.resets or self.copies or self.drops)

    def prefill_widths(self) -> list[int]:
        """How many tokens each row prefills."""
        return [row.end - row.start for row in self.prefill]

    @property
    def prefill_tokens(self) -> int:
        return sum(self.prefill_widths())

    @property
    def padded_tokens(self) -> int:
        """Pads beside the prefill's real tokens, in one rectangle."""
        widths = self.prefill_widths()
        return len(widths) * max(widths, default=0) - sum(widths)

    def slot_kinds(self) -> list[tuple[int | None, str]]:
        """What each slot does: the request's index, or None, and an event's kind."""
        entries: list[tuple[int | None, str]] = [(None, "idle")] * self.slots
        for request, slot in self.held_back:
            entries[slot] = (request.index, "idle")
        for request, slot in self.decode:
            entries[slot] = (request.index, "wasted" if slot in self.wasted else "decode")
        for row in self.prefill:
            entries[row.slot] = (row.request.index, "prefill")
        return entries
