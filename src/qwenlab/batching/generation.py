"""Batched generation: one loop, and policies that say who may take and leave a row.

A step = schedule (who runs), run (one pass), postprocess (take the ids, note who is done). The running requests
always fill rows 0..R-1 of the state, so a pass reads and writes the state through a view; when a request leaves,
the last rows move into the holes.
"""

from collections import deque
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from qwenlab.batching.padding import left_pad
from qwenlab.batching.request import Request, make_requests, whole
from qwenlab.batching.results import Result, Stats
from qwenlab.batching.sampling import checked, logprobs_of, penalise, sample


class Policy(NamedTuple):
    """`leave`: a finished request gives up its row at once. `most`: rows at once, whatever `slots` says."""

    leave: bool
    most: int | None = None


POLICIES = {
    "sequential": Policy(leave=True, most=1),  # one by one: what the others are compared with
    "static": Policy(leave=False),  # a batch runs until its longest answer ends
    "early-stop": Policy(leave=True),  # finished rows leave, the batch shrinks
}


def generate(
    model,
    prompts: Sequence[Sequence[int]],
    *,
    n: int = 1,
    max_new_tokens=256,
    stop=None,
    temperature=0.0,
    top_k=0,
    top_p=1.0,
    repetition_penalty=1.0,
    seed=0,
    sampler: Callable | None = None,
    strategy: str = "early-stop",
    slots: int = 64,
    on_token: Callable[[int, int], None] | None = None,
    progress: bool = False,
) -> Result:
    """Answers `prompts` (lists of token ids), at most `slots` rows at once. What a row says, it says alone too.

    `n` answers a prompt: `result[i * n + k]` is sample k of prompt i. max_new_tokens, stop, temperature, top_k, top_p,
    repetition_penalty and seed take one value, or one a prompt. stop=None: the checkpoint's own stop ids, (): none.
    temperature 0 is greedy; top_k 0 and top_p 1 keep every id. Sample k of prompt i draws from stream (seed, i, k),
    or (seed[i], 0, k) with a list. `sampler(logits (R, V) float32, requests) -> ids (R,)` replaces our own.
    strategy: "sequential", "static" or "early-stop". `on_token(i, token_id)` is called for every id but a stop id.

    An answer ends with finish_reason "stop" or "length"; prompt and answer together stay within
    config.max_position_embeddings. Raises ValueError naming the prompt or option and what was expected.
    """
    if strategy not in POLICIES:
        raise ValueError(f"strategy is {strategy!r}, expected one of {', '.join(POLICIES)}")
    whole(slots, "slots", 1)
    options = (n, max_new_tokens, stop, temperature, top_k, top_p, repetition_penalty, seed)
    requests = make_requests(model, prompts, *options)
    policy = POLICIES[strategy]
    rows = min(slots, policy.most or slots, max(1, len(requests)))
    stats = Stats(prompts=len(prompts), requests=len(requests))
    with tqdm(total=len(requests), unit="request", disable=not progress) as bar, torch.inference_mode():
        loop = Loop(model, requests, rows, policy, checked(sampler) if sampler else sample, on_token, stats, bar)
        while loop.step():
            pass
    stats.seconds = loop.now()
    return Result(requests, stats)


class Loop:
    """The requests of one call on their way: waiting, then running in a row of the state, then finished.

    With a `state` of the caller's, a request goes on in the row that its index names: what the row holds is the
    beginning of the prompt and isn't read again, and no row moves.
    """

    def __init__(self, model, requests, slots: int, policy: Policy, sampler, on_token, stats: Stats, bar, state=None):
        self.model, self.slots, self.policy, self.sampler = model, slots, policy, sampler
        self.on_token, self.stats, self.bar = on_token, stats, bar
        self.began = perf_counter()
        self.waiting: deque[Request] = deque()
        for request in requests:
            if request.cap == 0:
                self.end(request, "length")
            else:
                self.waiting.append(request)
        self.running: list[Request] = []  # running[r] sits in row r of the state
        self.own = state is None
        self.state = model.new_state(slots) if self.own and self.waiting else state
        self.ids: Tensor | None = None  # (R,) the id each row said last

    def now(self) -> float:
        return perf_counter() - self.began

    @property
    def rows(self) -> Sequence[int]:
        """The rows of the state that the running requests sit in; a range, which is read as a view, where they can."""
        if self.own:
            return range(len(self.running))
        rows = [request.index for request in self.running]
        span = range(rows[0], rows[-1] + 1)
        return span if len(span) == len(rows) else rows

    def step(self) -> bool:
        """One step for every running request; False when there is nobody left."""
        newcomers = self.schedule()
        if newcomers:
            logits = self.prefill(newcomers)
        elif self.running:
            logits = self.model(self.ids[:, None], state=self.state, rows=self.rows, last_only=True)
        else:
            return False
        self.postprocess(logits, "prefill" if newcomers else "decode")
        return True

    def schedule(self) -> list[Request]:
        """Who starts now: nobody until the whole batch is done, then as many as there are slots."""
        self.started = self.now()
        if self.running:
            return []
        return [self.waiting.popleft() for _ in range(min(self.slots, len(self.waiting)))]

    def prefill(self, newcomers: list[Request]) -> Tensor:
        """Reads what the rows don't hold of the prompts yet; logits (R, V) after each prompt's last token."""
        self.running = newcomers
        rows = self.rows
        if self.own:
            self.state.reset(rows)
        held = self.state.lengths[list(rows)].tolist()
        unread = [request.prompt[start:] for request, start in zip(newcomers, held, strict=True)]
        input_ids, attention_mask = left_pad(unread, pad_id=0)
        self.stats.prefill_tokens += int(attention_mask.sum())
        self.stats.padded_tokens += int((~attention_mask).sum())
        return self.model(input_ids, attention_mask, self.state, rows=rows, last_only=True)

    def postprocess(self, logits: Tensor, kind: str) -> None:
        """Takes one id a row, gives it to its request, and lets the finished ones go."""
        logits = penalise(logits, self.running)
        self.ids = self.sampler(logits, self.running)
        logprobs = logprobs_of(logits, self.ids, self.running)
        # The one place where the host waits for the device: it must know who stops.
        host_ids, host_logprobs = self.ids.tolist(), logprobs.tolist()
        now = self.now()
        record: list[tuple[int | None, str]] = []
        for request, token_id, logprob in zip(self.running, host_ids, host_logprobs, strict=True):
            record.append((request.index, kind if request.finish_reason is None else "wasted"))
            if request.finish_reason is None:
                self.take(request, token_id, logprob, now)
        self.stats.steps.append(record + [(None, "idle")] * (self.slots - len(record)))
        if kind == "prefill":
            self.stats.prefill_seconds += self.now() - self.started
        else:
            self.stats.decode_seconds += self.now() - self.started
        done = [request.finish_reason is not None for request in self.running]
        if all(done):
            self.running = []
        elif any(done) and self.policy.leave:
            self.close_ranks(done)

    def take(self, request: Request, token_id: int, logprob: float, now: float) -> None:
        """One sampled id for a request that still runs."""
        if logprob != logprob:
            raise ValueError(f"request {request.index}: its logits are NaN after {len(request.token_ids)} new tokens")
        request.accept(token_id, logprob, now)
        self.stats.sampled_tokens += 1
        if request.stop_id is None and self.on_token:
            self.on_token(request.index, token_id)
        if request.finish_reason:
            self.bar.update()

    def end(self, request: Request, reason: str) -> None:
        request.finish(reason, self.now())
        self.bar.update()

    def close_ranks(self, done: list[bool]) -> None:
        """Lets those go that are done. In a state of our own the last rows move into their rows, so that R requests
        stay in rows 0..R-1."""
        order = [place for place, gone in enumerate(done) if not gone]
        if self.own:
            left = len(order)
            holes = [row for row in range(left) if done[row]]
            movers = [row for row in order if row >= left]
            if movers:
                self.state.put(holes, self.state.select(movers))
            order = list(range(left))
            for hole, mover in zip(holes, movers, strict=True):
                order[hole] = mover
        self.running = [self.running[row] for row in order]
        self.ids = self.ids[torch.tensor(order, device=self.ids.device)]
