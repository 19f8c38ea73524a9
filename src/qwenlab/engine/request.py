"""What a caller asks for, a request in progress, and what is handed back."""

from collections.abc import Callable
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import Any

from qwenlab.engine.options import plain, stop_set, within
from qwenlab.errors import whole


@dataclass(frozen=True)
class SamplingParams:
    """What a caller asks for, for one prompt. This is the one place where the options are checked.

    stop: token ids, not text, that end the answer (vLLM: stop_token_ids); None = those of the
    checkpoint, () = none. max_new_tokens: the most tokens to sample. temperature 0 is greedy; top_k
    0 and top_p 1 keep every id. seed names the request's own random numbers. `of` says whose
    options these are in the error messages, and isn't kept. Raises ValueError naming the option,
    its value and what was expected.
    """

    max_new_tokens: int = 256
    stop: frozenset[int] | None = None
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    seed: int = 0
    of: InitVar[str] = field(default="", kw_only=True)

    def __post_init__(self, of: str) -> None:
        of = f" of {of}" if of else ""
        for name in ("max_new_tokens", "top_k", "seed"):
            self._set(name, whole(plain(getattr(self, name)), f"{name}{of}", 0))
        self._set_within("temperature", of, "0 or more", lambda x: x >= 0)
        self._set_within("top_p", of, "0 to 1", lambda x: 0 <= x <= 1)
        self._set_within("repetition_penalty", of, "a number above 0", lambda x: x > 0)
        if self.stop is not None:
            self._set("stop", stop_set(self.stop, f"stop{of}"))

    def _set_within(self, name: str, of: str, expected: str, fits: Callable[[float], bool]) -> None:
        self._set(name, within(plain(getattr(self, name)), f"{name}{of}", expected, fits))

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)  # frozen, but not while it is being made


@dataclass(eq=False)
class RequestOutput:
    """What is handed back for one prompt. It grows until `finish_reason` is set.

    token_ids has the sampled ids without the stop id. logprobs has one number for every sampled
    token, so after a stop it is one longer than token_ids: the stop id's comes last. finish_reason
    is "stop", "length", "cancelled" or "error"; `error` then says what went wrong. first_token_s
    and seconds count from when the request was submitted.
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
    """A prompt in progress: its output so far, and what scheduler and engine need to know about it.

    A request is its own output: what the engine hands back as a RequestOutput is this object.

    The first group of fields is fixed before the request is queued. The second belongs to the
    scheduler and its helpers (slots, prefixes), as does the whole output; the engine sets
    `engine_key` and takes indices from `undelivered`.
    """

    _: KW_ONLY
    params: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int = 256  # most tokens to sample, so that the whole stays within the limit
    stop_ids: frozenset[int] = frozenset()
    rng_key: tuple[int, int, int] = (0, 0, 0)  # seed, request, sample: see `sampling.uniform`
    on_token: Callable[[int, int], None] | None = field(default=None, repr=False)

    engine_key: object = field(default=None, repr=False)  # of the engine that it was added to
    arrival: int = 0  # its number in the order of arrival
    arrival_s: float = 0.0
    slot: int | None = None
    num_computed_tokens: int = 0  # how many of its tokens the slot holds
    decoding: bool = False  # the slot holds all of them, so it gets a token per step
    prefixes: list = field(default_factory=list, repr=False)  # see `prefix.Prefix`, longest first
    # Indices into token_ids of what on_token hasn't received.
    undelivered: list[int] = field(default_factory=list, repr=False)

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

    def drop_partial_token(self) -> None:
        """After an interrupted step: removes what is there of a token that `take_token` was
        recording. The token will be sampled again."""
        if self.finish_reason is not None:
            return
        complete = min(len(self.token_ids), len(self.logprobs), self.max_tokens - 1)
        del self.token_ids[complete:]
        del self.logprobs[complete:]
        self.undelivered = [place for place in self.undelivered if place < complete]
        self.stop_id = None
        self.error = None
        self.seconds = None
        if complete == 0:
            self.first_token_s = None
