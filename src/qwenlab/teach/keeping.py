"""Results that take too long for a page: a script computes them beforehand, and the package ships
them."""

from pathlib import Path

from qwenlab.errors import QwenlabError, read_json

FOLDER = Path(__file__).with_name("stored")


class StoredError(QwenlabError):
    """There are no such stored results, or they can't be read; the message is one line."""


def stored(name: str) -> dict:
    """The stored results `name`; `provenance` in them names the command, the date and the machine.

    Raises StoredError with the names that exist.
    """
    path = FOLDER / f"{name}.json"
    if not path.is_file():
        names = ", ".join(sorted(p.stem for p in FOLDER.glob("*.json")))
        raise StoredError(f"no stored results {name!r}; there are {names or 'none'}")
    return read_json(path, StoredError)
