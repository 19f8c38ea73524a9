"""The scheduler by itself, no model, no tensor: its plans are carried out on lists of ids."""

import random

import pytest
from helpers import count

from qwenlab.engine.prefix import Prefix, share
from qwenlab.engine.request import Request, SamplingParams
from qwenlab.engine.scheduler import POLICIES, Scheduler

STOP = 0


def answer(prompt: list[int], place: int, seed: int) -> int:
    """What a model would say: it follows from the prompt, the place and the request's seed."""
    return random.Random(f"{prompt} {place} {seed}").randrange(12)


def alone(request: Request) -> tuple[list[int], str]:
    """The whole answer of a request, and how it ends."""
    ids = []
    for place in range(request.max_tokens):
        token_id = answer(request.prompt, place, request.params.seed)
        if token_id == STOP:
            return ids, "stop"
        ids.append(token_id)
    return ids, "length"


class Slots:
    """What a runner would hold: the ids that each slot has read, and copies of shared prefixes."""

    def __init__(self, slots: int) -> None:
        self.held: list[list[int] | None] = [[] for _ in range(slots)]  # None: nobody knows
        self.saved: dict[Prefix, list[int]] = {}

    def execute(self, plan) -> None:
        before = list(self.held)
        for source, target in plan.moves:
            self.held[target] = before[source]
        for slot in plan.resets:
            self.held[slot] = []
        for prefix, slot in plan.copies:
            assert self.held[slot] == []
            self.held[slot] = list(self.saved[prefix])
        for prefix in plan.drops:
            del self.saved[prefix]
        for request, slot in plan.decode:
            self.held[slot] = [*self.held[slot], (request.prompt + request.token_ids)[-1]]
        for request, slot, start, end in plan.prefill:
            text = request.prompt + request.token_ids
            assert self.held[slot] == text[:start] and start < end <= len(text)
            self.held[slot] = text[:end]
        for slot, prefix in plan.saves:
            self.saved[prefix] = list(self.held[slot])

    def forget(self) -> None:
        self.held = [None] * len(self.held)


class Script:
    """Requests that arrive, are cancelled, and steps that are interrupted, at random."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.n = rng.choice([1, 1, 3])
        beginning = [rng.randrange(9) for _ in range(rng.choice([0, 0, 7]))]
        prompts = []
        for _ in range(rng.randint(1, 8)):
            prompt = beginning + [rng.randrange(9) for _ in range(rng.randint(1, 70))]
            prompts += [prompt] * self.n
        self.strategy = rng.choice(list(POLICIES))
        self.slots = POLICIES[self.strategy].max_slots or rng.randint(1, 6)
        self.budget = None
        if POLICIES[self.strategy].frees_slots_early and rng.random() < 0.5:
            self.budget = max(map(len, prompts)) + rng.randint(1, 60)
        self.requests = []
        for index, prompt in enumerate(prompts):
            most = rng.randint(0, 12)
            if self.budget is not None:
                most = min(most, self.budget - len(prompt))
            params = SamplingParams(seed=index)
            own = {"params": params, "max_tokens": most, "stop_ids": frozenset({STOP})}
            self.requests.append(Request(index, prompt, **own))
        if rng.random() < 0.7:
            share(self.requests, self.n, everybody=bool(beginning))
        chunk = rng.randint(1, 40) if POLICIES[self.strategy].admits_while_running else 10**6
        self.scheduler = Scheduler(self.slots, self.strategy, self.budget, chunk)
        self.device = Slots(self.slots)
        self.arrivals = sorted(rng.randint(0, 9) for _ in self.requests)
        self.admitted: list[Request] = []

    def run(self) -> None:
        arrived, step = 0, 0
        while arrived < len(self.requests) or self.scheduler.has_unfinished():
            while arrived < len(self.requests) and self.arrivals[arrived] <= step:
                self.scheduler.add(self.requests[arrived])
                arrived += 1
            if self.rng.random() < 0.02:
                unfinished = [r for r in self.requests[:arrived] if r.finish_reason is None]
                for request in unfinished[-1:]:
                    self.scheduler.finish(request, "cancelled")
            self.step()
            step += 1
            assert step < 4000, "somebody starves"
        self.check_end()

    def step(self) -> None:
        plan = self.scheduler.schedule()
        assert self.scheduler.plan(plan.moves, plan.preempted) == plan  # planning changes nothing
        self.check_plan(plan)
        if self.rng.random() < 0.03:  # the plan never comes back, and nobody knows what was done
            self.device.forget()
            return
        self.device.execute(plan)
        self.check_device(plan)
        tokens = [answer(r.prompt, len(r.logprobs), r.params.seed) for r in plan.sampled]
        changed = self.scheduler.update(plan, tokens, [-1.0] * len(tokens))
        assert set(changed) <= set(plan.sampled)
        self.scheduler.unreported.clear()

    def check_plan(self, plan) -> None:
        running = self.scheduler.running
        slots = [row.slot for row in plan.decode]
        assert slots == list(range(len(slots)))  # those that decode stand together, in order
        slots += [row.slot for row in (*plan.prefill, *plan.held_back)]
        assert len(set(slots)) == len(slots) and set(slots) <= set(range(len(running)))
        assert [r.slot for r in running] == list(range(len(running)))
        assert len(running) <= self.slots
        if self.budget is not None:
            assert sum(r.num_tokens + 1 for r in running) <= self.budget
        waiting = [r.arrival for r in self.scheduler.waiting]
        assert waiting == sorted(waiting)
        if waiting:  # first come, first served: also a preempted request is older than who waits
            older = [r.arrival for r in running if r.finish_reason is None]
            assert max(older, default=-1) < waiting[0]
        assert plan.computes or not any(r.finish_reason is None for r in running)
        assert len(dict(plan.moves)) == len({target for _, target in plan.moves})
        for prefix, slot in plan.copies:
            (request,) = [r for r in running if r.slot == slot]
            assert prefix in self.scheduler.saved
            assert self.device.saved[prefix] == request.prompt[: prefix.length]
            assert prefix.length < len(request.prompt)

    def check_device(self, plan) -> None:
        """Each slot holds what its request has read: all of it, where it gets a token."""
        for request in plan.sampled:
            text = request.prompt + request.token_ids
            if request.finish_reason is None:
                assert self.device.held[request.slot] == text
        assert self.device.saved.keys() <= self.scheduler.saved | {s.prefix for s in plan.saves}

    def check_end(self) -> None:
        for request in self.requests:
            ids, reason = alone(request)
            if request.finish_reason == "cancelled":
                ids, reason = ids[: len(request.token_ids)], "cancelled"
            assert (request.token_ids, request.finish_reason) == (ids, reason)
            assert len(request.logprobs) == len(ids) + (request.stop_id is not None)
            assert request.prefixes == []
        plan = self.scheduler.schedule()  # lets the last ones go
        self.device.execute(plan)
        self.scheduler.update(plan, [], [])
        assert not plan.computes and not self.scheduler.has_unfinished()
        assert self.scheduler.running == [] and self.device.held == [[]] * self.slots
        assert self.scheduler.num_finished == len(self.requests) and self.device.saved == {}


@pytest.mark.parametrize("block", range(count(8, 100)))
def test_plans_of_random_scripts_keep_every_promise(block):
    """Arrivals, cancellations, interruptions, shared prefixes, budgets, every strategy."""
    for seed in range(25 * block, 25 * block + 25):
        Script(seed).run()


def test_the_scripts_meet_what_they_are_for():
    """Preemptions, moves, copies of prefixes, requests that wait for one, and wasted rows."""
    met = set()
    for seed in range(60):
        script = Script(seed)
        schedule = script.scheduler.schedule

        def noted(schedule=schedule):
            plan = schedule()
            names = ("preempted", "moves", "copies", "held_back", "wasted", "saves", "drops")
            met.update(name for name in names if getattr(plan, name))
            return plan

        script.scheduler.schedule = noted
        script.run()
    assert met == {"preempted", "moves", "copies", "held_back", "wasted", "saves", "drops"}


def new_request(index: int, tokens: int, most: int = 5) -> Request:
    return Request(index, list(range(1, tokens + 1)), max_tokens=most)


def test_a_plan_is_a_value_that_later_steps_leave_as_it_is():
    scheduler = Scheduler(slots=2, chunk=4)
    scheduler.add(new_request(0, 6))
    first = scheduler.schedule()
    kinds = first.slot_kinds()
    assert first.prefill == ((scheduler.running[0], 0, 0, 4),) and first.sampled == ()
    scheduler.update(first, [], [])
    second = scheduler.schedule()
    scheduler.update(second, [7], [-1.0])
    third = scheduler.schedule()
    assert [plan.prefill_tokens for plan in (first, second, third)] == [4, 2, 0]
    assert third.decode == ((scheduler.running[0], 0),) and kinds == first.slot_kinds()
    assert first.slot_kinds() == second.slot_kinds() == [(0, "prefill"), (None, "idle")]
    assert third.slot_kinds() == [(0, "decode"), (None, "idle")]
    with pytest.raises(AttributeError):
        third.decode = ()


def test_rows_of_like_length_decode_side_by_side_the_long_ones_first():
    scheduler = Scheduler(slots=4, chunk=1000)
    requests = [new_request(i, tokens) for i, tokens in enumerate([10, 300, 20, 290])]
    for request in requests:
        scheduler.add(request)
    scheduler.update(scheduler.schedule(), [1] * 4, [-1.0] * 4)
    plan = scheduler.schedule()
    assert {request.index for request, slot in plan.decode if slot < 2} == {1, 3}
    assert dict(plan.moves).keys() <= {0, 1, 2, 3}


def test_logits_of_nan_end_their_own_request():
    scheduler = Scheduler(slots=2)
    requests = [new_request(0, 3), new_request(1, 3)]
    for request in requests:
        scheduler.add(request)
    changed = scheduler.update(scheduler.schedule(), [1, 2], [float("nan"), -1.0])
    assert changed == requests and requests[0].finish_reason == "error"
    assert requests[0].error == "request 0: its logits are NaN after 0 new tokens"
    assert requests[0].logprobs == [] and requests[1].token_ids == [2]
    assert [r.index for r, _ in scheduler.schedule().decode] == [1]
