"""Sphinx extension for the book: writes the public names, with their signatures and docstrings,
into the page that has the line MARK.

Public are the names in `__all__` of `qwenlab` and of its packages. Docstrings are Markdown, as the
page is.
"""

import inspect
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from pprint import pformat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

MARK = "<!-- public names: written here when the site is built -->"
LONGEST = 80  # characters of a signature on one line
# Of a type in a signature, where it comes from; "torch." stays.
MODULES = re.compile(r"\b(?:collections\.abc|pathlib|typing|qwenlab(?:\.\w+)+)\.(?=\w)")
CODE = re.compile(r"(`[^`]*`)")
OUTCOME = re.compile(r"(?<![^.;\s] )\b(Returns|Raises)\b")
ANGLE = re.compile(r"<(?! )")


def setup(app: "Sphinx") -> dict[str, bool]:
    app.connect("source-read", write_names)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def write_names(_app: "Sphinx", _page: str, source: list[str]) -> None:
    if MARK in source[0]:
        source[0] = source[0].replace(MARK, public_names())


def public_packages() -> Iterator[tuple[str, list[str]]]:
    """Each package that has public names, and these."""
    import qwenlab

    # In the order in which qwenlab lists them: from a checkpoint to its answers.
    yield "qwenlab", list(qwenlab.HOME)
    for package in qwenlab.PACKAGES:
        names = getattr(import_module(f"qwenlab.{package}"), "__all__", ())
        if names:
            yield f"qwenlab.{package}", list(names)


def public_names() -> str:
    """Markdown: a section for each package, and in it one for each of its public names."""
    sections = []
    for package, names in public_packages():
        sections.append(f"## {package}")
        module = import_module(package)
        sections += [describe(name, getattr(module, name), f"{package}.{name}") for name in names]
    return "\n\n".join(sections)


def describe(name: str, value: object, address: str) -> str:
    """Markdown: one public name, and the public methods and properties if it is a class. Of a
    constant, its value."""
    if not callable(value):
        shown = pformat(value, width=LONGEST, sort_dicts=False)
        return f"### {name}\n\n```python\n# {address}\n{shown}\n```"
    parts = [f"### {name}", signature(address, value), documentation(value)]
    if inspect.isclass(value):
        for member, method in public_members(value):
            if isinstance(method, property):
                parts += [f"**`.{member}`**", documentation(method)]
            else:
                parts += [signature(f".{member}", method), documentation(method)]
    return "\n\n".join(filter(None, parts))


def public_members(kind: type) -> Iterator[tuple[str, Callable | property]]:
    """The methods and properties with a docstring that a class of ours defines or inherits from
    one of ours, in the order of their definition."""
    seen = set()
    for base in kind.__mro__:
        if not base.__module__.startswith("qwenlab"):
            continue
        for name, member in vars(base).items():
            function = getattr(member, "__func__", member)  # of a class method
            called = inspect.isfunction(function) or isinstance(function, property)
            if called and function.__doc__ and not name.startswith("_") and name not in seen:
                seen.add(name)
                yield name, function


def signature(name: str, value: Callable) -> str:
    """A block of code: the call with its defaults and types. Empty for an error."""
    if is_error(value):
        return ""
    found = inspect.signature(value)
    parameters = []
    star = False  # whether only names may follow
    for parameter in found.parameters.values():
        if parameter.name in ("self", "cls"):
            continue
        star = star or parameter.kind is parameter.VAR_POSITIONAL
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            parameters.append("*")
            star = True
        parameters.append(MODULES.sub("", str(parameter)).replace("<factory>", "..."))
    returns = ""
    if not inspect.isclass(value) and found.return_annotation is not found.empty:
        returns = f" -> {MODULES.sub('', inspect.formatannotation(found.return_annotation))}"
    call = f"{name}({', '.join(parameters)}){returns}"
    if len(call) > LONGEST:
        lines = "".join(f"    {parameter},\n" for parameter in parameters)
        call = f"{name}(\n{lines}){returns}"
    return f"```python\n{call}\n```"


def documentation(value: Callable | property) -> str:
    """The docstring, in which arguments are set as code where it explains them."""
    function = value.fget if isinstance(value, property) else value
    names = [] if is_error(function) else list(inspect.signature(function).parameters)
    explained = re.compile(rf"(?<![\w.])({'|'.join(map(re.escape, names))})(?=: | \([A-Z])")
    parts = CODE.split(inspect.getdoc(value) or "")
    for place, part in enumerate(parts):
        if not CODE.fullmatch(part):
            part = explained.sub(r"`\1`", part) if names else part
            part = OUTCOME.sub(r"**\1**", part)
            parts[place] = ANGLE.sub(r"\<", part)  # HTML would take it for a tag
    return "".join(parts)


def is_error(value: object) -> bool:
    """Errors are raised, not called."""
    return inspect.isclass(value) and issubclass(value, BaseException)
