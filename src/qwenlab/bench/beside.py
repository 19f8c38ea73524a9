"""Our generation beside that of transformers: the same weights, the same prompts, taking turns."""

from collections.abc import Sequence
from importlib.metadata import version
from statistics import median
from time import perf_counter

import torch

from qwenlab.batching.request import whole
from qwenlab.bench.alone import where_they_part
from qwenlab.bench.ratios import NAMES, Batch, Pair, Parting, Peers, Prefill
from qwenlab.bench.roofline import decode_bound, measure_machine, synchronise
from qwenlab.bench.timing import alternate
from qwenlab.bench.twins import find_config, random_twins, read_twins, require_transformers
from qwenlab.model import linear
from qwenlab.model.loading import choose_device, choose_dtype


def peers(
    model: str | None = None,
    batch_sizes: Sequence[int] = (1, 8, 64),
    prompt_tokens: int = 32,
    new_tokens: int = 32,
    *,
    shape: str | None = None,
    prefill: Sequence[int] = (64, 256, 1024),
    repeats: int = 3,
    warm_up: int = 1,
    dtype=None,
    device=None,
    seed: int = 0,
    show: bool = True,
    progress: bool = False,
) -> Peers:
    """Measures our `generate` beside that of transformers (the extra `[peers]`), greedily and without stop ids.

    model: what `qwenlab.load` takes; both read the same folder. Or shape: "0.6b" is Qwen3-0.6B's with random weights,
    held once for both. Prompts are random ids, the first row of `prompt_tokens`, the others of half as many and more;
    transformers gets them left-padded with a mask. Both are clocked from outside: a call for one token is the
    prefill, what a call for `new_tokens` takes longer is the decoding. `prefill` names lengths of one row that are
    also read in a single pass. All cases take turns. Prints the tables if `show`.

    Raises ValueError for sizes below 1, fewer than 2 new tokens or a row longer than the context, and QwenlabError
    where the model can't be had or transformers is missing.
    """
    sizes, lengths = distinct(batch_sizes, "a batch size"), distinct(prefill, "a prefill length")
    if not sizes:
        raise ValueError("batch_sizes is empty, expected at least one size")
    whole(repeats, "repeats", 1)
    device = choose_device(device)
    dtype = choose_dtype(dtype, device)
    require_transformers()
    config, folder = find_config(model, shape)
    limit = config.max_position_embeddings
    longest = max([whole(prompt_tokens, "prompt_tokens", 1) + whole(new_tokens, "new_tokens", 2), *lengths])
    if longest > limit:
        raise ValueError(f"the longest row would hold {longest} tokens, expected at most {limit}")
    twins = random_twins(shape, dtype, device) if folder is None else read_twins(folder, dtype, device)
    sides = dict(zip(NAMES, twins, strict=True))
    network = sides["qwenlab"].model

    generator = torch.Generator().manual_seed(seed)
    widths = torch.randint((prompt_tokens + 1) // 2, prompt_tokens + 1, (max(sizes),), generator=generator).tolist()
    widths[0] = prompt_tokens  # so that the rectangle is equally wide at every batch size
    prompts = [torch.randint(config.vocab_size, (width,), generator=generator).tolist() for width in widths]
    rows = {n: torch.randint(config.vocab_size, (1, n), generator=generator).to(device) for n in lengths}

    def run(case):
        kind, size, name = case
        side = sides[name]
        if kind == "alone":
            return seconds(lambda: side.read(rows[size]), device)[0]
        short, _ = seconds(lambda: side.say(prompts[:size], 1), device)
        return short, *seconds(lambda: side.say(prompts[:size], new_tokens), device)

    cases = [("batch", size, name) for size in sizes for name in NAMES]
    cases += [("alone", length, name) for length in lengths for name in NAMES]
    readings = alternate(run, cases, repeats, warm_up, progress)
    machine = measure_machine(dtype, device)

    batches = []
    for size in sizes:
        runs = [readings["batch", size, name] for name in NAMES]
        batches.append(weigh(network, machine, prompts[:size], new_tokens, runs, batches[:1]))
    prefills = [Prefill(n, Pair.of(n, *(readings["alone", n, name] for name in NAMES))) for n in lengths]
    result = Peers(
        model or f"random weights of shape {shape}",
        batches,
        prefills,
        machine.name,
        machine.bytes_per_second,
        torch.__version__,
        version("transformers"),
        machine.dtype,
        sum(p.numel() for p in network.parameters()),
        prompt_tokens,
        new_tokens,
        repeats,
        linear.table().splitlines(),
    )
    if show:
        print(result)
    return result


def weigh(model, machine, prompts: list[list[int]], new_tokens: int, runs: list[list[tuple]], first: list) -> Batch:
    """One batch size, from the runs of ours and of theirs; `first` holds the first batch size unless this is it."""
    size, prompt_tokens = len(prompts), sum(map(len, prompts))
    prefill = Pair.of(prompt_tokens, *([short for short, _, _ in each] for each in runs))
    decoding = [decode_seconds(each, name, size, new_tokens) for each, name in zip(runs, NAMES, strict=True)]
    decode = Pair.of(size * (new_tokens - 1), *decoding)
    over_first = decode.qwenlab.median / (first[0].decode if first else decode).transformers.median
    least, _ = decode_bound(model, machine, size, round(prompt_tokens / size + new_tokens / 2))  # half way through
    shares = [least * (new_tokens - 1) / median(times) for times in decoding]
    parted = compare(model, prompts, *(each[0][2] for each in runs))
    return Batch(size, prefill, decode, over_first, dict(zip(NAMES, shares, strict=True)), parted)


def distinct(numbers: Sequence[int], name: str) -> list[int]:
    numbers = [whole(number, name, 1) for number in numbers]
    if len(set(numbers)) != len(numbers):
        raise ValueError(f"{name} is named twice in {numbers}")
    return numbers


def seconds(work, device: torch.device) -> tuple:
    """How long `work()` takes, and what it returns."""
    synchronise(device)
    began = perf_counter()
    result = work()
    synchronise(device)
    return perf_counter() - began, result


def decode_seconds(runs: list[tuple], name: str, size: int, new_tokens: int) -> list[float]:
    """What each run (one token, all tokens, ids) took longer for all than the median for one: a single slow prefill
    must not make decoding look quick."""
    one = median(short for short, _, _ in runs)
    times = [long - one for _, long, _ in runs]
    if min(times) <= 0:
        raise ValueError(f"{name}, {size} rows: {new_tokens} new tokens took no longer than 1, expected more of them")
    return times


def compare(model, prompts: list[list[int]], ours: list[list[int]], theirs: list[list[int]]) -> list[Parting]:
    """The rows whose ids part, read once more alone for their margins."""
    parted = []
    for row, (prompt, a, b) in enumerate(zip(prompts, ours, theirs, strict=True)):
        if a != b:
            logits = model(torch.tensor([prompt + a]))[0, len(prompt) - 1 :]  # (new tokens + 1, V)
            parted.append(Parting(row, *where_they_part(a, b, logits)))
    return parted
