"""Who runs, and in which slot. Pure Python, without tensors or the model.

The scheduler makes every decision of the engine.

`schedule` moves requests between the waiting queue and the slots, and plans a step; the runner
executes the plan; `update` takes it back with the sampled tokens. Only `update` records progress:
what was prefilled, sampled and saved. If a plan never comes back, its step was interrupted, and
because nobody knows what the slots hold, the next `schedule` preempts every request first.
"""

from collections import deque
from dataclasses import dataclass
from math import isnan
from time import perf_counter

from qwenlab.engine.prefix import (
    Prefix,
    is_held_back,
    leave_all,
    leave_held,
    longer_than,
    longest_saved,
    prefill_end,
    worth_saving,
)
from qwenlab.engine.request import Request
from qwenlab.engine.slots import assign_slots, pin_slots
from qwenlab.engine.step_plan import Copy, Decode, HeldBack, Move, Prefill, Save, StepPlan


@dataclass(frozen=True)
class Policy:
    """What a strategy lets requests do."""

    frees_slots_early: bool  # a finished request frees its slot while others still run
    admits_while_running: bool = False  # a waiting request takes a free slot while others still run
    max_slots: int | None = None  # whatever was asked for


POLICIES = {
    # One by one: what the others are compared with.
    "sequential": Policy(frees_slots_early=True, max_slots=1),
    # A batch runs until its longest answer ends.
    "static": Policy(frees_slots_early=False),
    # Finished requests leave, so the batch shrinks.
    "early-stop": Policy(frees_slots_early=True),
    # And waiting requests take the free slots.
    "continuous": Policy(frees_slots_early=True, admits_while_running=True),
}


def policy_of(strategy: str) -> Policy:
    """Raises ValueError for a strategy that is not known."""
    if strategy not in POLICIES:
        raise ValueError(f"strategy is {strategy!r}, expected one of {', '.join(POLICIES)}")
    return POLICIES[strategy]


class Scheduler:
    """Requests wait in order of arrival, run in a slot (a place in the state), and finish.

    - `free_finished` takes the slots of finished requests away.
    - `preempt_over_budget` sends the youngest back to the queue.
    - `admit` picks the next requests.
    - `assign` decides who decodes, and who gets which slot.
    - `plan` decides who prefills which tokens.
    - `take_token` decides when an answer ends.

    `running` lists the requests in slots 0..R-1, in that order: first those that decode, then those
    that still prefill, so that each kind reads its part of the state as a view. If `pinned`, a
    request's slot is its index instead, and keeps what it holds when the request finishes. A slot
    prefills at most `chunk` tokens per step. `token_budget`: see Engine.
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
        self.decoding: tuple[Decode, ...] = ()  # the first of `running`
        self.resets: set[int] = set()  # slots whose content nobody needs
        self.saved: set[Prefix] = set()  # prefixes of which the runner keeps a copy
        # Requests that `update` changed and the engine has yet to report: tokens each had before.
        self.unreported: dict[Request, int] = {}
        self.num_arrived = 0
        self.in_flight = False  # True from `schedule` until `update` takes the plan back
        self.regroup = False  # True when slots must be assigned anew, as `running` has changed

    @property
    def num_unfinished(self) -> int:
        """How many requests wait or run."""
        unfinished = [r for r in self.running if r.finish_reason is None]
        return len(self.waiting) + len(unfinished)

    @property
    def num_finished(self) -> int:
        return self.num_arrived - self.num_unfinished

    @property
    def num_unreported_tokens(self) -> int:
        """How many tokens were sampled since the last report."""
        sampled = 0
        for request, before in self.unreported.items():
            sampled += len(request.logprobs) - before
        return sampled

    def has_unfinished(self) -> bool:
        """Whether another step has anything to do for a request."""
        return bool(self.in_flight or self.unreported or self.num_unfinished)

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
        """Ends a request. The next step frees its slot, if the strategy lets it leave."""
        leave_all(request)
        self.regroup = True
        request.error = None if error is None else f"request {request.index}: {error}"
        request.seconds = perf_counter() - request.arrival_s
        request.finish_reason = reason
        if request.slot is None and request in self.waiting:
            self.waiting.remove(request)

    # --- A step ------------------------------------------------------------------------------

    def schedule(self) -> StepPlan:
        """Plans the next step: who decodes, who prefills, and what happens to the slots before."""
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
        if self.policy.frees_slots_early or len(finished) == len(self.running):
            for request in finished:
                self.free(request, reset=not self.pinned)
            self.running = [r for r in self.running if r.slot is not None]

    def preempt_over_budget(self) -> tuple[Request, ...]:
        """Preempts the youngest until the others fit the budget. A single request always does."""
        preempted = []
        while len(self.running) > 1 and not self.within_budget(self.running):
            youngest = max(self.running, key=lambda request: request.arrival)
            self.preempt(youngest)
            preempted.append(youngest)
        return tuple(preempted)

    def admit(self) -> None:
        """Admits waiting requests strictly in order: no request overtakes a long one."""
        if self.running and not self.policy.admits_while_running:
            return
        while self.waiting and len(self.running) < self.slots:
            request = self.waiting[0]
            if request.finish_reason is not None:  # an exception interrupted `finish`
                self.waiting.popleft()
                continue
            if not self.within_budget([*self.running, request]):
                return
            self.running.append(request)  # first, so that at every moment it is in one or both
            self.waiting.popleft()
            self.regroup = True

    def within_budget(self, requests: list[Request]) -> bool:
        """Whether the requests fit the budget once each has one more token."""
        if self.token_budget is None:
            return True
        return sum(r.num_tokens + 1 for r in requests) <= self.token_budget

    def preempt(self, request: Request) -> None:
        """Back to the head of the queue: its prompt and answer so far will be prefilled again."""
        self.waiting.appendleft(request)
        leave_all(request)
        self.free(request, reset=True)
        self.running.remove(request)

    def free(self, request: Request, reset: bool) -> None:
        """Takes the slot away from a request, and, with `reset`, empties it."""
        if reset:
            self.resets.add(request.slot)
        request.slot = None
        request.num_computed_tokens = 0
        request.decoding = False
        self.regroup = True

    def assign(self) -> tuple[Move, ...]:
        """Assigns the slots anew. Returns the moves that this takes."""
        moves: list[Move] = []
        if self.pinned:
            self.running = pin_slots(self.running)
        else:
            self.running, moves = assign_slots(self.running)
        self.resets.update(move.source for move in moves)
        self.resets.difference_update(move.target for move in moves)
        self.decoding = tuple(Decode(r, r.slot) for r in self.running if r.decoding)
        self.regroup = False
        return tuple(moves)

    def plan(self, moves: tuple[Move, ...], preempted: tuple[Request, ...]) -> StepPlan:
        """What the running requests do, each in its slot. Changes nothing."""
        copies = []
        prefill = []
        saves = []
        held_back = []
        sampled = [request for request, _ in self.decoding]
        prefilling = self.running[len(self.decoding) :]
        # A request that shares a prefix which another is prefilling waits for its copy.
        being_prefilled: set[Prefix] = set()
        for request in prefilling:
            if request.num_computed_tokens > 0:
                being_prefilled.update(request.prefixes)
        for request in prefilling:
            if request.finish_reason is not None:  # cancelled during its prefill
                continue
            start = request.num_computed_tokens
            if start == 0:
                if is_held_back(request, self.saved, being_prefilled):
                    held_back.append(HeldBack(request, request.slot))
                    continue
                prefix = longest_saved(request, self.saved)
                if prefix is not None:
                    copies.append(Copy(prefix, request.slot))
                    start = prefix.length
            being_prefilled.update(longer_than(request, start))
            end = prefill_end(request, start, self.chunk)
            prefill.append(Prefill(request, request.slot, start, end))
            if end == request.num_tokens:
                sampled.append(request)
            for prefix in worth_saving(request, end, self.saved):
                saves.append(Save(request.slot, prefix))
        return StepPlan(
            slots=self.slots,
            moves=moves,
            resets=tuple(sorted(self.resets)),
            copies=tuple(copies),
            drops=tuple(prefix for prefix in self.saved if not prefix.users),
            decode=self.decoding,
            prefill=tuple(prefill),
            saves=tuple(saves),
            sampled=tuple(sampled),
            held_back=tuple(held_back),
            wasted=frozenset(slot for request, slot in self.decoding if request.finish_reason),
            preempted=preempted,
        )

    # --- Its outcome -------------------------------------------------------------------------

    def update(self, plan: StepPlan, tokens: list[int], logprobs: list[float]) -> list[Request]:
        """Takes a plan back with what was sampled. Returns the requests whose output changed."""
        now = perf_counter()
        for request, _ in plan.decode:
            request.num_computed_tokens += 1
        for request, _, _, end in plan.prefill:
            request.num_computed_tokens = end
            leave_held(request)
            if end == request.num_tokens:
                request.decoding = True
                self.regroup = True
        for request, token_id, logprob in zip(plan.sampled, tokens, logprobs, strict=True):
            if request.finish_reason is None:
                self.take_token(request, token_id, logprob, now)
        for _, prefix in plan.saves:
            self.saved.add(prefix)
        self.saved.difference_update(plan.drops)
        self.resets.difference_update(plan.resets)
        self.in_flight = False
        return list(self.unreported)

    def take_token(self, request: Request, token_id: int, logprob: float, now: float) -> None:
        """Records one sampled token, which may end the answer. A stop id isn't a part of it."""
        self.unreported.setdefault(request, len(request.logprobs))
        if isnan(logprob):
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
        if request.on_token is not None:
            request.undelivered.append(len(request.token_ids))
        request.token_ids.append(token_id)
        if len(request.token_ids) == request.max_tokens:
            self.finish(request, "length")

    # --- After an interruption ---------------------------------------------------------------

    def preempt_all(self) -> None:
        """Every request back to the queue, in order of arrival, with its fully recorded tokens.

        It can be interrupted and run again, because at every moment each unfinished request is in
        `waiting` or in `running`.
        """
        if self.pinned:
            self.resets.update(request.index for request in self.running)
        else:
            self.resets.update(range(self.slots))
        for request in self.running:
            leave_all(request)
            self.free(request, reset=False)
            request.drop_partial_token()
        everybody = {*self.running, *self.waiting}  # an interrupted `admit` leaves one in both
        unfinished = [r for r in everybody if r.finish_reason is None]
        self.waiting = deque(sorted(unfinished, key=lambda request: request.arrival))
        self.running = []
        self.decoding = ()
        self.in_flight = False

    def resize(self, slots: int) -> None:
        """Continues with this many new, empty slots: every request is preempted."""
        self.preempt_all()
        self.slots = slots
        self.resets = set()
        self.saved = set()
