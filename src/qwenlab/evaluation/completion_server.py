"""One server that speaks the completions API, as vLLM's does: what it can do, and how an answer is
asked of it.

Nothing that it says is believed unchecked: a reply becomes an output only if it belongs to the
prompt that was sent, has as many tokens as it should, and ends where the model would end.
"""

import json
from collections.abc import Mapping
from hashlib import sha256
from math import nan
from typing import TYPE_CHECKING, Any

from qwenlab.engine.request import Request, RequestOutput
from qwenlab.errors import QwenlabError, failure
from qwenlab.evaluation.problems import opens_thinking
from qwenlab.run_folder import IDS, IS_A
from qwenlab.text.chat_template import OPEN
from qwenlab.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import httpx

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 120.0  # for the reading of the prompt and the server's own queue
TOKEN_SECONDS = 0.25  # and for each token: a server that is slower than this seems to hang
PROBE_TOKENS = 16
PROBE_TEMPERATURE = 2.0  # so high that two answers are equal only by their seed


class EndpointError(QwenlabError):
    """A server can't do what is asked of it, or answered with what can't be an answer."""


class Refused(EndpointError):
    """The server doesn't accept what the request says (status 400 or 422)."""


class Unavailable(Exception):
    """No answer this time; the same request may succeed later, at the earliest in `pause`
    seconds."""

    def __init__(self, reason: str, pause: float = 0.0) -> None:
        super().__init__(reason)
        self.pause = pause


class Server:
    """The server at `url`. Not usable before `introduce` and `probe`.

    engine, version and model: what it says it is. context: the most tokens of prompt and answer, or
    None if it doesn't say. sends_ids: whether prompts go out and answers come back as token ids;
    else both are text. sends_logprobs: whether answers have log-probabilities.
    """

    def __init__(self, url: str, tokenizer: Tokenizer, vocab_size: int) -> None:
        self.url = checked_url(url)
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        self.client = new_client()
        self.engine = self.version = self.model = ""
        self.context: int | None = None
        self.sends_ids = True
        self.sends_logprobs = True

    def introduce(self, name: str) -> None:
        """Asks the server what it serves: the model `name` or, whatever it is called there, the
        only one. Raises EndpointError and Unavailable."""
        models = self.call("GET", "/v1/models").get("data")
        listed = models if isinstance(models, list) else []
        named = {model.get("id"): model for model in listed if isinstance(model, dict)}
        if name not in named and len(named) != 1:
            known = ", ".join(map(str, named)) or "none"
            raise EndpointError(f"{self.url}: serves {known}, expected {name} or a single model")
        self.model = name if name in named else next(iter(named))
        served = named[self.model]
        self.engine = str(served.get("owned_by", "unknown"))
        context = served.get("max_model_len")
        self.context = context if isinstance(context, int) else None
        try:
            self.version = str(self.call("GET", "/version").get("version", "unknown"))
        except EndpointError:  # only some engines have this address
            self.version = "unknown"

    def probe(self, request: Request, draws: bool) -> None:
        """Finds out, by way of the prompt of `request`, what the server can do.

        draws: whether answers will be sampled, which takes seeds. Raises EndpointError, naming what
        is missing, if answers from this server could be wrong.
        """
        lacking = []
        body = self.body(request, ids=True) | {"max_tokens": 1, "temperature": 0.0}
        try:
            reply, choice = self.complete(body)
            if prompt_tokens(reply, choice) != len(request.prompt):
                lacking.append("prompts as token ids")
            if not isinstance(choice.get("token_ids"), list):
                lacking.append("answers as token ids")
            self.sends_logprobs = bool(token_logprobs(choice))
        except Refused:
            lacking.append("prompts as token ids")
        self.sends_ids = not lacking
        if lacking:
            self.refuse_unsafe_text(request, draws, " and ".join(lacking))
        elif draws and self.differs_by_chance(request):
            raise EndpointError(
                f"{self.url}: has no seeds (the same one gave two answers), expected them for a "
                "temperature above 0"
            )

    def refuse_unsafe_text(self, request: Request, draws: bool, lacking: str) -> None:
        """Raises EndpointError where answers as text could be graded wrongly."""
        without = f"{self.url}: has no {lacking}"
        if draws:  # its own top-k would apply, for which the plain API has no name
            raise EndpointError(f"{without}; as text it can only be asked at temperature 0")
        if OPEN not in self.tokenizer.control:
            return
        # An unfinished thought may hold a box. It is no answer only as long as <think> is there.
        body = self.body(request, ids=False) | {"max_tokens": PROBE_TOKENS}
        text = ""
        if not opens_thinking(self.tokenizer, request.prompt):
            _, choice = self.complete(body)
            text = str(choice.get("text"))
        if not text.lstrip().startswith(OPEN):
            raise EndpointError(
                f"{without}, and its text doesn't show {OPEN}, so an unfinished thought could be "
                "graded as an answer; expected a server with token ids, such as vLLM"
            )

    def differs_by_chance(self, request: Request) -> bool:
        """Whether the same seed gives two answers."""
        body = self.body(request, ids=True)
        body |= {"max_tokens": min(PROBE_TOKENS, request.max_tokens)}
        body |= {"temperature": PROBE_TEMPERATURE, "top_k": -1, "top_p": 1.0}
        answers = []
        for _ in range(2):
            _, choice = self.complete(body)
            answers.append(choice.get("token_ids"))
        return answers[0] != answers[1]

    def answer(self, request: Request) -> None:
        """Fills in the output of `request`. Raises EndpointError for a reply that can't be its
        answer, and Unavailable if there is none."""
        seconds = ANSWER_SECONDS + TOKEN_SECONDS * request.max_tokens
        reply, choice = self.complete(self.body(request, self.sends_ids), seconds)
        try:
            output = self.output(request, reply, choice)
        except EndpointError as problem:
            reason = f"{self.url}: request {request.index}: {problem}"
            raise failure(EndpointError(reason)) from None
        request.token_ids = output.token_ids
        request.logprobs = output.logprobs
        request.stop_id = output.stop_id
        request.finish_reason = output.finish_reason

    def body(self, request: Request, ids: bool) -> dict[str, Any]:
        """The request in the API's own names. All options are sent, because the server would take
        the checkpoint's recommended values for those that are missing."""
        params = request.params
        greedy = params.temperature == 0 or params.top_p == 0
        body = {
            "model": self.model,
            "prompt": request.prompt,
            "max_tokens": request.max_tokens,
            "temperature": 0.0 if greedy else params.temperature,
            "top_p": 1.0 if greedy else params.top_p,
            "seed": api_seed(request.rng_key),
        }
        if not ids:
            return body | {"prompt": self.tokenizer.decode(request.prompt)}
        body |= {"top_k": params.top_k or -1, "min_p": 0.0}
        body |= {"repetition_penalty": params.repetition_penalty}
        body |= {"stop_token_ids": sorted(request.stop_ids), "logprobs": 1}
        return body | {"return_token_ids": True}

    def output(self, request: Request, reply: dict, choice: dict) -> RequestOutput:
        """The output in a reply. Raises EndpointError in words about the reply alone."""
        reason = choice.get("finish_reason")
        if reason in ("abort", None):  # a server that shuts down
            raise Unavailable(f"an answer without an end (finish_reason {reason!r})")
        if reason not in ("stop", "length"):
            raise EndpointError(f"finish_reason is {reason!r:.80}, expected 'stop' or 'length'")
        if choice.get("prompt_token_ids") not in (None, request.prompt):
            raise EndpointError("the reply is about another prompt than the one that was sent")
        counted = prompt_tokens(reply, choice)
        if counted != len(request.prompt):
            expected = f"expected {len(request.prompt)}"
            raise EndpointError(f"the server read {counted} tokens of the prompt, {expected}")
        if self.sends_ids:
            output = self.output_from_ids(request, choice, reason)
        else:
            output = self.output_from_text(request, choice, reply, reason)
        generated = len(output.logprobs)
        expected = f"expected {request.max_tokens}"
        if reason == "length" and generated != request.max_tokens:
            raise EndpointError(f"cut off after {generated} tokens, {expected}")
        if generated > request.max_tokens:
            raise EndpointError(f"{generated} tokens, {expected} at most")
        return output

    def output_from_ids(self, request: Request, choice: dict, reason: str) -> RequestOutput:
        ids = choice.get("token_ids")
        if not IS_A[IDS](ids) or any(id >= self.vocab_size for id in ids):
            raise EndpointError(f"token_ids is {ids!r:.80}, expected ids of the vocabulary")
        ids = list(ids)
        stop_id = None
        if ids and ids[-1] in request.stop_ids:
            stop_id = ids.pop()
        elif reason == "stop":
            stop_id = choice.get("stop_reason")
            if not isinstance(stop_id, int) or stop_id not in request.stop_ids:
                raise EndpointError("finish_reason is 'stop', but no stop id ends the answer")
        if within := request.stop_ids.intersection(ids):
            raise EndpointError(f"stop id {min(within)} within the answer, expected none there")
        generated = len(ids) + (stop_id is not None)
        logprobs = token_logprobs(choice) or [nan] * generated
        if len(logprobs) != generated:
            raise EndpointError(f"{len(logprobs)} logprobs for {generated} tokens")
        reason = "length" if stop_id is None else "stop"  # a stop id as the last allowed token
        return RequestOutput(request.index, request.prompt, ids, logprobs, stop_id, reason)

    def output_from_text(
        self, request: Request, choice: dict, reply: dict, reason: str
    ) -> RequestOutput:
        """The answer's ids are those that our tokenizer gives its text; how many there were is what
        the server counted."""
        text = choice.get("text")
        usage = reply.get("usage")
        many = usage.get("completion_tokens") if isinstance(usage, dict) else None
        if not isinstance(text, str) or not isinstance(many, int):
            raise EndpointError("expected a text, and completion_tokens in usage")
        ids = self.tokenizer.encode(text)
        stop_id = min(request.stop_ids, default=None) if reason == "stop" else None
        return RequestOutput(request.index, request.prompt, ids, [nan] * many, stop_id, reason)

    def complete(self, body: dict, seconds: float = ANSWER_SECONDS) -> tuple[dict, dict]:
        """The reply to a completion, and the one choice in it."""
        reply = self.call("POST", "/v1/completions", body, seconds)
        choices = reply.get("choices")
        if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
            raise failure(EndpointError(f"{self.url}: expected a reply with one choice"))
        return reply, choices[0]

    def call(
        self, method: str, path: str, body: dict | None = None, seconds: float = ANSWER_SECONDS
    ) -> dict:
        """The JSON object that the server replies. Raises Unavailable for what may pass (no
        connection, no reply in time, half a reply, status 429 and 5xx), else EndpointError."""
        import httpx

        timeout = httpx.Timeout(seconds, connect=CONNECT_SECONDS)
        try:
            response = self.client.request(method, self.url + path, json=body, timeout=timeout)
        except httpx.RequestError as problem:
            reason = str(problem) or "no reply in time"
            raise Unavailable(f"{type(problem).__name__}: {reason}") from None
        status = response.status_code
        if status == 429 or status >= 500:
            raise Unavailable(f"status {status}", asked_pause(response.headers))
        if status != 200:
            error = Refused if status in (400, 422) else EndpointError
            raise error(f"{self.url}{path}: status {status} ({first_words(response)})")
        try:
            reply = response.json()
        except (ValueError, RecursionError):
            raise Unavailable("a reply that is not JSON") from None
        if not isinstance(reply, dict):
            raise Unavailable("a reply that is not an object")
        return reply


def new_client() -> "httpx.Client":
    """A client with as many connections as are asked for. Raises EndpointError without httpx."""
    try:
        import httpx
    except ModuleNotFoundError:
        reason = "httpx is not installed, expected: pip install 'qwenlab[endpoint]'"
        raise EndpointError(reason) from None
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    return httpx.Client(limits=limits)


def checked_url(url: str) -> str:
    """The address up to /v1, which may be there or not. Raises EndpointError."""
    stem = url.rstrip("/").removesuffix("/v1")
    scheme, separator, rest = stem.partition("://")
    if scheme not in ("http", "https") or not separator or not rest or " " in rest:
        raise EndpointError(f"endpoint is {url!r}, expected an address such as http://host:8000")
    return stem


def api_seed(rng_key: tuple[int, int, int]) -> int:
    """One seed for each request, in 48 bits, which every JSON reader keeps exactly."""
    return int(sha256(repr(rng_key).encode()).hexdigest()[:12], 16)


def prompt_tokens(reply: dict, choice: dict) -> int | None:
    """How many tokens of the prompt the server says it read."""
    if isinstance(choice.get("prompt_token_ids"), list):
        return len(choice["prompt_token_ids"])
    usage = reply.get("usage")
    return usage.get("prompt_tokens") if isinstance(usage, dict) else None


def token_logprobs(choice: dict) -> list[float]:
    """The log-probability of each sampled token; [] if the server sends none."""
    logprobs = choice.get("logprobs")
    listed = logprobs.get("token_logprobs") if isinstance(logprobs, dict) else None
    return listed if isinstance(listed, list) else []


def asked_pause(headers: Mapping[str, str]) -> float:
    """The seconds in Retry-After; 0 if it isn't there, or is a date."""
    text = headers.get("retry-after", "")
    return float(text) if text.isdecimal() else 0.0


def first_words(response: "httpx.Response") -> str:
    """What the server says is wrong, in one line."""
    text = response.text
    try:
        said = json.loads(text)
        said = said.get("error", said)
        text = said.get("message", text) if isinstance(said, dict) else str(said)
    except (ValueError, AttributeError):
        pass
    return " ".join(str(text).split())[:200]
