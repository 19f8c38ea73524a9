"""The chat template that comes with a checkpoint: messages in, one text with control tokens out.

A template is a small program written by whoever published the checkpoint, so it runs in Jinja's sandbox
(https://jinja.palletsprojects.com/en/stable/sandbox/) and sees nothing but strings, lists and dicts. Its work is
counted, because a template can also loop for ever.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from datetime import datetime
from pathlib import Path

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from qwenlab.errors import QwenlabError, read_json, refuse_lfs_pointer

ROLES = ("system", "user", "assistant", "tool")
KEYS = ("role", "content", "reasoning_content")
# The work allowed to one rendering: a fixed part, and more for each character and message. A loop's turn costs 1,
# a call 10 and the size of its arguments, a text that is put together its length.
WORK, WORK_A_CHARACTER, WORK_A_MESSAGE = 1_000_000, 30, 1000
NAMED_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")


class ChatTemplateError(QwenlabError):
    """The messages are malformed, or the checkpoint's template is missing, broken, or refuses them."""


class ChatTemplate:
    """One template, compiled. `source` names its file in errors; `variables` are the named tokens it may use."""

    def __init__(self, text: str, source: str = "chat template", variables: dict[str, str] | None = None):
        self.source = source
        self.variables = variables or {}
        try:
            environment = Sandbox()
            tree = Counted().visit(environment.parse(text)).set_environment(environment)
            self.compiled = environment.from_string(tree)
        except TemplateSyntaxError as problem:
            raise ChatTemplateError(f"{source}: not a Jinja template (line {problem.lineno}: {problem})") from None
        except Exception as problem:  # SyntaxError for a `break` outside a loop, RecursionError, ...
            reason = getattr(problem, "msg", one_line(problem))
            raise ChatTemplateError(f"{source}: not a Jinja template ({reason})") from None

    @classmethod
    def from_folder(cls, folder) -> "ChatTemplate | None":
        """`chat_template.jinja` of the folder, else "chat_template" of its tokenizer_config.json, else None.

        Raises ChatTemplateError where there is one that can't be used.
        """
        folder = Path(folder)
        settings_path, template_path = folder / "tokenizer_config.json", folder / "chat_template.jinja"
        settings = read_json(settings_path, ChatTemplateError) if settings_path.exists() else {}
        variables = {name: token for name in NAMED_TOKENS if (token := token_text(settings.get(name))) is not None}
        if template_path.exists():
            try:
                refuse_lfs_pointer(template_path, ChatTemplateError)
                return cls(template_path.read_text(encoding="utf-8"), str(template_path), variables)
            except (OSError, UnicodeDecodeError) as problem:
                raise ChatTemplateError(f"{template_path}: not readable as text ({problem})") from None
        text = settings.get("chat_template")
        if isinstance(text, list):  # several by name: [{"name": "default", "template": "..."}, ...]
            for index, item in enumerate(text):
                if not isinstance(item, dict) or not isinstance(item.get("name"), str):
                    reason = f"chat_template[{index}] has no name, expected a dict with name and template"
                    raise ChatTemplateError(f"{settings_path}: {reason}")
            named = {item["name"]: item.get("template") for item in text}
            if "default" not in named:
                raise ChatTemplateError(f"{settings_path}: chat_template has no entry named 'default'")
            text = named["default"]
        if text is None:
            return None
        if not isinstance(text, str):
            raise ChatTemplateError(f"{settings_path}: chat_template is a {type(text).__name__}, expected a string")
        return cls(text, str(settings_path), variables)

    def render(self, messages: list[dict[str, str]], thinking: bool = True) -> str:
        """The text of `messages` with the start of the assistant's answer behind it. Raises ChatTemplateError."""
        characters = sum(len(text) for message in messages for text in message.values())
        before = work_left.set(WORK + WORK_A_CHARACTER * characters + WORK_A_MESSAGE * len(messages))
        try:
            return self.compiled.render(
                **self.variables, messages=messages, add_generation_prompt=True, enable_thinking=bool(thinking)
            )
        except SecurityError as problem:
            raise ChatTemplateError(f"{self.source}: the sandbox stopped the template ({problem})") from None
        except TemplateError as problem:  # raise_exception lands here too, with the template's own words
            raise ChatTemplateError(f"{self.source}: {one_line(problem)}") from None
        except Exception as problem:  # a stranger's program can fail in any way
            name = type(problem).__name__
            raise ChatTemplateError(f"{self.source}: the template failed ({name}: {one_line(problem)})") from None
        finally:
            work_left.reset(before)


class Generation(Extension):
    """`{% generation %}...{% endgeneration %}`: transformers' mark for assistant tokens; only its body is written."""

    tags = frozenset(("generation",))

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


work_left: ContextVar[int] = ContextVar("work_left")


def work(amount: int) -> None:
    """Charges `amount` to the template that is being rendered. Raises TemplateError once its allowance is spent."""
    left = work_left.get() - amount
    work_left.set(left)
    if left < 0:
        raise TemplateError("the template loops without end or writes too much")


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment published templates are written for: block trimming, break/continue, generation, three helpers.

    Loops, calls, filters, operators and output count as work. A filter's or call's result is counted once it exists,
    so a huge text made in a single one (`center`, a width in a format) is bounded by memory alone.
    """

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self):
        extensions = ["jinja2.ext.loopcontrols", Generation]
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=extensions, finalize=measured)
        self.filters |= {"tojson": to_json, "qwenlab_turns": turns, "qwenlab_measured": measured}
        self.globals |= {"raise_exception": refuse, "strftime_now": lambda form: datetime.now().strftime(form)}

    def call(self, context, function: Callable, /, *args, **kwargs):  # a template's arguments may have any name
        work(10 + sum(map(size, args)))
        return measured(super().call(context, function, *args, **kwargs))

    def call_binop(self, context, operator: str, left, right):
        if operator == "*" and isinstance(left, int) and isinstance(right, int):
            work(size(left) * size(right))
        elif operator == "*":
            for text, times in ((left, right), (right, left)):
                work(size(text) * max(0, times) if isinstance(times, int) else 1)
        elif operator == "**" and isinstance(right, int):
            work(size(left) * max(0, right))
        return measured(super().call_binop(context, operator, left, right))


class Counted(NodeTransformer):
    """Makes a template's loop turns, concatenations and filter results count as work."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.iter = filtered(node.iter, "qwenlab_turns")
        return node

    def visit_Concat(self, node: nodes.Concat | nodes.Filter) -> nodes.Filter:
        return filtered(self.generic_visit(node), "qwenlab_measured")

    visit_Filter = visit_Concat


def filtered(node: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def turns(things: Iterable) -> Iterator:
    """The same things, each counted as work."""
    for thing in things:
        work(1)
        yield thing


def measured(value):
    """The same value, its size counted as work."""
    if isinstance(value, str | list | tuple | int):
        work(size(value))
    return value


def size(value) -> int:
    """How much an operation on `value` may cost: characters, entries, or 30 bits of a whole number."""
    if isinstance(value, str | list | tuple):
        return len(value)
    return value.bit_length() // 30 + 1 if isinstance(value, int) else 1


def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False) -> str:
    """Plain JSON. Jinja's own filter would write < and > as escapes, meant for web pages."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def refuse(message: str):
    """`raise_exception` of templates: their way to say that a conversation is not one they can write."""
    raise TemplateError(message)


def one_line(problem: Exception) -> str:
    return " ".join(str(problem).split())


def token_text(entry) -> str | None:
    """A token of tokenizer_config.json: a string, or an object that holds it as "content"."""
    text = entry.get("content") if isinstance(entry, dict) else entry
    return text if isinstance(text, str) else None


def check_messages(messages) -> None:
    """Refuses a conversation that a template would drop or garble in silence. Raises ChatTemplateError.

    Expected: a list of dicts with "role" (system, user, assistant or tool) and "content" (str), and
    "reasoning_content" (str) where an assistant's thinking is given apart.
    """
    if not isinstance(messages, list):
        raise ChatTemplateError(f"messages is a {type(messages).__name__}, expected a list of dicts")
    if not messages:
        raise ChatTemplateError("messages is empty, expected at least one message")
    for index, message in enumerate(messages):
        name = f"messages[{index}]"
        if not isinstance(message, dict):
            raise ChatTemplateError(f"{name} is a {type(message).__name__}, expected a dict with role and content")
        for key in message:
            if key not in KEYS:
                raise ChatTemplateError(f"{name} has the key {key!r}, expected only {', '.join(KEYS)}")
        for key in ("role", "content"):
            if key not in message:
                raise ChatTemplateError(f"{name} has no {key!r}")
        for key, value in message.items():
            if not isinstance(value, str):
                raise ChatTemplateError(f"{name}: {key} is a {type(value).__name__}, expected a string")
            if half := re.search("[\ud800-\udfff]", value):
                raise ChatTemplateError(f"{name}: {key} holds half a surrogate pair at character {half.start()}")
        if message["role"] not in ROLES:
            raise ChatTemplateError(f"{name}: role is {message['role']!r}, expected one of {', '.join(ROLES)}")


def spare_character(messages: list[dict[str, str]]) -> str:
    """A character from Unicode's large private use areas that no message holds."""
    used = set().union(*(text for message in messages for text in message.values()))
    return next(chr(code) for code in range(0xF0000, 0x110000) if chr(code) not in used)


def guard(messages: list[dict[str, str]], control: list[str], alive: tuple[str, ...], spare: str):
    """Copies of the messages in which no control token can be recognised: `spare` is put behind its first character.

    Whoever splits the rendered text on control tokens then finds only those that the template wrote, and gets
    the messages' own words back by removing `spare`. The tokens in `alive` are left whole in an assistant's
    content: templates look for them there, to drop the thinking of earlier turns.
    """
    all_starts = starts_of(control)
    other_starts = starts_of([token for token in control if token not in alive])

    def guarded(role: str, key: str, text: str) -> str:
        starts = other_starts if role == "assistant" and key == "content" else all_starts
        return starts.sub(lambda match: match[0] + spare, text)

    return [{key: guarded(message["role"], key, text) for key, text in message.items()} for message in messages]


def starts_of(tokens: list[str]) -> re.Pattern:
    """Matches the first character of every occurrence, also of occurrences that overlap."""
    return re.compile(f"(?={any_of(tokens)}).", re.DOTALL)


def any_of(tokens: list[str]) -> str:
    """A pattern for any of these texts, the longest first; nothing matches where there are none."""
    return "(?:" + ("|".join(re.escape(token) for token in sorted(tokens, key=len, reverse=True)) or "(?!)") + ")"
