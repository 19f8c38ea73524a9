"""The same jobs on engines that run elsewhere: `Endpoints` stands where a model does, and servers
answer.

Only config and tokenizer are loaded here. Problems, prompts, seeds, grading and records stay those
of a run in one process; where the answers come from is all that changes.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread
from time import perf_counter
from typing import TypeVar

from qwenlab.engine.request import Request, RequestOutput
from qwenlab.engine.results import Stats
from qwenlab.errors import QwenlabError, failure
from qwenlab.evaluation.completion_server import EndpointError, Server, Unavailable
from qwenlab.evaluation.elsewhere import Elsewhere
from qwenlab.fingerprints import fingerprint
from qwenlab.text.tokenizer import FILE as TOKENIZER

ROWS = 64  # requests in flight at each server if the batch size is "auto"
ATTEMPTS = 12  # in a row that fail before a server is given up: about four minutes
FIRST_PAUSE = 1.0  # seconds after the first failure; each further one doubles it
LONGEST_PAUSE = 30.0
TEXTS = (TOKENIZER, "tokenizer_config.json", "chat_template.jinja")  # what prompts depend on
Value = TypeVar("Value")
logger = logging.getLogger(__name__)


class Endpoints(Elsewhere):
    """Servers of one model that share the work. `evaluate`, `self_consistency` and `make_traces`
    take it in a model's place.

    urls: the servers, all with the same engine, version and model. name: the checkpoint that they
    serve, as for `load`; its weights are neither loaded nor downloaded. Raises EndpointError, in
    one line, for a server that can't be used, and whatever `load` raises for the checkpoint.
    """

    def __init__(self, urls: Sequence[str], name: str | Path) -> None:
        if not urls:
            raise EndpointError("no endpoint, expected at least one")
        super().__init__(name)
        self.servers = [Server(url, self.tokenizer, self.config.vocab_size) for url in urls]
        for server in self.servers:
            patiently(server, lambda server=server: server.introduce(str(name)))
            self.refuse_another(server)

    def refuse_another(self, server: Server) -> None:
        """Raises EndpointError if `server` is not what the first one is."""
        first = self.servers[0]
        for name in ("engine", "version", "model"):
            here, there = getattr(server, name), getattr(first, name)
            if here != there:
                raise EndpointError(
                    f"{server.url}: {name} is {here!r}, expected {there!r} as at {first.url}"
                )

    def __repr__(self) -> str:
        first = self.servers[0]
        at = ", ".join(server.url for server in self.servers)
        return f"{first.model} on {first.engine} {first.version} at {at}"

    @property
    def rows(self) -> int:
        """The requests in flight if nobody names a number."""
        return ROWS * len(self.servers)

    def prepare(self, requests: Sequence[Request], strategy: str) -> None:
        """Probes each server with one of the requests. Raises EndpointError, naming the server and
        what it lacks, if it could answer them wrongly, and QwenlabError for another strategy than
        continuous."""
        if strategy != "continuous":
            reason = "the server schedules for itself: expected continuous, or no endpoint"
            raise QwenlabError(f"strategy is {strategy!r}, but {reason}")
        asked = [request for request in requests if request.max_tokens > 0]
        if not asked:
            return
        longest = max(len(request.prompt) + request.max_tokens for request in asked)
        draws = any(request.params.temperature > 0 for request in asked)
        for server in self.servers:
            if server.context is not None and server.context < longest:
                raise EndpointError(
                    f"{server.url}: a context of {server.context} tokens, expected at least "
                    f"{longest} for prompt and answer"
                )
            patiently(server, lambda server=server: server.probe(asked[0], draws))
            if not server.sends_ids:
                logger.warning(f"{server.url}: prompts and answers are sent as text")
            elif not server.sends_logprobs:
                logger.warning(f"{server.url}: sends no log-probabilities; they are NaN")

    def identity(self) -> dict[str, str]:
        """What the answers depend on, beside the problems: for a run's settings."""
        first = self.servers[0]
        paths = [self.folder / name for name in TEXTS]
        texts = fingerprint(path.read_bytes() for path in paths if path.exists())
        sent = "token ids" if all(server.sends_ids for server in self.servers) else "text"
        return {
            "engine": first.engine,
            "version": first.version,
            "served_model": first.model,
            "sent_as": sent,
            "tokenizer": texts,
        }

    def answer(
        self, requests: Sequence[Request], rows: int, stats: Stats
    ) -> Iterator[RequestOutput]:
        """Has the servers answer the requests, `rows` at once over all of them, and yields each as
        it finishes.

        A request that gets no answer goes back into the queue, where any server may take it. Raises
        EndpointError if a reply can't be an answer, or when every server has been given up.
        """
        began = perf_counter()
        stats.requests += len(requests)
        waiting: SimpleQueue[Request | None] = SimpleQueue()
        finished: SimpleQueue[tuple[Server, Request | Exception]] = SimpleQueue()
        for request in requests:
            waiting.put(request)
        ended = Event()
        workers = max(len(self.servers), min(rows, len(requests)))
        places = [self.servers[place % len(self.servers)] for place in range(workers)]
        for server in places:  # daemons, because a server that hangs must not keep the process
            job = (server, waiting, finished, ended)
            Thread(target=work, args=job, daemon=True).start()
        left = len(requests)
        try:
            while left:
                server, outcome = finished.get()
                if isinstance(outcome, Unavailable):
                    places.remove(server)
                    self.report_lost(server, places, outcome)
                elif isinstance(outcome, Exception):
                    raise outcome
                else:
                    left -= 1
                    stats.finished += 1
                    stats.sampled_tokens += len(outcome.logprobs)
                    stats.prefill_tokens += len(outcome.prompt)
                    stats.seconds = perf_counter() - began
                    yield outcome
        finally:
            ended.set()
            for _ in places:
                waiting.put(None)

    def report_lost(self, server: Server, places: list[Server], problem: Unavailable) -> None:
        """Logs that a server is given up once nobody asks it any more. Raises EndpointError if
        there is no other."""
        if server in places:
            return
        lost = f"{server.url}: no answer in {ATTEMPTS} attempts ({problem})"
        if not places:
            raise failure(EndpointError(f"{lost}; run the same command again to resume"))
        logger.warning(f"{lost}; the other endpoints continue")


def work(server: Server, waiting: SimpleQueue, finished: SimpleQueue, ended: Event) -> None:
    """Asks `server` one request after another, until it is told to end or has failed too often."""
    failures = 0
    while (request := waiting.get()) is not None and not ended.is_set():
        began = perf_counter()
        try:
            if request.max_tokens > 0:
                server.answer(request)
            else:
                request.finish_reason = "length"
        except Unavailable as problem:
            waiting.put(request)
            failures += 1
            if failures == ATTEMPTS:
                finished.put((server, problem))
                return
            ended.wait(pause_after(failures, problem))
        except Exception as problem:
            finished.put((server, problem))
            return
        else:
            failures = 0
            request.seconds = perf_counter() - began
            finished.put((server, request))


def patiently(server: Server, ask: Callable[[], Value]) -> Value:
    """The value of `ask()`, tried again while the server is not available. Raises EndpointError."""
    ended = Event()
    for failures in range(1, ATTEMPTS + 1):
        try:
            return ask()
        except Unavailable as problem:
            reason = str(problem)
            if failures == 1:
                logger.warning(f"{server.url}: {reason}; trying again")
            if failures < ATTEMPTS:
                ended.wait(pause_after(failures, problem))
    raise failure(EndpointError(f"{server.url}: no answer in {ATTEMPTS} attempts ({reason})"))


def pause_after(failures: int, problem: Unavailable) -> float:
    """Seconds to wait after so many failures in a row, or as long as the server asks for."""
    return max(min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (failures - 1)), problem.pause)
