"""`generate`: a list of prompts in, a list of answers out, by way of the engine."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from tqdm import tqdm

from qwenlab.engine.engine import Engine
from qwenlab.engine.invariant import WIDTH
from qwenlab.engine.prefix import share
from qwenlab.engine.prompts import make_requests
from qwenlab.engine.request import RequestOutput
from qwenlab.engine.results import Result, Stats
from qwenlab.errors import whole
from qwenlab.model.model import Model


def generate(
    model: Model,
    prompts: Sequence[Sequence[int]],
    *,
    n: int = 1,
    max_new_tokens: int | Sequence[int] = 256,
    stop: Collection[int] | Sequence[Collection[int] | None] | None = None,
    temperature: float | Sequence[float] = 0.0,
    top_k: int | Sequence[int] = 0,
    top_p: float | Sequence[float] = 1.0,
    repetition_penalty: float | Sequence[float] = 1.0,
    seed: int | Sequence[int] = 0,
    sampler: Callable | None = None,
    strategy: str = "continuous",
    slots: int = 64,
    shared_prefix: bool | None = None,
    sort_by_length: bool = False,
    on_token: Callable[[int, int], None] | None = None,
    on_finish: Callable[[RequestOutput], None] | None = None,
    progress: bool = False,
    invariant: bool = False,
) -> Result:
    """Answers `prompts` (lists of token ids), at most `slots` at once.

    Each output equals that prompt's output at batch size 1. `n` answers per prompt:
    `result[i * n + k]` is sample k of prompt i. max_new_tokens, stop, temperature, top_k, top_p,
    repetition_penalty and seed take one value, or one per prompt. stop takes token ids, not text
    (vLLM: stop_token_ids); None: the checkpoint's own, (): none. temperature 0 is greedy; top_k 0
    and top_p 1 keep every id. Sample k of prompt i draws from stream (seed, i, k), or
    (seed[i], 0, k) with a list. `sampler(logits (R, V) float32, requests) -> ids (R,)` replaces our
    own.

    strategy: "sequential" (one by one), "static" (a batch stays together until its longest answer
    ends), "early-stop" (finished rows leave) or "continuous" (and waiting prompts take their
    slots). sort_by_length starts with the shortest prompts, so that a batch has fewer pads; results
    are in the order of `prompts`. shared_prefix: None reads a prompt once for its n answers, True
    also the beginning that all prompts have in common, False shares nothing.

    invariant=True makes a row's logits bit-identical to those of generate(model, [prompt],
    invariant=True), whatever its slot, its neighbours, when they join, how the prompt is cut and
    how much the state has room for; `slots` and strategy may differ too. What must be the same:
    model, dtype, machine, number of threads and PyTorch version. It is for CPUs, and slower, since
    every pass has a fixed shape: a short batch decodes in the time of 16 rows. Refused where it
    can't be had: see `qwenlab.engine.invariant`.

    `on_token(i, token_id)` is called for every id but a stop id. If it raises, request i ends with
    finish_reason "error" and a warning, as does a request whose logits are NaN. Otherwise an answer
    ends with "stop" or "length"; prompt and answer together stay within
    config.max_position_embeddings. `on_finish(output)` is called as each answer ends; if it raises,
    so does `generate`. Raises ValueError naming the prompt or option and what was expected.
    """
    whole(slots, "slots", 1)
    if shared_prefix is not None and not isinstance(shared_prefix, bool):
        raise ValueError(f"shared_prefix is {shared_prefix!r}, expected None, True or False")
    requests = make_requests(
        model,
        prompts,
        n,
        max_new_tokens=max_new_tokens,
        stop=stop,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        repetition_penalty=repetition_penalty,
        seed=seed,
        on_token=on_token,
    )
    slots = min(slots, max(1, len(requests)))
    stats = Stats(prompts=len(prompts))  # with the events of every step
    engine = Engine(
        model, slots, strategy=strategy, sampler=sampler, stats=stats, invariant=invariant
    )
    if shared_prefix is not False:
        share(requests, n, everybody=shared_prefix is True, unit=WIDTH if invariant else 1)
    queue = requests
    if sort_by_length:
        queue = sorted(requests, key=lambda request: len(request.prompt))

    unfinished = dict.fromkeys(requests)
    with tqdm(total=len(requests), unit="request", disable=not progress) as bar:

        def report(outputs: Iterable[RequestOutput]) -> None:
            for output in ended(outputs, unfinished):
                bar.update()
                if on_finish is not None:
                    on_finish(output)

        for request in queue:
            engine.add_request(request)
        report(requests)  # those with max_new_tokens 0 are finished already
        while engine.has_unfinished():
            try:
                outputs = engine.step()
            except BaseException:
                report(requests)  # those that ended before the exception
                raise
            report(outputs)
    stats.seconds = engine.now()
    return Result(requests, stats)


def ended(
    outputs: Iterable[RequestOutput], unfinished: dict[RequestOutput, None]
) -> Iterator[RequestOutput]:
    """Those of the outputs that have ended since the last call; `unfinished` keeps the rest."""
    for output in outputs:
        if output.finish_reason is not None and output in unfinished:
            del unfinished[output]
            yield output
