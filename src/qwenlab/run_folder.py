"""The folder of one run: its settings, its records line by line, its checkpoints.

A run that was killed goes on there. Whatever moment it dies at, the folder holds whole things only:
a torn last line is cut off when it is opened again, and a checkpoint has its name only once it is
complete. What a kill left half written goes when the run goes on.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from io import FileIO
from pathlib import Path

from filelock import FileLock, Timeout

from qwenlab.errors import QwenlabError, failure, json_value, read_json, unwritable
from qwenlab.files import PART, write_folder, write_whole

SETTINGS = "run.json"
LOCK = "run.lock"  # empty; stays when the run has ended
# What a field of a record may have to be, in the words of the error.
FLAG, WHOLE, NUMBER = "true or false", "a whole number of at least 0", "a number"
TEXT, OPTIONAL_TEXT = "a text", "a text or null"
LARGE = 10**300  # beyond, sums overflow, and whole numbers have no float


class RunFolderError(QwenlabError):
    """The folder holds something else, is in use, or can't be written. Says what, in one line.
    Commands exit with status 1 if it is in use or the disk is full."""


class RunFolder:
    """Makes the folder `path` for a run with these settings, or goes on with it where it holds the
    same run.

    settings: what the results depend on, as JSON values. `resumed` tells whether the run was there
    already. Only one process at a time may have it; use it in a `with` statement, or call `close`.
    Raises RunFolderError if the folder holds another run (naming the first setting that differs),
    other files, or is in use.
    """

    def __init__(self, path: str | Path, settings: dict):
        self.path = Path(path)
        self.files: dict[str, FileIO] = {}
        self.lock = FileLock(self.path / LOCK, timeout=0, thread_local=False)
        try:
            self.open(json.loads(json.dumps(settings)))  # as they come back: tuples are lists
        except Timeout:
            error = RunFolderError(f"{self.path}: another process is at work in it")
            raise failure(error) from None
        except OSError as problem:
            self.close()
            raise unwritable(self.path, problem, RunFolderError) from None
        except BaseException:
            self.close()
            raise

    def open(self, settings: dict) -> None:
        """Locks the folder, and checks that the run in it is this one, or begins it."""
        if self.path.exists() and not self.path.is_dir():
            raise RunFolderError(f"{self.path}: a file, expected a folder for the run")
        self.path.mkdir(parents=True, exist_ok=True)
        if not (self.path / SETTINGS).exists() and any(map(is_foreign, self.path.iterdir())):
            reason = f"holds files but no run (no {SETTINGS}); name another folder"
            raise RunFolderError(f"{self.path}: {reason}")
        if os.access(self.path, os.W_OK):  # elsewhere nothing can be written, only read
            self.lock.acquire()
        self.resumed = (self.path / SETTINGS).exists()
        if self.resumed:
            self.check(read_json(self.path / SETTINGS, RunFolderError), settings)
            self.clear()
        else:
            text = json.dumps(settings, indent=2, ensure_ascii=False) + "\n"
            write_whole(self.path / SETTINGS, text, RunFolderError)

    def check(self, there: dict, now: dict) -> None:
        """Raises RunFolderError where the folder's run isn't this one."""
        for name in [*now, *there]:
            if there.get(name) != now.get(name):
                raise RunFolderError(
                    f"{self.path}: holds another run ({name} is {there.get(name)!r} there, "
                    f"{now.get(name)!r} now); name another folder, or the same settings"
                )

    def clear(self) -> None:
        """Removes what a kill left half written."""
        for part in self.path.glob(f"*{PART}"):
            if part.is_dir():
                shutil.rmtree(part, ignore_errors=True)
            else:
                part.unlink(missing_ok=True)

    def records(self, name: str, fields: dict[str, str] | None = None) -> list[dict]:
        """The records of file `name`, in the order written. What a kill left of a last line is cut
        off.

        fields: what a record must hold, and of which kind each is (FLAG, WHOLE, ...). Raises
        RunFolderError naming file and line for one that doesn't.
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
        """The records of file `name`, each by its values of `keys`, which are those of `expected`
        at most.

        Raises RunFolderError naming file and line for a record that isn't of this run, or is there
        twice.
        """
        expected, done = set(expected), {}
        for line, record in enumerate(self.records(name, fields), 1):
            key = tuple(record[each] for each in keys)
            if key not in expected or key in done:
                what = " ".join(f"{each} {value}" for each, value in zip(keys, key, strict=True))
                why = "is there twice" if key in done else "is not of this run"
                raise RunFolderError(f"{self.path / name} line {line}: {what} {why}")
            done[key] = record
        return done

    def append(self, name: str, record: dict) -> None:
        """Adds a record as one line of JSON: see `add`."""
        self.add(name, json.dumps(record, ensure_ascii=False) + "\n")

    def add(self, name: str, text: str) -> None:
        """Adds text, which is in the file when this returns. A full disk leaves the file as it was.

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
            advice = "; the records before are safe, run again to go on"
            raise unwritable(path, problem, RunFolderError, advice) from None

    def keep(self, name: str, records: Iterable[dict]) -> None:
        """Replaces the file's records: those behind the last checkpoint are taken back before they
        come again."""
        if name in self.files:
            self.files.pop(name).close()
        lines = [json.dumps(record, ensure_ascii=False) + "\n" for record in records]
        write_whole(self.path / name, "".join(lines), RunFolderError)

    def write_folder(self, name: str, fill: Callable[[Path], None]) -> Path:
        """A folder inside, whole or not at all: `fill(path)` writes the files. Raises
        RunFolderError."""
        return write_folder(self.path / name, fill, RunFolderError)

    def close(self) -> None:
        for file in self.files.values():
            file.close()
        self.files = {}
        self.lock.release()

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(self, *_) -> None:
        self.close()


def is_foreign(path: Path) -> bool:
    """Whether a file in a folder was there before any run: a kill may leave a lock and parts."""
    return path.name != LOCK and path.suffix != PART


def check_record(record, place: str, fields: dict[str, str], error: type[QwenlabError]) -> None:
    """Raises `error`, which names the place, unless the record is an object that holds all
    `fields`, each of its kind."""
    if not isinstance(record, dict):
        raise error(f"{place}: expected a record, found {type(record).__name__}")
    for name, kind in fields.items():
        if name not in record:
            raise error(f"{place}: {name} is missing, expected {kind}")
        if not IS_A[kind](record[name]):
            raise error(f"{place}: {name} is {record[name]!r:.80}, expected {kind}")


def is_number(value) -> bool:
    """Whether a JSON value is a number that can be reckoned with as a float; infinity and NaN are
    among them."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and not LARGE <= abs(value) < float("inf")


IS_A = {
    FLAG: lambda value: isinstance(value, bool),
    WHOLE: lambda value: isinstance(value, int) and is_number(value) and value >= 0,
    NUMBER: is_number,
    TEXT: lambda value: isinstance(value, str),
    OPTIONAL_TEXT: lambda value: value is None or isinstance(value, str),
}
