"""The page of public names: what stands there of a function, a class, an error and a constant."""

from dataclasses import dataclass, field

from qwenlab.errors import QwenlabError
from qwenlab.teach.api_page import describe, public_names, public_packages


def pads(rows: list[int], *, side: str = "left") -> list[int]:
    """How many pads each of `rows` has.

    rows: lengths; side: "left" or "<none>". Raises ValueError for a row of no tokens.
    """


@dataclass
class Plan:
    """What a step does."""

    rows: list[int] = field(default_factory=list)

    @property
    def size(self) -> int:
        """How many rows."""

    def add(self, row: int) -> None:
        """Adds `row`."""

    def untold(self) -> None:
        pass

    def _private(self) -> None:
        """Nobody's business."""


# As `describe` sees them: of a package of ours.
Plan.__module__ = "qwenlab.somewhere"


def test_a_function_is_its_call_and_its_docstring():
    text = describe("pads", pads, "qwenlab.pads")
    assert text.startswith("### pads\n\n```python\n")
    assert "qwenlab.pads(rows: list[int], *, side: str = 'left') -> list[int]\n" in text
    assert '`rows`: lengths; `side`: "left" or "\\<none>". **Raises** ValueError' in text


def test_a_class_has_its_public_methods_and_properties():
    text = describe("Plan", Plan, "qwenlab.Plan")
    assert "qwenlab.Plan(rows: list[int] = ...)\n" in text
    assert "**`.size`**\n\nHow many rows." in text
    assert ".add(row: int) -> None\n```\n\nAdds `row`." in text
    assert "untold" not in text and "private" not in text


def test_an_error_is_not_called_and_a_constant_is_its_value():
    assert "```" not in describe("QwenlabError", QwenlabError, "qwenlab.QwenlabError")
    assert "# qwenlab.SIZES\n{'b': 1, 'a': 2}\n" in describe(
        "SIZES", {"b": 1, "a": 2}, "qwenlab.SIZES"
    )


def test_every_public_name_of_every_package_has_an_entry():
    text = public_names()
    for package, names in public_packages():
        assert f"## {package}\n" in text
        for name in names:
            assert f"### {name}\n" in text
