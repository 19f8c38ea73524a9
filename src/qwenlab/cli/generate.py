"""`qwenlab generate`: a file of prompts, completed in batches and, on request, one by one too."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qwenlab.cli import options
from qwenlab.cli.common import (
    count,
    introduce,
    open_model,
    plural,
    speed,
    speed_up,
)
from qwenlab.cli.threads import Threads
from qwenlab.console import say

if TYPE_CHECKING:
    from qwenlab.bench.alone import Comparison
    from qwenlab.engine.results import Result

MOST_SHOWN = 120  # columns of a mask


def generate(
    file: Annotated[
        Path,
        typer.Argument(
            help='.txt: a prompt per line; .jsonl: an object with "prompt" or "messages" per line.'
        ),
    ],
    model: options.ModelName = options.TINY,
    max_new_tokens: options.MaxNewTokens = 256,
    temperature: options.Temperature = 0.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    seed: options.Seed = 0,
    strategy: options.Strategy = "continuous",
    slots: options.Slots = 64,
    threads: options.Threads = options.AUTO,
    dtype: options.Dtype = None,
    device: options.Device = None,
    compile: options.Compile = False,
    pack: options.Pack = False,
    no_thinking: options.NoThinking = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the bare text, without a chat template.")
    ] = False,
    invariant: Annotated[
        bool,
        typer.Option(
            "--invariant",
            help="The same bits for a prompt in any batch, on this machine. Slower; for CPUs.",
        ),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            help="Write the completions to this .jsonl file instead of showing them; the same "
            "command resumes an interrupted run."
        ),
    ] = None,
    check_alone: Annotated[
        bool,
        typer.Option(
            "--check-alone",
            help="Also complete each prompt alone, and compare. Exit status 1 if any differs.",
        ),
    ] = False,
) -> None:
    """Complete a file of prompts in batches."""
    import qwenlab
    from qwenlab.bench.alone import compare_alone, in_turns
    from qwenlab.cli.completions import complete_resumably, discard
    from qwenlab.text import prompt_file

    wanted = Threads(threads)
    prompts, blank = prompt_file.read_prompts(file)
    if blank:
        say(f"{file}: skipped {plural(blank, 'blank line')}")
    if output is not None:
        prompt_file.check_writable(output, file)
    network, tokenizer = open_model(model, dtype, device)
    limit = network.config.max_position_embeddings
    thinking = not no_thinking
    ids = prompt_file.encode_prompts(prompts, file, tokenizer, limit, thinking=thinking, raw=raw)
    introduce(model, network, count(ids, "prompt"), wanted.use(network, min(slots, len(ids))))
    speed_up(network, compile, pack)
    sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    sampling["invariant"] = invariant
    progress = sys.stderr.isatty()
    common = sampling | {"slots": slots, "max_new_tokens": max_new_tokens, "progress": progress}
    if output is not None and not check_alone:
        options = sampling | {"max_new_tokens": max_new_tokens}
        batch = complete_resumably(network, ids, output, slots, strategy, progress, options)
        texts = [tokenizer.decode(completion.token_ids) for completion in batch]
        prompt_file.write_answers(output, prompts, batch, texts, [None] * len(ids))
        discard(output)
        say(f"{output}: {count(texts, 'completion')}")
        return

    def together() -> "Result":
        return qwenlab.generate(network, ids, strategy=strategy, **common)

    def one_at_a_time() -> "Result":
        return qwenlab.generate(network, ids, strategy="sequential", **common)

    comparisons = [None] * len(ids)
    if check_alone:
        for way in (strategy, "sequential"):  # the first steps choose kernels and start threads
            few = ids[:slots]
            qwenlab.generate(network, few, slots=slots, strategy=way, max_new_tokens=2, **sampling)
        batches, lone = in_turns([together, one_at_a_time])
        batch = batches[0]
        one_by_one = lone[0]
        comparisons = compare_alone(network, ids, batch, one_by_one, progress=progress)
    else:
        batch = together()
        say(speed("in batches", [batch.stats]))

    texts = [tokenizer.decode(request.token_ids) for request in batch]
    if output is not None:
        prompt_file.write_answers(output, prompts, batch, texts, comparisons)
        say(f"{output}: {count(texts, 'completion')}")
    if output is None or check_alone:
        completed = zip(prompts, batch, texts, comparisons, strict=True)
        for prompt, request, text, comparison in completed:
            lengths = f"{len(request.prompt)} + {len(request.token_ids)} tokens"
            print(f"[line {prompt.line}] {lengths}, {request.finish_reason}{describe(comparison)}")
            print(f"> {prompt.text}\n{text}")
            if comparison and not comparison.same:
                alone = tokenizer.decode(one_by_one[request.index].token_ids)
                print(f"completed alone:\n{alone}")
            print()
    if check_alone:
        print("first row of the mask (0 pad, 1 real):", mask_row(ids[:slots]))
        print(speed("in batches", [each.stats for each in batches]))
        print(speed("one by one", [each.stats for each in lone]))
        raise typer.Exit(conclude(comparisons))


def mask_row(prompts: Sequence[list[int]]) -> str:
    """The first row of the prompts' left-padded mask; a summary if it is too wide to show."""
    import qwenlab

    _, attention_mask = qwenlab.left_pad(prompts, pad_id=0)
    row = "".join(map(str, attention_mask[0].int().tolist()))
    if len(row) <= MOST_SHOWN:
        return row
    return f"{row.count('0')} x 0, then {row.count('1')} x 1"


def describe(comparison: "Comparison | None") -> str:
    """Whether the completion equals the one at batch size 1, its pads, and the differences of
    logits and log-probabilities. An empty text if nothing was compared."""
    if comparison is None:
        return ""
    verdict = "same"
    if not comparison.same:
        verdict = f"DIFFERENT from new token {comparison.parted} on"
    if comparison.margin is not None:
        verdict += f" (alone, its two best logits there are {comparison.margin:.1e} apart)"
    logits = f"logits differ by {comparison.difference:.1e}"
    logprobs = f"log-probabilities by {comparison.logprobs:.1e}"
    return f"; {verdict}; {comparison.pads} pads, {logits}, {logprobs}"


def conclude(comparisons: "list[Comparison]") -> int:
    """Prints the last lines of the comparison; returns the exit status."""
    differing = sum(not comparison.same for comparison in comparisons)
    logits = max(comparison.difference for comparison in comparisons)
    logprobs = max(comparison.logprobs for comparison in comparisons)
    print(f"completions that differ from those alone: {differing} of {len(comparisons)}")
    print(f"largest difference of logits: {logits:.1e}")
    print("  max|a - b| / max(1, max|b|), each prompt and completion read again, padded and alone")
    print(f"largest difference of log-probabilities: {logprobs:.1e}")
    print("  of the sampled tokens in both runs, up to the first that differs")
    return 1 if differing else 0
