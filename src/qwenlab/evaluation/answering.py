"""Many requests answered with what memory there is: how many rows fit, and what to do when they
didn't."""

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

MOST_ROWS = 256  # more hardly gains speed, and the last answers wait longer for company
CHUNK = 256  # tokens of a prompt that a row reads in a step
logger = logging.getLogger(__name__)


def run_requests(
    model, requests: list[Request], rows: int, strategy: str, samples: int, stats: Stats
) -> Iterator[RequestOutput]:
    """Runs the requests, at most `rows` at once, and yields each answer as it ends.

    Sample k of problem i has index i * samples + k, in that order; some may be missing. Those of
    one problem read their prompt once. If memory runs out (torch.OutOfMemoryError), half as many
    rows go on where these were: an answer keeps what it has. With one row it is raised. `stats`
    counts the whole.
    """
    if not requests:
        return
    engine = Engine(model, min(rows, len(requests)), chunk=CHUNK, strategy=strategy)
    engine.stats = stats
    for _, group in groupby(requests, key=lambda request: request.index // samples):
        share(list(group), samples)
    for request in requests:
        engine.add_request(request)
    unfinished = dict.fromkeys(requests)
    yield from ended(requests, unfinished)  # those that may not sample a token
    while engine.has_unfinished():
        try:
            outputs = engine.step()
        except torch.OutOfMemoryError:
            if engine.slots == 1:
                raise
            outputs = None
        if outputs is None:  # only here: the exception held on to what the step had made
            halve(engine)
            outputs = requests  # some may have ended before memory ran out
        yield from ended(outputs, unfinished)


def halve(engine: Engine) -> None:
    """Goes on with half the slots, and says so."""
    fewer = engine.slots // 2
    full = f"out of memory with {engine.slots} answers at once"
    logger.warning(f"{full}; going on with {fewer}, nothing is lost")
    engine.resize(fewer)
    torch.cuda.empty_cache()


def rows_that_fit(model, requests: list[Request]) -> int:
    """How many of the requests can surely run at once in the memory that is free now: 1 to 256.
    Logs it.

    An estimate on the safe side, in four fifths of that memory. A row counts its state at three
    times its longest text (it grows by doubling, and for a moment the old one is there too), what a
    layer holds while it reads, and its logits with what sampling makes of them.
    """
    config = model.config
    longest = max(len(request.prompt) + request.max_tokens for request in requests)
    one, two = (model.new_state(1, capacity).nbytes for capacity in (1, 2))
    reading = (
        min(CHUNK, longest)
        * (4 * config.hidden_size + 3 * config.intermediate_size)
        * model.dtype.itemsize
    )
    row = 3 * (one + (longest - 1) * (two - one)) + reading + 16 * config.vocab_size
    free = free_memory(model.device)
    rows = max(1, min(MOST_ROWS, len(requests), int(0.8 * free / row)))
    each = f"up to {row / 2**20:.1f} MiB each, {free / 2**20:.0f} MiB are free"
    logger.info(f"batch size {rows}: {each}")
    return rows


def free_memory(device: torch.device) -> int:
    """Bytes: what a GPU's driver has left, else what the system can give without swapping.
    A container's own limit isn't known here."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return psutil.virtual_memory().available
