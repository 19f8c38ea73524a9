"""Our generation beside that of transformers: the same weights, the same prompts, taking turns."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from statistics import median

import torch

from qwenlab.bench.alone import where_they_part
from qwenlab.bench.roofline import clocked, decode_bound, measure_machine
from qwenlab.bench.sweeps import distinct
from qwenlab.bench.timing import Spread, alternate, in_columns
from qwenlab.bench.twins import load_twins
from qwenlab.errors import whole
from qwenlab.fast import linear
from qwenlab.model.model import Model

NAMES = ("qwenlab", "transformers")


@dataclass(frozen=True)
class Pair:
    """One rate of both, in tokens a second, and the ratio ours / theirs, run by run."""

    qwenlab: Spread
    transformers: Spread
    ratio: Spread

    @classmethod
    def of(cls, tokens: int, ours: list[float], theirs: list[float]) -> "Pair":
        """From the seconds that each took for so many tokens."""
        our_rate = Spread.of(tokens / s for s in ours)
        their_rate = Spread.of(tokens / s for s in theirs)
        ratio = Spread.of(b / a for a, b in zip(ours, theirs, strict=True))
        return cls(our_rate, their_rate, ratio)

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
    second there: a tiny lead is a tie that rounding may turn."""

    row: int
    token: int
    margin: float


@dataclass(frozen=True)
class Batch:
    """One batch size. `prefill` counts prompt tokens, up to the first new one; `decode` the new
    ones after it, and `over_first` compares ours with theirs at the first batch size. `bandwidth`
    is the share of the measured memory bandwidth that each uses if a step reads what it must, and
    no more. `parted`: rows whose ids differ."""

    batch_size: int
    prefill: Pair
    decode: Pair
    over_first: float
    bandwidth: dict[str, float]
    parted: list[Parting]


@dataclass(frozen=True)
class Peers:
    """The comparison, and all that is needed to repeat it. `print(peers)` is the tables,
    `peers.json()` one line. `prefills`: one row of so many tokens, read in a single pass.
    `kernels`: by which our products are computed."""

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
            share = ", ".join(f"{b.bandwidth[name]:.0%}" for name in NAMES)
            alike = f"{b.batch_size - len(b.parted)} of {b.batch_size}"
            decode.append(
                [str(b.batch_size), *b.decode.cells(), f"{b.over_first:.2f}", share, alike]
            )
            for p in b.parted:
                place = f"of {b.batch_size} rows, row {p.row} parts at new token {p.token}"
                partings.append(
                    f"{place}; alone, its two best logits there are {p.margin:.1e} apart"
                )
        lines = [
            f"{self.machine}, torch {self.torch_version}, transformers {self.transformers_version}",
            f"{self.model}: {self.parameters:,} parameters in {self.dtype}, prompts of up to "
            f"{self.prompt_tokens} tokens, {self.new_tokens} new ones a row",
            f"memory reads {self.bytes_per_second / 1e9:.1f} GB/s; tokens/s, "
            f"median of {self.repeats} (lowest–highest)",
            f"ratio: qwenlab / transformers; ratio to {first}: qwenlab / transformers at {first}",
            *("", "decode", *in_columns(decode), *partings),
        ]
        for title, of, rates in (
            (
                "prefill, to the first token of generate",
                "rows",
                {b.batch_size: b.prefill for b in self.batches},
            ),
            ("prefill of one row, a pass of the model", "tokens", self.prefills),
        ):
            table = [[of, *NAMES, "ratio"]] + [
                [str(number), *rate.cells()] for number, rate in rates.items()
            ]
            lines += ["", title, *in_columns(table)]
        return "\n".join(lines)

    def json(self) -> str:
        """Everything as one line of JSON; tokens a second."""
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
    dtype=None,
    device=None,
    seed: int = 0,
    progress: bool = False,
    on_load: Callable[[Model], None] | None = None,
) -> Peers:
    """Measures our `generate` beside that of transformers (the extra `[peers]`), greedily and
    without stop ids.

    model: what `qwenlab.load` takes; both read the same folder. Or shape: "0.6b" is Qwen3-0.6B's,
    "0.8b" that of Qwen3.5-0.8B, with random weights held once for both. Prompts are random ids, the
    first row of `prompt_tokens`, the others of half as many and more; transformers gets them
    left-padded with a mask. Both are clocked from outside: a call for one token is the prefill,
    what a call for `new_tokens` takes longer is the decoding. `prefill` names lengths of one row
    that are also read in a single pass. All cases take turns, after a warm-up. on_load: called with
    our model before anything is measured.

    Raises ValueError for sizes below 1, fewer than 2 new tokens or a row longer than the context,
    and QwenlabError where the model can't be had or transformers is missing.
    """
    sizes = distinct(batch_sizes)
    lengths = [whole(length, "a prefill length", 1) for length in prefill]
    longest = whole(prompt_tokens, "prompt_tokens", 1) + whole(new_tokens, "new_tokens", 2)
    whole(repeats, "repeats", 1)
    sides = dict(zip(NAMES, load_twins(model, shape, dtype, device), strict=True))
    network = sides["qwenlab"].model
    limit = network.config.max_position_embeddings
    vocab = network.config.vocab_size
    if max([longest, *lengths]) > limit:
        raise ValueError(
            f"the longest row would hold {max([longest, *lengths])} tokens, "
            f"expected at most {limit}"
        )

    if on_load:
        on_load(network)
    generator = torch.Generator().manual_seed(seed)
    widths = torch.randint(
        (prompt_tokens + 1) // 2, prompt_tokens + 1, (max(sizes),), generator=generator
    ).tolist()
    widths[0] = prompt_tokens  # so that the rectangle is equally wide at every batch size
    prompts = [torch.randint(vocab, (width,), generator=generator).tolist() for width in widths]
    rows = {
        n: torch.randint(vocab, (1, n), generator=generator).to(network.device) for n in lengths
    }

    def run(case) -> tuple:
        number, name, alone = case
        if alone:
            return clocked(lambda: sides[name].read(rows[number]), network.device)
        one, _ = clocked(lambda: sides[name].say(prompts[:number], 1), network.device)
        return one, *clocked(lambda: sides[name].say(prompts[:number], new_tokens), network.device)

    cases = [
        (number, name, alone)
        for alone in (False, True)
        for number in (sizes, lengths)[alone]
        for name in NAMES
    ]
    readings = alternate(run, cases, repeats, progress=progress)
    machine = measure_machine(network.dtype, network.device)

    batches = []
    for size in sizes:
        runs = [readings[size, name, False] for name in NAMES]
        batches.append(weigh(network, machine, prompts[:size], new_tokens, runs, batches[:1]))
    alone = {}
    for length in lengths:
        seconds = [first_seconds(readings[length, name, True]) for name in NAMES]
        alone[length] = Pair.of(length, *seconds)
    versions = (
        torch.__version__,
        version("transformers"),
        machine.dtype,
        sum(p.numel() for p in network.parameters()),
    )
    about = machine.name, machine.bytes_per_second, *versions, prompt_tokens, new_tokens, repeats
    title = model or f"random weights of shape {shape}"
    return Peers(title, batches, alone, *about, linear.record())


def weigh(
    model, machine, prompts: list[list[int]], new_tokens: int, runs: list[list[tuple]], first: list
) -> Batch:
    """One batch size, from the runs of ours and of theirs; `first` holds the first batch size
    unless this is it."""
    size = len(prompts)
    tokens = sum(map(len, prompts))
    decoding = [
        decode_seconds(each, name, size, new_tokens) for each, name in zip(runs, NAMES, strict=True)
    ]
    decode = Pair.of(size * (new_tokens - 1), *decoding)
    over_first = decode.qwenlab.median / (first[0].decode if first else decode).transformers.median
    least, _ = decode_bound(
        model, machine, size, round(tokens / size + new_tokens / 2)
    )  # half way through
    shares = {
        name: least * (new_tokens - 1) / median(times)
        for name, times in zip(NAMES, decoding, strict=True)
    }
    prefill = Pair.of(tokens, *map(first_seconds, runs))
    return Batch(
        size,
        prefill,
        decode,
        over_first,
        shares,
        compare(model, prompts, *(each[0][2] for each in runs)),
    )


def first_seconds(runs: list[tuple]) -> list[float]:
    """The first entry of each run: its seconds for one token."""
    return [run[0] for run in runs]


def decode_seconds(runs: list[tuple], name: str, size: int, new_tokens: int) -> list[float]:
    """What each run (one token, all tokens, ids) took longer for all than the median for one: a
    single slow prefill must not make decoding look quick."""
    for_one = median(first_seconds(runs))
    times = [whole_run - for_one for _, whole_run, _ in runs]
    if min(times) <= 0:
        raise ValueError(
            f"{name}, {size} rows: {new_tokens} new tokens took no longer than 1, "
            "expected more of them"
        )
    return times


def compare(
    model, prompts: list[list[int]], ours: list[list[int]], theirs: list[list[int]]
) -> list[Parting]:
    """The rows whose ids part, read once more alone for their margins."""
    parted = []
    for row, (prompt, a, b) in enumerate(zip(prompts, ours, theirs, strict=True)):
        if a != b:
            logits = model(torch.tensor([prompt + a]))[0, len(prompt) - 1 :]  # (new tokens + 1, V)
            parted.append(Parting(row, *where_they_part(a, b, logits)))
    return parted
