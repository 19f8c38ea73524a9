"""How many threads a command uses.

Small models are slower with several threads and large ones faster, so `--threads auto` times a
decode step of the loaded model both ways. Only commands set the number; the library never does.
"""

import os
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from qwenlab.cli.common import plural
from qwenlab.cli.options import number_of_threads

if TYPE_CHECKING:
    from qwenlab.model.model import Model

# OpenMP aborts the process if it can't start a thread, so absurd numbers are refused first.
MOST_THREADS = max(256, os.cpu_count() or 1)
MOST_ROWS = 256
SECONDS = 0.2  # of timing, after which no further round begins
MOST_ROUNDS = 7
WORTH = 0.9  # all cores must take at most this fraction of one thread's time to be chosen


class Threads:
    """The number of threads for one run of a command, from its option `--threads`.

    number: None until it is known, and on a GPU, where PyTorch's own number stays. reason: why this
    number was chosen; empty if there was no choice. As text it is a line for the user. Raises
    ValueError for anything but "auto" and a number from 1 to MOST_THREADS.
    """

    def __init__(self, text: str) -> None:
        import torch

        self.number = number_of_threads(text, MOST_THREADS)
        self.auto = self.number is None
        self.all_cores = torch.get_num_threads()  # or what OMP_NUM_THREADS allows
        self.reason = ""

    def __str__(self) -> str:
        if self.number is None:
            return ""
        return plural(self.number, "thread") + (f" ({self.reason})" if self.reason else "")

    def use(self, model: "Model", rows: int, run: Path | None = None) -> "Threads":
        """Sets the number of threads for `model` with batches of `rows`.

        run: the folder of a training. An interrupted training resumes with the number of threads
        that it was started with, because the last bits of its sums depend on it.
        """
        import torch

        from qwenlab.scale import ranks

        if self.auto:
            recorded = recorded_threads(run) if run else None
            if recorded:
                self.number = recorded
                self.reason = f"as recorded in {run}"
            elif model.device.type == "cpu":
                self.choose(model, rows)
        # of several ranks, all take what the first has chosen
        self.number, self.reason = ranks.of_first((self.number, self.reason))
        if self.number is not None:
            torch.set_num_threads(self.number)
        return self

    def choose(self, model: "Model", rows: int) -> None:
        """Chooses all cores if they are clearly faster, else one thread."""
        self.number = self.all_cores
        if self.all_cores > 1:
            seconds = step_seconds(model, min(max(1, rows), MOST_ROWS), (self.all_cores, 1))
            if seconds[self.all_cores] > WORTH * seconds[1]:
                self.number = 1
            (other,) = seconds.keys() - {self.number}
            chosen = in_ms(seconds[self.number])
            self.reason = f"{chosen} per step; {plural(other, 'thread')}: {in_ms(seconds[other])}"


def step_seconds(model: "Model", rows: int, numbers: tuple[int, ...]) -> dict[int, float]:
    """Seconds of a decode step with `rows` rows, for each number of threads.

    The fastest of a few rounds counts, because other work on the machine only adds time. A large
    model gets a single round, which takes longer than SECONDS. In each round an untimed step comes
    first; it starts the threads and, in the first round, chooses the kernels.
    """
    import torch

    state = model.new_state(rows, capacity=2 * len(numbers) * MOST_ROUNDS)
    input_ids = torch.zeros(rows, 1, dtype=torch.int64)

    def step() -> None:
        model(input_ids, state=state, last_only=True)

    times: dict[int, list[float]] = {number: [] for number in numbers}
    began = perf_counter()
    rounds = 0
    with torch.no_grad():
        while rounds == 0 or (rounds < MOST_ROUNDS and perf_counter() - began < SECONDS):
            for number in numbers if rounds % 2 == 0 else numbers[::-1]:
                torch.set_num_threads(number)
                step()
                times[number].append(timed(step))
            rounds += 1
    return {number: min(each) for number, each in times.items()}


def timed(work: Callable[[], None]) -> float:
    began = perf_counter()
    work()
    return perf_counter() - began


def recorded_threads(run: Path) -> int | None:
    """The number of threads recorded in a training's folder; None if there is none."""
    from qwenlab.errors import read_json
    from qwenlab.run_folder import SETTINGS, RunFolderError

    path = run / SETTINGS
    number = read_json(path, RunFolderError).get("threads") if path.is_file() else None
    usable = type(number) is int and 1 <= number <= MOST_THREADS
    return number if usable else None


def in_ms(seconds: float) -> str:
    ms = 1000 * seconds
    return f"{ms:.0f} ms" if ms >= 100 else f"{ms:.1f} ms"
