"""Errors that the user can fix: one line that names the file, row or token, and what was
expected."""

import errno
import json
from contextlib import suppress
from numbers import Integral, Real
from pathlib import Path

# the first bytes of the pointer that Git LFS checks in instead of a file
LFS_POINTER = b"version https://git-lfs.github.com/spec/"
# These mean that the given name is wrong; any other, such as a full disk, is the machine's fault.
WRONG_PLACE = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.EROFS}
WRONG_PLACE |= {errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL, errno.EEXIST, errno.ENOTEMPTY}


class QwenlabError(ValueError):
    """Base of qwenlab's own errors. Commands print its message as one line and exit with `status`:
    2 for wrong input, 1 for a failure that no other input would have prevented (see `failure`)."""

    status = 2


def failure(error: QwenlabError) -> QwenlabError:
    """The same error, marked as a failure: commands exit with status 1."""
    error.status = 1
    return error


def unwritable(
    path: str | Path, problem: OSError, error: type[QwenlabError], advice: str = ""
) -> QwenlabError:
    """The one-line error to raise where `path` can't be written. A full disk is a failure; a name
    that can't be written to is wrong input."""
    reason = problem.strerror or str(problem)
    found = error(f"{path}: can't be written ({reason}){advice}")
    return found if problem.errno in WRONG_PLACE else failure(found)


def read_json(path: Path, error: type[QwenlabError]) -> dict:
    """The JSON object in `path`. Raises `error` in one line that names the file."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise error(f"{path}: no such file") from None
    # ValueError: not UTF-8, not JSON, or a number that is too long
    except (OSError, ValueError, RecursionError) as problem:
        refuse_lfs_pointer(path, error)
        raise error(f"{path}: not readable as JSON ({problem})") from None
    if not isinstance(values, dict):
        raise error(f"{path}: expected a JSON object, found {type(values).__name__}")
    return values


def text_of(path: Path, error: type[QwenlabError]) -> str:
    """The text of a UTF-8 file, without its byte order mark. Raises `error` in one line that names
    the file and the line."""
    try:
        refuse_lfs_pointer(path, error)
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        line = problem.object.count(b"\n", 0, problem.start) + 1
        byte = problem.object[problem.start]
        raise error(f"{path} line {line}: not UTF-8 text (byte 0x{byte:02x})") from None
    except OSError as problem:
        raise error(f"{path}: can't be read ({problem.strerror})") from None


def refuse_lfs_pointer(path: Path, error: type[QwenlabError]) -> None:
    """Raises `error` where `path` is a Git LFS pointer, a few lines in the place of a large
    file."""
    start = b""
    with suppress(OSError), path.open("rb") as file:
        start = file.read(len(LFS_POINTER))
    if start == LFS_POINTER:
        raise error(f"{path}: a Git LFS pointer, not the file itself; `git lfs pull` fetches it")


def json_value(text: str | bytes, place: str, error: type[QwenlabError]) -> object:
    """The value of JSON `text`. Raises `error` in one line that names the place."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as problem:  # ValueError: not JSON, or a number too long
        raise error(f"{place}: not JSON ({problem})") from None


def whole(value: object, name: str, least: int, most: int | None = None) -> int:
    """`value` as an int. ValueError, naming `name`, unless it is a whole number (numpy's count) of
    at least `least` and, if given, at most `most`."""
    right = isinstance(value, Integral) and not isinstance(value, bool) and value >= least
    if not right or (most is not None and value > most):
        bound = "" if most is None else f" and at most {most}"
        raise ValueError(
            f"{name} is {value!r:.80}, expected a whole number of at least {least}{bound}"
        )
    return int(value)


def number(
    value: object, name: str, *, most: float, above: float = 0.0, least: float | None = None
) -> None:
    """ValueError, naming `name`, unless `value` is a number above `above` (or of at least `least`,
    if given) and at most `most`."""
    real = isinstance(value, Real) and not isinstance(value, bool)
    fits = real and (value > above if least is None else value >= least) and value <= most
    if not fits:
        bound = f"above {above:g}" if least is None else f"of at least {least:g}"
        raise ValueError(f"{name} is {value!r:.80}, expected a number {bound} and at most {most:g}")


def flags(**options: object) -> None:
    """ValueError, naming the option, unless every option is True or False."""
    for name, value in options.items():
        if not isinstance(value, bool):
            raise ValueError(f"{name} is {value!r:.80}, expected True or False")
