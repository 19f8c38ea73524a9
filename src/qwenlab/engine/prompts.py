"""From the prompts and options of a call to its requests."""

from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any

from qwenlab.engine.options import is_list, plain, spread, spread_stop
from qwenlab.engine.request import Request, SamplingParams
from qwenlab.errors import whole
from qwenlab.model.model import Model


def new_request(
    model: Model,
    prompt: Sequence[int],
    params: SamplingParams,
    token_budget: int | None = None,
    *,
    index: int = 0,
    rng_key: tuple[int, int, int] = (0, 0, 0),
    on_token: Callable[[int, int], None] | None = None,
) -> Request:
    """A request whose prompt and answer stay within the model's context, and within token_budget.

    Raises ValueError, naming the prompt by `index`, if it is not a list of ids of the vocabulary,
    or leaves no room for a new token.
    """
    ids = check_prompt(prompt, index, model.config.vocab_size)
    limit = model.config.max_position_embeddings
    what = "context"
    if token_budget is not None and token_budget < limit:
        limit = token_budget
        what = "token_budget"
    room = limit - len(ids)
    if room < min(1, params.max_new_tokens):
        raise ValueError(
            f"prompt {index} has {len(ids)} tokens: no room for a new one in a {what} of {limit}"
        )
    return Request(
        index,
        ids,
        params=params,
        max_tokens=min(params.max_new_tokens, room),
        stop_ids=model.stop_ids if params.stop is None else params.stop,
        rng_key=rng_key,
        on_token=on_token,
    )


def make_requests(
    model: Model,
    prompts: Sequence[Sequence[int]],
    n: int = 1,
    *,
    on_token: Callable[[int, int], None] | None = None,
    **options: Any,
) -> list[Request]:
    """Request i * n + k is sample k of prompt i.

    `options` are those of SamplingParams, one value each or one per prompt. One seed s gives sample
    k of prompt i the random stream (s, i, k); a list of seeds gives it (seeds[i], 0, k). Raises
    ValueError naming the prompt by index, or the option, and what was expected.
    """
    whole(n, "n", 1)
    prompts = plain(prompts)
    if not isinstance(prompts, Sequence):
        raise ValueError(f"prompts is a {type(prompts).__name__}, expected a list of prompts")
    each = spread_params(len(prompts), options)
    seed_per_prompt = is_list(plain(options.get("seed", 0)))
    requests = []
    for i, (prompt, params) in enumerate(zip(prompts, each, strict=True)):
        first = new_request(model, prompt, params, index=i)
        for k in range(n):
            request = Request(
                i * n + k,
                first.prompt,  # checked once, and shared by its samples
                params=params,
                max_tokens=first.max_tokens,
                stop_ids=first.stop_ids,
                rng_key=(params.seed, 0 if seed_per_prompt else i, k),
                on_token=on_token,
            )
            requests.append(request)
    return requests


def spread_params(count: int, options: dict[str, Any]) -> list[SamplingParams]:
    """The SamplingParams of each prompt, from one value per option or one per prompt."""
    columns = {}
    for name, value in options.items():
        split = spread_stop if name == "stop" else spread
        columns[name] = split(value, name, count)
    if "seed" in options and not is_list(plain(options["seed"])):
        whole(plain(options["seed"]), "seed", 0)  # the error names no prompt: it is one for all
    each = []
    for i in range(count):
        own = {name: values[i] for name, values in columns.items()}
        each.append(SamplingParams(**own, of=f"prompt {i}"))
    return each


def check_prompt(prompt: Any, i: int, vocab_size: int) -> list[int]:
    """The prompt as a list of ints. Raises ValueError, naming it by its index, if it isn't one."""
    ids = plain(prompt)
    if isinstance(ids, str | bytes) or not isinstance(ids, Sequence):
        kind = type(prompt).__name__
        raise ValueError(f"prompt {i} is a {kind}, expected a list of token ids")
    if len(ids) == 0:
        raise ValueError(f"prompt {i} is empty, expected at least 1 token")
    for place, token_id in enumerate(ids):
        if isinstance(token_id, bool) or not isinstance(token_id, Integral):
            raise ValueError(f"prompt {i}: entry {place} is {token_id!r}, expected a token id")
        if not 0 <= token_id < vocab_size:
            known = f"0 to {vocab_size - 1}"
            raise ValueError(f"prompt {i}: token id {token_id} is outside the vocabulary ({known})")
    return list(map(int, ids))
