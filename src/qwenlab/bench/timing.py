"""Repeated measurements that can be trusted: warmed up, in alternating order, reported with their
spread."""

import platform
import statistics
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from tqdm import tqdm

from qwenlab.errors import whole


@dataclass(frozen=True)
class Spread:
    """Repeated readings of one quantity: their median, lowest and highest."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, readings: Iterable[float]) -> "Spread":
        readings = list(readings)
        return cls(statistics.median(readings), min(readings), max(readings))

    def __format__(self, how: str) -> str:
        """`f"{spread:.1f}"` is "12.3 (11.9–13.0)"."""
        return f"{self.median:{how}} ({self.low:{how}}–{self.high:{how}})"


def alternate(
    run: Callable, cases: list[Hashable], repeats: int, warm_up: int = 1, progress: bool = False
) -> dict:
    """Calls `run(case)` `repeats` times for every case and returns {case: [its result, ...]}.

    Each case first runs `warm_up` times untimed. The order reverses on alternate repeats, so that a
    machine that slows down or speeds up affects the first and last cases alike. Raises ValueError
    for fewer than one repeat.
    """
    whole(repeats, "repeats", 1)
    whole(warm_up, "warm_up", 0)
    readings = {case: [] for case in cases}
    with tqdm(total=len(cases) * (warm_up + repeats), unit="run", disable=not progress) as bar:
        for case in cases:
            for _ in range(warm_up):
                run(case)
                bar.update()
        for turn in range(repeats):
            for case in cases if turn % 2 == 0 else cases[::-1]:
                readings[case].append(run(case))
                bar.update()
    return readings


def in_columns(table: list[list[str]]) -> list[str]:
    """Rows of cells as lines of text, right-aligned, each column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = []
    for cells in table:
        lines.append("  ".join(map(str.rjust, cells, widths)))
    return lines


def machine_name(device: torch.device) -> str:
    """The name of the GPU, or of the CPU with the number of threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{cpu_name()}, {threads} thread{'' if threads == 1 else 's'}"


def cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return " ".join(line.partition(":")[2].split())
    return platform.processor() or platform.machine()
