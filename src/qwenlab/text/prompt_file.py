"""Files of prompts: .txt with one prompt per line, or .jsonl with {"prompt": ...} or
{"messages": [...]} per line."""

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from qwenlab.errors import QwenlabError, json_value, text_of, unwritable
from qwenlab.files import part_of, write_whole
from qwenlab.text.chat_template import ChatTemplateError, check_messages
from qwenlab.text.tokenizer import Tokenizer


class Completion(Protocol):
    """The fields of a completion that are written, as in `qwenlab.engine.request.RequestOutput`."""

    prompt: list[int]
    token_ids: list[int]
    finish_reason: str | None
    error: str | None


class PromptFileError(QwenlabError):
    """A file of prompts can't be read, or one of its lines is not a prompt."""


@dataclass(frozen=True)
class Prompt:
    """One line of the file: its number, from 1, and the conversation that it stands for.

    `plain`: the line is only text, so it can also be completed without a chat template.
    """

    line: int
    messages: list[dict[str, str]]
    plain: bool = True

    @property
    def text(self) -> str:
        """The question: the content of the last message."""
        return self.messages[-1]["content"]


def read_prompts(path: str | Path) -> tuple[list[Prompt], int]:
    """The prompts of a .txt or .jsonl file, and how many blank lines were skipped.

    Raises PromptFileError in one line that names the file, the line number and what was expected.
    """
    path = Path(path)
    read = {".txt": read_text, ".jsonl": read_json_line}.get(path.suffix.lower())
    if read is None:
        raise PromptFileError(f"{path}: expected a .txt (one prompt a line) or a .jsonl file")
    content = text_of(path, PromptFileError)
    lines = content.removesuffix("\n").split("\n")
    prompts = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            prompts.append(read(number, line.removesuffix("\r"), f"{path} line {number}"))
    if not prompts:
        raise PromptFileError(f"{path}: no prompt in it")
    return prompts, len(lines) - len(prompts)


def read_text(number: int, line: str, place: str) -> Prompt:
    return Prompt(number, [{"role": "user", "content": line}])


def read_json_line(number: int, line: str, place: str) -> Prompt:
    """{"prompt": "..."} or {"messages": [...]}; other fields are ignored."""
    entry = json_value(line, place, PromptFileError)
    if not isinstance(entry, dict) or ("prompt" in entry) == ("messages" in entry):
        raise PromptFileError(f'{place}: expected an object with "prompt" or "messages"')
    if "prompt" not in entry:
        try:
            check_messages(entry["messages"])
        except ChatTemplateError as problem:
            raise PromptFileError(f"{place}: {problem}") from None
        return Prompt(number, entry["messages"], plain=False)
    if not isinstance(entry["prompt"], str) or not entry["prompt"]:
        raise PromptFileError(
            f"{place}: prompt is {entry['prompt']!r}, expected a string that is not empty"
        )
    return Prompt(number, [{"role": "user", "content": entry["prompt"]}])


def encode_prompts(
    prompts: list[Prompt],
    path: str | Path,
    tokenizer: Tokenizer,
    limit: int,
    thinking: bool = True,
    raw: bool = False,
) -> list[list[int]]:
    """Token ids of every prompt, through the checkpoint's chat template or, if `raw`, of its bare
    text.

    limit: the model's context in tokens. Raises PromptFileError, naming the line, for a prompt that
    leaves no room for an answer, that the template refuses, or that needs a template despite `raw`.
    """
    encoded = []
    for prompt in prompts:
        place = f"{path} line {prompt.line}"
        if raw and not prompt.plain:
            raise PromptFileError(
                f"{place}: messages need the chat template, which --raw leaves out"
            )
        try:
            if raw:
                ids = tokenizer.encode(prompt.text)
            else:
                ids = tokenizer.chat(prompt.messages, thinking=thinking)
        except QwenlabError as problem:
            raise PromptFileError(f"{place}: {problem}") from None
        if not 0 < len(ids) < limit:
            raise PromptFileError(
                f"{place}: {len(ids)} tokens, expected 1 to {limit - 1} in a context of {limit}"
            )
        encoded.append(ids)
    return encoded


def check_writable(path: str | Path, prompts: str | Path) -> None:
    """Raises PromptFileError if no file can be written to `path`, before hours of work depend on
    it.

    It also refuses what a new file would destroy: a device, a pipe, the file of `prompts`.
    """
    path = Path(path)
    try:
        if path.is_dir():
            raise PromptFileError(f"{path}: a folder, expected a file to write")
        if path.exists() and not path.is_file():
            raise PromptFileError(f"{path}: not an ordinary file, expected a file to write")
        if path.exists() and path.samefile(prompts):
            raise PromptFileError(
                f"{path}: this is the file of prompts, expected another file to write"
            )
        part = part_of(path)
        if not os.access(part.parent, os.W_OK):
            raise PromptFileError(f"{path}: its folder doesn't exist or isn't writable")
        part.touch()
        part.unlink()
    except OSError as problem:
        raise unwritable(path, problem, PromptFileError) from None


def write_answers(
    path: str | Path,
    prompts: list[Prompt],
    requests: Iterable[Completion],
    texts: list[str],
    comparisons: list[object | None],
) -> None:
    """One JSON object per prompt: the question, the answer and, if known, how it compares with the
    answer at batch size 1 (a dataclass, whose fields are written, or None).

    The file appears whole or not at all. Raises PromptFileError if it can't be written.
    """
    lines = []
    answered = zip(prompts, requests, texts, comparisons, strict=True)
    for prompt, request, text, comparison in answered:
        entry = {"line": prompt.line}
        entry |= {"prompt": prompt.text} if prompt.plain else {"messages": prompt.messages}
        entry |= {"answer": text, "finish_reason": request.finish_reason}
        entry["token_ids"] = request.token_ids
        if request.error:
            entry["error"] = request.error
        entry["prompt_tokens"] = len(request.prompt)
        if comparison:
            entry |= asdict(comparison)
        lines.append(json.dumps(entry, ensure_ascii=False) + "\n")
    write_whole(Path(path), "".join(lines), PromptFileError)
