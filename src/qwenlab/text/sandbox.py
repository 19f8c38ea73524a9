"""Jinja's sandbox as published chat templates expect it, with a bound on the work that one
rendering may do.

https://jinja.palletsprojects.com/en/stable/sandbox/ keeps a template from reaching the machine. It
does not keep it from looping for ever, so its loops, calls and texts are counted.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

# The work allowed to one rendering: a fixed part, and more for each character and message. A loop's
# turn costs 1, a call 10 and the size of its arguments, a text that is put together its length.
WORK, WORK_PER_CHARACTER, WORK_PER_MESSAGE = 1_000_000, 30, 1000
work_left: ContextVar[int] = ContextVar("work_left")


def compiled(text: str) -> Template:
    """A template, to be rendered within an `allowance`. Raises what Jinja or Python's compiler says
    about it."""
    environment = Sandbox()
    tree = Counted().visit(environment.parse(text)).set_environment(environment)
    return environment.from_string(tree)


@contextmanager
def allowance(messages: list[dict[str, str]]) -> Iterator[None]:
    """Allows one rendering of `messages` its work, which it may not exceed."""
    characters = sum(len(text) for message in messages for text in message.values())
    before = work_left.set(
        WORK + WORK_PER_CHARACTER * characters + WORK_PER_MESSAGE * len(messages)
    )
    try:
        yield
    finally:
        work_left.reset(before)


class Generation(Extension):
    """`{% generation %}...{% endgeneration %}`: transformers' mark for assistant tokens; only its
    body is written."""

    tags = frozenset(("generation",))

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(
            parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line
        )


def work(amount: int) -> None:
    """Charges `amount` to the template that is being rendered. Raises TemplateError once its
    allowance is spent."""
    left = work_left.get() - amount
    work_left.set(left)
    if left < 0:
        raise TemplateError("the template loops without end or writes too much")


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment published templates are written for: block trimming, break/continue,
    generation, three helpers.

    Loops, calls, filters, operators and output count as work. A filter's or call's result is
    counted once it exists, so a huge text made in a single one (`center`, a width in a format) is
    bounded by memory alone.
    """

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self):
        extensions = ["jinja2.ext.loopcontrols", Generation]
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=extensions, finalize=measured
        )
        self.filters |= {"tojson": to_json, "qwenlab_turns": turns, "qwenlab_measured": measured}
        self.globals |= {
            "raise_exception": refuse,
            "strftime_now": lambda form: datetime.now().strftime(form),
        }

    def call(
        self, context, function: Callable, /, *args, **kwargs
    ):  # a template's arguments may have any name
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
    """How much an operation on `value` may cost: characters, entries, or 30 bits of a
    whole number."""
    if isinstance(value, str | list | tuple):
        return len(value)
    return value.bit_length() // 30 + 1 if isinstance(value, int) else 1


def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False) -> str:
    """Plain JSON. Jinja's own filter would write < and > as escapes, meant for web pages."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def refuse(message: str):
    """`raise_exception` of templates: their way to say that a conversation is not one they can
    write."""
    raise TemplateError(message)
