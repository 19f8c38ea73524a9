"""The same jobs on several processes or machines: `RayActors` stands where a model does, and actors
of Ray, each with the model, answer.

Only config and tokenizer are loaded here. Problems, prompts, seeds, grading and records stay those
of a run in one process, and only this process writes.
"""

import logging
import os
import pickle
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from itertools import chain, groupby
from pathlib import Path
from time import perf_counter
from types import ModuleType
from typing import NamedTuple

import torch

from qwenlab.engine.request import Request, RequestOutput
from qwenlab.engine.results import Stats
from qwenlab.engine.scheduler import policy_of
from qwenlab.errors import QwenlabError, failure, whole
from qwenlab.evaluation.elsewhere import Elsewhere
from qwenlab.fingerprints import some_weights
from qwenlab.loading import first_line, load, load_with_tokenizer

ROWS = 64  # at once in each actor if the batch size is "auto"
# Nothing is sent to Ray's makers, and only its failures are printed.
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_BACKEND_LOG_LEVEL": "fatal"}
SHARES = 4  # or more for each actor, so that the last ones end at about the same time
BATCHES = 4  # at most, of as many rows as run at once: the answers of a share come back together
OUTPUT = [field.name for field in fields(RequestOutput)]
Run = Callable[..., Iterator[RequestOutput]]  # `answering.run_requests`


class RayError(QwenlabError):
    """Ray is missing, or can't do what is asked of it; the message is one line."""


class Loaded(NamedTuple):
    """What an actor's machine makes of the checkpoint."""

    dtype: torch.dtype
    device: str
    weights: str  # their fingerprint
    ignored: list[str]
    warnings: list[str]


class RayActors(Elsewhere):
    """Processes that hold the model and share the work. `evaluate`, `self_consistency` and
    `make_traces` take it in a model's place.

    size: how many. name, dtype and device: as for `load`. With the environment variable RAY_ADDRESS
    they run in that cluster, whose machines must all find the checkpoint under the same name; else
    on this machine. Each has `threads` CPU threads and, unless `device` says otherwise, a GPU where
    there are GPUs. One of them is started at once, loads the model and ends, because a run's
    settings need the fingerprint of its weights.

    Ray is told to send no statistics of use unless RAY_USAGE_STATS_ENABLED says so already. Raises
    RayError, and whatever `load` raises for the checkpoint.
    """

    def __init__(
        self,
        size: int,
        name: str | Path,
        dtype: torch.dtype | str | None = None,
        device: str | None = None,
        threads: int = 1,
    ) -> None:
        self.size = whole(size, "actors", 1)
        whole(threads, "threads", 1)
        ray = imported_ray()
        super().__init__(name)
        self.name = str(name)
        path = Path(name).expanduser()
        # the processes have other current folders
        self.where = str(path.resolve()) if self.folder == path else self.name
        start_ray(ray, self.size, threads)
        self.needs = {"num_cpus": threads}
        if device is None or device.startswith("cuda"):
            self.needs["num_gpus"] = min(1, ray.cluster_resources().get("GPU", 0))
        self.check_room(ray)
        describe = ray.remote(**self.needs, max_calls=1)(described)
        loaded, problem = pickle.loads(ray.get(describe.remote(self.where, dtype, device)))
        if problem:
            raise problem
        for warning in loaded.warnings:
            warnings.warn(warning, stacklevel=2)
        self.dtype = loaded.dtype
        self.device = loaded.device
        self.weights = loaded.weights
        self.ignored = loaded.ignored

    def __repr__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        actors = f"{self.size} actor{'' if self.size == 1 else 's'} of Ray"
        return f"{self.name}, {dtype} on {self.device}, {actors}"

    @property
    def rows(self) -> int:
        """The requests at once in each actor if nobody names a number."""
        return ROWS

    def prepare(self, requests: Sequence[Request], strategy: str) -> None:
        """Raises ValueError for a strategy that is not known."""
        policy_of(strategy)

    def check_room(self, ray: ModuleType) -> None:
        """Raises RayError if the cluster has less than all actors need, which would wait for
        ever."""
        there = ray.cluster_resources()
        for resource, each in (("CPU", "num_cpus"), ("GPU", "num_gpus")):
            needed = self.size * self.needs.get(each, 0)
            has = there.get(resource, 0)
            if needed > has:
                many = f"{self.size} actors need {needed:g} {resource}s"
                raise RayError(f"{many}, but Ray has {has:g}; ask for fewer")

    def identity(self) -> dict[str, str]:
        """What the answers depend on, beside the problems, for a run's settings: the same as for
        the model in one process, because the records are."""
        return {"dtype": str(self.dtype), "weights": self.weights}

    def answer(
        self,
        requests: Sequence[Request],
        rows: int,
        strategy: str,
        samples: int,
        stats: Stats,
        run: Run,
    ) -> Iterator[RequestOutput]:
        """Has the actors answer the requests by `run`, `rows` at once in each, and yields each once
        its share of the problems is finished.

        An actor that dies is replaced, and its shares are answered again. Raises what `run` raises,
        and RayError if Ray gives up.
        """
        ray = imported_ray()
        began = perf_counter()
        stats.requests += len(requests)
        waiting = {request.index: request for request in requests}
        options = {"where": self.where, "dtype": self.dtype, "device": self.device, "run": run}
        options |= {"rows": rows, "strategy": strategy, "samples": samples}
        shares = self.shares(requests, rows, samples)
        items = [{"share": pickle.dumps(share)} for share in shares]
        data = ray.data.from_items(items, override_num_blocks=len(items)).map_batches(
            Actor,
            fn_constructor_kwargs=options,
            # One share waits at each actor while another is answered.
            compute=ray.data.ActorPoolStrategy(size=self.size, max_tasks_in_flight_per_actor=2),
            batch_size=1,
            **self.needs,
        )
        try:
            for row in data.iter_rows():
                outputs, problem = pickle.loads(row["outputs"])
                for output in outputs:
                    request = waiting.pop(output["index"], None)
                    if request is None:  # answered twice, which changes nothing
                        continue
                    for name, value in output.items():
                        setattr(request, name, value)
                    stats.finished += 1
                    stats.sampled_tokens += len(request.logprobs)
                    stats.prefill_tokens += len(request.prompt)
                    stats.seconds = perf_counter() - began
                    yield request
                if problem:
                    raise problem
        except ray.exceptions.RayError as problem:
            raise failure(RayError(f"Ray gave up ({first_line(problem)}); {RESUME}")) from problem
        if waiting:
            raise failure(RayError(f"Ray lost {len(waiting)} answers; {RESUME}"))

    def shares(self, requests: Sequence[Request], rows: int, samples: int) -> list[list[Request]]:
        """The requests in consecutive shares of whole problems."""
        problems = [
            list(group) for _, group in groupby(requests, lambda request: request.index // samples)
        ]
        most = max(1, BATCHES * rows // samples)
        each = min(most, -(-len(problems) // (SHARES * self.size)))
        starts = range(0, len(problems), each)
        return [list(chain(*problems[start : start + each])) for start in starts]


RESUME = "run the same command again to resume"


class Actor:
    """A process that holds the model and answers one share after another."""

    def __init__(
        self, where: str, dtype: torch.dtype, device: str, run: Run, **options: object
    ) -> None:
        self.model, _ = load(where, dtype, device)
        self.run = run
        self.options = options

    def __call__(self, batch: dict) -> dict[str, list[bytes]]:
        """Whole batches are returned: if rows were yielded one by one, some would come twice after
        a process died."""
        (share,) = batch["share"]
        outputs = []
        problem = None
        try:
            for request in self.run(self.model, pickle.loads(share), stats=Stats(), **self.options):
                outputs.append({name: getattr(request, name) for name in OUTPUT})
        except Exception as raised:
            problem = raised
        return {"outputs": [pickle.dumps((outputs, problem))]}


def described(where: str, dtype: torch.dtype | str | None, device: str | None) -> bytes:
    """(Loaded, None), or (None, what `load` raised), pickled: Ray would wrap an error."""
    try:
        with warnings.catch_warnings(record=True) as caught:
            model, _ = load_with_tokenizer(where, dtype, device)
    except Exception as problem:
        return pickle.dumps((None, problem))
    said = [str(warning.message) for warning in caught]
    place = model.device.type  # each process takes its own GPU
    parts = [*model.ignored]
    return pickle.dumps((Loaded(model.dtype, place, some_weights(model), parts, said), None))


def imported_ray() -> ModuleType:
    """Ray with its data sets. Raises RayError where it isn't installed."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
        import ray.data
    except ModuleNotFoundError:
        reason = "Ray is not installed, expected: pip install 'qwenlab[ray]'"
        raise RayError(reason) from None
    return ray


def start_ray(ray: ModuleType, size: int, threads: int) -> None:
    """Starts Ray on this machine or joins the cluster at RAY_ADDRESS, unless the caller has. Raises
    RayError."""
    address = os.environ.get("RAY_ADDRESS", "local")
    # Here more processes than cores are allowed, and one CPU is left for what isn't an actor.
    cpus = {"num_cpus": size * threads + 1} if address == "local" else {}
    if not ray.is_initialized():
        try:
            ray.init(
                address,
                **cpus,
                include_dashboard=False,
                log_to_driver=False,
                logging_level="error",
                runtime_env={"env_vars": {"OMP_NUM_THREADS": str(threads)}},
            )
        except (ConnectionError, RuntimeError, ValueError) as problem:
            reason = f"Ray can't be started or joined at {address!r}"
            raise failure(RayError(f"{reason} ({first_line(problem)})")) from problem
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        ray.data.DataContext.get_current().enable_progress_bars = False
