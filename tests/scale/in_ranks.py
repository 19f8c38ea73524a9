"""A function called in several processes, which are each other's ranks."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from forks import PROCESSES

Call = tuple[Callable, dict]  # a function of a module, and its options


def in_ranks(calls: dict[str, Call], size: int = 2) -> dict[str, list]:
    """What every rank returns of each call, by its name and by rank. All calls share the
    processes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        processes = start(calls, size, folder)
        for process in processes:
            process.join()
        assert [process.exitcode for process in processes] == [0] * size
        results = [torch.load(folder / str(rank), weights_only=False) for rank in range(size)]
    return {name: [result[name] for result in results] for name in calls}


def start(calls: dict[str, Call], size: int, folder: Path) -> list:
    processes = []
    for rank in range(size):
        process = PROCESSES.Process(target=one_rank, args=(calls, rank, size, folder))
        process.start()
        processes.append(process)
    return processes


def one_rank(calls: dict[str, Call], rank: int, size: int, folder: Path) -> None:
    torch.set_num_threads(1)
    meeting = (folder / "meeting").as_uri()
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size)
    results = {name: function(**options) for name, (function, options) in calls.items()}
    torch.save(results, folder / str(rank))
    dist.barrier()
    os._exit(0)  # the group's threads need no farewell
