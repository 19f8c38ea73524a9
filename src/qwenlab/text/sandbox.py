"""Jinja's sandbox as published chat templates expect it, with a bound on the work of one
rendering.

The sandbox (https://jinja.palletsprojects.com/en/stable/sandbox/) keeps a template from reaching
the machine but not from looping for ever, so its loops, calls and texts are counted.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import NoReturn, TypeVar

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

# The work allowed for one rendering: a fixed part, and more per character and message. A loop
# iteration costs 1, a call 10 plus the size of its arguments, a new text its length.
WORK = 1_000_000
WORK_PER_CHARACTER = 30
WORK_PER_MESSAGE = 1000
work_left: ContextVar[int] = ContextVar("work_left")
T = TypeVar("T")


def compiled(text: str) -> Template:
    """A compiled template, to be rendered within an `allowance`. Passes on the errors of Jinja and
    of Python's compiler."""
    environment = Sandbox()
    tree = Counted().visit(environment.parse(text)).set_environment(environment)
    return environment.from_string(tree)


@contextmanager
def allowance(messages: list[dict[str, str]]) -> Iterator[None]:
    """Limits the work of one rendering of `messages`."""
    limit = WORK + WORK_PER_MESSAGE * len(messages)
    for message in messages:
        limit += WORK_PER_CHARACTER * sum(map(len, message.values()))
    before = work_left.set(limit)
    try:
        yield
    finally:
        work_left.reset(before)


class Generation(Extension):
    """`{% generation %}...{% endgeneration %}`, transformers' mark around assistant tokens: writes
    only its body."""

    tags = frozenset(("generation",))

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def work(amount: int) -> None:
    """Charges `amount` to the template being rendered. Raises TemplateError once its allowance is
    spent."""
    left = work_left.get() - amount
    work_left.set(left)
    if left < 0:
        raise TemplateError("the template loops without end or writes too much")


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment that published templates are written for: block trimming, break/continue,
    generation, three helpers.

    Loops, calls, filters, operators and output count as work. The result of a filter or call is
    counted only once it exists, so a huge text made by a single one (`center`, a width in a format)
    is bounded by memory alone.
    """

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        extensions = ["jinja2.ext.loopcontrols", Generation]
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=extensions, finalize=charged
        )
        self.filters |= {"tojson": to_json, "qwenlab_each": each_charged}
        self.filters["qwenlab_charged"] = charged
        self.globals |= {"raise_exception": refuse, "strftime_now": strftime_now}

    # positional only, because a template's keyword arguments may have any name
    def call(
        self, context: Context, function: Callable, /, *args: object, **kwargs: object
    ) -> object:
        work(10 + sum(map(size, args)))
        return charged(super().call(context, function, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        if operator == "*" and isinstance(left, int) and isinstance(right, int):
            work(size(left) * size(right))
        elif operator == "*":
            for text, times in ((left, right), (right, left)):
                work(size(text) * max(0, times) if isinstance(times, int) else 1)
        elif operator == "**" and isinstance(right, int):
            work(size(left) * max(0, right))
        return charged(super().call_binop(context, operator, left, right))


class Counted(NodeTransformer):
    """Makes a template's loop iterations, concatenations and filter results count as work."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.iter = filtered(node.iter, "qwenlab_each")
        return node

    def visit_Concat(self, node: nodes.Concat | nodes.Filter) -> nodes.Filter:
        return filtered(self.generic_visit(node), "qwenlab_charged")

    visit_Filter = visit_Concat


def filtered(node: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def each_charged(items: Iterable[T]) -> Iterator[T]:
    """The same items, each counted as work."""
    for item in items:
        work(1)
        yield item


def charged(value: T) -> T:
    """The same value, its size counted as work."""
    if isinstance(value, str | list | tuple | int):
        work(size(value))
    return value


def size(value: object) -> int:
    """What an operation on `value` costs at most: its characters, its items, or the 30-bit digits
    of a whole number."""
    if isinstance(value, str | list | tuple):
        return len(value)
    return value.bit_length() // 30 + 1 if isinstance(value, int) else 1


def to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON. Jinja's own filter escapes < and >, for web pages."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def refuse(message: str) -> NoReturn:
    """`raise_exception`, with which templates reject a conversation that they can't render."""
    raise TemplateError(message)
