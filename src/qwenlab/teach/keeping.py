"""What takes too long for a page is run beforehand, by a script, and its numbers are kept with the
package."""

from pathlib import Path

from qwenlab.errors import QwenlabError, read_json

FOLDER = Path(__file__).with_name("stored")


class StoredError(QwenlabError):
    """There are no such stored results, or they can't be read. Says which, in one line."""


def stored(name: str) -> dict:
    """The stored results `name`, where `provenance` says which command made them, when, and on what
    machine.

    Raises StoredError, listing the names that there are.
    """
    path = FOLDER / f"{name}.json"
    if not path.is_file():
        names = ", ".join(sorted(p.stem for p in FOLDER.glob("*.json")))
        raise StoredError(f"no stored results {name!r}; there are {names or 'none'}")
    return read_json(path, StoredError)
