"""The folder of a run: it goes on after a kill, refuses what isn't its own, and a full disk loses
nothing."""

import json
import os
import re

import pytest
from forks import Forked

from qwenlab.fingerprints import counted, fingerprint, list_fingerprints
from qwenlab.run_folder import RunFolder, RunFolderError


def test_a_run_goes_on_where_it_was(tmp_path):
    path = tmp_path / "deep" / "run"
    with RunFolder(path, {"model": "tiny", "sizes": (1, 2)}) as folder:
        assert not folder.resumed and folder.records("records.jsonl") == []
        folder.append("records.jsonl", {"id": "ä", "right": True})
        folder.append("records.jsonl", {"id": "b"})
    with RunFolder(path, {"model": "tiny", "sizes": [1, 2]}) as folder:
        assert folder.resumed and folder.records("records.jsonl") == [
            {"id": "ä", "right": True},
            {"id": "b"},
        ]
        folder.keep("records.jsonl", folder.records("records.jsonl")[:1])
        folder.append("records.jsonl", {"id": "c"})
        assert [record["id"] for record in folder.records("records.jsonl")] == ["ä", "c"]


def test_a_setting_that_may_grow_extends_the_run(tmp_path, caplog):
    def growing(limit):
        return {"limit": lambda there: isinstance(there, int) and there < limit}

    def of(limit, seed=0):
        return RunFolder(tmp_path / "run", {"seed": seed, "limit": limit}, growing(limit))

    caplog.set_level("INFO")
    of(5).close()
    of(8).close()
    assert caplog.messages == [f"{tmp_path}/run: limit is 5 there, 8 now: the run is extended"]
    assert json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))["limit"] == 8
    for limit, seed in ((5, 0), (9, 1)):
        with pytest.raises(RunFolderError, match="holds another run"):
            of(limit, seed)
    assert json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))["limit"] == 8


def test_what_differs_is_told_by_number_where_that_says_it(tmp_path):
    RunFolder(tmp_path, {"problems": counted(50, "problem", "0123456789abcdef")}).close()
    RunFolder(tmp_path, {"problems": "0123456789abcdef"}).close()  # as earlier versions wrote it
    for now, told in {
        counted(80, "problem", "f" * 16): "(50 problems there, 80 now)",
        counted(50, "problem", "f" * 16): "(50 problems there, as many others now)",
        "f" * 16: "(problems is '50 problems, 0123456789abcdef' there, 'ffffffffffffffff' now)",
    }.items():
        with pytest.raises(RunFolderError, match=re.escape(told)):
            RunFolder(tmp_path, {"problems": now})


def test_fingerprints_of_longer_and_longer_lists():
    prints = list_fingerprints([(1, "ä"), (2, "b"), (3, "\udc80")])
    for length in (1, 2, 3):
        text = repr([(1, "ä"), (2, "b"), (3, "\udc80")][:length])
        assert prints[length - 1] == fingerprint([text.encode("utf-8", "replace")])


@pytest.mark.parametrize("cut", range(1, 14))
def test_a_torn_last_line_is_cut_off(tmp_path, cut):
    with RunFolder(tmp_path / "run", {}) as folder:
        folder.append("r", {"id": "a"})
        folder.append("r", {"id": "öö"})
        file = folder.path / "r"
        os.truncate(file, file.stat().st_size - cut)
    with RunFolder(tmp_path / "run", {}) as folder:
        assert folder.records("r") == [{"id": "a"}]
        folder.append("r", {"id": "c"})
        assert folder.records("r") == [{"id": "a"}, {"id": "c"}]


def refused(message, path, settings):
    before = sorted(p.name for p in path.iterdir()) if path.is_dir() else None
    with pytest.raises(RunFolderError) as caught:
        RunFolder(path, settings)
    assert (
        message in str(caught.value)
        and str(path) in str(caught.value)
        and "\n" not in str(caught.value)
    )
    assert before == (sorted(p.name for p in path.iterdir()) if path.is_dir() else None)


def test_what_is_not_its_own_is_refused_and_left_alone(tmp_path):
    RunFolder(tmp_path / "run", {"seed": 0, "n": 4}).close()
    refused("holds another run (n is 4 there, 8 now)", tmp_path / "run", {"seed": 0, "n": 8})
    refused("holds another run (n is 4 there, None now)", tmp_path / "run", {"seed": 0})
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x", encoding="utf-8")
    refused("holds files but no run", tmp_path / "mine", {})
    refused("a file, expected a folder", tmp_path / "mine" / "thesis.tex", {})
    (tmp_path / "run" / "run.json").write_text("{", encoding="utf-8")
    refused("not readable as JSON", tmp_path / "run", {"seed": 0, "n": 4})


def test_two_processes_do_not_share_it(tmp_path_factory):
    tmp_path, err = tmp_path_factory.mktemp("run"), tmp_path_factory.mktemp("told") / "err"
    with RunFolder(tmp_path, {}):
        refused("another process is using it", tmp_path, {})
        other = Forked(RunFolder, tmp_path, {}, folder=tmp_path, streams=(None, None, err))
        assert other.end() == 1 and "another process is using it" in err.read_text(encoding="utf-8")
    RunFolder(tmp_path, {}).close()


class Full:
    """A file on a disk with room for `room` bytes."""

    def __init__(self, file, room):
        self.file, self.room = file, room

    def fileno(self):
        return self.file.fileno()

    def write(self, data):
        if not self.room:
            raise OSError(28, "No space left on device")
        written = self.file.write(data[: self.room])
        self.room -= written
        return written

    def close(self):
        self.file.close()


@pytest.mark.parametrize("room", [0, 1, 7])
def test_a_full_disk_loses_nothing(tmp_path, room):
    with RunFolder(tmp_path, {}) as folder:
        folder.append("r", {"id": "a"})
        folder.files["r"] = Full(folder.files["r"], room)
        with pytest.raises(
            RunFolderError, match=r"No space left on device.*records before are safe"
        ):
            folder.append("r", {"id": "b"})
        assert (tmp_path / "r").read_text(encoding="utf-8") == '{"id": "a"}\n'


def test_a_folder_inside_appears_whole_or_not_at_all(tmp_path):
    def broken(path):
        (path / "half").write_text("x", encoding="utf-8")
        raise OSError(28, "No space left on device")

    with RunFolder(tmp_path, {}) as folder:
        folder.write_folder(
            "step-1", lambda path: (path / "whole").write_text("1", encoding="utf-8")
        )
        for name in ("step-1", "step-2"):
            with pytest.raises(RunFolderError, match="No space left"):
                folder.write_folder(name, broken)
        assert sorted(p.name for p in tmp_path.iterdir()) == ["run.json", "run.lock", "step-1"]
        assert (tmp_path / "step-1" / "whole").read_text(encoding="utf-8") == "1"
        folder.write_folder("step-1", lambda path: (path / "new").write_text("2", encoding="utf-8"))
        assert [p.name for p in (tmp_path / "step-1").iterdir()] == ["new"]
    assert json.loads((tmp_path / "run.json").read_text(encoding="utf-8")) == {}


def test_a_kill_before_the_settings_were_whole_leaves_a_folder_to_begin_in(tmp_path):
    (tmp_path / "run.json.part").write_text('{"se', encoding="utf-8")
    with RunFolder(tmp_path, {"seed": 1}) as run:
        assert not run.resumed
    assert {p.name for p in tmp_path.iterdir()} <= {"run.json", "run.lock"}
