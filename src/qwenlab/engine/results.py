"""What a run returns: the answers in the order of the prompts, and what they cost."""

from collections import Counter
from collections.abc import Iterator, MutableSequence, Sequence
from dataclasses import dataclass, field

from qwenlab.engine.request import RequestOutput
from qwenlab.engine.step_plan import Event, StepPlan

__all__ = ["Event", "Result", "Stats"]


@dataclass
class Stats:
    """The cost of one call, or of an engine so far, counted from the plans of its steps.

    Seconds are wall time; steps that only prefill, only decode, or do both are counted apart.
    `sampled_tokens` includes stop ids.
    """

    prompts: int = 0
    requests: int = 0  # n per prompt
    finished: int = 0
    preempted: int = 0  # how often a request lost its slot to the token budget
    sampled_tokens: int = 0
    seconds: float = 0.0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    mixed_seconds: float = 0.0
    prefill_tokens: int = 0  # real ones: prompts, and after a preemption the answer so far
    padded_tokens: int = 0  # pads computed beside them
    plans: MutableSequence[StepPlan] = field(default_factory=list, repr=False)
    step_count: int = 0  # an engine keeps the plans of its last steps only
    kinds: Counter[str] = field(default_factory=Counter, repr=False)  # slots times steps, by use

    def record(self, plan: StepPlan, seconds: float) -> None:
        """Counts one step by its plan, and how long it took."""
        self.preempted += len(plan.preempted)
        if not plan.computes:
            return
        self.plans.append(plan)
        self.step_count += 1
        self.prefill_tokens += plan.prefill_tokens
        self.padded_tokens += plan.padded_tokens
        self.kinds["prefill"] += len(plan.prefill)
        self.kinds["decode"] += len(plan.decode) - len(plan.wasted)
        self.kinds["wasted"] += len(plan.wasted)
        self.kinds["idle"] += plan.slots - len(plan.prefill) - len(plan.decode)
        self.seconds += seconds
        if plan.prefill and plan.decode:
            self.mixed_seconds += seconds
        elif plan.prefill:
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
        """The share of the prefill rectangles that was padding."""
        return self.padded_tokens / max(1, self.padded_tokens + self.prefill_tokens)

    @property
    def steps(self) -> list[list[tuple[int | None, str]]]:
        """What each slot did, step by step: (request or None, kind)."""
        return [plan.slot_kinds() for plan in self.plans]

    @property
    def events(self) -> list[Event]:
        """One entry per step and slot."""
        events = []
        first = self.step_count - len(self.plans)
        for step, kinds in enumerate(self.steps, first):
            for slot, (request, kind) in enumerate(kinds):
                events.append(Event(step, slot, request, kind))
        return events

    @property
    def row_steps(self) -> dict[str, int]:
        """Slots times steps by use: "real" (prefill and decode), "wasted", "idle"."""
        kinds = self.kinds
        real = kinds["prefill"] + kinds["decode"]
        return {"real": real, "wasted": kinds["wasted"], "idle": kinds["idle"]}


class Result(Sequence[RequestOutput]):
    """The finished answers: sample k of prompt i is `result[i * n + k]`. `stats` is the cost."""

    def __init__(self, outputs: Sequence[RequestOutput], stats: Stats) -> None:
        self._outputs = outputs
        self.stats = stats

    def __getitem__(self, index: int | slice) -> RequestOutput | Sequence[RequestOutput]:
        return self._outputs[index]

    def __len__(self) -> int:
        return len(self._outputs)

    def __iter__(self) -> Iterator[RequestOutput]:
        return iter(self._outputs)

    @property
    def token_ids(self) -> list[list[int]]:
        return [output.token_ids for output in self._outputs]
