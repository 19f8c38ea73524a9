"""Our generation beside that of transformers: the same weights and prompts, in alternation."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from itertools import product, starmap
from statistics import median
from typing import NamedTuple

import numpy as np
import torch

from qwenlab.bench.alone import where_they_part
from qwenlab.bench.roofline import Machine, clocked, decode_bound, measure_machine
from qwenlab.bench.sweeps import distinct
from qwenlab.bench.timing import Spread, alternate, in_columns
from qwenlab.bench.twins import Ours, Theirs, load_twins
from qwenlab.errors import whole
from qwenlab.fast import linear
from qwenlab.model.model import Model

NAMES = ("qwenlab", "transformers")


@dataclass(frozen=True)
class Pair:
    """One rate of both, in tokens per second, and the ratio ours / theirs, run by run."""

    qwenlab: Spread
    transformers: Spread
    ratio: Spread

    @classmethod
    def of(cls, tokens: int, ours: list[float], theirs: list[float]) -> "Pair":
        """From the seconds that each took for `tokens` tokens, run by run."""
        our_seconds = np.array(ours)
        their_seconds = np.array(theirs)
        our_rates = (tokens / our_seconds).tolist()
        their_rates = (tokens / their_seconds).tolist()
        ratios = (their_seconds / our_seconds).tolist()
        return cls(Spread.of(our_rates), Spread.of(their_rates), Spread.of(ratios))

    def cells(self) -> list[str]:
        digits = 0 if min(self.qwenlab.median, self.transformers.median) >= 100 else 1
        return [
            f"{self.qwenlab:.{digits}f}",
            f"{self.transformers:.{digits}f}",
            f"{self.ratio:.2f}",
        ]


@dataclass(frozen=True)
class Parting:
    """A row's first new token that differs, and by how much the lone row's best logit leads its
    second there: a tiny lead is a tie that rounding may decide."""

    row: int
    token: int
    margin: float


@dataclass(frozen=True)
class Batch:
    """One batch size. `prefill` counts prompt tokens, up to the first new one; `decode` counts the
    new ones after it. `over_first` compares our decode with theirs at the first batch size.
    `bandwidth` is the share of the measured memory bandwidth that each uses if a step reads only
    what it must. `parted`: rows whose ids differ."""

    batch_size: int
    prefill: Pair
    decode: Pair
    over_first: float
    bandwidth: dict[str, float]
    parted: list[Parting]


@dataclass(frozen=True)
class Peers:
    """The comparison, and everything needed to repeat it. `print(peers)` prints the tables;
    `peers.json()` is one line. `prefills`: {length: one row of that length in a single pass}.
    `kernels`: which compute our matrix products."""

    model: str
    batches: list[Batch]
    prefills: dict[int, Pair]
    machine: str
    bytes_per_second: float
    torch_version: str
    transformers_version: str
    dtype: str
    parameters: int
    prompt_tokens: int
    new_tokens: int
    repeats: int
    kernels: dict[str, str]

    def __str__(self) -> str:
        first = self.batches[0].batch_size
        decode = [["rows", *NAMES, "ratio", f"ratio to {first}", "of bandwidth", "rows alike"]]
        partings = []
        for b in self.batches:
            share = "{qwenlab:.0%}, {transformers:.0%}".format(**b.bandwidth)
            alike = f"{b.batch_size - len(b.parted)} of {b.batch_size}"
            decode.append(
                [str(b.batch_size), *b.decode.cells(), f"{b.over_first:.2f}", share, alike]
            )
            for p in b.parted:
                place = f"of {b.batch_size} rows, row {p.row} diverges at new token {p.token}"
                partings.append(
                    f"{place}; alone, its two best logits there are {p.margin:.1e} apart"
                )
        lines = [
            f"{self.machine}, torch {self.torch_version}, transformers {self.transformers_version}",
            f"{self.model}: {self.parameters:,} parameters in {self.dtype}, prompts of up to "
            f"{self.prompt_tokens} tokens, {self.new_tokens} new ones per row",
            f"memory reads {self.bytes_per_second / 1e9:.1f} GB/s; tokens/s, "
            f"median of {self.repeats} (lowest–highest)",
            f"ratio: qwenlab / transformers; ratio to {first}: qwenlab / transformers at {first}",
            *("", "decode", *in_columns(decode), *partings),
        ]
        together = [["rows", *NAMES, "ratio"]]
        for b in self.batches:
            together.append([str(b.batch_size), *b.prefill.cells()])
        single = [["tokens", *NAMES, "ratio"]]
        for length, rate in self.prefills.items():
            single.append([str(length), *rate.cells()])
        lines += ["", "prefill, to the first token of generate", *in_columns(together)]
        lines += ["", "prefill of one row, a pass of the model", *in_columns(single)]
        return "\n".join(lines)

    def json(self) -> str:
        """Everything as one line of JSON, in tokens per second."""
        return json.dumps(asdict(self))


def peers(
    model: str | None = None,
    batch_sizes: Sequence[int] = (1, 8, 64),
    prompt_tokens: int = 32,
    new_tokens: int = 32,
    *,
    shape: str | None = None,
    prefill: Sequence[int] = (64, 256, 1024),
    repeats: int = 3,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | None = None,
    seed: int = 0,
    progress: bool = False,
    on_load: Callable[[Model], None] | None = None,
) -> Peers:
    """Measures our `generate` beside that of transformers (the extra `[peers]`), greedily and
    without stop ids.

    model: what `qwenlab.load` takes; both load the same folder. Or shape: "0.6b" is Qwen3-0.6B's,
    "0.8b" that of Qwen3.5-0.8B, with random weights shared by both. Prompts are random ids:
    `prompt_tokens` of them in the first row, between half as many and that in the others;
    transformers gets them left-padded with a mask. Both are timed from outside: a call for one
    token is the prefill, and the extra time of a call for `new_tokens` is the decoding. `prefill`
    lists lengths at which a single row is also prefilled in one pass. All cases take turns, after a
    warm-up. on_load: called with our model before anything is measured.

    Raises ValueError for sizes below 1, fewer than 2 new tokens or a row longer than the context,
    and QwenlabError where the model can't be loaded or transformers is missing.
    """
    sizes = distinct(batch_sizes)
    lengths = []
    for length in prefill:
        lengths.append(whole(length, "a prefill length", 1))
    total = whole(prompt_tokens, "prompt_tokens", 1) + whole(new_tokens, "new_tokens", 2)
    longest = max([total, *lengths])
    whole(repeats, "repeats", 1)
    sides = dict(zip(NAMES, load_twins(model, shape, dtype, device), strict=True))
    network = sides["qwenlab"].model
    limit = network.config.max_position_embeddings
    vocab = network.config.vocab_size
    if longest > limit:
        raise ValueError(f"the longest row would hold {longest} tokens, expected at most {limit}")

    if on_load:
        on_load(network)
    generator = torch.Generator().manual_seed(seed)
    widths = torch.randint(
        (prompt_tokens + 1) // 2, prompt_tokens + 1, (max(sizes),), generator=generator
    ).tolist()
    widths[0] = prompt_tokens  # so that the rectangle is equally wide at every batch size
    prompts = []
    for width in widths:
        prompts.append(torch.randint(vocab, (width,), generator=generator).tolist())
    rows = {}
    for length in lengths:
        ids = torch.randint(vocab, (1, length), generator=generator)
        rows[length] = ids.to(network.device)

    def run(case: Case) -> Reading:
        side = sides[case.side]
        if case.single:
            seconds, _ = clocked(lambda: side.prefill(rows[case.number]), network.device)
            return Reading(seconds)
        return timed_generation(side, prompts[: case.number], new_tokens, network.device)

    cases = list(starmap(Case, product(sizes, NAMES, [False])))
    cases += starmap(Case, product(lengths, NAMES, [True]))
    readings = alternate(run, cases, repeats, progress=progress)
    machine = measure_machine(network.dtype, network.device)

    batches = []
    for size in sizes:
        runs = {name: readings[size, name, False] for name in NAMES}
        first = batches[0] if batches else None
        batches.append(weigh(network, machine, prompts[:size], new_tokens, runs, first))
    alone = {}
    for length in lengths:
        seconds = [first_seconds(readings[length, name, True]) for name in NAMES]
        alone[length] = Pair.of(length, *seconds)
    return Peers(
        model=model or f"random weights of shape {shape}",
        batches=batches,
        prefills=alone,
        machine=machine.name,
        bytes_per_second=machine.bytes_per_second,
        torch_version=torch.__version__,
        transformers_version=version("transformers"),
        dtype=machine.dtype,
        parameters=sum(p.numel() for p in network.parameters()),
        prompt_tokens=prompt_tokens,
        new_tokens=new_tokens,
        repeats=repeats,
        kernels=linear.record(),
    )


class Case(NamedTuple):
    """What one side is timed on: `number` rows or, if `single`, a prefill of `number` tokens."""

    number: int
    side: str
    single: bool


class Reading(NamedTuple):
    """Seconds for the first token and, unless the case is a single row, for all tokens, with their
    ids."""

    one: float
    every: float = 0.0
    ids: Sequence[list[int]] = ()


def timed_generation(
    side: Ours | Theirs, prompts: list[list[int]], new_tokens: int, device: torch.device
) -> Reading:
    """Times a side twice, for one token and for all."""
    one, _ = clocked(lambda: side.generate(prompts, 1), device)
    every, ids = clocked(lambda: side.generate(prompts, new_tokens), device)
    return Reading(one, every, ids)


def weigh(
    model: Model,
    machine: Machine,
    prompts: list[list[int]],
    new_tokens: int,
    runs: dict[str, list[Reading]],
    first: Batch | None,
) -> Batch:
    """One batch size, from the runs of each side; `first` is the first batch size, None if this is
    it."""
    size = len(prompts)
    tokens = sum(map(len, prompts))
    context = round(tokens / size + new_tokens / 2)  # half-way through
    least, _ = decode_bound(model, machine, size, context)
    decoding = []
    shares = {}
    for name in NAMES:
        times = decode_seconds(runs[name], name, size, new_tokens)
        shares[name] = least * (new_tokens - 1) / median(times)
        decoding.append(times)
    decode = Pair.of(size * (new_tokens - 1), *decoding)
    at_first = first.decode if first else decode
    ours, theirs = (runs[name][0].ids for name in NAMES)
    return Batch(
        batch_size=size,
        prefill=Pair.of(tokens, *map(first_seconds, runs.values())),
        decode=decode,
        over_first=decode.qwenlab.median / at_first.transformers.median,
        bandwidth=shares,
        parted=compare(model, prompts, ours, theirs),
    )


def first_seconds(runs: Sequence[Reading]) -> list[float]:
    """The seconds of each run for one token."""
    return [one for one, *_ in runs]


def decode_seconds(runs: Sequence[Reading], name: str, size: int, new_tokens: int) -> list[float]:
    """How much longer than the median for one token each run took for all of them. The median,
    because a single slow prefill must not make decoding look fast."""
    for_one = median(first_seconds(runs))
    times = [every - for_one for _, every, _ in runs]
    if min(times) <= 0:
        raise ValueError(
            f"{name}, {size} rows: {new_tokens} new tokens took no longer than 1, "
            "expected more of them"
        )
    return times


def compare(
    model: Model,
    prompts: list[list[int]],
    ours: Sequence[list[int]],
    theirs: Sequence[list[int]],
) -> list[Parting]:
    """The rows whose ids differ, each run once more alone for its margin."""
    parted = []
    for row, (prompt, a, b) in enumerate(zip(prompts, ours, theirs, strict=True)):
        if a != b:
            logits = model(torch.tensor([prompt + a]))[0, len(prompt) - 1 :]  # (new tokens + 1, V)
            parted.append(Parting(row, *where_they_part(a, b, logits)))
    return parted
