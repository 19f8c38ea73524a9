"""Completions of a file of prompts that survive an interruption: `qwenlab generate --output`."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

from qwenlab.cli.common import count, speed
from qwenlab.console import say
from qwenlab.run_folder import IDS, OPTIONAL_TEXT, TEXT, WHOLE, RunFolder

if TYPE_CHECKING:
    from qwenlab.model.model import Model

COMPLETIONS = "completions.jsonl"
FIELDS = {"number": WHOLE, "token_ids": IDS, "finish_reason": TEXT, "error": OPTIONAL_TEXT}


@dataclass(frozen=True)
class Completion:
    """A finished prompt, from this run or from an earlier one that was interrupted."""

    prompt: list[int]
    token_ids: list[int]
    finish_reason: str
    error: str | None


def unfinished(output: Path) -> Path:
    """The folder in which completions are kept until all are there."""
    return output.with_name(output.name + ".run")


def discard(output: Path) -> None:
    """Removes that folder, because the file is written."""
    shutil.rmtree(unfinished(output))


def complete_resumably(
    network: "Model",
    prompts: list[list[int]],
    output: Path,
    slots: int,
    strategy: str,
    progress: bool,
    options: dict[str, object],
) -> list[Completion]:
    """Completes the prompts as `generate` does, and keeps each completion in the folder
    `unfinished(output)` as it ends; those that are there already are not generated again.

    Raises RunFolderError if the folder is of another model, other prompts or other options.
    """
    from qwenlab.engine.prompts import make_requests
    from qwenlab.engine.results import Stats
    from qwenlab.evaluation.answering import run_requests
    from qwenlab.fingerprints import counted, list_fingerprints, some_weights

    settings = {
        "task": "generate",
        "dtype": str(network.dtype),
        "weights": some_weights(network),
        "prompts": counted(len(prompts), "prompt", list_fingerprints(prompts)[-1]),
        **options,
    }
    invariant = options["invariant"]
    sampling = {name: value for name, value in options.items() if name != "invariant"}
    requests = make_requests(network, prompts, **sampling)
    stats = Stats()
    with RunFolder(unfinished(output), settings) as run:
        expected = [(number,) for number in range(len(prompts))]
        done = run.done(COMPLETIONS, FIELDS, ("number",), expected)
        left = [request for request in requests if (request.index,) not in done]
        if done:
            say(f"{output}: {count(done, 'completion')} there, {len(left)} left")
        bar = tqdm(total=len(requests), initial=len(done), unit="prompt", disable=not progress)
        try:
            with bar:
                for request in run_requests(
                    network, left, slots, strategy, 1, stats, invariant=invariant
                ):
                    record = {name: getattr(request, name, None) for name in FIELDS}
                    record["number"] = request.index
                    run.append(COMPLETIONS, record)
                    done[request.index,] = record
                    bar.update()
        except KeyboardInterrupt:
            say(f"{output}: finished completions are kept; run the same command to resume")
            raise
    say(speed("in batches", [stats]))
    completions = []
    for number, prompt in enumerate(prompts):
        record = done[number,]
        completions.append(
            Completion(prompt, record["token_ids"], record["finish_reason"], record["error"])
        )
    return completions
