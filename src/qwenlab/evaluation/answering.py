"""Many requests run within the memory there is: how many rows fit, and what happens if they
don't."""

import logging
from collections.abc import Iterator
from itertools import groupby

import psutil
import torch

from qwenlab.engine.engine import Engine
from qwenlab.engine.footprint import bytes_per_row
from qwenlab.engine.generation import ended
from qwenlab.engine.prefix import share
from qwenlab.engine.request import Request, RequestOutput
from qwenlab.engine.results import Stats
from qwenlab.evaluation.elsewhere import Elsewhere
from qwenlab.evaluation.endpoints import Endpoints
from qwenlab.evaluation.ray_actors import RayActors
from qwenlab.model.model import Model

MOST_ROWS = 256  # more rows are hardly faster
FREE_SHARE = 0.8  # of the free memory that is planned with; the rest is for others
logger = logging.getLogger(__name__)


def prepare(model: Model | Elsewhere, requests: list[Request], strategy: str) -> Stats:
    """Where a run is counted. Refuses what can't be done before anything is written: ValueError for
    a wrong strategy, EndpointError for a server that lacks something."""
    if isinstance(model, Elsewhere):
        model.prepare(requests, strategy)
        return Stats()
    return Engine(model, 1, strategy=strategy).stats


def run_requests(
    model: Model | Elsewhere,
    requests: list[Request],
    rows: int,
    strategy: str,
    samples: int,
    stats: Stats,
    invariant: bool = False,
) -> Iterator[RequestOutput]:
    """Runs the requests, at most `rows` at once, and yields each as it finishes.

    Sample k of problem i has index i * samples + k, in that order; some may be missing. The samples
    of a problem share one prefill of its prompt. If memory runs out (torch.OutOfMemoryError), half
    as many rows continue from the tokens generated so far; with a single row the error is raised.
    `stats` collects the figures of the whole run; `invariant` is that of `generate`. With
    `Endpoints`, the servers answer, and `rows` requests are in flight. With `RayActors`, each of
    them runs `rows` requests at once.
    """
    if not requests:
        return
    if isinstance(model, Endpoints):
        yield from model.answer(requests, rows, stats)
        return
    if isinstance(model, RayActors):
        yield from model.answer(requests, rows, strategy, samples, stats, run_requests)
        return
    slots = min(rows, len(requests))
    engine = Engine(model, slots, strategy=strategy, stats=stats, invariant=invariant)
    for _, group in groupby(requests, key=lambda request: request.index // samples):
        share(list(group), samples)
    for request in requests:
        engine.add_request(request)
    unfinished = dict.fromkeys(requests)
    yield from ended(requests, unfinished)  # those that have no token to generate
    while engine.has_unfinished():
        try:
            outputs = engine.step()
        except torch.OutOfMemoryError:
            if engine.slots == 1:
                raise
            outputs = None
        # Outside `except`, because the exception keeps the failed step's tensors alive.
        if outputs is None:
            halve(engine)
            outputs = requests  # some may have finished before memory ran out
        yield from ended(outputs, unfinished)


def halve(engine: Engine) -> None:
    """Continues with half the slots, and logs it."""
    fewer = engine.slots // 2
    full = f"out of memory with {engine.slots} answers at once"
    logger.warning(f"{full}; continuing with {fewer}, nothing is lost")
    engine.resize(fewer)
    torch.cuda.empty_cache()


def rows_that_fit(model: Model | Elsewhere, requests: list[Request]) -> int:
    """How many of the requests can run at once in the memory that is free now: 1 to 256. Logs it.

    Four fifths of that memory are divided by what the longest request takes at its worst moment, a
    bound for prompts of any length (`qwenlab.engine.footprint`, as for `bench.memory_plan`). Of
    `Endpoints`, which have memory of their own, 64 requests for each server; of `RayActors`, 64
    for each actor.
    """
    if isinstance(model, Elsewhere):
        return model.rows
    longest = max(len(request.prompt) + request.max_tokens for request in requests)
    draws = any(request.params.temperature > 0 for request in requests)
    row = bytes_per_row(model.config, model.dtype, max(longest, 2), draws=draws).peak
    free = free_memory(model.device)
    rows = max(1, min(MOST_ROWS, len(requests), int(FREE_SHARE * free / row)))
    each = f"up to {row / 2**20:.1f} MiB each, {free / 2**20:.0f} MiB free"
    logger.info(f"batch size {rows}: {each}")
    return rows


def free_memory(device: torch.device) -> int:
    """Bytes that a GPU has left, or that the system can give without swapping. A container's own
    limit isn't taken into account."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return psutil.virtual_memory().available
