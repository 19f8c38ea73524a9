"""The folder of one run: its settings, its records line by line, its checkpoints.

A run that was killed resumes there. Whenever it dies, nothing half-written is ever read: an
incomplete last line is cut off when the folder is opened again, and a checkpoint gets its name only
once it is complete. Resuming removes whatever else the kill left half-written.
"""

import json
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from io import FileIO
from pathlib import Path

from filelock import FileLock, Timeout

from qwenlab.errors import QwenlabError, failure, json_value, read_json, unwritable
from qwenlab.files import PART, write_folder, write_whole
from qwenlab.fingerprints import taken_apart

SETTINGS = "run.json"
LOCK = "run.lock"  # empty; on some systems it stays when the run has ended
# The kinds of a record's fields, as error messages name them.
FLAG = "true or false"
WHOLE = "a whole number of at least 0"
NUMBER = "a number"
TEXT = "a text"
OPTIONAL_TEXT = "a text or null"
IDS = "a list of token ids"
LARGE = 10**300  # beyond it sums overflow, and whole numbers can't become floats

# By setting: whether a run in which it has this value can be continued with the value of now.
Growing = Mapping[str, Callable[[object], bool]]
logger = logging.getLogger(__name__)


class RunFolderError(QwenlabError):
    """The folder holds something else, is in use, or can't be written; the message is one line.
    Commands exit with status 1 if it is in use or the disk is full."""


class RunFolder:
    """Creates the folder `path` for a run with these settings, or resumes it if it holds the same
    run.

    settings: whatever the results depend on, as JSON values. `resumed`: whether the run was already
    there. growing: settings that may have grown since, such as a longer list of problems; the
    folder then takes the new ones, and that is logged. Only one process at a time can use the
    folder; open it in a `with` statement, or call `close`. Raises RunFolderError if the folder
    holds another run (naming the first setting that differs), other files, or is in use.
    """

    def __init__(self, path: str | Path, settings: dict, growing: Growing | None = None) -> None:
        self.path = Path(path)
        self.growing = growing or {}
        self.files: dict[str, FileIO] = {}
        self.lock = FileLock(self.path / LOCK, timeout=0, thread_local=False)
        try:
            # as they are read back from the file: tuples become lists
            self.open(json.loads(json.dumps(settings)))
        except Timeout:
            error = RunFolderError(f"{self.path}: another process is using it")
            raise failure(error) from None
        except OSError as problem:
            self.close()
            raise unwritable(self.path, problem, RunFolderError) from None
        except BaseException:
            self.close()
            raise

    def open(self, settings: dict) -> None:
        """Locks the folder, then starts the run or checks that the folder's run is this one."""
        if self.path.exists() and not self.path.is_dir():
            raise RunFolderError(f"{self.path}: a file, expected a folder for the run")
        self.path.mkdir(parents=True, exist_ok=True)
        if not (self.path / SETTINGS).exists() and any(map(is_foreign, self.path.iterdir())):
            reason = f"holds files but no run (no {SETTINGS}); name another folder"
            raise RunFolderError(f"{self.path}: {reason}")
        if os.access(self.path, os.W_OK):  # a read-only folder can't change, so needs no lock
            self.lock.acquire()
        self.resumed = (self.path / SETTINGS).exists()
        if self.resumed:
            there = read_json(self.path / SETTINGS, RunFolderError)
            grown = self.check(there, settings)
            self.clear()
            if grown:
                self.write_settings(settings)
                logger.info(f"{self.path}: {'; '.join(grown)}: the run is extended")
        else:
            self.write_settings(settings)

    def write_settings(self, settings: dict) -> None:
        text = json.dumps(settings, indent=2, ensure_ascii=False) + "\n"
        write_whole(self.path / SETTINGS, text, RunFolderError)

    def check(self, there: dict, now: dict) -> list[str]:
        """What has grown since, in words. Raises RunFolderError, naming the setting, if the folder
        holds another run."""
        grown = []
        for name in dict.fromkeys([*now, *there]):
            earlier, current = there.get(name), now.get(name)
            if taken_apart(earlier)[1] == taken_apart(current)[1]:
                continue
            differing = in_words(name, earlier, current)
            if name not in self.growing or not self.growing[name](earlier):
                raise RunFolderError(
                    f"{self.path}: holds another run ({differing}); name another folder, or the "
                    "same settings"
                )
            grown.append(differing)
        return grown

    def clear(self) -> None:
        """Removes what a kill left half-written."""
        for part in self.path.glob(f"*{PART}"):
            if part.is_dir():
                shutil.rmtree(part, ignore_errors=True)
            else:
                part.unlink(missing_ok=True)

    def records(self, name: str, fields: dict[str, str] | None = None) -> list[dict]:
        """The records of file `name`, in the order written; an incomplete last line is cut off.

        fields: the fields that a record must have, each with its kind (FLAG, WHOLE, ...). Raises
        RunFolderError naming file and line for a record that lacks one.
        """
        path = self.path / name
        try:
            content = path.read_bytes()
            whole = content.rfind(b"\n") + 1
            if whole < len(content):
                os.truncate(path, whole)
        except FileNotFoundError:
            return []
        except OSError as problem:
            raise RunFolderError(f"{path}: can't be read ({problem.strerror})") from None
        records = []
        for number, line in enumerate(content[:whole].splitlines(), 1):
            place = f"{path} line {number}"
            record = json_value(line, place, RunFolderError)
            check_record(record, place, fields or {}, RunFolderError)
            records.append(record)
        return records

    def done(
        self, name: str, fields: dict[str, str], keys: Sequence[str], expected: Iterable[tuple]
    ) -> dict:
        """The records of file `name` as {values of the fields `keys`: record}.

        expected: the keys of all records that this run may hold. Raises RunFolderError naming file
        and line for a record of another key, or of the same key as an earlier one.
        """
        expected = set(expected)
        done = {}
        for line, record in enumerate(self.records(name, fields), 1):
            key = tuple(record[each] for each in keys)
            if key not in expected or key in done:
                what = " ".join(f"{each} {value}" for each, value in zip(keys, key, strict=True))
                why = "is there twice" if key in done else "is not of this run"
                raise RunFolderError(f"{self.path / name} line {line}: {what} {why}")
            done[key] = record
        return done

    def append(self, name: str, record: dict) -> None:
        """Appends a record as one line of JSON: see `add`."""
        self.add(name, as_line(record))

    def add(self, name: str, text: str) -> None:
        """Appends text, which is in the file when this returns. A full disk leaves the file as it
        was.

        Raises RunFolderError if it can't be written.
        """
        path = self.path / name
        try:
            file = self.files.get(name) or self.files.setdefault(name, path.open("ab", buffering=0))
            before = os.fstat(file.fileno()).st_size
            left = memoryview(text.encode())
            try:
                while left:
                    left = left[file.write(left) :]
            except BaseException:
                os.truncate(path, before)
                raise
        except OSError as problem:
            advice = "; the records before are safe, run again to resume"
            raise unwritable(path, problem, RunFolderError, advice) from None

    def keep(self, name: str, records: Iterable[dict]) -> None:
        """Replaces the file's records: those after the last checkpoint are dropped, because
        resuming writes them again."""
        if name in self.files:
            self.files.pop(name).close()
        write_whole(self.path / name, "".join(map(as_line, records)), RunFolderError)

    def write_folder(self, name: str, fill: Callable[[Path], None]) -> Path:
        """Writes a subfolder, whole or not at all: `fill(path)` writes its files. Raises
        RunFolderError."""
        return write_folder(self.path / name, fill, RunFolderError)

    def close(self) -> None:
        for file in self.files.values():
            file.close()
        self.files = {}
        self.lock.release()

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def in_words(name: str, there: object, now: object) -> str:
    """How a setting differs: by number where that says it, else by value."""
    many_there, _ = taken_apart(there)
    many_now, _ = taken_apart(now)
    if many_there and many_now and many_there != many_now:
        return f"{many_there} there, {many_now.split()[0]} now"
    if many_there and many_now:
        return f"{many_there} there, as many others now"
    return f"{name} is {there!r} there, {now!r} now"


def as_line(record: dict) -> str:
    return json.dumps(record, ensure_ascii=False) + "\n"


def is_foreign(path: Path) -> bool:
    """Whether a file belongs to no run: a killed one may leave its lock and parts, nothing else."""
    return path.name != LOCK and path.suffix != PART


def check_record(
    record: object, place: str, fields: dict[str, str], error: type[QwenlabError]
) -> None:
    """Raises `error`, naming the place, unless the record is an object with all `fields`, each of
    its kind."""
    if not isinstance(record, dict):
        raise error(f"{place}: expected a record, found {type(record).__name__}")
    for name, kind in fields.items():
        if name not in record:
            raise error(f"{place}: {name} is missing, expected {kind}")
        if not IS_A[kind](record[name]):
            raise error(f"{place}: {name} is {record[name]!r:.80}, expected {kind}")


def is_number(value: object) -> bool:
    """Whether a JSON value is a number that sums can be taken of as a float. Infinity and NaN
    count."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and not LARGE <= abs(value) < float("inf")


IS_A = {
    FLAG: lambda value: isinstance(value, bool),
    WHOLE: lambda value: isinstance(value, int) and is_number(value) and value >= 0,
    NUMBER: is_number,
    TEXT: lambda value: isinstance(value, str),
    OPTIONAL_TEXT: lambda value: value is None or isinstance(value, str),
    IDS: lambda value: isinstance(value, list) and all(map(IS_A[WHOLE], value)),
}
