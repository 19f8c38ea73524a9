"""Text to token ids and back, from a checkpoint's tokenizer.json (byte-level BPE, as all Qwen
models have it; BPE is that of Sennrich et al., arXiv:1508.07909).

Control tokens (`<|im_start|>`, `<think>`, ...) are kept out of the encoder. It only ever sees text,
so nothing that a user types can become one; only a chat template can write them. Other added
tokens, such as technical terms, are ordinary text: the encoder maps each to its own id.
"""

import codecs
import json
import operator
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Self

import tokenizers

from qwenlab.errors import read_json
from qwenlab.text.chat_template import (
    ChatTemplate,
    ChatTemplateError,
    any_of,
    check_messages,
    guard,
    spare_character,
    token_text,
)
from qwenlab.text.vocabulary import BYTE_OF, TokenizerError, is_control, refuse_ids

FILE = "tokenizer.json"
# In a run of whitespace, `\s*[\r\n]+` in the Qwen tokenizers' pattern backtracks one character at a
# time; after ten million steps the regex library panics.
LONGEST_BLANK = 5_000_000
TEXT_AND_ID = operator.itemgetter("content", "id")  # of an added token


class Tokenizer:
    """`encode`, `decode`, `chat` and `stream` over one checkpoint's vocabulary.

    vocab_size: ids run from 0 to vocab_size - 1. control: {text: id} of the control tokens: those
    that tokenizer.json marks special, and those written in angle brackets. pad_id: the id used as
    padding; any would do, since masks come from lengths and never from ids. eos_id: the id of the
    checkpoint's end-of-sequence token, or None.
    """

    def __init__(
        self,
        spec: dict,
        template: ChatTemplate | None = None,
        pad_token: str | None = None,
        vocab_size: int = 0,
        source: str = FILE,
        eos_token: str | None = None,
    ) -> None:
        """spec: the content of tokenizer.json. vocab_size: the model's, if its embedding has more
        rows than there are tokens (Qwen3-0.6B: 151,936 for 151,669). Raises TokenizerError, naming
        `source`."""
        self.source = source
        self.template = template
        try:
            if spec["model"]["type"] != "BPE" or spec["decoder"]["type"] != "ByteLevel":
                raise TokenizerError(
                    f"{source}: model {spec['model']['type']} with decoder "
                    f"{spec['decoder']['type']}, expected byte-level BPE (BPE, ByteLevel)"
                )
            added = spec["added_tokens"]
            control = [token for token in added if is_control(token)]
            words = [token for token in added if not is_control(token)]
            self.control = dict(map(TEXT_AND_ID, control))
            self.special = {token["id"] for token in added if token["special"]}
            learned = spec["model"]["vocab"]
            pairs = list(map(TEXT_AND_ID, added))
            refuse_ids([*learned.items(), *pairs], source)
            ids = dict(pairs)
            # Learned tokens are spelt with one character per byte, added ones literally. A word
            # that is both counts as learned.
            self.literal = set(self.control)
            for text in ids:
                if text not in learned or not BYTE_OF.keys() >= set(text):
                    self.literal.add(text)
            vocab = {text: id for text, id in learned.items() if text not in self.literal}
            self.text_of = {id: text for text, id in (vocab | ids).items()}
            self.vocab_size = max(vocab_size, max(self.text_of, default=-1) + 1)
            self.split = re.compile(f"({any_of(list(self.control))})").split
        except (KeyError, TypeError, AttributeError) as problem:
            raise TokenizerError(
                f"{source}: not a tokenizer.json as expected ({problem!r})"
            ) from None
        for token in control:
            extended = any(map(token.get, ("lstrip", "rstrip", "single_word")))
            if len(token["content"]) < 2 or extended:
                raise TokenizerError(
                    f"{source}: control token {token['content']!r} is of a kind that is "
                    "not supported"
                )
        strange = set().union(*vocab) - BYTE_OF.keys()
        if strange:
            raise TokenizerError(
                f"{source}: the vocabulary holds {min(strange)!r}, which stands for no byte"
            )

        self.pad_id = self.control.get(pad_token, 0)
        self.eos_id = (vocab | ids).get(eos_token)
        self.encoder = encoder_without_control(spec, vocab, words, source)

    @classmethod
    def from_folder(cls, folder: str | Path, vocab_size: int = 0) -> Self:
        """Reads tokenizer.json and, where the folder has them, pad token and chat template.

        Raises TokenizerError or ChatTemplateError in one line that names the file.
        """
        folder = Path(folder)
        path = folder / FILE
        settings_path = folder / "tokenizer_config.json"
        spec = read_json(path, TokenizerError)
        settings = read_json(settings_path, TokenizerError) if settings_path.exists() else {}
        return cls(
            spec,
            ChatTemplate.from_folder(folder),
            pad_token=token_text(settings.get("pad_token")),
            vocab_size=vocab_size,
            source=str(path),
            eos_token=token_text(settings.get("eos_token")),
        )

    def __repr__(self) -> str:
        return (
            f"Tokenizer({self.source!r}, vocab_size={self.vocab_size}, "
            f"{len(self.control)} control tokens)"
        )

    def encode(self, text: str) -> list[int]:
        """Ids of plain text: `<|im_end|>` in it gives the ids of its characters, never the control
        token.

        Raises TokenizerError if `text` is not a string, holds half a surrogate pair, or has more
        than five million whitespace characters in a row.
        """
        if not isinstance(text, str):
            raise TokenizerError(f"encode takes a string, not {type(text).__name__}")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as problem:
            raise TokenizerError(
                f"text holds half a surrogate pair at character {problem.start}"
            ) from None
        if len(text) > LONGEST_BLANK:
            refuse_long_blank(text)
        try:
            return self.encoder.encode(text, add_special_tokens=False).ids
        except BaseException as problem:
            # The library's panic is no Exception, and its class is not exported.
            if type(problem).__name__ != "PanicException":
                raise
            raise TokenizerError(
                f"{self.source}: tokenizers can't split this text ({problem})"
            ) from None

    def chat(self, messages: list[dict[str, str]], thinking: bool = True) -> list[int]:
        """Ids of a conversation, ending where the assistant's answer starts.

        messages: [{"role": "system" | "user" | "assistant" | "tool", "content": str}, ...];
        thinking: the template's `enable_thinking`. Control tokens inside the messages stay text,
        except an assistant's thinking marks. Raises ChatTemplateError, naming the message.
        """
        check_messages(messages)
        spare = spare_character(messages)
        return self._ids(self._render(messages, thinking, spare), spare)

    def next_turn(self, text: str, thinking: bool = True) -> list[int]:
        """Ids that continue a conversation after an answer: the end of that answer, a user's
        `text`, and the start of the next answer.

        Appended to the ids of `chat` and of the answer, they give the ids of `chat` for the longer
        conversation, except that a template may drop the thinking of earlier answers, empty blocks
        included, which stays here because the model has read it.
        """
        turn = {"role": "user", "content": text}
        check_messages([turn])
        answer = spare_character([turn])
        messages = [
            {"role": "user", "content": "?"},
            {"role": "assistant", "content": answer},
            turn,
        ]
        spare = spare_character(messages)
        _, found, rest = self._render(messages, thinking, spare).partition(answer)
        if not found:
            raise ChatTemplateError(
                f"{self.template.source}: the template leaves out an earlier answer"
            )
        return self._ids(rest, spare)

    def _render(self, messages: list[dict[str, str]], thinking: bool, spare: str) -> str:
        if self.template is None:
            raise ChatTemplateError(
                f"{self.source}: no chat template in this checkpoint; use generate --raw"
            )
        return self.template.render(
            guard(messages, list(self.control), ("<think>", "</think>"), spare), thinking
        )

    def _ids(self, rendered: str, spare: str) -> list[int]:
        """Ids of a rendered template; `spare` breaks up the control tokens inside messages (see
        `guard`)."""
        ids = []
        for i, piece in enumerate(self.split(rendered)):  # text, control token, text, ..., text
            if i % 2:
                ids.append(self.control[piece])
            else:
                ids += self.encode(piece.replace(spare, ""))
        return ids

    def decode(self, ids: Iterable[int], skip_control: bool = False) -> str:
        """Text of `ids`. Bytes that are not UTF-8 become U+FFFD, and so does an id that the model
        has but the tokenizer doesn't. skip_control: leave out the tokens that tokenizer.json marks
        special (not `<think>`).

        Raises TokenizerError for an id outside the vocabulary.
        """
        pieces = [self.bytes_of(id, skip_control) for id in ids]
        return b"".join(pieces).decode("utf-8", errors="replace")

    def stream(self, skip_control: bool = False) -> "Stream":
        """A decoder for ids that arrive one by one."""
        return Stream(self, skip_control)

    def bytes_of(self, id: int, skip_control: bool = False) -> bytes:
        """The bytes that one id stands for: often a word, sometimes part of a character."""
        id = operator.index(id)
        if not 0 <= id < self.vocab_size:
            raise TokenizerError(f"token id {id} is outside the vocabulary of {self.vocab_size}")
        if skip_control and id in self.special:
            return b""
        text = self.text_of.get(id, "\N{REPLACEMENT CHARACTER}")
        if id not in self.text_of or text in self.literal:
            return text.encode("utf-8")
        return bytes(BYTE_OF[character] for character in text)


class Stream:
    """Ids in, text out, each character once its last byte has arrived.

    The texts that `push` and `end` return, joined, equal `decode` of all ids.
    """

    def __init__(self, tokenizer: Tokenizer, skip_control: bool = False) -> None:
        self.tokenizer = tokenizer
        self.skip_control = skip_control
        self.decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, id: int) -> str:
        """The text that this id completes; "" while a character is incomplete."""
        return self.decoder.decode(self.tokenizer.bytes_of(id, self.skip_control))

    def end(self) -> str:
        """The rest: U+FFFD for a character that stayed incomplete, else ""."""
        return self.decoder.decode(b"", final=True)


def refuse_long_blank(text: str) -> None:
    """Raises TokenizerError for a run of whitespace that makes the library panic."""
    for run in re.finditer(r"\s+", text):
        length = run.end() - run.start()
        if length > LONGEST_BLANK:
            raise TokenizerError(
                f"text holds {length} whitespace characters in a row from character {run.start()} "
                f"on, expected at most {LONGEST_BLANK}"
            )


def encoder_without_control(
    spec: dict, vocab: dict[str, int], words: list[dict], source: str
) -> tokenizers.Tokenizer:
    """The library's tokenizer for text alone: no control tokens, no template of its own, neither
    truncation nor padding."""
    # The library renumbers added tokens unless its model's vocabulary has them too.
    vocab = vocab | dict(map(TEXT_AND_ID, words))
    bare = {
        **spec,
        "added_tokens": words,
        "post_processor": None,
        "truncation": None,
        "padding": None,
        "model": {**spec["model"], "vocab": vocab},
    }
    try:
        return tokenizers.Tokenizer.from_str(json.dumps(bare))
    except Exception as problem:  # all that the library raises is a bare Exception
        raise TokenizerError(f"{source}: refused by tokenizers ({problem})") from None
