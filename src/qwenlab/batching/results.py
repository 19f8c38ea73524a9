"""What a run gives back: the answers in the order asked, and what it cost."""

from collections import Counter
from collections.abc import Iterator, MutableSequence, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from qwenlab.batching.request import Request


class Event(NamedTuple):
    """What one slot did in one step: `kind` is "prefill" (read its prompt or a part of it), "decode", "wasted" (a
    finished row was still computed) or "idle" (nobody there, `request` is None; or waiting for a shared beginning)."""

    step: int
    slot: int
    request: int | None
    kind: str


@dataclass
class Stats:
    """The cost of one call, or of an engine so far. Seconds are wall time; tokens count what was sampled, stop ids
    included. The seconds of steps that only read, that only decode and that do both are counted apart."""

    prompts: int = 0
    requests: int = 0  # n a prompt
    finished: int = 0
    preempted: int = 0  # how often a request lost its slot to the token budget
    sampled_tokens: int = 0
    seconds: float = 0.0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    mixed_seconds: float = 0.0
    prefill_tokens: int = 0  # real tokens read: prompts, and after a preemption what was said before it
    padded_tokens: int = 0  # pads that stood beside them
    steps: MutableSequence[list[tuple[int | None, str]]] = field(default_factory=list, repr=False)
    step_count: int = 0  # an engine keeps the last of its steps only
    kinds: Counter[str] = field(default_factory=Counter, repr=False)  # of all steps

    def note(self, step: list[tuple[int | None, str]]) -> None:
        """What each slot did in a step: (request or None, kind)."""
        self.steps.append(step)
        self.step_count += 1
        self.kinds.update([kind for _, kind in step])

    def took(self, seconds: float, reads: bool, decodes: bool) -> None:
        """How long a step took."""
        self.seconds += seconds
        if reads and decodes:
            self.mixed_seconds += seconds
        elif reads:
            self.prefill_seconds += seconds
        else:
            self.decode_seconds += seconds

    @property
    def tokens_per_second(self) -> float:
        return self.sampled_tokens / self.seconds if self.seconds else 0.0

    @property
    def requests_per_second(self) -> float:
        return self.requests / self.seconds if self.seconds else 0.0

    @property
    def padded_ratio(self) -> float:
        """Share of the prefill rectangles that was padding."""
        return self.padded_tokens / max(1, self.padded_tokens + self.prefill_tokens)

    @property
    def events(self) -> list[Event]:
        """One entry a step and slot."""
        steps = enumerate(self.steps, self.step_count - len(self.steps))
        return [Event(step, slot, *entry) for step, slots in steps for slot, entry in enumerate(slots)]

    @property
    def row_steps(self) -> dict[str, int]:
        """Slots times steps by use: "real" (prefill and decode), "wasted", "idle"."""
        kinds = self.kinds
        return {"real": kinds["prefill"] + kinds["decode"], "wasted": kinds["wasted"], "idle": kinds["idle"]}


class Result(Sequence[Request]):
    """The finished requests: sample k of prompt i is `result[i * n + k]`. `stats` tells the cost."""

    def __init__(self, requests: list[Request], stats: Stats):
        self._requests = requests
        self.stats = stats

    def __getitem__(self, index):
        return self._requests[index]

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    @property
    def token_ids(self) -> list[list[int]]:
        return [request.token_ids for request in self._requests]
