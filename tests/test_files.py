"""A file or folder that is written anew is the old one or the new one, never something between."""

import os
from pathlib import Path

import pytest
import torch
from helpers import random_model

from qwenlab.errors import QwenlabError
from qwenlab.files import replacing, write_folder, write_whole
from qwenlab.model.weights import save_weights
from qwenlab.orders import seeded_order


def files_of(folder: Path) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def test_text_is_written_as_it_stands(tmp_path):
    write_whole(tmp_path / "text", "ä\r\nb\n")
    write_whole(tmp_path / "bytes", b"\xff")
    assert files_of(tmp_path) == {"text": b"\xc3\xa4\r\nb\n", "bytes": b"\xff"}


@pytest.mark.parametrize("problem", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_what_stood_there_stays_when_writing_breaks_off(tmp_path, problem):
    (tmp_path / "file").write_text("old", encoding="utf-8")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("old", encoding="utf-8")
    before = files_of(tmp_path)

    def fill(folder: Path) -> None:
        (folder / "file").write_text("half of it", encoding="utf-8")
        raise problem

    with pytest.raises((QwenlabError, KeyboardInterrupt)):
        write_folder(tmp_path / "folder", fill)
    with pytest.raises((OSError, KeyboardInterrupt)), replacing(tmp_path / "file") as part:
        part.write_text("half of it", encoding="utf-8")
        raise problem
    assert files_of(tmp_path) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


@pytest.mark.skipif(os.name == "nt", reason="links need rights on Windows")
def test_a_link_goes_on_leading_to_what_was_written(tmp_path):
    model = random_model()
    (tmp_path / "real").mkdir()
    (tmp_path / "model").mkdir()
    for name in ("metrics.csv", "model.safetensors"):
        (tmp_path / "real" / name).write_text("old", encoding="utf-8")
        (tmp_path / "model" / name).symlink_to(tmp_path / "real" / name)
    write_whole(tmp_path / "model" / "metrics.csv", "new")
    save_weights(model, tmp_path / "model", torch.float32)
    for name in ("metrics.csv", "model.safetensors"):
        assert (tmp_path / "model" / name).is_symlink()
        assert (tmp_path / "real" / name).read_bytes() != b"old"
    assert sorted(files_of(tmp_path / "real")) == ["metrics.csv", "model.safetensors"]


def test_an_order_follows_from_its_key_alone():
    for count in (0, 1, 7, 100):
        assert sorted(seeded_order(count, "a", 1)) == list(range(count))
        assert seeded_order(count, "a", 1) == seeded_order(count, "a", 1)
    others = [seeded_order(100, *key) for key in (["a", 1], ["a", 2], ["b", 1], ["a", 1, 0])]
    assert len({tuple(order) for order in others}) == len(others)
