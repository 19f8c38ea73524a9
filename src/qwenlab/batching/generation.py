"""`generate`: a list of prompts in, a list of answers out. The loop is the engine's."""

from collections.abc import Callable, Sequence

from tqdm import tqdm

from qwenlab.batching.engine import Engine
from qwenlab.batching.prefix import share
from qwenlab.batching.request import Request, make_requests
from qwenlab.batching.results import Result, Stats
from qwenlab.errors import whole


def generate(
    model,
    prompts: Sequence[Sequence[int]],
    *,
    n: int = 1,
    max_new_tokens=256,
    stop=None,
    temperature=0.0,
    top_k=0,
    top_p=1.0,
    repetition_penalty=1.0,
    seed=0,
    sampler: Callable | None = None,
    strategy: str = "continuous",
    slots: int = 64,
    shared_prefix: bool | None = None,
    sort_by_length: bool = False,
    on_token: Callable[[int, int], None] | None = None,
    on_finish: Callable[[Request], None] | None = None,
    progress: bool = False,
) -> Result:
    """Answers `prompts` (lists of token ids), at most `slots` rows at once. What a row says, it says alone too.

    `n` answers a prompt: `result[i * n + k]` is sample k of prompt i. max_new_tokens, stop, temperature, top_k, top_p,
    repetition_penalty and seed take one value, or one a prompt. stop=None: the checkpoint's own stop ids, (): none.
    temperature 0 is greedy; top_k 0 and top_p 1 keep every id. Sample k of prompt i draws from stream (seed, i, k),
    or (seed[i], 0, k) with a list. `sampler(logits (R, V) float32, requests) -> ids (R,)` replaces our own.

    strategy: "sequential" (one by one), "static" (a batch stays together until its longest answer ends), "early-stop"
    (finished rows leave) or "continuous" (and waiting prompts take their seats). sort_by_length seats the shortest
    prompts first, so that a batch has fewer pads; results are in the order asked. shared_prefix: None reads a prompt
    once for its n answers, True also the beginning that all prompts have in common, False nothing.

    `on_token(i, token_id)` is called for every id but a stop id. If it raises, or if a request's logits are NaN, that
    request ends with finish_reason "error" and a warning. Else an answer ends with "stop" or "length"; prompt and
    answer together stay within config.max_position_embeddings. `on_finish(request)` is called as each answer ends, in
    order of ending; if that raises, so does `generate`. Raises ValueError naming the prompt or option and what was
    expected.
    """
    whole(slots, "slots", 1)
    options = (n, max_new_tokens, stop, temperature, top_k, top_p, repetition_penalty, seed)
    requests = make_requests(model, prompts, *options)
    engine = Engine(model, min(slots, max(1, len(requests))), strategy=strategy, sampler=sampler)
    stats = engine.stats = Stats(prompts=len(prompts))  # with the events of every step
    for request in requests:
        request.on_token, request.on_finish = on_token, on_finish
    if shared_prefix is not False:
        share(requests, n, everybody=shared_prefix is True)
    with tqdm(total=len(requests), unit="request", disable=not progress) as bar:
        engine.enter(sorted(requests, key=lambda request: len(request.prompt)) if sort_by_length else requests)
        while engine.step():
            bar.update(stats.finished - bar.n)
        bar.update(stats.finished - bar.n)
    stats.seconds = engine.now()
    return Result(requests, stats)
