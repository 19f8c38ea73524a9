"""The folder of one run: its settings, its records line by line, its checkpoints. A run that was killed goes on there.

Whatever moment it dies at, the folder holds whole things only: a torn last line is cut off when it is opened again, and
a checkpoint has its name only once it is complete.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from qwenlab.errors import QwenlabError, read_json

SETTINGS = "run.json"
PART = ".part"


class RunFolderError(QwenlabError):
    """The folder holds something else, is in use, or can't be written. Says what, in one line."""


class RunFolder:
    """Makes the folder `path` for a run with these settings, or goes on with it where it holds the same run.

    settings: what the results depend on, as JSON values. `resumed` tells whether the run was there already. Only one
    process at a time may have it; use it in a `with` statement, or call `close`. Raises RunFolderError if the folder
    holds another run (naming the first setting that differs), other files, or is in use.
    """

    def __init__(self, path, settings: dict):
        self.path = Path(path)
        self.files = {}
        settings = json.loads(json.dumps(settings))  # as they come back: tuples are lists
        self.lock = None
        try:
            if self.path.exists() and not self.path.is_dir():
                raise RunFolderError(f"{self.path}: a file, expected a folder for the run")
            self.resumed = (self.path / SETTINGS).exists()
            if not self.resumed and self.path.exists() and any(p.suffix != PART for p in self.path.iterdir()):
                raise RunFolderError(f"{self.path}: holds files but no run (no {SETTINGS}); name another folder")
            self.path.mkdir(parents=True, exist_ok=True)
            self.lock = os.open(self.path, os.O_RDONLY)
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not self.resumed:
                write_whole(self.path / SETTINGS, json.dumps(settings, indent=2, ensure_ascii=False) + "\n")
        except BlockingIOError:
            self.close()
            raise RunFolderError(f"{self.path}: another process is at work in it") from None
        except OSError as problem:
            self.close()
            raise RunFolderError(f"{self.path}: can't be written ({problem.strerror})") from None
        if self.resumed:
            self.check(read_json(self.path / SETTINGS, RunFolderError), settings)

    def check(self, there: dict, now: dict) -> None:
        """Raises RunFolderError where the folder's run isn't this one."""
        for name in [*now, *there]:
            if there.get(name) != now.get(name):
                self.close()
                raise RunFolderError(
                    f"{self.path}: holds another run ({name} is {there.get(name)!r} there, {now.get(name)!r} now); "
                    "name another folder, or the same settings"
                )

    def records(self, name: str) -> list[dict]:
        """The records of file `name`, in the order written. What a kill left of a last line is cut off."""
        path = self.path / name
        if not path.exists():
            return []
        content = path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.truncate(path, whole)
        try:
            return [json.loads(line) for line in content[:whole].splitlines()]
        except ValueError as problem:
            raise RunFolderError(f"{path}: a line is not JSON ({problem}), so this run can't go on") from None

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
            raise RunFolderError(
                f"{path}: can't be written ({problem.strerror}); the records before are safe, run again to go on"
            ) from None

    def keep(self, name: str, records: Iterable[dict]) -> None:
        """Replaces the file's records: those behind the last checkpoint are taken back before they come again."""
        if name in self.files:
            self.files.pop(name).close()
        lines = [json.dumps(record, ensure_ascii=False) + "\n" for record in records]
        write_whole(self.path / name, "".join(lines))

    def write_folder(self, name: str, fill: Callable[[Path], None]) -> Path:
        """A folder inside, whole or not at all: `fill(path)` writes the files. Raises RunFolderError."""
        path, part = self.path / name, self.path / (name + PART)
        try:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            fill(part)
            shutil.rmtree(path, ignore_errors=True)
            os.replace(part, path)
        except OSError as problem:
            raise RunFolderError(f"{path}: can't be written ({problem.strerror})") from None
        finally:
            shutil.rmtree(part, ignore_errors=True)
        return path

    def close(self) -> None:
        for file in self.files.values():
            file.close()
        if self.lock is not None:
            os.close(self.lock)
        self.files, self.lock = {}, None

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(self, *_) -> None:
        self.close()


def write_whole(path: Path, text: str) -> None:
    """The file appears whole or not at all. Raises RunFolderError."""
    part = path.with_name(path.name + PART)
    try:
        part.write_text(text, encoding="utf-8")
        os.replace(part, path)
    except OSError as problem:
        part.unlink(missing_ok=True)
        raise RunFolderError(f"{path}: can't be written ({problem.strerror})") from None
