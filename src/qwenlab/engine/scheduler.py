"""Who runs, and in which slot. Pure Python: no tensor, no model, every decision of the engine.

A step is planned by `schedule`, carried out by somebody else, and taken back by `update`. A plan
that never comes back was interrupted: then nobody knows what the slots hold, and the next
`schedule` preempts everybody first.
"""

from collections import deque
from dataclasses import dataclass
from time import perf_counter

from qwenlab.engine.prefix import Prefix, claim_reading, leave_all, longest_saved
from qwenlab.engine.request import Request
from qwenlab.engine.slots import assign_slots, pin_slots
from qwenlab.engine.step_plan import StepPlan


@dataclass(frozen=True)
class Policy:
    """`leave`: a finished request frees its slot at once. `join`: a waiting one takes it at once.
    `most`: slots at once, whatever was asked for."""

    leave: bool
    join: bool = False
    most: int | None = None


POLICIES = {
    "sequential": Policy(leave=True, most=1),  # one by one: what the others are compared with
    "static": Policy(leave=False),  # a batch runs until its longest answer ends
    "early-stop": Policy(leave=True),  # finished requests leave, the batch shrinks
    "continuous": Policy(leave=True, join=True),  # and waiting ones take the free slots
}


class Scheduler:
    """Requests wait in order of arrival, run in a slot, and finish.

    `running` lists those with a slot in order of their slots: first those that decode, then those
    that still prefill. They hold slots 0..R-1, so that the model reads the state as a view. With
    `pinned` a request's slot is its index instead; it keeps it, and leaves it as it is. A slot
    reads at most `chunk` tokens of a prompt per step. `token_budget`: see Engine.
    """

    def __init__(
        self,
        slots: int,
        strategy: str = "continuous",
        token_budget: int | None = None,
        chunk: int = 256,
        pinned: bool = False,
    ) -> None:
        self.policy = POLICIES[strategy]
        self.slots = slots
        self.token_budget = token_budget
        self.chunk = chunk
        self.pinned = pinned
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.decoding: tuple[tuple[Request, int], ...] = ()  # the first of `running`, with slots
        self.resets: set[int] = set()  # slots that hold what nobody needs
        self.saved: dict[int, Prefix] = {}  # prefixes of which the runner keeps a copy, by key
        # What `update` changed, until the engine has reported it: how many tokens each had before.
        self.unreported: dict[Request, int] = {}
        self.num_arrived = 0
        self.in_flight = False  # a plan is out
        self.regroup = False  # slots must be given out anew

    @property
    def num_finished(self) -> int:
        running = sum(request.finish_reason is None for request in self.running)
        return self.num_arrived - len(self.waiting) - running

    def num_unreported(self) -> int:
        """How many tokens were sampled since the last report."""
        return sum(len(request.logprobs) - had for request, had in self.unreported.items())

    def has_unfinished(self) -> bool:
        """Whether another step has anything to do for a request."""
        if self.in_flight or self.unreported or self.waiting:
            return True
        return any(request.finish_reason is None for request in self.running)

    # --- Requests come and go ----------------------------------------------------------------

    def add(self, request: Request, num_computed_tokens: int = 0) -> None:
        """Queues a request, of which a pinned slot may hold the first tokens already."""
        if self.pinned and num_computed_tokens == 0:
            self.resets.add(request.index)
        request.arrival = self.num_arrived
        request.arrival_s = perf_counter()
        request.num_computed_tokens = num_computed_tokens
        if request.max_tokens == 0:
            self.finish(request, "length")
        else:
            self.waiting.append(request)
        self.num_arrived += 1

    def finish(self, request: Request, reason: str, error: str | None = None) -> None:
        """Ends a request. Its slot is freed by the next step, as the strategy has it."""
        leave_all(request)
        self.regroup = True
        request.error = error and f"request {request.index}: {error}"
        request.seconds = perf_counter() - request.arrival_s
        request.finish_reason = reason
        if request.slot is None and request in self.waiting:
            self.waiting.remove(request)

    # --- A step ------------------------------------------------------------------------------

    def schedule(self) -> StepPlan:
        """The next step: who decodes, who prefills, and what happens to the slots before that."""
        if self.in_flight:
            self.preempt_all()
        self.in_flight = True
        self.free_finished()
        preempted = self.preempt_over_budget()
        self.admit()
        moves = self.assign() if self.regroup else ()
        return self.plan(moves, preempted)

    def free_finished(self) -> None:
        if not self.regroup:
            return
        finished = [r for r in self.running if r.finish_reason is not None]
        if self.policy.leave or len(finished) == len(self.running):
            for request in finished:
                self.free(request, reset=not self.pinned)
            self.running = [r for r in self.running if r.slot is not None]

    def preempt_over_budget(self) -> tuple[Request, ...]:
        """Preempts the youngest until the others can have a token each. One alone always can."""
        preempted = []
        while len(self.running) > 1 and not self.within_budget(self.running):
            youngest = max(self.running, key=lambda request: request.arrival)
            self.preempt(youngest)
            preempted.append(youngest)
        return tuple(preempted)

    def admit(self) -> None:
        """Gives slots to waiting requests, strictly in order: a long one is never overtaken."""
        if self.running and not self.policy.join:
            return
        while self.waiting and len(self.running) < self.slots:
            request = self.waiting[0]
            if request.finish_reason is not None:  # whoever cancelled it was interrupted
                self.waiting.popleft()
                continue
            if not self.within_budget([*self.running, request]):
                return
            self.running.append(request)  # first, so that at every moment it is in one or both
            self.waiting.popleft()
            self.regroup = True

    def within_budget(self, requests: list[Request]) -> bool:
        """Whether the requests fit once each has one more token."""
        if self.token_budget is None:
            return True
        return sum(r.num_tokens + 1 for r in requests) <= self.token_budget

    def preempt(self, request: Request) -> None:
        """Back to the head of the queue; prompt and answer so far will be read again."""
        self.waiting.appendleft(request)
        leave_all(request)
        self.free(request, reset=True)
        self.running.remove(request)

    def free(self, request: Request, reset: bool) -> None:
        """Takes the request's slot, and what it holds."""
        if reset:
            self.resets.add(request.slot)
        request.slot = None
        request.num_computed_tokens = 0
        request.decoding = False
        self.regroup = True

    def assign(self) -> tuple[tuple[int, int], ...]:
        """Gives out the slots anew. Returns the moves."""
        moves: dict[int, int] = {}
        if self.pinned:
            self.running = pin_slots(self.running)
        else:
            self.running, moves = assign_slots(self.running)
        self.resets = (self.resets | moves.keys()) - set(moves.values())
        self.decoding = tuple((r, r.slot) for r in self.running if r.decoding)
        self.regroup = False
        return tuple(moves.items())

    def plan(self, moves: tuple, preempted: tuple) -> StepPlan:
        """The step of those who run, each in its slot."""
        copies = []
        prefill = []
        saves = []
        held_back = []
        for request in self.running[len(self.decoding) :]:
            if request.finish_reason is not None:  # cancelled before it had read its prompt
                continue
            if request.num_computed_tokens == 0 and not claim_reading(request):
                held_back.append((request, request.slot))
                continue
            if request.num_computed_tokens == 0 and (prefix := longest_saved(request)):
                copies.append((prefix.key, request.slot))
                self.has_read(request, prefix.length)
            start = request.num_computed_tokens
            end = min(start + self.chunk, request.num_tokens)
            if request.prefixes:
                end = min(end, *(prefix.length for prefix in request.prefixes))
            prefill.append((request, request.slot, start, end))
            saves += [(request.slot, p.key) for p in request.prefixes if worth_saving(p, end)]
        read = [request for request, _, _, end in prefill if end == request.num_tokens]
        wasted = frozenset()
        if not self.policy.leave:
            wasted = frozenset(slot for r, slot in self.decoding if r.finish_reason)
        return StepPlan(
            slots=self.slots,
            moves=moves,
            resets=tuple(sorted(self.resets)),
            copies=tuple(copies),
            drops=tuple(key for key, prefix in self.saved.items() if not prefix.users),
            decode=self.decoding,
            prefill=tuple(prefill),
            saves=tuple(saves),
            sampled=(*(request for request, _ in self.decoding), *read),
            held_back=tuple(held_back),
            wasted=wasted,
            preempted=preempted,
        )

    def has_read(self, request: Request, num_tokens: int) -> None:
        request.num_computed_tokens = num_tokens
        for prefix in [p for p in request.prefixes if p.length <= num_tokens]:
            prefix.leave(request)

    # --- Its outcome -------------------------------------------------------------------------

    def update(self, plan: StepPlan, tokens: list[int], logprobs: list[float]) -> list[Request]:
        """Takes a plan back with what was sampled. Returns the requests whose output changed."""
        now = perf_counter()
        for request, _ in plan.decode:
            request.num_computed_tokens += 1
        saved = {key for _, key in plan.saves}
        for request, _, _, end in plan.prefill:
            for prefix in request.prefixes:
                if prefix.key in saved:
                    prefix.saved = True
                    self.saved[prefix.key] = prefix
            self.has_read(request, end)
            if end == request.num_tokens:
                request.decoding = True
                self.regroup = True
        for request, token_id, logprob in zip(plan.sampled, tokens, logprobs, strict=True):
            if request.finish_reason is None:
                self.take_token(request, token_id, logprob, now)
        self.resets.difference_update(plan.resets)
        for key in plan.drops:
            self.saved.pop(key, None)
        self.in_flight = False
        return list(self.unreported)

    def take_token(self, request: Request, token_id: int, logprob: float, now: float) -> None:
        """One sampled token, which may end the answer."""
        self.unreported.setdefault(request, len(request.logprobs))
        if logprob != logprob:  # NaN
            after = f"after {len(request.token_ids)} new tokens"
            self.finish(request, "error", f"its logits are NaN {after}")
            return
        if request.first_token_s is None:
            request.first_token_s = now - request.arrival_s
        request.logprobs.append(logprob)
        if token_id in request.stop_ids:
            request.stop_id = token_id
            self.finish(request, "stop")
            return
        request.token_ids.append(token_id)
        if len(request.token_ids) == request.max_tokens:
            self.finish(request, "length")

    # --- After an interruption ---------------------------------------------------------------

    def preempt_all(self) -> None:
        """Everybody back to the queue, in order of arrival, with the tokens that were taken whole.

        It may be interrupted itself, and is then done once more: at every moment each unfinished
        request is in `waiting` or in `running`.
        """
        if self.pinned:
            self.resets.update(request.index for request in self.running)
        else:
            self.resets.update(range(self.slots))
        everybody = {*self.running, *self.waiting}
        for request in everybody.intersection(self.running):
            leave_all(request)
            self.free(request, reset=False)
            request.take_back()
        unfinished = [r for r in everybody if r.finish_reason is None]
        self.waiting = deque(sorted(unfinished, key=lambda request: request.arrival))
        self.running = []
        self.decoding = ()
        self.in_flight = False

    def resize(self, slots: int) -> None:
        """Goes on with so many new, empty slots: everybody is preempted."""
        self.preempt_all()
        self.slots = slots
        self.resets = set()  # the new slots are empty
        for prefix in self.saved.values():
            prefix.saved = False
        self.saved = {}


def worth_saving(prefix: Prefix, num_tokens: int) -> bool:
    """Whether a slot with so many tokens holds exactly the prefix, and others wait for it."""
    return prefix.length == num_tokens and not prefix.saved and len(prefix.users) > 1
