"""What a run gives back: the answers in the order asked, and what it cost."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from qwenlab.batching.request import Request


class Event(NamedTuple):
    """What one slot did in one step: `kind` is "prefill", "decode", "wasted" (a finished row still computed)
    or "idle" (nobody there; `request` is None)."""

    step: int
    slot: int
    request: int | None
    kind: str


@dataclass
class Stats:
    """The cost of one call. Seconds are wall time; tokens count what was sampled, stop ids included."""

    prompts: int = 0
    requests: int = 0  # n a prompt
    sampled_tokens: int = 0
    seconds: float = 0.0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    prefill_tokens: int = 0  # real prompt tokens read
    padded_tokens: int = 0  # pads that stood beside them
    steps: list[list[tuple[int | None, str]]] = field(default_factory=list, repr=False)

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
        return [Event(step, slot, *entry) for step, slots in enumerate(self.steps) for slot, entry in enumerate(slots)]

    @property
    def row_steps(self) -> dict[str, int]:
        """Slots times steps by use: "real" (prefill and decode), "wasted", "idle"."""
        kinds = Counter(kind for slots in self.steps for _, kind in slots)
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
