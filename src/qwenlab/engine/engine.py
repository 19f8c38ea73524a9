"""The loop of batched generation: requests come and go while others run."""

import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import wraps
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from qwenlab.engine.footprint import CHUNK
from qwenlab.engine.invariant import WIDTH, InvariantRunner, check_invariant, whole_multiple
from qwenlab.engine.prompts import new_request
from qwenlab.engine.request import Request, RequestOutput, SamplingParams
from qwenlab.engine.results import Stats
from qwenlab.engine.runner import Runner
from qwenlab.engine.sampling import checked, logprobs_of, penalise, sample
from qwenlab.engine.scheduler import Scheduler, policy_of
from qwenlab.errors import whole
from qwenlab.model.model import Model
from qwenlab.model.state import State

KEPT_STEPS = 128  # an engine may run for ever, so its events are those of the last steps only


Step = Callable[["Engine"], Sequence[RequestOutput]]


def one_at_a_time(step: Step) -> Step:
    """Refuses a step within a step, and recovers from one that an exception interrupts."""

    @wraps(step)
    def guarded_step(engine: "Engine") -> Sequence[RequestOutput]:
        engine.check_outside_of_step()
        try:
            try:
                engine.stepping = True
                return step(engine)
            except BaseException:
                engine.recover()
                raise
            finally:
                engine.stepping = False
        finally:
            engine.stepping = False  # again: Ctrl-C may strike just before the line above

    return guarded_step


class Engine:
    """Answers requests as they come, at most `slots` at once.

    Each output equals that prompt's output at batch size 1. token_budget: the most tokens, of
    prompts and answers, that the slots may hold together (None = no limit). It bounds memory, not
    the tokens computed per step, as vLLM's max_num_batched_tokens does. Before a step could exceed
    it, the youngest request is preempted; later its prompt and its answer so far are prefilled
    again, and it continues as if nothing had happened. chunk: the most tokens that a slot prefills
    per step, so that a long prompt doesn't keep the others waiting.

    strategy and sampler are those of `generate`; strategies other than "continuous" prefill prompts
    whole. With a `state` of the caller's, request i runs in slot i: what the slot holds already is
    the beginning of the prompt and isn't prefilled again. `stats` counts from the start; unless the
    caller passes its own, it has the events of the last 128 steps. `invariant` is explained at
    `generate`; `chunk` is then rounded up to a multiple of 64, and a `state` is refused. Raises
    ValueError naming the option and what was expected.
    """

    def __init__(
        self,
        model: Model,
        slots: int = 64,
        token_budget: int | None = None,
        chunk: int = CHUNK,
        *,
        strategy: str = "continuous",
        sampler: Callable | None = None,
        state: State | None = None,
        stats: Stats | None = None,
        invariant: bool = False,
    ) -> None:
        policy = policy_of(strategy)
        if is_compiled(model):
            raise ValueError(
                "the model went through torch.compile, expected the plain one: "
                "its state changes in place"
            )
        whole(slots, "slots", 1)
        whole(chunk, "chunk", 1)
        if token_budget is not None:
            whole(token_budget, "token_budget", 2)  # a prompt of one token, and one new token
            if not policy.frees_slots_early:
                raise ValueError(
                    f"token_budget needs a strategy that frees finished rows; {strategy!r} does not"
                )
        if not policy.admits_while_running:
            chunk = model.config.max_position_embeddings
        if invariant:
            check_invariant(model, state is not None)
            chunk = whole_multiple(chunk, WIDTH)
        slots = min(slots, policy.max_slots or slots)
        self.model = model
        self.sampler = checked(sampler) if sampler else sample
        self.scheduler = Scheduler(slots, strategy, token_budget, chunk, pinned=state is not None)
        self.runner = InvariantRunner(model, slots) if invariant else Runner(model, slots, state)
        self.stats = Stats(plans=deque(maxlen=KEPT_STEPS)) if stats is None else stats
        self.began = perf_counter()
        self.stepping = False  # True while a step runs
        # Marks this engine's requests. If they referred to the engine instead, it would live, and
        # hold its state, as long as any of them.
        self.key = object()

    @property
    def slots(self) -> int:
        return self.scheduler.slots

    @property
    def token_budget(self) -> int | None:
        return self.scheduler.token_budget

    def now(self) -> float:
        """Seconds since the engine was made."""
        return perf_counter() - self.began

    # --- Requests ----------------------------------------------------------------------------

    def submit(
        self,
        prompt: Sequence[int],
        params: SamplingParams | None = None,
        *,
        on_token: Callable[[int, int], None] | None = None,
        **options: Any,
    ) -> Request:
        """Queues a prompt; its answer grows in `token_ids` until it has a `finish_reason`.

        Pass either `params`, or the options of SamplingParams by name. Random numbers depend only
        on the seed, so the answer equals that of generate(model, [prompt], seed=[seed]).
        `on_token(index, token_id)` is called for every id but a stop id; if it raises, this request
        ends with "error" and a warning. Times count from here. Raises ValueError for a wrong
        option, and for a prompt that leaves no room for a new token, with its length and the limit.
        """
        if params is None:
            params = SamplingParams(**options, of="prompt 0")
        elif options:
            raise ValueError(
                f"pass either params or options, not both (got params and {', '.join(options)})"
            )
        request = new_request(
            self.model,
            prompt,
            params,
            self.token_budget,
            rng_key=(params.seed, 0, 0),
            on_token=on_token,
        )
        request.index = self.scheduler.num_arrived
        self.stats.prompts += 1
        self.add_request(request)
        return request

    def add_request(self, request: Request) -> None:
        """Queues a request that was made elsewhere, by `make_requests` or `new_request`.

        Raises ValueError if it was added to an engine before, if it could outgrow the token budget,
        or if the slot that its index names in a caller's state doesn't suit it.
        """
        if request.engine_key is not None:
            raise ValueError(f"request {request.index} was added to an engine before")
        most = len(request.prompt) + request.max_tokens
        if self.token_budget is not None and most > self.token_budget:
            raise ValueError(
                f"request {request.index} may hold {most} tokens, expected at most the "
                f"token_budget of {self.token_budget}"
            )
        held = 0
        if self.scheduler.pinned:
            held = self.runner.num_held_tokens(request)
        request.engine_key = self.key
        self.scheduler.add(request, held)
        self.stats.requests += 1
        self.stats.finished = self.scheduler.num_finished

    def cancel(self, request: Request) -> None:
        """Ends a request with "cancelled" and what it has so far; the next step frees its slot.

        A finished request stays as it is. Raises ValueError for another engine's request.
        """
        self.check_own(request)
        if not self.stepping:
            self.recover()
        if request.finish_reason is None:
            self.scheduler.finish(request, "cancelled")
            self.stats.finished = self.scheduler.num_finished

    def has_unfinished(self) -> bool:
        """Whether anything is left to do: loop over `step` while this is true."""
        return self.scheduler.has_unfinished()

    # --- The loop ----------------------------------------------------------------------------

    @one_at_a_time
    def step(self) -> Sequence[RequestOutput]:
        """One step for every running request. Returns the outputs that it changed, if any.

        Logits that are NaN end their request with "error" and a warning; the others go on. If an
        exception interrupts the step, a Ctrl-C for example, the next one preempts every request,
        and the answers continue as if nothing had happened. Raises ValueError within another step.
        """
        started = perf_counter()
        plan = self.scheduler.schedule()
        logits = self.runner.execute(plan)
        tokens, logprobs = self.sample(logits, plan.sampled)
        changed = self.scheduler.update(plan, tokens, logprobs)
        self.stats.record(plan, perf_counter() - started)
        self.report(changed)
        return changed  # a request is its own output

    @torch.inference_mode()
    def sample(
        self, logits: Tensor | None, requests: tuple[Request, ...]
    ) -> tuple[list[int], list[float]]:
        """The sampled token of each request and its log-probability, on the host.

        logits (S, V) float32 for the S requests; None if there are none.
        """
        if not requests:
            return [], []
        logits = penalise(logits, requests)
        token_ids = self.sampler(logits, requests)
        logprobs = logprobs_of(logits, token_ids, requests)
        self.runner.keep(token_ids, requests)
        return token_ids.tolist(), logprobs.tolist()  # the one place that waits for the device

    def report(self, requests: Sequence[Request]) -> None:
        """Calls each request's on_token, counts the new tokens, and warns of errors."""
        self.call_on_token(requests)
        self.stats.finished = self.scheduler.num_finished
        sampled = self.stats.sampled_tokens + self.scheduler.num_unreported_tokens
        # One statement, so that no token is counted twice: Python handles Ctrl-C only at calls and
        # loops, and there is neither between these two assignments.
        self.stats.sampled_tokens, self.scheduler.unreported = sampled, {}
        for request in requests:
            if request.error:
                warnings.warn(request.error, stacklevel=2)

    def call_on_token(self, requests: Iterable[Request]) -> None:
        """Calls on_token for each new token, at most once even if an exception interrupts this.

        If on_token raises, its own request ends with "error".
        """
        for request in requests:
            while request.undelivered:
                try:
                    # Popped first: an interrupted on_token may have taken the token already.
                    request.on_token(request.index, request.token_ids[request.undelivered.pop(0)])
                except Exception as error:
                    what = f"its on_token raised {type(error).__name__}: {error}"
                    self.scheduler.finish(request, "error", what)

    def recover(self) -> None:
        """After an interrupted step: drops half-recorded tokens, calls on_token for complete ones.

        The next step returns the requests that have them, and recovers again if it is interrupted.
        """
        if self.scheduler.in_flight:
            self.scheduler.preempt_all()
        self.call_on_token(list(self.scheduler.unreported))

    def run(self) -> None:
        """Steps until every request is finished."""
        while self.has_unfinished():
            self.step()

    def stream(self, request: Request) -> Iterator[int]:
        """The ids of one request as they are sampled; each step also serves the other requests.

        If you leave the iterator early, the request stays in the engine. Raises ValueError for
        another engine's request.
        """
        self.check_outside_of_step()
        self.check_own(request)
        return self._ids(request)

    def _ids(self, request: Request) -> Iterator[int]:
        place = 0
        while True:
            while place < len(request.token_ids):
                yield request.token_ids[place]
                place += 1
            if request.finish_reason is not None:
                return
            self.step()

    def resize(self, slots: int) -> None:
        """Continues with a different number of slots, for example after memory ran out.

        The state is freed and made anew; running requests are preempted and keep their tokens.
        Raises ValueError within a step, and for an engine with a state of the caller's.
        """
        self.check_outside_of_step()
        whole(slots, "slots", 1)
        if self.scheduler.pinned:
            raise ValueError("resize can't change the slots of a caller's own state")
        self.scheduler.resize(slots)
        self.runner = type(self.runner)(self.model, slots)

    # --- Refusals ----------------------------------------------------------------------------

    def check_outside_of_step(self) -> None:
        if self.stepping:
            raise ValueError(
                "step was called from within a step of the same engine: a callback or a sampler "
                "may submit and cancel, but not step, run or stream"
            )

    def check_own(self, request: Request) -> None:
        if request.engine_key is not self.key:
            raise ValueError(
                f"request {request.index} is not this engine's: expected a request returned by "
                "this engine's submit (or passed to its add_request)"
            )


def is_compiled(model: Model) -> bool:
    wrapped = hasattr(model, "_orig_mod")
    return wrapped or getattr(model, "_compiled_call_impl", None) is not None
