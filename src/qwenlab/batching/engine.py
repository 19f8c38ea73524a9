"""The one loop of batched generation, left open: requests come and go while others run.

A step = schedule (who runs, and where), run (at most two passes of the model), postprocess (take the ids, note who is
done).
"""

import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from operator import length_hint
from time import perf_counter

import torch
from torch import Tensor

from qwenlab.batching.prefix import release
from qwenlab.batching.request import Request, make_requests
from qwenlab.batching.results import Stats
from qwenlab.batching.rows import Rows
from qwenlab.batching.sampling import checked, logprobs_of, penalise, sample
from qwenlab.batching.scheduler import POLICIES, Scheduler
from qwenlab.errors import whole
from qwenlab.model.state import State

KEPT_STEPS = 128  # an engine may run for ever: its events are those of so many last steps


class Engine:
    """Answers requests as they come, at most `slots` at once. What a request is told, it is told alone too.

    token_budget: most tokens, prompt and answer, that the slots may hold together (None = no limit). Before a step
    could exceed it the youngest request loses its slot, and later reads its prompt and its answer so far again; the
    answer goes on as if nothing had happened. chunk: most tokens of a prompt that a row reads in a step, so that a
    long prompt doesn't keep the others waiting.

    strategy and sampler are those of `generate`; strategies but "continuous" read prompts whole. With a `state` of the
    caller's, a request goes on in the row that its index names: what the row holds is the beginning of its prompt and
    isn't read again. `stats` counts from the start on, and has the events of the last 128 steps.

    An exception may strike anywhere in a step, a Ctrl-C say: go on as if it hadn't. Everybody's tokens are read again,
    an id that was taken is told once, and an end counted once. Callbacks and a sampler may submit and cancel; `step`,
    `run` and `stream` are refused there. Raises ValueError naming the option and what was expected, and for a model
    that went through torch.compile.
    """

    def __init__(
        self,
        model,
        slots: int = 64,
        token_budget: int | None = None,
        chunk: int = 256,
        *,
        strategy: str = "continuous",
        sampler: Callable | None = None,
        state: State | None = None,
    ):
        if strategy not in POLICIES:
            raise ValueError(f"strategy is {strategy!r}, expected one of {', '.join(POLICIES)}")
        if hasattr(model, "_orig_mod") or getattr(model, "_compiled_call_impl", None) is not None:
            raise ValueError("the model went through torch.compile, expected the plain one: its state changes in place")
        policy = POLICIES[strategy]
        whole(slots, "slots", 1), whole(chunk, "chunk", 1)
        if token_budget is not None:
            whole(token_budget, "token_budget", 2)  # a prompt of one token, and its answer's
            if not policy.leave:
                raise ValueError(f"token_budget needs finished rows to leave, and strategy {strategy!r} keeps them")
        self.model, self.token_budget, self.slots = model, token_budget, min(slots, policy.most or slots)
        self.sampler = checked(sampler) if sampler else sample
        self.scheduler = Scheduler(self.slots, policy, token_budget, pinned=state is not None)
        self.rows = Rows(model, self.slots, chunk if policy.join else model.config.max_position_embeddings, state)
        self.stats = Stats(steps=deque(maxlen=KEPT_STEPS))
        self.arrived, self.began = 0, perf_counter()
        self.owner = object()  # what marks a request as this engine's
        self.open: dict[Request, Callable] = {}  # requests whose end wasn't made known yet, and to whom it is
        self.sound = True  # False from before a step's first change to after its last
        self.under_way: Generator | None = None  # the last step

    def now(self) -> float:
        """Seconds since the engine was made."""
        return perf_counter() - self.began

    def submit(
        self,
        prompt: Sequence[int],
        *,
        max_new_tokens: int = 256,
        stop=None,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        repetition_penalty: float = 1.0,
        seed: int = 0,
        on_token: Callable[[int, int], None] | None = None,
    ) -> Request:
        """Puts a request in line and returns it; its answer grows in `token_ids` until it has a `finish_reason`.

        The options are those of `generate`, for one prompt; the seed alone names its random numbers, so the answer is
        that of generate(model, [prompt], seed=[seed]). `on_token(index, token_id)` is called for every id but a stop
        id; if it raises, this request ends with "error" and a warning. Times count from here. Raises ValueError for a
        wrong option, and for a prompt that leaves no room for a new token, with its length and the limit.
        """
        options = (max_new_tokens, stop, temperature, top_k, top_p, repetition_penalty, [seed], self.token_budget)
        (request,) = make_requests(self.model, [prompt], 1, *options)
        request.index, request.on_token = self.arrived, on_token
        self.stats.prompts += 1
        self.enter([request])
        return request

    def enter(self, requests: Sequence[Request]) -> None:
        """Puts requests in line that were made, and checked, elsewhere."""
        now = self.now()
        self.stats.requests += len(requests)
        for request in requests:
            request.number, request.asked, request.owner = self.arrived, now, self.owner
            self.arrived += 1
            self.open[request] = request.on_finish or nobody
            if request.cap == 0:
                self.end(request, "length")
            else:
                self.scheduler.waiting.append(request)

    def cancel(self, request: Request) -> None:
        """Ends a request with "cancelled" and what it has said so far; its slot is free at the next step.

        Raises ValueError for a request of another engine's.
        """
        self.check_owner(request)
        if not self.stepping:
            self.recover()
        if request.finish_reason is None:
            sound, self.sound = self.sound, False
            self.end(request, "cancelled")
            if request in self.scheduler.waiting:
                self.scheduler.waiting.remove(request)
            self.sound = sound

    def run(self) -> None:
        """Steps until nobody is left."""
        while self.step():
            pass

    def stream(self, request: Request) -> Iterator[int]:
        """The ids of one request as they are said, stepping for all. Leave it early, and the request still runs.

        Raises ValueError for a request of another engine's.
        """
        self.check_owner(request)
        return self.ids_of(request)

    def ids_of(self, request: Request) -> Iterator[int]:
        told = 0
        while True:
            while told < len(request.token_ids):
                yield request.token_ids[told]
                told += 1
            if request.finish_reason is not None or not self.step():
                return

    def step(self) -> bool:
        """One step for everybody who runs; False when there is nobody left.

        A request whose logits are NaN ends with "error" and a warning, the others go on. If anything breaks a step
        off, the next one reads everybody's tokens again. Raises ValueError if called from within a step.
        """
        if self.stepping:
            raise ValueError(
                "step was called from within a step of the same engine: a callback or a sampler may submit and cancel, "
                "but not step, run or stream"
            )
        # A generator knows whether it runs, wherever an exception struck. A flag would stay up if one struck just
        # before it is lowered.
        self.under_way = (self.one_step() for _ in range(1))
        (more,) = self.under_way
        return more

    @property
    def stepping(self) -> bool:
        return self.under_way is not None and self.under_way.gi_running

    def one_step(self) -> bool:
        started = self.now()
        with torch.inference_mode():
            try:
                self.recover()
                self.sound = False
                self.rows.settle(self.scheduler)
                if not self.scheduler.running:
                    self.sound = True
                    return False
                groups, reads = self.compute()
                self.postprocess(groups)
                self.sound = True
            except BaseException:
                self.recover()
                raise
        self.stats.took(self.now() - started, reads, decodes=self.scheduler.decoding > 0)
        self.stats.preempted = self.scheduler.preempted
        return True

    def recover(self) -> None:
        """After a step that broke off: everybody back in line, and what was left untold is told. If that breaks off
        too, the next step begins with it."""
        if self.sound:
            return
        for request in self.open:
            request.mend(self.now() - request.asked)
        self.scheduler.start_over()
        for request in list(self.open):
            self.make_known(request)
        self.sound = True

    def check_owner(self, request: Request) -> None:
        if request.owner is not self.owner:
            raise ValueError(f"request {request.index} is not this engine's: expected one that its submit returned")

    def compute(self) -> tuple[list[tuple[Tensor, list[Request]]], bool]:
        """Logits (N, V) and the N requests that now say a token by them, pass by pass; and whether any row read."""
        running, split = self.scheduler.running, self.scheduler.decoding
        decoding, reading = running[:split], running[split:]
        parts = self.rows.parts(reading) if reading else []
        self.stats.note(self.record(running, parts))
        groups = []
        if parts:  # first: a device that is asked about a mask has nothing else to do yet
            logits, ready = self.rows.read(parts, self.stats)
            if ready:
                groups.append((logits, ready))
                self.scheduler.stale = True
        if decoding:
            groups.insert(0, (self.rows.decode(decoding), decoding))
        return groups, bool(parts)

    def record(self, running: list[Request], parts: list[tuple[Request, int]]) -> list[tuple[int | None, str]]:
        """What each slot does in this step, before it has changed who is done."""
        entries: list[tuple[int | None, str]] = [(None, "idle")] * self.slots
        for request in running:
            kind = "wasted" if request.finish_reason else "decode" if request.decoding else "idle"
            entries[request.row] = (request.index, kind)
        for request, _ in parts:
            entries[request.row] = (request.index, "prefill")
        return entries

    def postprocess(self, groups: list[tuple[Tensor, list[Request]]]) -> None:
        """Takes one id a row and gives it to its request, or ends the request if the row's logits are NaN."""
        if not groups:
            return
        said, logprobs, sayers = [], [], []
        for logits, requests in groups:
            logits = penalise(logits, requests)
            said.append(self.sampler(logits, requests))
            logprobs.append(logprobs_of(logits, said[-1], requests))
            sayers += requests
        self.rows.ids, self.rows.sayers = together(said), sayers
        # The one place where the host waits for the device: it must know who stops.
        host_ids, host_logprobs = self.rows.ids.tolist(), together(logprobs).tolist()
        now = self.now()
        for request, token_id, logprob in zip(sayers, host_ids, host_logprobs, strict=True):
            if request.finish_reason is not None:
                continue
            if logprob != logprob:
                self.fail(request, f"its logits are NaN after {len(request.token_ids)} new tokens")
            else:
                request.accept(token_id, logprob, now - request.asked)
                self.make_known(request)

    def make_known(self, request: Request) -> None:
        """Counts and tells what was sampled for a request since the last time, and its end, if it has ended.

        A line here either took effect or didn't, so that this can be called again if an exception struck anywhere:
        numbers that belong together change in one statement, and what is still to be told is used up by the very
        statement that tells it.
        """
        sampled, counted = len(request.logprobs), request.counted
        self.stats.sampled_tokens, request.counted = self.stats.sampled_tokens + sampled - counted, sampled
        while request.on_token and length_hint(request.untold):
            try:
                request.on_token(request.index, next(request.untold))
            except Exception as error:
                self.fail(request, f"its on_token raised {type(error).__name__}: {error}")
        if request.finish_reason is None:
            return
        release(request)
        self.scheduler.stale = True
        if not request.over:
            self.stats.finished, request.over = self.stats.finished + 1, True
        if request in self.open:  # its on_token may have cancelled it, or raised, in its last step
            self.open.pop(request)(request)

    def fail(self, request: Request, why: str) -> None:
        request.error = f"request {request.index}: {why}"
        self.end(request, "error")
        warnings.warn(request.error, stacklevel=2)

    def end(self, request: Request, reason: str) -> None:
        request.finish(reason, self.now() - request.asked)
        self.make_known(request)


def nobody(request: Request) -> None:
    """Whom the end of a request is made known to that has no `on_finish`."""


def together(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
