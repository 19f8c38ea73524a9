"""Files and folders that appear whole or not at all: written next to their place, then renamed."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from qwenlab.errors import QwenlabError, unwritable

PART = ".part"  # suffix of a file or folder that is still being written


def part_of(path: Path) -> Path:
    """The temporary name to write to: next to `path`, or next to the file that it links to."""
    path = path.resolve()
    return path.with_name(path.name + PART)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields the path to write to; the file becomes `path` if the block ends without an error.

    Otherwise the previous file stays. Raises OSError.
    """
    part = part_of(path)
    try:
        yield part
        os.replace(part, path.resolve())
    finally:
        part.unlink(missing_ok=True)


def write_whole(path: Path, content: str | bytes, error: type[QwenlabError] = QwenlabError) -> None:
    """Writes a file, text as UTF-8. Raises `error`, in one line, if it can't be written."""
    try:
        with replacing(path) as part:
            part.write_bytes(content.encode() if isinstance(content, str) else content)
    except OSError as problem:
        raise unwritable(path, problem, error) from None


def write_folder(
    path: Path,
    fill: Callable[[Path], None],
    error: type[QwenlabError] = QwenlabError,
) -> Path:
    """Has `fill(folder)` write the files of a folder, which then replaces `path`.

    Returns `path`. If `fill` raises, the previous folder stays. Raises `error`, in one line, if the
    folder can't be written.
    """
    part = part_of(path)
    old = path.with_name(path.name + ".old" + PART)
    try:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        fill(part)
        if path.exists():
            shutil.rmtree(old, ignore_errors=True)
            os.replace(path, old)
        os.replace(part, path)
    except OSError as problem:
        raise unwritable(path, problem, error) from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
    return path
