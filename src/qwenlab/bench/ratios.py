"""What the comparison of two libraries found: rates, ratios, where their ids part; as tables and as one line."""

import json
from dataclasses import asdict, dataclass

from qwenlab.bench.timing import Spread, in_columns

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
        rates = (Spread.of(tokens / s for s in seconds) for seconds in (ours, theirs))
        return cls(*rates, Spread.of(b / a for a, b in zip(ours, theirs, strict=True)))

    def cells(self) -> list[str]:
        digits = 0 if min(self.qwenlab.median, self.transformers.median) >= 100 else 1
        return [f"{self.qwenlab:.{digits}f}", f"{self.transformers:.{digits}f}", f"{self.ratio:.2f}"]


@dataclass(frozen=True)
class Parting:
    """A row whose ids are not the same: the first new token that differs, and by how much the lone row's best logit
    leads its second there. A tiny lead is a tie that rounding may turn."""

    row: int
    token: int
    margin: float


@dataclass(frozen=True)
class Batch:
    """One batch size. `prefill`: prompt tokens over the time of a call for one new token. `decode`: new tokens after
    the first. `over_first`: our decode rate over theirs at the first batch size. `bandwidth`: the share of the
    measured memory bandwidth that each uses, if it reads what a step must read, and no more."""

    batch_size: int
    prefill: Pair
    decode: Pair
    over_first: float
    bandwidth: dict[str, float]
    parted: list[Parting]


@dataclass(frozen=True)
class Prefill:
    """One row of so many tokens, read in a single pass."""

    prompt_tokens: int
    rate: Pair


@dataclass(frozen=True)
class Peers:
    """The comparison, and all that is needed to repeat it. `print(peers)` is the tables, `peers.json()` one line."""

    model: str
    batches: list[Batch]
    prefills: list[Prefill]
    machine: str
    bytes_per_second: float
    torch_version: str
    transformers_version: str
    dtype: str
    parameters: int
    prompt_tokens: int
    new_tokens: int
    repeats: int
    kernels: list[str]  # which of ours computes how many rows of which matrix: a line each

    def __str__(self) -> str:
        first = self.batches[0].batch_size
        decode = [["rows", *NAMES, "ratio", f"ratio to {first}", "of bandwidth", "rows alike"]]
        prefill, alone = [["rows", *NAMES, "ratio"]], [["tokens", *NAMES, "ratio"]]
        partings = []
        for b in self.batches:
            share = ", ".join(f"{b.bandwidth[name]:.0%}" for name in NAMES)
            alike = f"{b.batch_size - len(b.parted)} of {b.batch_size}"
            decode.append([str(b.batch_size), *b.decode.cells(), f"{b.over_first:.2f}", share, alike])
            prefill.append([str(b.batch_size), *b.prefill.cells()])
            for p in b.parted:
                words = f"of {b.batch_size} rows, row {p.row} parts at new token {p.token}; alone, its two best logits"
                partings.append(f"{words} there are {p.margin:.1e} apart")
        alone += [[str(p.prompt_tokens), *p.rate.cells()] for p in self.prefills]
        lines = [
            f"{self.machine}, torch {self.torch_version}, transformers {self.transformers_version}",
            f"{self.model}: {self.parameters:,} parameters in {self.dtype}, memory reads {self.bytes_per_second:.2e} "
            "bytes/s",
            f"prompts of up to {self.prompt_tokens} tokens, {self.new_tokens} new ones a row",
            f"tokens/s, median of {self.repeats} (lowest–highest); ratio: qwenlab / transformers; ratio to {first}: "
            f"qwenlab / transformers at {first} row{'s' * (first > 1)}",
            "",
            "decode",
            *in_columns(decode),
            *partings,
            "",
            "prefill, to the first token of generate",
            *in_columns(prefill),
        ]
        if self.prefills:
            lines += ["", "prefill of one row, a pass of the model", *in_columns(alone)]
        return "\n".join(lines)

    def json(self) -> str:
        """Everything as one line of JSON; tokens a second."""
        return json.dumps(asdict(self))
