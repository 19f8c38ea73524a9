"""`qwenlab generate` answers a file of prompts in batches, and shows on request that a batch changes no answer."""

from pathlib import Path
from typing import Annotated

import typer

from qwenlab.commands.common import (
    MaxNewTokens,
    ModelName,
    Seed,
    Slots,
    Strategy,
    Temperature,
    TopK,
    TopP,
    count,
    open_model,
    where,
)
from qwenlab.console import Device, Dtype, say


def generate(
    file: Annotated[
        Path, typer.Argument(help='.txt: one prompt a line; .jsonl: {"prompt": ...} or {"messages": [...]} a line.')
    ],
    model: ModelName,
    max_new_tokens: MaxNewTokens = 256,
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    seed: Seed = 0,
    strategy: Strategy = "continuous",
    slots: Slots = 64,
    dtype: Dtype = None,
    device: Device = None,
    no_thinking: Annotated[bool, typer.Option("--no-thinking", help="Tell the chat template not to think.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the bare text, without a chat template.")] = False,
    output: Annotated[
        Path | None, typer.Option(help="Write the answers to this .jsonl file instead of showing them.")
    ] = None,
    check_alone: Annotated[
        bool, typer.Option("--check-alone", help="Answer each prompt alone too, and compare. Status 1 if any differs.")
    ] = False,
) -> None:
    """Answer a file of prompts in batches."""
    from qwenlab.bench import alone
    from qwenlab.engine import generation
    from qwenlab.tasks import prompt_file

    prompts, blank = prompt_file.read_prompts(file)
    if blank:
        say(f"{file}: {blank} blank line{'s' * (blank > 1)} skipped")
    if output is not None:
        prompt_file.check_writable(output, file)
    network, tokenizer = open_model(model, dtype, device)
    limit = network.config.max_position_embeddings
    ids = prompt_file.encode_prompts(prompts, file, tokenizer, limit, thinking=not no_thinking, raw=raw)
    options = {"max_new_tokens": max_new_tokens, "temperature": temperature, "top_k": top_k, "top_p": top_p}
    options |= {"seed": seed, "slots": slots, "progress": True}
    say(f"{model}, {where(network)}, {count(ids, 'prompt')}")
    if check_alone:  # a process's first passes are slow, and would be charged to the batch
        generation.generate(network, ids[:1], **options | {"max_new_tokens": 2, "progress": False})
    batch = generation.generate(network, ids, strategy=strategy, **options)
    say(speed("in batches", batch.stats))
    comparisons = [None] * len(ids)
    if check_alone:
        one_by_one = generation.generate(network, ids, strategy="sequential", **options)
        say(speed("one by one", one_by_one.stats))
        comparisons = alone.compare_alone(network, ids, batch, one_by_one, progress=True)

    texts = [tokenizer.decode(request.token_ids) for request in batch]
    if output is not None:
        prompt_file.write_answers(output, prompts, batch, texts, comparisons)
        say(f"{output}: {count(texts, 'answer')}")
    if output is None or check_alone:
        for prompt, request, text, comparison in zip(prompts, batch, texts, comparisons, strict=True):
            lengths = f"{len(request.prompt)} + {len(request.token_ids)} tokens"
            print(f"[line {prompt.line}] {lengths}, {request.finish_reason}{describe(comparison)}")
            print(f"> {prompt.text}\n{text}")
            if comparison and not comparison.same:
                print(f"alone it says:\n{tokenizer.decode(one_by_one[request.index].token_ids)}")
            print()
    if check_alone:
        print("first row of the mask (0 pad, 1 real):", mask_row(ids[:slots]))
        print(speed("in batches", batch.stats))
        print(speed("one by one", one_by_one.stats))
        raise typer.Exit(conclude(comparisons))


def speed(how: str, stats) -> str:
    return f"{how}: {stats.sampled_tokens} tokens in {stats.seconds:.2f} s, {stats.tokens_per_second:.0f} tokens/s"


def mask_row(prompts: list[list[int]]) -> str:
    """The first row of the prompts' left-padded mask; counted out where a terminal line can't hold it."""
    from qwenlab.engine.padding import left_pad

    row = "".join(str(int(real)) for real in left_pad(prompts, pad_id=0)[1][0])
    return row if len(row) <= 120 else f"{row.count('0')} x 0, then {row.count('1')} x 1"


def describe(comparison) -> str:
    """Same or different, the pads it stood behind, and how far the logits are apart; "" if nothing was compared."""
    if comparison is None:
        return ""
    words = "; same" if comparison.same else f"; DIFFERENT from new token {comparison.parted} on"
    if comparison.margin is not None:
        words += f" (alone, its two best logits there are {comparison.margin:.1e} apart)"
    apart = f"logits differ by {comparison.difference:.1e}, log-probabilities by {comparison.logprobs:.1e}"
    return f"{words}; {comparison.pads} pads, {apart}"


def conclude(comparisons: list) -> int:
    """The last lines of the comparison; returns the exit status."""
    differing = sum(not comparison.same for comparison in comparisons)
    print(f"answers that differ from the one alone: {differing} of {len(comparisons)}")
    print(f"largest difference of logits: {max(comparison.difference for comparison in comparisons):.1e}")
    print("  each prompt with its answer read once more, left-padded and alone: max|a - b| / max(1, max|b|)")
    print(f"largest difference of log-probabilities: {max(comparison.logprobs for comparison in comparisons):.1e}")
    print("  of the new tokens, as the two runs computed them, as long as they agree")
    return 1 if differing else 0
