"""What several commands do: open a model, introduce the run, count things."""

import re
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from qwenlab.console import say
from qwenlab.errors import QwenlabError, whole

if TYPE_CHECKING:
    from qwenlab.engine.results import Stats
    from qwenlab.evaluation.elsewhere import Elsewhere
    from qwenlab.evaluation.endpoints import Endpoints
    from qwenlab.evaluation.ray_actors import RayActors
    from qwenlab.loading import Dtype
    from qwenlab.model.model import Model
    from qwenlab.text.tokenizer import Tokenizer


def open_model(name: str, dtype: "Dtype", device: str | None) -> "tuple[Model, Tokenizer]":
    """The model and its tokenizer. One line on stderr says which dtype "auto" stands for, another
    names the parts of the checkpoint that are not used."""
    from qwenlab.loading import load_with_tokenizer

    dtype = say_dtype(dtype, device)
    with warnings_said():
        network, tokenizer = load_with_tokenizer(name, dtype, device)
    say_ignored(name, network)
    return network, tokenizer


def say_ignored(name: str, network: "Model | RayActors") -> None:
    """One line that names the parts of the checkpoint that are not used, if there are any."""
    parts = Counter(map(part_of, network.ignored))
    if parts:
        listed = [f"{part} ({plural(many, 'tensor')})" for part, many in parts.items()]
        say(f"{name}: ignored {', '.join(listed)}")


@contextmanager
def warnings_said() -> Iterator[list]:
    """Prints the warnings from inside, a line each, at the end; the list holds them."""
    with warnings.catch_warnings(record=True) as caught:
        yield caught
    for warning in caught:
        say(warning.message)


def speed_up(network: "Model", compile: bool, pack: bool = False) -> None:
    """`--compile` and `--pack`, once the number of threads is set."""
    if compile:
        compile_step(network)
    if pack:
        pack_weights(network)


SMALL = "packed: nothing, because all matrices are small enough for the caches"


def compile_step(network: "Model") -> None:
    """`--compile`, for the number of threads that is set now. Lines on stderr say how far it is, or
    why the model runs without."""
    from qwenlab import fast

    with warnings_said():
        warnings.simplefilter("ignore")  # PyTorch has several for its own developers
        warnings.filterwarnings("always", "not compiled")
        fast.compile(
            network, on_progress=lambda rows: say(f"compiling the step of {plural(rows, 'row')}")
        )


def pack_weights(network: "Model") -> None:
    """`--pack`. A line on stderr says what it takes, or why the weights stay single."""
    from qwenlab import fast

    with warnings_said() as caught:
        warnings.simplefilter("always")
        fast.pack(network)
    if not caught:
        packed = fast.packed_bytes(network)
        say(f"packed: {packed / 1e9:.2f} GB of weights are kept twice" if packed else SMALL)


def say_dtype(dtype: "Dtype", device: str | None) -> "Dtype":
    """Returns the dtype that "auto" stands for here, and says why; returns any other as it is."""
    from qwenlab.loading import AUTO, auto_dtype, choose_device

    if dtype != AUTO:
        return dtype
    chosen, reason = auto_dtype(choose_device(device))
    say(f"--dtype auto: {str(chosen).removeprefix('torch.')}, because {reason}")
    return chosen


def open_elsewhere(
    endpoint: Sequence[str] | None,
    ray: int | None,
    name: str,
    dtype: "Dtype",
    device: str | None,
    threads: int | None,
) -> "tuple[Elsewhere, Tokenizer] | None":
    """What --endpoint or --ray has answer in the model's place, and the checkpoint's tokenizer;
    None where neither is given."""
    if endpoint:
        return open_endpoints(endpoint, name, dtype, device, ray)
    if ray is not None:
        return open_ray(ray, name, dtype, device, threads)
    return None


def open_endpoints(
    urls: Sequence[str], name: str, dtype: "Dtype", device: str | None, ray: int | None
) -> "tuple[Endpoints, Tokenizer]":
    """The servers that answer in the model's place, and the checkpoint's tokenizer. Raises
    QwenlabError for options of a model that runs here."""
    from qwenlab.evaluation.endpoints import Endpoints

    for option, value in (("--dtype", dtype), ("--device", device), ("--ray", ray)):
        if value is not None:
            raise QwenlabError(f"{option} is {value!r}, but --endpoint leaves that to the server")
    endpoints = Endpoints(urls, name)
    return endpoints, endpoints.tokenizer


def open_ray(
    size: int, name: str, dtype: "Dtype", device: str | None, threads: int | None
) -> "tuple[RayActors, Tokenizer]":
    """The actors that answer in the model's place, and the checkpoint's tokenizer. threads: of each
    (None: one)."""
    from qwenlab.evaluation.ray_actors import RayActors

    actors = RayActors(whole(size, "--ray", 1), name, dtype, device, threads or 1)
    say_ignored(name, actors)
    return actors, actors.tokenizer


def part_of(name: str) -> str:
    """The part of a checkpoint that a tensor belongs to: "model.visual", "mtp"."""
    return "inv_freq" if name.endswith("inv_freq") else re.match(r"(model\.)?\w+", name)[0]


def introduce(name: str, network: "Model", *details: object) -> None:
    """The first line of a run: the model, its dtype and device, and whatever else matters."""
    dtype = str(network.dtype).removeprefix("torch.")
    words = [name, f"{dtype} on {network.device}", *map(str, details)]
    say(", ".join(filter(None, words)))


def count(items: Sequence, name: str) -> str:
    """How many items there are: "1 prompt", "2 prompts"."""
    return plural(len(items), name)


def plural(many: int, name: str) -> str:
    return f"{many} {name}{'' if many == 1 else 's'}"


def speed(how: str, runs: "Sequence[Stats]") -> str:
    """Tokens, seconds and tokens per second; of several runs the median and the range."""
    from qwenlab.bench.timing import Spread

    seconds = Spread.of(run.seconds for run in runs)
    rate = Spread.of(run.tokens_per_second for run in runs)
    tokens = runs[0].sampled_tokens
    if len(runs) == 1:
        return f"{how}: {tokens} tokens in {seconds.median:.2f} s, {rate.median:.0f} tokens/s"
    how_many = f"median of {len(runs)} runs"
    return f"{how}: {tokens} tokens in {seconds:.3f} s, {rate:.0f} tokens/s, {how_many}"
