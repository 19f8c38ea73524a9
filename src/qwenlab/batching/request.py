"""One request: a prompt, how it wants to be answered, and the answer as it grows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import index

import numpy as np
import torch
from torch import Tensor

from qwenlab.errors import whole

BLOCK = 64  # uniform numbers drawn at a time
LARGE = 1e38  # settings stay below: they are worked with in float32


@dataclass(eq=False)
class Request:
    """What was asked, and what has been answered so far.

    `index` is its place in the results. After the run: `token_ids` (without the stop id), `stop_id`,
    `finish_reason` ("stop", "length", "cancelled", "error"), `logprobs` (one a sampled token, the stop's last),
    `first_token_s` and `seconds` since it was asked; `error` says what went wrong.
    """

    index: int
    prompt: list[int]
    cap: int  # most tokens to sample; the context limit is already counted in
    stop: frozenset[int]
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    stream: tuple[int, int, int] = (0, 0, 0)  # seed, request, sample: its own random numbers
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    stop_id: int | None = None
    finish_reason: str | None = None
    first_token_s: float | None = None
    seconds: float | None = None
    error: str | None = None
    on_token: Callable[[int, int], None] | None = field(default=None, repr=False)
    on_finish: Callable[["Request"], None] | None = field(default=None, repr=False)

    @property
    def size(self) -> int:
        """Tokens of prompt and answer so far."""
        return len(self.prompt) + len(self.token_ids)

    def accept(self, token_id: int, logprob: float, now: float) -> None:
        """Takes one sampled id, and notes whether it ends the answer. `now` in seconds since it was asked."""
        if self.first_token_s is None:
            self.first_token_s = now
        self.logprobs.append(logprob)
        if token_id in self.stop:
            self.stop_id = token_id
            self.finish("stop", now)
            return
        self.token_ids.append(token_id)
        if self._seen is not None:
            self._seen[token_id] = True
        if len(self.token_ids) == self.cap:
            self.finish("length", now)

    def mend(self, now: float) -> None:
        """After a step that broke off: what was only half taken is taken back, to be sampled again, or completed."""
        if self.finish_reason is None:
            self.error = self.stop_id = self._seen = self._generator = None
            self._drawn = 0
            del self.logprobs[len(self.token_ids) :]  # `accept` adds the id last
            if len(self.token_ids) == self.cap:
                self.finish("length", now)

    def finish(self, reason: str, now: float) -> None:
        self._seen = None
        self.seconds = now
        self.finish_reason = reason  # last: whoever has one is done

    def next_uniform(self) -> float:
        """The number in [0, 1) that decides the next token: of this request's own stream, whoever else is in the batch.

        It belongs to the token's place in the answer, so a step that broke off has used nothing up.
        """
        if self._generator is None:
            seed, *key = self.stream
            self._generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=key)))
        block, place = divmod(len(self.logprobs), BLOCK)
        while self._drawn <= block:
            self._uniforms = self._generator.random(BLOCK).tolist()
            self._drawn += 1
        return self._uniforms[place]

    def seen_ids(self, vocab_size: int, device) -> Tensor:
        """(V,) bool, True at every id of the prompt and of the answer so far."""
        if self._seen is None:
            self._seen = torch.zeros(vocab_size, dtype=torch.bool, device=device)
            self._seen[torch.tensor(self.prompt + self.token_ids, device=device)] = True
        return self._seen

    def __post_init__(self):
        self._generator = None
        self._uniforms: list[float] = []
        self._drawn = 0  # blocks of them
        self._seen: Tensor | None = None
        # While it is on its way: whose it is, its number in the line and when it came, its row, how many of its tokens
        # the row has read, whether that was all, and the beginnings it may share.
        self.owner: object = None
        self.number, self.asked = 0, 0.0
        self.row: int | None = None
        self.read, self.decoding = 0, False
        self.prefixes: list = []
        # What has been made known of it: how many sampled tokens were counted, which ids on_token was not told yet,
        # and whether it has been counted as finished.
        self.counted, self.over = 0, False
        self.untold = iter(self.token_ids)


def make_requests(
    model, prompts, n, max_new_tokens, stop, temperature, top_k, top_p, repetition_penalty, seed, budget=None
):
    """Request i*n+k is sample k of prompt i. Every option is one value or one a prompt; each is checked by name.
    Prompt and answer stay within the model's context, and within `budget` tokens if there is one.

    Raises ValueError naming the prompt by index and what was expected.
    """
    whole(n, "n", 1)
    prompts = plain(prompts)
    if not isinstance(prompts, Sequence):
        raise ValueError(f"prompts is a {type(prompts).__name__}, expected a list of prompts")
    count = len(prompts)
    each = {
        "max_new_tokens": spread(max_new_tokens, "max_new_tokens", count),
        "temperature": spread(temperature, "temperature", count),
        "top_k": spread(top_k, "top_k", count),
        "top_p": spread(top_p, "top_p", count),
        "repetition_penalty": spread(repetition_penalty, "repetition_penalty", count),
    }
    stops = spread_stop(stop, count, model.stop_ids)
    if is_list(plain(seed)):
        seeds = [(whole(s, f"seed of prompt {i}", 0), 0) for i, s in enumerate(spread(seed, "seed", count))]
    else:
        seeds = [(whole(plain(seed), "seed", 0), i) for i in range(count)]
    limit, what = model.config.max_position_embeddings, "context"
    if budget is not None and budget < limit:
        limit, what = budget, "token_budget"
    requests = []
    for i, prompt in enumerate(prompts):
        ids = check_prompt(prompt, i, model.config.vocab_size)
        options = {name: values[i] for name, values in each.items()}
        check_options(f"prompt {i}", **options)
        wanted, room = options.pop("max_new_tokens"), limit - len(ids)
        if room < min(1, wanted):
            raise ValueError(f"prompt {i} has {len(ids)} tokens: no room for a new one in a {what} of {limit}")
        for k in range(n):
            stream = (*seeds[i], k)
            requests.append(Request(i * n + k, ids, min(wanted, room), stops[i], **options, stream=stream))
    return requests


def plain(value):
    """An array or tensor as Python's own lists and numbers; anything else as it is."""
    return value.tolist() if isinstance(value, np.ndarray | Tensor) else value


def is_list(value) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def spread(value, name: str, count: int) -> list:
    """One value for all prompts, or the caller's own list of one a prompt."""
    value = plain(value)
    if not is_list(value):
        return [value] * count
    if len(value) != count:
        raise ValueError(f"{name} has {len(value)} values for {count} prompts")
    return list(value)


def spread_stop(stop, count: int, default: frozenset[int]) -> list[frozenset[int]]:
    """None = the checkpoint's own set, a collection of ids = one set for all, a list of such = one a prompt."""
    stop = plain(stop)
    if is_list(stop) and not all(isinstance(entry, int | np.integer) for entry in stop):
        each = enumerate(spread(stop, "stop", count))
        return [default if entry is None else stop_set(entry, f"stop of prompt {i}") for i, entry in each]
    return [default if stop is None else stop_set(stop, "stop")] * count


def stop_set(stop, name: str) -> frozenset[int]:
    try:
        return frozenset(index(entry) for entry in plain(stop))
    except TypeError:
        raise ValueError(f"{name} is {stop!r}, expected token ids") from None


def check_prompt(prompt, i: int, vocab_size: int) -> list[int]:
    """The prompt as a list of ints. Raises ValueError by index."""
    ids = plain(prompt)
    if isinstance(ids, str | bytes) or not isinstance(ids, Sequence):
        raise ValueError(f"prompt {i} is a {type(prompt).__name__}, expected a list of token ids")
    if len(ids) == 0:
        raise ValueError(f"prompt {i} is empty, expected at least 1 token")
    for place, token_id in enumerate(ids):
        if isinstance(token_id, bool) or not isinstance(token_id, int | np.integer):
            raise ValueError(f"prompt {i}: entry {place} is {token_id!r}, expected a token id")
        if not 0 <= token_id < vocab_size:
            raise ValueError(f"prompt {i}: token id {token_id} is outside the vocabulary (0 to {vocab_size - 1})")
    return [int(token_id) for token_id in ids]


def check_options(whose: str, max_new_tokens, temperature, top_k, top_p, repetition_penalty=1.0) -> None:
    """Raises ValueError naming the option, whose it is, the value and what was expected."""
    whole(max_new_tokens, f"max_new_tokens of {whose}", 0)
    whole(top_k, f"top_k of {whose}", 0)
    within(temperature, f"temperature of {whose}", "0 or more", lambda x: x >= 0)
    within(top_p, f"top_p of {whose}", "0 to 1", lambda x: 0 <= x <= 1)
    within(repetition_penalty, f"repetition_penalty of {whose}", "a number above 0", lambda x: x > 0)


def within(value, name: str, expected: str, fits) -> None:
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not number or not abs(value) < LARGE or not fits(value):
        raise ValueError(f"{name} is {value!r}, expected {expected}")
