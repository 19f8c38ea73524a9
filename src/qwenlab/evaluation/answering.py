"""Many requests run within the memory there is: how many rows fit, and what happens if they
don't."""

import logging
from collections.abc import Iterator
from itertools import groupby

import psutil
import torch

from qwenlab.engine.engine import Engine
from qwenlab.engine.generation import ended
from qwenlab.engine.prefix import share
from qwenlab.engine.request import Request, RequestOutput
from qwenlab.engine.results import Stats
from qwenlab.model.model import Model

MOST_ROWS = 256  # more rows are hardly faster
CHUNK = 256  # prompt tokens that are prefilled per row and step
logger = logging.getLogger(__name__)


def run_requests(
    model: Model, requests: list[Request], rows: int, strategy: str, samples: int, stats: Stats
) -> Iterator[RequestOutput]:
    """Runs the requests, at most `rows` at once, and yields each as it finishes.

    Sample k of problem i has index i * samples + k, in that order; some may be missing. The samples
    of a problem share one prefill of its prompt. If memory runs out (torch.OutOfMemoryError), half
    as many rows continue from the tokens generated so far; with a single row the error is raised.
    `stats` collects the figures of the whole run.
    """
    if not requests:
        return
    engine = Engine(model, min(rows, len(requests)), chunk=CHUNK, strategy=strategy, stats=stats)
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


def rows_that_fit(model: Model, requests: list[Request]) -> int:
    """How many of the requests can run at once in the memory that is free now: 1 to 256. Logs it.

    A cautious estimate, which uses four fifths of that memory. A row counts three times its state
    at full length (the state grows by doubling, while the old one still exists), the activations of
    one layer during prefill, and its logits with what sampling derives from them.
    """
    config = model.config
    longest = max(len(request.prompt) + request.max_tokens for request in requests)
    first_token = model.new_state(1, capacity=1).nbytes
    per_token = model.new_state(1, capacity=2).nbytes - first_token
    state = first_token + (longest - 1) * per_token
    features = 4 * config.hidden_size + 3 * config.intermediate_size
    activations = min(CHUNK, longest) * features * model.dtype.itemsize
    row = 3 * state + activations + 16 * config.vocab_size
    free = free_memory(model.device)
    rows = max(1, min(MOST_ROWS, len(requests), int(0.8 * free / row)))
    each = f"up to {row / 2**20:.1f} MiB each, {free / 2**20:.0f} MiB free"
    logger.info(f"batch size {rows}: {each}")
    return rows


def free_memory(device: torch.device) -> int:
    """Bytes that a GPU has left, or that the system can give without swapping. A container's own
    limit isn't taken into account."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return psutil.virtual_memory().available
