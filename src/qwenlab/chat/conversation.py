"""Conversations: turn after turn on one state, so that no earlier turn is computed again."""

from collections.abc import Iterator, Sequence

from qwenlab.engine.engine import Engine
from qwenlab.engine.options import is_list, plain, spread
from qwenlab.engine.prompts import new_request
from qwenlab.engine.request import Request, SamplingParams
from qwenlab.engine.results import Stats
from qwenlab.errors import whole
from qwenlab.model.model import Model
from qwenlab.text.tokenizer import Tokenizer


class Chat:
    """`batch_size` conversations with one model in parallel. Each answer equals the one that its
    conversation would get alone.

    `send` gives every conversation its next turn; `stream` yields the answer of a single one piece
    by piece. `requests` holds each conversation's last request (None before the first), with its
    answer so far and its `finish_reason`. `stats` is the cost of the last turn.

    A conversation is the ids that the model has read and generated: thinking stays in it, and so do
    the empty blocks of `thinking=False`. Templates that render a conversation anew (Qwen3's) drop
    both from earlier answers, which saves context, but everything after the first gap would have to
    be prefilled again. Where nothing would be dropped, the ids are those of `tokenizer.chat`,
    provided that the model generates its text with the same ids as the tokenizer.

    An answer that was interrupted, by its length, by Ctrl-C or by leaving `stream`, stays in the
    conversation as far as it got, and the next turn closes it as the template would. A turn that
    was interrupted before its first token leaves no trace. After a turn that failed at any other
    point, through Ctrl-C or for lack of memory, the next one prefills its conversation again from
    the start. An answer whose logits are NaN ends there with "error".
    """

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        batch_size: int = 1,
        *,
        system: str | None = None,
        thinking: bool = True,
        max_new_tokens: int = 256,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int | Sequence[int] = 0,
    ) -> None:
        """system: a message that every conversation starts with. thinking: the template's
        `enable_thinking`.

        max_new_tokens is for one answer. seed is one number, or one per conversation: turn t of
        conversation i draws from stream (seed, i, t), or (seed[i], 0, t) with a list, as if it were
        sample t in `generate`. Raises ValueError naming the option, and ChatTemplateError for a
        checkpoint without a template or with an unsuitable one.
        """
        if tokenizer is None:
            raise ValueError(
                "tokenizer is None, expected the checkpoint's: a chat turns text into tokens"
            )
        self.model = model
        self.tokenizer = tokenizer
        self.system = system
        self.thinking = thinking
        self.batch_size = whole(batch_size, "batch_size", 1)
        whole(max_new_tokens, "max_new_tokens of the chat", 1)
        self.params = SamplingParams(max_new_tokens, None, temperature, top_k, top_p, of="the chat")
        for first in (True, False):  # refuses an unsuitable template now, not in the second turn
            self._turn_ids("?", first)
        self.streams = []
        own_seeds = is_list(plain(seed))
        for row, number in enumerate(spread(seed, "seed", batch_size)):
            self.streams.append((whole(number, "seed", 0), 0 if own_seeds else row))
        self.state = model.new_state(self.batch_size)
        self.requests: list[Request | None] = [None] * self.batch_size
        self.stats = Stats()
        self.engine: Engine | None = None  # that of the turn in progress ...
        self.turn: list[Request] = []  # ... and its requests

    @property
    def token_ids(self) -> list[list[int]]:
        """The ids of each conversation, prefilled or not yet. An answer's stop id is added by the
        next turn."""
        return [request.prompt + request.token_ids if request else [] for request in self.requests]

    def send(self, texts: Sequence[str | None]) -> list[str | None]:
        """One turn: one text per conversation, or None for one that skips the turn. Returns the
        answers as text.

        Raises ValueError, before the model is called, for a turn that leaves no room for an answer,
        with its row, length and limit.
        """
        for _ in self._steps(texts):
            pass
        answers: list[str | None] = []
        for text, request in zip(texts, self.requests, strict=True):
            answers.append(None if text is None else self.tokenizer.decode(request.token_ids))
        return answers

    def stream(self, text: str) -> Iterator[str]:
        """One turn of a single conversation. Yields the answer in pieces of text, which never split
        a character.

        Close the iterator, or leave the loop over it, to end the answer early. Raises ValueError as
        `send` does, and if there is more than one conversation.
        """
        if self.batch_size != 1:
            raise ValueError(
                f"stream is for one conversation, this chat has {self.batch_size}: use send"
            )
        self._requests_of([text])  # refuses a wrong turn now, not at the first piece
        return self._pieces(text)

    def _pieces(self, text: str) -> Iterator[str]:
        decoder = self.tokenizer.stream()
        decoded = 0
        for (request,) in self._steps([text]):
            piece = "".join(map(decoder.push, request.token_ids[decoded:]))
            decoded = len(request.token_ids)
            if request.finish_reason:
                piece += decoder.end()
            if piece:
                yield piece

    def _steps(self, texts: Sequence[str | None]) -> Iterator[list[Request]]:
        """Runs a turn step by step and yields its requests after each. Requests that are unfinished
        when the iterator is closed are cancelled."""
        requests = self._requests_of(texts)
        self._end()
        if not requests:
            return
        self._reset_unusable([request.index for request in requests])
        stats = Stats(prompts=len(requests))  # keeps the events of every step
        engine = Engine(
            self.model, self.batch_size, strategy="early-stop", state=self.state, stats=stats
        )
        self.stats = stats
        for request in requests:
            engine.add_request(request)
        self.turn = requests
        self.engine = engine
        try:
            # Between two steps the caller may have begun another turn.
            while self.engine is engine and engine.has_unfinished():
                engine.step()
                for request in requests:
                    self.requests[request.index] = request
                yield requests
        finally:
            if self.engine is engine:
                self._end()

    def _reset_unusable(self, rows: list[int]) -> None:
        """Empties rows of the state that are invalid, that hold NaN, or that hold tokens of a turn
        which left no trace. They are prefilled again from the conversation's ids."""
        ids = self.token_ids
        lengths = self.state.lengths.tolist()
        unusable = []
        for row in rows:
            last = self.requests[row]
            failed = last is not None and last.finish_reason == "error"
            if failed or row in self.state.invalid or lengths[row] > len(ids[row]):
                unusable.append(row)
        if unusable:
            self.state.reset(unusable)

    def _end(self) -> None:
        """Ends the turn and cancels its unfinished requests."""
        if self.engine is not None:
            for request in self.turn:
                self.engine.cancel(request)
            self.stats.seconds = self.engine.now()
            self.engine = None

    def _requests_of(self, texts: Sequence[str | None]) -> list[Request]:
        """The requests of a turn, each with its whole conversation as prompt. Raises ValueError,
        and changes nothing."""
        if not is_list(texts) or len(texts) != self.batch_size:
            got = f"{len(texts)} texts" if is_list(texts) else f"a {type(texts).__name__}"
            raise ValueError(
                f"a turn got {got}, expected a list of {self.batch_size}: "
                "a text or None for each conversation"
            )
        limit = self.model.config.max_position_embeddings
        earlier = self.token_ids
        requests = []
        for row, text in enumerate(texts):
            if text is None:
                continue
            if not isinstance(text, str):
                raise ValueError(
                    f"text {row} of the turn is a {type(text).__name__}, expected a string or None"
                )
            ids = earlier[row] + self._turn_ids(text, first=not earlier[row])
            room = limit - len(ids)
            if room < 1:
                raise ValueError(
                    f"conversation {row} would hold {len(ids)} tokens with this turn: no room for "
                    f"an answer in a context of {limit}"
                )
            turn = self.requests[row].rng_key[2] + 1 if self.requests[row] else 0
            rng_key = (*self.streams[row], turn)
            requests.append(new_request(self.model, ids, self.params, index=row, rng_key=rng_key))
        return requests

    def _turn_ids(self, text: str, first: bool) -> list[int]:
        """The ids that a turn adds to its conversation, up to the start of the answer."""
        if not first:
            return self.tokenizer.next_turn(text, self.thinking)
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return self.tokenizer.chat([*system, {"role": "user", "content": text}], self.thinking)
