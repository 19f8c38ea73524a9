"""Decode speed of every peer at the sizes that people run, one table: `qwenlab peers --table`."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from itertools import product
from statistics import median
from textwrap import fill
from typing import NamedTuple, Protocol

import numpy as np
import torch

from qwenlab import fast
from qwenlab.bench import llama
from qwenlab.bench.beside import Reading, decode_seconds, timed_generation
from qwenlab.bench.roofline import decode_bound, measure_machine
from qwenlab.bench.sweeps import distinct
from qwenlab.bench.timing import Spread, alternate, cpu_name, in_columns
from qwenlab.bench.twins import SHAPES, Ours, Theirs, load_twins
from qwenlab.errors import QwenlabError, whole
from qwenlab.fast import linear
from qwenlab.model.model import Model

TINY = "tiny"  # the shipped model; the other shapes have random weights
DTYPES = ("float32", "bfloat16")
BATCH_SIZES = {TINY: (1, 8, 64)}
NEW_TOKENS = {TINY: 64}
OTHER_BATCH_SIZES = (1, 4, 16)
OTHER_NEW_TOKENS = 16
REFERENCE = "transformers"  # what ratios compare with
OURS = "qwenlab"
PACKED = "qwenlab, packed"


class Side(Protocol):
    """Greedy generation of all prompts at once without stop ids, timed."""

    def run(self, prompts: list[list[int]], new_tokens: int, threads: int) -> tuple: ...

    def close(self) -> None: ...


class Torch:
    """A side that computes by PyTorch in this process."""

    def __init__(self, side: Ours | Theirs, set_threads: Callable[[int], None]) -> None:
        self.side = side
        self.set_threads = set_threads

    def run(
        self, prompts: list[list[int]], new_tokens: int, threads: int
    ) -> tuple[float, float, list[list[int]]]:
        """Seconds for the first token and for all of them, and the ids."""
        self.set_threads(threads)
        return timed_generation(self.side, prompts, new_tokens, torch.device("cpu"))

    def close(self) -> None:
        """There is nothing to end."""


class Packed(Torch):
    """Our side with packed weights, which are made and dropped outside of what is timed."""

    def run(
        self, prompts: list[list[int]], new_tokens: int, threads: int
    ) -> tuple[float, float, list[list[int]]]:
        fast.pack(self.side.model)
        try:
            return super().run(prompts, new_tokens, threads)
        finally:
            fast.unpack(self.side.model)


@dataclass(frozen=True)
class Cell:
    """One side at one batch size: decoded tokens per second, the ratio to transformers run by run,
    the share of the measured memory bandwidth if a step reads only what it must, the number of
    threads, and how many rows have the ids of transformers."""

    rate: Spread
    ratio: Spread
    bandwidth: float
    threads: int
    alike: int


@dataclass(frozen=True)
class Line:
    """One shape, dtype and batch size. A side that was not measured there has no cell."""

    shape: str
    dtype: str
    batch_size: int
    new_tokens: int
    cells: dict[str, Cell]


@dataclass(frozen=True)
class PeerTable:
    """The table, and everything needed to repeat it. `print(table)` prints it; `table.json()` is
    one line. `bytes_per_second`: by dtype; `notes`: what could not be measured, and why."""

    lines: list[Line]
    machine: str
    bytes_per_second: dict[str, float]
    versions: dict[str, str]
    prompt_tokens: int
    repeats: int
    kernels: dict[str, str]
    notes: list[str]

    def __str__(self) -> str:
        return text_of(asdict(self))

    def json(self) -> str:
        """Everything as one line of JSON, in tokens per second."""
        return json.dumps(asdict(self))


def text_of(table: Mapping) -> str:
    """The table as text, from what `PeerTable.json` holds."""
    versions = ", ".join(f"{name} {number}" for name, number in table["versions"].items())
    reads = []
    for dtype, rate in table["bytes_per_second"].items():
        reads.append(f"{rate / 1e9:.1f} GB/s ({dtype} run)")
    lines = [
        f"{table['machine']}, {versions}",
        f"memory reads {', '.join(reads)}; prompts of up to {table['prompt_tokens']} tokens",
        f"decoded tokens/s, median of {table['repeats']} (lowest–highest); ratio to {REFERENCE}; "
        "share of that bandwidth; best number of threads of those tried; rows with the same ids",
        "",
    ]
    rows = [["shape", "dtype", "rows", "", "tokens/s", "ratio", "of bandwidth", "threads", "alike"]]
    for line in table["lines"]:
        place = [line["shape"], line["dtype"], str(line["batch_size"])]
        for name, cell in line["cells"].items():
            rate = Spread(**cell["rate"])
            digits = 0 if rate.median >= 100 else 1
            row = [*place, name, f"{rate:.{digits}f}", f"{Spread(**cell['ratio']):.2f}"]
            row += [f"{cell['bandwidth']:.0%}", str(cell["threads"])]
            rows.append([*row, f"{cell['alike']} of {line['batch_size']}"])
            place = ["", "", ""]
    sentences = [fill(verdict, 100, subsequent_indent="    ") for verdict in verdicts(table)]
    return "\n".join([*lines, *in_columns(rows), *table["notes"], "", *sentences])


def verdicts(table: Mapping) -> list[str]:
    """One sentence for each pair of ours and a peer: where ours is clearly faster, clearly slower,
    or neither, judged by whether their lowest and highest rates overlap."""
    found: dict[str, dict[str, list[str]]] = {}
    for line in table["lines"]:
        cells = dict(line["cells"])
        ours = cells.pop(OURS)["rate"]
        cells.pop(PACKED, None)
        case = f"{line['shape']} {line['dtype']} at {line['batch_size']}"
        for name, cell in cells.items():
            rate = cell["rate"]
            if ours["low"] > rate["high"]:
                verdict = "faster than"
            elif ours["high"] < rate["low"]:
                verdict = "slower than"
            else:
                verdict = "within the spread of"
            found.setdefault(name, {}).setdefault(verdict, []).append(case)
    sentences = []
    for name, by_verdict in found.items():
        for verdict, cases in by_verdict.items():
            sentences.append(f"qwenlab is {verdict} {name} in {len(cases)}: {', '.join(cases)}.")
    return sentences


class Case(NamedTuple):
    """What one side is timed on."""

    size: int
    side: str
    threads: int


def peer_table(
    shapes: Sequence[str] = (TINY, *SHAPES),
    dtypes: Sequence[str] = DTYPES,
    batch_sizes: Sequence[int] | None = None,
    prompt_tokens: int = 16,
    new_tokens: int | None = None,
    *,
    threads: int | None = None,
    set_threads: Callable[[int], None] | None = None,
    repeats: int = 3,
    seed: int = 0,
    progress: bool = False,
    on_start: Callable[[str], None] | None = None,
) -> PeerTable:
    """Measures decoding on this CPU by qwenlab, transformers and, if llama-cpp-python and gguf are
    installed, llama.cpp: greedy, with the same weights and prompts, in alternation.

    shapes: "tiny", the shipped model, or shapes with random weights, one pair of weights in memory
    at a time. batch_sizes: by default 1, 8, 64 for tiny and 1, 4, 16 for the others; new_tokens: 64
    and 16. set_threads: what sets PyTorch's number of threads, which the library never does by
    itself; without it, all run with the current number. With it, they run with `threads`, by
    default the current number, and for tiny also 1; the better one of each side counts.
    Decoding is the time for all tokens beyond that for one. llama.cpp runs in a
    process of its own, and keeps its default float16 for keys and values. on_start: called with a
    line of text before each shape and dtype.

    Raises ValueError for sizes below 1 or fewer than 2 new tokens, and QwenlabError for an unknown
    shape, or where transformers is missing. At the end `set_threads` gets the
    number from before.
    """
    known = [TINY, *SHAPES]
    for shape in shapes:
        if shape not in known:
            raise QwenlabError(f"shape is {shape!r}, expected one of {', '.join(known)}")
    for dtype in dtypes:
        if dtype not in DTYPES:
            raise QwenlabError(f"dtype is {dtype!r}, expected one of {', '.join(DTYPES)}")
    if batch_sizes is not None:
        batch_sizes = distinct(batch_sizes)
    whole(prompt_tokens, "prompt_tokens", 1)
    if new_tokens is not None:
        whole(new_tokens, "new_tokens", 2)
    whole(repeats, "repeats", 1)
    before = torch.get_num_threads()
    most = before if threads is None else whole(threads, "threads", 1)
    if set_threads is None and most != before:
        raise ValueError(f"threads is {most}, expected {before} where set_threads is not given")
    use = set_threads or unchanged
    absent = llama.why_not()
    notes = [] if absent is None else [absent]
    lines = []
    bandwidths = {}
    kernels = {}
    try:
        for dtype in dtypes:
            use(most)
            machine = measure_machine(getattr(torch, dtype))
            bandwidths[dtype] = machine.bytes_per_second
            for shape in shapes:
                if on_start:
                    on_start(f"{shape} in {dtype}")
                both = shape == TINY and threads is None and set_threads is not None
                tried = sorted({1, most}) if both else [most]
                sizes = batch_sizes or BATCH_SIZES.get(shape, OTHER_BATCH_SIZES)
                count = new_tokens or NEW_TOKENS.get(shape, OTHER_NEW_TOKENS)
                prompts = random_prompts(max(sizes), prompt_tokens, seed)
                model, sides = open_sides(shape, dtype, use, absent is None, notes)
                try:
                    readings = time_sides(sides, prompts, sizes, count, tried, repeats, progress)
                    for size in sizes:
                        context = round(sum(map(len, prompts[:size])) / size + count / 2)
                        least, _ = decode_bound(model, machine, size, context)
                        cells = weigh(readings, list(sides), size, count, tried, least)
                        lines.append(Line(shape, dtype, size, count, cells))
                finally:
                    for side in sides.values():
                        side.close()
                del model, sides
                kernels |= linear.record()
    finally:
        use(before)
    versions = {"torch": torch.__version__, "transformers": version("transformers")}
    if absent is None and llama.llama_version():
        versions["llama-cpp-python"] = llama.llama_version()
    return PeerTable(
        lines, cpu_name(), bandwidths, versions, prompt_tokens, repeats, kernels, notes
    )


def unchanged(_threads: int) -> None:
    """Keeps PyTorch's number of threads."""


def random_prompts(rows: int, prompt_tokens: int, seed: int) -> list[list[int]]:
    """Random ids below 128, which every vocabulary has: the longest in the first row, between half
    as many and that in the others."""
    generator = torch.Generator().manual_seed(seed)
    prompts = []
    for row in range(rows):
        width = prompt_tokens
        if row > 0:
            low = (prompt_tokens + 1) // 2
            width = int(torch.randint(low, prompt_tokens + 1, (), generator=generator))
        prompts.append(torch.randint(128, (width,), generator=generator).tolist())
    return prompts


def open_sides(
    shape: str,
    dtype: str,
    use: Callable[[int], None],
    with_llama: bool,
    notes: list[str],
) -> tuple[Model, dict[str, Side]]:
    """Our model, and all sides of one shape by name. Adds to `notes` what has no side."""
    where = (TINY, None) if shape == TINY else (None, shape)
    ours, theirs = load_twins(*where, dtype, "cpu")
    sides: dict[str, Side] = {REFERENCE: Torch(theirs, use), OURS: Torch(ours, use)}
    if shape != TINY:  # whose matrices are too small to gain
        sides[PACKED] = Packed(ours, use)
    if with_llama and "linear_attention" in ours.model.config.layer_types:
        note = f"llama.cpp is not measured at {shape}, a hybrid: only dense models are written"
        if note not in notes:
            notes.append(note)
    elif with_llama:
        sides["llama.cpp"] = llama.Llama(ours.model)
    return ours.model, sides


def time_sides(
    sides: Mapping[str, Side],
    prompts: list[list[int]],
    sizes: Sequence[int],
    new_tokens: int,
    threads: Sequence[int],
    repeats: int,
    progress: bool,
) -> dict[Case, list[Reading]]:
    def run(case: Case) -> Reading:
        return Reading(*sides[case.side].run(prompts[: case.size], new_tokens, case.threads))

    cases = [Case(*case) for case in product(sizes, sides, threads)]
    return alternate(run, cases, repeats, progress=progress)


def weigh(
    readings: Mapping[Case, list[Reading]],
    names: Sequence[str],
    size: int,
    new_tokens: int,
    threads: Sequence[int],
    least: float,
) -> dict[str, Cell]:
    """Each side at one batch size, with its better number of threads."""
    best: dict[str, tuple[int, list[float]]] = {}
    for name in names:
        times = {}
        for number in threads:
            runs = readings[Case(size, name, number)]
            times[number] = decode_seconds(runs, name, size, new_tokens)
        number = min(times, key=lambda tried: median(times[tried]))
        best[name] = (number, times[number])
    number, reference = best[REFERENCE]
    expected = readings[Case(size, REFERENCE, number)][0].ids
    tokens = size * (new_tokens - 1)
    cells = {}
    for name, (number, seconds) in best.items():
        said = readings[Case(size, name, number)][0].ids
        cells[name] = Cell(
            rate=Spread.of([tokens / each for each in seconds]),
            ratio=Spread.of((np.array(reference) / np.array(seconds)).tolist()),
            bandwidth=least * (new_tokens - 1) / median(seconds),
            threads=number,
            alike=len([1 for a, b in zip(said, expected, strict=True) if a == b]),
        )
    return cells
