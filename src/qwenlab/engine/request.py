"""What a caller asks for, what is on its way, and what is handed back."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field
from numbers import Integral, Real
from operator import index

from qwenlab.errors import whole

LARGE = 1e38  # options stay below it: they are computed with in float32
RANGES = {  # option: what is expected of it, and whether a value fits
    "temperature": ("0 or more", lambda x: x >= 0),
    "top_p": ("0 to 1", lambda x: 0 <= x <= 1),
    "repetition_penalty": ("a number above 0", lambda x: x > 0),
}


@dataclass(frozen=True)
class SamplingParams:
    """What a caller asks for, for one prompt. This is the one place where the options are checked.

    max_new_tokens: the most tokens to sample. stop: ids that end the answer; None = those of the
    checkpoint, () = none. temperature 0 is greedy; top_k 0 and top_p 1 keep every id. seed names
    the request's own random numbers. `of` says whose options these are in the error messages.
    Raises ValueError naming the option, its value and what was expected.
    """

    max_new_tokens: int = 256
    stop: frozenset[int] | None = None
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    seed: int = 0
    of: InitVar[str] = ""

    def __post_init__(self, of: str) -> None:
        of = of and f" of {of}"
        for name in ("max_new_tokens", "top_k", "seed"):
            self._set(name, whole(plain(getattr(self, name)), f"{name}{of}", 0))
        for name, (expected, fits) in RANGES.items():
            self._set(name, within(plain(getattr(self, name)), f"{name}{of}", expected, fits))
        if self.stop is not None:
            self._set("stop", stop_set(self.stop, f"stop{of}"))

    def _set(self, name: str, value) -> None:
        object.__setattr__(self, name, value)  # frozen, but not while it is being made


@dataclass(eq=False)
class RequestOutput:
    """What is handed back for one prompt. It grows until `finish_reason` is set.

    token_ids has the sampled ids without the stop id, logprobs one number per sampled token, the
    stop id's last. finish_reason is "stop", "length", "cancelled" or "error", of which `error` says
    more. first_token_s and seconds count from when the request was submitted.
    """

    index: int
    prompt: list[int]
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    stop_id: int | None = None
    finish_reason: str | None = None
    first_token_s: float | None = None
    seconds: float | None = None
    error: str | None = None


@dataclass(eq=False)
class Request(RequestOutput):
    """A prompt on its way: its output so far, and what scheduler and engine need to know about it.

    The first group of fields is fixed before the request is queued. The second belongs to the
    scheduler and its helpers (slots, prefixes), as does the whole output; the engine writes
    `engine` alone.
    """

    _: KW_ONLY
    params: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int = 256  # most tokens to sample, so that the whole stays within the limit
    stop_ids: frozenset[int] = frozenset()
    stream: tuple[int, int, int] = (0, 0, 0)  # seed, request, sample: see `sampling.uniform`
    on_token: Callable[[int, int], None] | None = field(default=None, repr=False)

    engine: object = field(default=None, repr=False)  # whose request this is
    arrival: int = 0  # its number in the order of arrival
    arrival_s: float = 0.0
    slot: int | None = None
    num_computed_tokens: int = 0  # how many of its tokens the slot holds
    decoding: bool = False  # has read all of them, and gets a token per step
    prefixes: list = field(default_factory=list, repr=False)  # see `prefix.Prefix`, longest first

    def __post_init__(self) -> None:
        self.untold: Iterator[int] = iter(self.token_ids)  # what on_token has not heard yet

    @property
    def num_tokens(self) -> int:
        """Tokens of the prompt and of the answer so far."""
        return len(self.prompt) + len(self.token_ids)

    @property
    def status(self) -> str:
        """Either "waiting" for a slot, in a slot with "prefill" or "decode", or "finished"."""
        if self.finish_reason is not None:
            return "finished"
        if self.slot is None:
            return "waiting"
        return "decode" if self.decoding else "prefill"

    def take_back(self) -> None:
        """After an interrupted step: a token that was only half taken will be sampled again."""
        if self.finish_reason is not None:
            return
        taken = min(len(self.token_ids), len(self.logprobs), self.max_tokens - 1)
        del self.token_ids[taken:], self.logprobs[taken:]
        self.stop_id = None
        self.error = None
        self.seconds = None
        if taken == 0:
            self.first_token_s = None


def new_request(
    model, prompt, params: SamplingParams, token_budget: int | None = None, *, index: int = 0, **own
) -> Request:
    """A request whose prompt and answer stay within the model's context, and within token_budget.

    `own`: further fields of Request. Raises ValueError, naming the prompt by `index`, if the prompt
    is not a list of ids of the vocabulary, or leaves no room for a new token.
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
    own["max_tokens"] = min(params.max_new_tokens, room)
    own["stop_ids"] = model.stop_ids if params.stop is None else params.stop
    return Request(index, ids, params=params, **own)


def make_requests(model, prompts, n: int = 1, **options) -> list[Request]:
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
    listed = is_list(plain(options.get("seed", 0)))
    requests = []
    for i, (prompt, params) in enumerate(zip(prompts, each, strict=True)):
        first = new_request(model, prompt, params, index=i)
        for k in range(n):
            stream = (params.seed, 0 if listed else i, k)
            requests.append(
                Request(
                    i * n + k,
                    first.prompt,
                    params=params,
                    max_tokens=first.max_tokens,
                    stop_ids=first.stop_ids,
                    stream=stream,
                )
            )
    return requests


def spread_params(count: int, options: dict) -> list[SamplingParams]:
    """The SamplingParams of each prompt, from one value per option or one per prompt."""
    columns = {}
    for name, value in options.items():
        split = spread_stop if name == "stop" else spread
        columns[name] = split(value, name, count)
    if "seed" in options and not is_list(plain(options["seed"])):
        whole(plain(options["seed"]), "seed", 0)  # named without a prompt: it is one for all
    rows = []
    for i in range(count):
        row = {name: values[i] for name, values in columns.items()}
        rows.append(SamplingParams(**row, of=f"prompt {i}"))
    return rows


def plain(value):
    """An array or tensor as Python's own lists and numbers; anything else as it is."""
    return value.tolist() if hasattr(value, "tolist") else value


def is_list(value) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def spread(value, name: str, count: int) -> list:
    """One value for all prompts, or the caller's own list with one per prompt."""
    value = plain(value)
    if not is_list(value):
        return [value] * count
    if len(value) != count:
        raise ValueError(f"{name} has {len(value)} values for {count} prompts")
    return list(value)


def spread_stop(stop, name: str, count: int) -> list:
    """A collection of ids is one set for all; a list of anything else has one per prompt."""
    stop = plain(stop)
    if is_list(stop) and not all(isinstance(entry, Integral) for entry in stop):
        return spread(stop, name, count)
    return [None if stop is None else stop_set(stop, name)] * count


def stop_set(stop, name: str) -> frozenset[int]:
    try:
        return frozenset(index(entry) for entry in plain(stop))
    except TypeError:
        raise ValueError(f"{name} is {stop!r}, expected token ids") from None


def check_prompt(prompt, i: int, vocab_size: int) -> list[int]:
    """The prompt as a list of ints. Raises ValueError by index."""
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
    return [int(token_id) for token_id in ids]


def within(value, name: str, expected: str, fits: Callable[[float], bool]) -> float:
    number = isinstance(value, Real) and not isinstance(value, bool)
    if not number or not abs(value) < LARGE or not fits(value):
        raise ValueError(f"{name} is {value!r}, expected {expected}")
    return float(value)
