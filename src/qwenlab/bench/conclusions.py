"""Five conclusions that the text around the published table of the four workloads draws from it
(S. Raschka, "Build a Reasoning Model (From Scratch)", appendix E), and what our own measurements
say about each. The verdicts are chosen from the figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qwenlab.bench.timing import Spread
from qwenlab.bench.workloads import PUBLISHED

HOLDS = "holds here"
PARTLY = "holds here only in part"
FAILS = "does not hold here"
H100_GB = 80  # NVIDIA's data sheet of the SXM module
WORTHWHILE = 1.1  # a larger batch must bring at least this factor


@dataclass(frozen=True)
class Finding:
    """A conclusion in our words, what the published rows themselves say about it, the verdict of
    our own figures, and those figures as a sentence."""

    claim: str
    published: str
    verdict: str
    here: str


def findings(workloads: Mapping, batches: Mapping, rows_that_fit: int) -> list[Finding]:
    """The five conclusions, each with its verdict.

    workloads: what `qwenlab table` measured, as `teach.stored("workloads")` has it. batches: what
    scripts/stored_batches.py measured, `teach.stored("batches")`. rows_that_fit: how many rows of
    its sweep fit into the memory of that machine.
    """
    ours = gains_of(workloads)
    return [
        big_gains_most(ours),
        slow_gains_least(ours),
        memory_is_the_limit(batches["sweep"], rows_that_fit),
        pads_cost(batches["pads"]),
        distillation_gains_least(workloads, batches["rows_of_four"]),
    ]


def gains_of(workloads: Mapping) -> dict[str, float]:
    """How many times as fast each task was in a batch, by the medians."""
    medians = [run["seconds"]["median"] for run in workloads["runs"]]
    tasks = [run["task"] for run in workloads["runs"][::2]]
    pairs = zip(medians[::2], medians[1::2], strict=True)
    return dict(zip(tasks, (single / batched for single, batched in pairs), strict=True))


def ranges_of(workloads: Mapping) -> dict[str, tuple[float, float]]:
    """Of each task, the lowest and the highest gain that its readings allow."""
    ranges = {}
    for single, batched in zip(workloads["runs"][::2], workloads["runs"][1::2], strict=True):
        slow, fast = single["seconds"], batched["seconds"]
        ranges[single["task"]] = (slow["low"] / fast["high"], slow["high"] / fast["low"])
    return ranges


def published_gains(machine: str) -> dict[str, float]:
    """The same for a machine of the published table: "h100" or "spark"."""
    gains = {}
    for task, published in PUBLISHED.items():
        single, batched = getattr(published, machine)
        gains[task] = single / batched
    return gains


def of_four(count: int) -> str:
    """The verdict when a conclusion is true of `count` of the four workloads."""
    return HOLDS if count == 4 else PARTLY if count else FAILS


def big_gains_most(ours: Mapping[str, float]) -> Finding:
    h100 = published_gains("h100")
    spark = published_gains("spark")
    there = len([task for task in PUBLISHED if h100[task] > spark[task]])
    here = len([task for task in PUBLISHED if h100[task] > max(spark[task], ours[task])])
    return Finding(
        "The biggest GPU gains most",
        f"the H100 gains more than the DGX Spark in {there} of the 4 workloads",
        of_four(here),
        f"with our two CPU cores as a third machine, the H100's gain is the largest in {here} of 4 "
        f"({told(h100)}; ours {told(ours)})",
    )


def slow_gains_least(ours: Mapping[str, float]) -> Finding:
    h100 = published_gains("h100")
    spark = published_gains("spark")
    slower = len([one for one in PUBLISHED.values() if one.spark[0] > one.h100[0]])
    there = len([task for task in PUBLISHED if spark[task] < h100[task]])
    here = len([task for task in PUBLISHED if ours[task] < spark[task]])
    return Finding(
        "Slower hardware gains less",
        f"the DGX Spark gains less in {there} of 4, though one by one it is the slower machine in "
        f"only {slower}",
        of_four(here),
        f"two CPU cores gain less than the DGX Spark in {here} of 4 (the Spark {told(spark)}; ours "
        f"{told(ours)})",
    )


def memory_is_the_limit(sweep: Sequence[Mapping], rows_that_fit: int) -> Finding:
    """sweep: points of `bench.sweep`, by their rows."""
    rates = {point["batch_size"]: point["tokens_per_second"]["median"] for point in sweep}
    best = max(rates.values())
    sizes = [size for size, rate in rates.items() if rate * WORTHWHILE >= best]
    enough = None if sizes[0] == sweep[-1]["batch_size"] else sizes[0]
    reached = enough or sweep[-1]["batch_size"]
    gain = f"{WORTHWHILE - 1:.0%}"
    if rows_that_fit <= reached:
        verdict = HOLDS
        here = (
            f"the rate still rises up to {reached:,} rows, and only "
            f"{rows_that_fit:,} fit into memory: memory ends first"
        )
    elif enough:
        verdict = FAILS
        here = (
            f"{enough:,} rows come within {gain} of the best rate, while {rows_that_fit:,} such "
            "rows fit into memory: speed ends first"
        )
    else:
        verdict = PARTLY
        here = (
            f"the rate still rises at {reached:,} rows, and {rows_that_fit:,} fit into memory, so "
            "the measurement reaches neither end"
        )
    evaluation = PUBLISHED["evaluation"]
    single, batched = evaluation.gigabytes
    return Finding(
        "Memory is the limit",
        f"a batch of {evaluation.batch} takes {batched / single:.0f} times the memory of one row, "
        f"which is {batched / H100_GB:.0%} of what an H100 has",
        verdict,
        here,
    )


def pads_cost(pads: Mapping) -> Finding:
    """pads: seconds of the same batch with prompts of "equal" and of "different" lengths."""
    pairs = zip(pads["different"], pads["equal"], strict=True)
    ratio = Spread.of(different / equal for different, equal in pairs)
    verdict = HOLDS if ratio.low > 1 else FAILS
    batches = sorted({published.batch for published in PUBLISHED.values()})
    return Finding(
        "Without pads, a batch has less overhead",
        "they cannot tell, because the batches with pads and those without differ in size "
        f"({', '.join(map(str, batches))} rows)",
        verdict,
        f"{pads['rows']} prompts of different lengths, {pads['pad_share']:.0%} of their rectangle "
        f"pads, took {ratio:.2f} times the seconds of equally long ones with as many tokens",
    )


def distillation_gains_least(workloads: Mapping, four: Mapping) -> Finding:
    """four: seconds with 4 rows, "one by one" and "together", of "training" and "generating"."""
    least = []
    for gains in (published_gains("h100"), published_gains("spark")):
        least.append(min(gains, key=gains.__getitem__))
    there = least.count("distillation")
    ranges = ranges_of(workloads)
    _, highest = ranges.pop("distillation")
    is_least = highest < min(low for low, _ in ranges.values())
    pairs = {}
    for what in ("training", "generating"):
        spent = four[what]
        ratios = zip(spent["one by one"], spent["together"], strict=True)
        pairs[what] = Spread.of(single / batched for single, batched in ratios)
    training = pairs["training"]
    generating = pairs["generating"]
    gains_less = training.high < generating.low
    return Finding(
        "Distillation gains least, because its backward pass dominates",
        f"it gains least on {there} of the 2 machines",
        HOLDS if is_least and gains_less else PARTLY if is_least or gains_less else FAILS,
        f"its gain is {'clearly' if is_least else 'not clearly'} the smallest of our four "
        f"({told(gains_of(workloads))}); and four rows together gain {training:.1f} times in a "
        f"forward and backward pass, {'clearly less' if gains_less else 'not clearly less'} than "
        f"{generating:.1f} times in generating",
    )


def told(gains: Mapping[str, float]) -> str:
    """Gains in the order of the table: "5.6, 2.0, 3.6 and 1.2"."""
    *first, last = (f"{gains[task]:.1f}" for task in PUBLISHED)
    return f"{', '.join(first)} and {last}"
