"""The chat template that comes with a checkpoint: messages in, one text with control tokens out.

A template is a small program written by whoever published the checkpoint, so it runs in Jinja's
sandbox (`qwenlab.text.sandbox`) and sees nothing but strings, lists and dicts.
"""

import re
from pathlib import Path

from jinja2 import TemplateError, TemplateSyntaxError
from jinja2.exceptions import SecurityError

from qwenlab.errors import QwenlabError, read_json, refuse_lfs_pointer
from qwenlab.text.sandbox import allowance, compiled

OPEN = "<think>"  # around what a model thinks before it answers
CLOSE = "</think>"
ROLES = ("system", "user", "assistant", "tool")
KEYS = ("role", "content", "reasoning_content")
NAMED_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")


class ChatTemplateError(QwenlabError):
    """The messages are malformed, or the checkpoint's template is missing, broken, or
    refuses them."""


class ChatTemplate:
    """One template, compiled. `source` names its file in errors; `variables` are the named tokens
    it may use."""

    def __init__(
        self, text: str, source: str = "chat template", variables: dict[str, str] | None = None
    ):
        self.source = source
        self.variables = variables or {}
        try:
            self.compiled = compiled(text)
        except TemplateSyntaxError as problem:
            raise ChatTemplateError(
                f"{source}: not a Jinja template (line {problem.lineno}: {problem})"
            ) from None
        except (
            Exception
        ) as problem:  # SyntaxError for a `break` outside a loop, RecursionError, ...
            reason = getattr(problem, "msg", one_line(problem))
            raise ChatTemplateError(f"{source}: not a Jinja template ({reason})") from None

    @classmethod
    def from_folder(cls, folder) -> "ChatTemplate | None":
        """`chat_template.jinja` of the folder, else "chat_template" of its tokenizer_config.json,
        else None.

        Raises ChatTemplateError where there is one that can't be used.
        """
        folder = Path(folder)
        settings_path, template_path = (
            folder / "tokenizer_config.json",
            folder / "chat_template.jinja",
        )
        settings = read_json(settings_path, ChatTemplateError) if settings_path.exists() else {}
        variables = {
            name: token
            for name in NAMED_TOKENS
            if (token := token_text(settings.get(name))) is not None
        }
        if template_path.exists():
            try:
                refuse_lfs_pointer(template_path, ChatTemplateError)
                return cls(template_path.read_text(encoding="utf-8"), str(template_path), variables)
            except (OSError, UnicodeDecodeError) as problem:
                raise ChatTemplateError(
                    f"{template_path}: not readable as text ({problem})"
                ) from None
        text = settings.get("chat_template")
        if isinstance(text, list):  # several by name: [{"name": "default", "template": "..."}, ...]
            for index, item in enumerate(text):
                if not isinstance(item, dict) or not isinstance(item.get("name"), str):
                    reason = (
                        f"chat_template[{index}] has no name, expected a dict with name "
                        "and template"
                    )
                    raise ChatTemplateError(f"{settings_path}: {reason}")
            named = {item["name"]: item.get("template") for item in text}
            if "default" not in named:
                raise ChatTemplateError(
                    f"{settings_path}: chat_template has no entry named 'default'"
                )
            text = named["default"]
        if text is None:
            return None
        if not isinstance(text, str):
            raise ChatTemplateError(
                f"{settings_path}: chat_template is a {type(text).__name__}, expected a string"
            )
        return cls(text, str(settings_path), variables)

    def render(self, messages: list[dict[str, str]], thinking: bool = True) -> str:
        """The text of `messages` with the start of the assistant's answer behind it. Raises
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
        except (
            TemplateError
        ) as problem:  # raise_exception lands here too, with the template's own words
            raise ChatTemplateError(f"{self.source}: {one_line(problem)}") from None
        except Exception as problem:  # a stranger's program can fail in any way
            name = type(problem).__name__
            raise ChatTemplateError(
                f"{self.source}: the template failed ({name}: {one_line(problem)})"
            ) from None


def one_line(problem: Exception) -> str:
    return " ".join(str(problem).split())


def token_text(entry) -> str | None:
    """A token of tokenizer_config.json: a string, or an object that holds it as "content"."""
    text = entry.get("content") if isinstance(entry, dict) else entry
    return text if isinstance(text, str) else None


def check_messages(messages) -> None:
    """Refuses a conversation that a template would drop or garble in silence. Raises
    ChatTemplateError.

    Expected: a list of dicts with "role" (system, user, assistant or tool) and "content" (str), and
    "reasoning_content" (str) where an assistant's thinking is given apart.
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
    """A character from Unicode's large private use areas that no message holds."""
    used = set().union(*(text for message in messages for text in message.values()))
    return next(chr(code) for code in range(0xF0000, 0x110000) if chr(code) not in used)


def guard(messages: list[dict[str, str]], control: list[str], alive: tuple[str, ...], spare: str):
    """Copies of the messages in which no control token can be recognised: `spare` is put behind its
    first character.

    Whoever splits the rendered text on control tokens then finds only those that the template
    wrote, and gets the messages' own words back by removing `spare`. The tokens in `alive` are left
    whole in an assistant's content: templates look for them there, to drop the thinking of earlier
    turns.
    """
    all_starts = starts_of(control)
    other_starts = starts_of([token for token in control if token not in alive])

    def guarded(role: str, key: str, text: str) -> str:
        starts = other_starts if role == "assistant" and key == "content" else all_starts
        return starts.sub(lambda match: match[0] + spare, text)

    safe = []
    for message in messages:
        kept = {key: guarded(message["role"], key, text) for key, text in message.items()}
        safe.append(kept)
    return safe


def starts_of(tokens: list[str]) -> re.Pattern:
    """Matches the first character of every occurrence, also of occurrences that overlap."""
    return re.compile(f"(?={any_of(tokens)}).", re.DOTALL)


def any_of(tokens: list[str]) -> str:
    """A pattern for any of these texts, the longest first; nothing matches where there are none."""
    return (
        "(?:"
        + ("|".join(re.escape(token) for token in sorted(tokens, key=len, reverse=True)) or "(?!)")
        + ")"
    )
