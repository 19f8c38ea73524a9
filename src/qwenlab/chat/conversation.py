"""Conversations: turn after turn on one state, so that no earlier turn is computed again."""

from collections.abc import Iterator, Sequence

from qwenlab.engine.engine import Engine
from qwenlab.engine.options import is_list, plain, spread
from qwenlab.engine.prompts import new_request
from qwenlab.engine.request import Request, SamplingParams
from qwenlab.engine.results import Stats
from qwenlab.errors import whole


class Chat:
    """`batch_size` conversations with one model, side by side. What each one says, it says alone
    too.

    `send` gives every conversation its next turn, `stream` answers a single one piece by piece.
    `requests` holds each conversation's last request (None before the first): its answer so far,
    its `finish_reason`. `stats` is the cost of the last turn.

    A conversation is the ids that were really said: thinking stays in it, and so do the closed
    empty blocks of `thinking=False`. Templates that render a conversation anew (Qwen3's) drop both
    from earlier answers. That saves context, but everything behind the first gap would have to be
    read again. Where nothing would be dropped, the ids are those of `tokenizer.chat`, as far as the
    model writes its words with the ids that the tokenizer gives them.

    An answer that was broken off, by its length, by Ctrl-C or by leaving `stream`, stays in the
    conversation as far as it got, and the next turn closes it as the template would. A turn that
    broke off before its first id was never asked. After a turn that broke off anywhere else, at
    Ctrl-C or out of memory, the next one reads its conversation once more from the start. An answer
    whose logits are NaN ends with "error" as far as it got.
    """

    def __init__(
        self,
        model,
        tokenizer,
        batch_size: int = 1,
        *,
        system: str | None = None,
        thinking: bool = True,
        max_new_tokens: int = 256,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed=0,
    ):
        """system: a message that every conversation starts with. thinking: what the template is
        told.

        max_new_tokens is for one answer; seed is one number, or one a conversation: turn t of
        conversation i draws from stream (seed, i, t), or (seed[i], 0, t) with a list, as if it were
        sample t in `generate`. Raises ValueError naming the option, ChatTemplateError for a
        checkpoint without a template or with an odd one.
        """
        if tokenizer is None:
            raise ValueError(
                "tokenizer is None, expected the checkpoint's: a chat turns text into tokens"
            )
        self.model, self.tokenizer, self.system, self.thinking = model, tokenizer, system, thinking
        self.batch_size = whole(batch_size, "batch_size", 1)
        whole(max_new_tokens, "max_new_tokens of the chat", 1)
        self.params = SamplingParams(max_new_tokens, None, temperature, top_k, top_p, of="the chat")
        for first in (True, False):  # a template that can't is refused here, not in the second turn
            self._turn_ids("?", first)
        seeds = [whole(number, "seed", 0) for number in spread(seed, "seed", batch_size)]
        self.streams = [
            (number, 0 if is_list(plain(seed)) else row) for row, number in enumerate(seeds)
        ]
        self.state = model.new_state(self.batch_size)
        self.requests: list[Request | None] = [None] * self.batch_size
        self.stats = Stats()
        self.loop: Engine | None = None  # the turn that is being answered ...
        self.asked: list[Request] = []  # ... and its requests

    @property
    def token_ids(self) -> list[list[int]]:
        """All that was said in each conversation, read by the model or not yet; an answer's stop id
        comes later."""
        return [request.prompt + request.token_ids if request else [] for request in self.requests]

    def send(self, texts: Sequence[str | None]) -> list[str | None]:
        """One turn: a text a conversation, or None for one that sits this turn out. Returns the
        answers as text.

        Raises ValueError, before anything is read, for a turn that leaves no room for an answer, by
        row, length and limit.
        """
        for _ in self._steps(texts):
            pass
        asked = zip(texts, self.requests, strict=True)
        return [
            None if text is None else self.tokenizer.decode(request.token_ids)
            for text, request in asked
        ]

    def stream(self, text: str) -> Iterator[str]:
        """One turn of a single conversation, as pieces of text that make up the answer; a character
        is never split.

        Close the iterator, or leave the loop over it, to end the answer early. Raises ValueError as
        `send` does, and where there is more than one conversation.
        """
        if self.batch_size != 1:
            raise ValueError(
                f"stream is for one conversation, this chat has {self.batch_size}: use send"
            )
        self._asked([text])  # refused here, not when the first piece is asked for
        return self._pieces(text)

    def _pieces(self, text: str) -> Iterator[str]:
        decoder, told = self.tokenizer.stream(), 0
        for (request,) in self._steps([text]):
            piece = "".join(decoder.push(token_id) for token_id in request.token_ids[told:])
            told = len(request.token_ids)
            if request.finish_reason:
                piece += decoder.end()
            if piece:
                yield piece

    def _steps(self, texts) -> Iterator[list[Request]]:
        """Answers step by step, and gives the turn's requests after each. Left early, it cancels
        what still runs."""
        requests = self._asked(texts)
        self._end()
        if not requests:
            return
        self._forget_what_is_wrong([request.index for request in requests])
        loop = Engine(self.model, self.batch_size, strategy="early-stop", state=self.state)
        self.stats = loop.stats = Stats(prompts=len(requests))  # with the events of every step
        for request in requests:
            loop.add_request(request)
        self.asked = requests
        self.loop = loop
        try:
            while (
                self.loop is loop and loop.has_unfinished()
            ):  # another turn may have begun meanwhile
                self._step(loop, requests)
                yield requests
        finally:
            if self.loop is loop:
                self._end()

    def _step(self, loop: Engine, requests: list[Request]) -> None:
        loop.step()
        for request in requests:
            self.requests[request.index] = request

    def _forget_what_is_wrong(self, rows: list[int]) -> None:
        """Empties rows that an earlier turn left invalid, with tokens of a turn that was never
        asked, or with NaN. They are read again from the ids, which are what counts."""
        said, lengths = self.token_ids, self.state.lengths.tolist()
        wrong = []
        for row in rows:
            last = self.requests[row]
            failed = last is not None and last.finish_reason == "error"
            if failed or row in self.state.invalid or lengths[row] > len(said[row]):
                wrong.append(row)
        if wrong:
            self.state.reset(wrong)

    def _end(self) -> None:
        """The turn is over; whoever is still answering is cut off."""
        if self.loop is not None:
            for request in self.asked:
                self.loop.cancel(request)
            self.stats.seconds = self.loop.now()
            self.loop = None

    def _asked(self, texts) -> list[Request]:
        """The requests of a turn, each with its whole conversation as prompt. Raises ValueError;
        changes nothing."""
        if not is_list(texts) or len(texts) != self.batch_size:
            got = f"{len(texts)} texts" if is_list(texts) else f"a {type(texts).__name__}"
            raise ValueError(
                f"a turn got {got}, expected a list of {self.batch_size}: "
                "a text or None a conversation"
            )
        limit, said = self.model.config.max_position_embeddings, self.token_ids
        requests = []
        for row, text in enumerate(texts):
            if text is None:
                continue
            if not isinstance(text, str):
                raise ValueError(
                    f"text {row} of the turn is a {type(text).__name__}, expected a string or None"
                )
            ids = said[row] + self._turn_ids(text, first=not said[row])
            room = limit - len(ids)
            if room < 1:
                raise ValueError(
                    f"conversation {row} would hold {len(ids)} tokens with this turn: no room for "
                    f"an answer in a context of {limit}"
                )
            turn = self.requests[row].stream[2] + 1 if self.requests[row] else 0
            stream = (*self.streams[row], turn)
            requests.append(new_request(self.model, ids, self.params, index=row, stream=stream))
        return requests

    def _turn_ids(self, text: str, first: bool) -> list[int]:
        if not first:
            return self.tokenizer.next_turn(text, self.thinking)
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return self.tokenizer.chat([*system, {"role": "user", "content": text}], self.thinking)
