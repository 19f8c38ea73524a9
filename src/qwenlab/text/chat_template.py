"""A checkpoint's chat template: messages in, one text with control tokens out.

A template is a small program written by whoever published the checkpoint, so it runs in Jinja's
sandbox (`qwenlab.text.sandbox`) and sees only strings, lists and dicts.
"""

import re
from pathlib import Path
from typing import Self

from jinja2 import TemplateError, TemplateSyntaxError
from jinja2.exceptions import SecurityError

from qwenlab.errors import QwenlabError, read_json, refuse_lfs_pointer
from qwenlab.text.sandbox import allowance, compiled

OPEN = "<think>"  # the marks around a model's thinking
CLOSE = "</think>"
ROLES = ("system", "user", "assistant", "tool")
KEYS = ("role", "content", "reasoning_content")
NAMED_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")


class ChatTemplateError(QwenlabError):
    """The messages are malformed, or the checkpoint's template is missing, broken, or
    refuses them."""


class ChatTemplate:
    """One compiled template. `source` names its file in errors; `variables` are the named tokens
    that it may use. Raises ChatTemplateError if it doesn't compile."""

    def __init__(
        self, text: str, source: str = "chat template", variables: dict[str, str] | None = None
    ) -> None:
        self.source = source
        self.variables = variables or {}
        try:
            self.compiled = compiled(text)
        except TemplateSyntaxError as problem:
            raise ChatTemplateError(
                f"{source}: not a Jinja template (line {problem.lineno}: {problem})"
            ) from None
        except Exception as problem:  # SyntaxError for a `break` outside a loop, RecursionError...
            reason = getattr(problem, "msg", one_line(problem))
            raise ChatTemplateError(f"{source}: not a Jinja template ({reason})") from None

    @classmethod
    def from_folder(cls, folder: str | Path) -> Self | None:
        """`chat_template.jinja` of the folder, else "chat_template" of its tokenizer_config.json,
        else None.

        Raises ChatTemplateError if there is one that can't be used.
        """
        folder = Path(folder)
        settings_path = folder / "tokenizer_config.json"
        template_path = folder / "chat_template.jinja"
        settings = read_json(settings_path, ChatTemplateError) if settings_path.exists() else {}
        variables = named_tokens(settings)
        if template_path.exists():
            return cls(read_template(template_path), str(template_path), variables)
        text = default_template(settings.get("chat_template"), settings_path)
        return None if text is None else cls(text, str(settings_path), variables)

    def render(self, messages: list[dict[str, str]], thinking: bool = True) -> str:
        """The text of `messages`, followed by the start of the assistant's answer. Raises
        ChatTemplateError."""
        values = {
            "messages": messages,
            "add_generation_prompt": True,
            "enable_thinking": bool(thinking),
        }
        try:
            with allowance(messages):
                return self.compiled.render(**self.variables, **values)
        except SecurityError as problem:
            raise ChatTemplateError(
                f"{self.source}: the sandbox stopped the template ({problem})"
            ) from None
        except TemplateError as problem:  # raise_exception's too, with the template's own message
            raise ChatTemplateError(f"{self.source}: {one_line(problem)}") from None
        except Exception as problem:  # a published template can fail in any way
            name = type(problem).__name__
            raise ChatTemplateError(
                f"{self.source}: the template failed ({name}: {one_line(problem)})"
            ) from None


def one_line(problem: Exception) -> str:
    return " ".join(str(problem).split())


def read_template(path: Path) -> str:
    try:
        refuse_lfs_pointer(path, ChatTemplateError)
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise ChatTemplateError(f"{path}: not readable as text ({problem})") from None


def default_template(entry: object, path: Path) -> str | None:
    """The template in the "chat_template" of tokenizer_config.json: a string, or the default of
    several, [{"name": "default", "template": "..."}, ...]. Raises ChatTemplateError."""
    if isinstance(entry, list):
        named = {}
        for index, item in enumerate(entry):
            if not isinstance(item, dict) or not isinstance(item.get("name"), str):
                reason = "has no name, expected a dict with name and template"
                raise ChatTemplateError(f"{path}: chat_template[{index}] {reason}")
            named[item["name"]] = item.get("template")
        if "default" not in named:
            raise ChatTemplateError(f"{path}: chat_template has no entry named 'default'")
        entry = named["default"]
    if entry is not None and not isinstance(entry, str):
        raise ChatTemplateError(
            f"{path}: chat_template is a {type(entry).__name__}, expected a string"
        )
    return entry


def named_tokens(settings: dict) -> dict[str, str]:
    """The texts of bos_token, eos_token, ... in tokenizer_config.json, where they are given."""
    tokens = {}
    for name in NAMED_TOKENS:
        text = token_text(settings.get(name))
        if text is not None:
            tokens[name] = text
    return tokens


def token_text(entry: object) -> str | None:
    """A token of tokenizer_config.json: a string, or an object that holds it as "content"."""
    text = entry.get("content") if isinstance(entry, dict) else entry
    return text if isinstance(text, str) else None


def check_messages(messages: object) -> None:
    """Raises ChatTemplateError for a conversation that a template would silently drop or garble.

    Expected: a list of dicts with "role" (system, user, assistant or tool) and "content" (str), and
    "reasoning_content" (str) where an assistant's thinking is given separately.
    """
    if not isinstance(messages, list):
        raise ChatTemplateError(
            f"messages is a {type(messages).__name__}, expected a list of dicts"
        )
    if not messages:
        raise ChatTemplateError("messages is empty, expected at least one message")
    for index, message in enumerate(messages):
        name = f"messages[{index}]"
        if not isinstance(message, dict):
            raise ChatTemplateError(
                f"{name} is a {type(message).__name__}, expected a dict with role and content"
            )
        for key in message:
            if key not in KEYS:
                raise ChatTemplateError(
                    f"{name} has the key {key!r}, expected only {', '.join(KEYS)}"
                )
        for key in ("role", "content"):
            if key not in message:
                raise ChatTemplateError(f"{name} has no {key!r}")
        for key, value in message.items():
            if not isinstance(value, str):
                raise ChatTemplateError(
                    f"{name}: {key} is a {type(value).__name__}, expected a string"
                )
            if half := re.search("[\ud800-\udfff]", value):
                raise ChatTemplateError(
                    f"{name}: {key} holds half a surrogate pair at character {half.start()}"
                )
        if message["role"] not in ROLES:
            raise ChatTemplateError(
                f"{name}: role is {message['role']!r}, expected one of {', '.join(ROLES)}"
            )


def spare_character(messages: list[dict[str, str]]) -> str:
    """A character from Unicode's supplementary private use areas that occurs in no message."""
    used = set()
    for message in messages:
        used.update(*message.values())
    code = 0xF0000
    while chr(code) in used:
        code += 1
    return chr(code)


def guard(
    messages: list[dict[str, str]], control: list[str], exempt: tuple[str, ...], spare: str
) -> list[dict[str, str]]:
    """Copies of the messages with every control token broken up: `spare` is inserted after its
    first character.

    Splitting the rendered text on control tokens then finds only those that the template wrote, and
    removing `spare` restores the messages' own text. The tokens in `exempt` stay whole in an
    assistant's content, because templates look for them there, to drop the thinking of earlier
    turns.
    """
    all_starts = starts_of(control)
    other_starts = starts_of([token for token in control if token not in exempt])

    def insert_spare(start: re.Match) -> str:
        return start[0] + spare

    guarded = []
    for message in messages:
        copy = {}
        for key, text in message.items():
            lenient = message["role"] == "assistant" and key == "content"
            starts = other_starts if lenient else all_starts
            copy[key] = starts.sub(insert_spare, text)
        guarded.append(copy)
    return guarded


def starts_of(tokens: list[str]) -> re.Pattern:
    """Matches the first character of every occurrence, overlapping ones included."""
    return re.compile(f"(?={any_of(tokens)}).", re.DOTALL)


def any_of(tokens: list[str]) -> str:
    """A pattern for any of these tokens, the longest first; without tokens it matches nothing."""
    longest_first = sorted(tokens, key=len, reverse=True)
    alternatives = "|".join(map(re.escape, longest_first)) or "(?!)"
    return f"(?:{alternatives})"
