"""The course's address stands in many places, written by one script: `make repository URL=...
BRANCH=...`."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from set_repository import INSTALL_CELL_ID, RepositoryError, install_cell, set_repository

ROOT = Path(__file__).resolve().parent.parent

URL = "https://github.com/someone/qwenlab"


@pytest.fixture
def copy(tmp_path):
    """A copy of what carries the address, whatever address this repository has."""
    shutil.copy(ROOT / "_config.yml", tmp_path)
    shutil.copytree(ROOT / "notebooks", tmp_path / "notebooks", ignore=shutil.ignore_patterns(".*"))
    set_repository(tmp_path, "", "main")
    return tmp_path


def config(root):
    return yaml.safe_load((root / "_config.yml").read_text(encoding="utf-8"))


def install_cells(root):
    """The first code cell of every notebook."""
    for path in sorted((root / "notebooks").glob("*.ipynb")):
        yield next(
            c
            for c in json.loads(path.read_text(encoding="utf-8"))["cells"]
            if c["cell_type"] == "code"
        )


def texts(root):
    return {
        path: path.read_bytes()
        for path in [root / "_config.yml", *(root / "notebooks").glob("*.ipynb")]
    }


def assert_agreement(root):
    """Every notebook's install cell says what _config.yml says."""
    repository = config(root).get("repository", {})
    expected = install_cell(repository.get("url", ""), repository.get("branch", "main"))
    cells = list(install_cells(root))
    assert cells
    for cell in cells:
        assert cell["id"] == INSTALL_CELL_ID
        assert "".join(cell["source"]) == expected


def test_the_repository_itself_agrees():
    assert_agreement(ROOT)


def test_an_address_is_written_everywhere(copy):
    assert len(set_repository(copy, URL + ".git/", "main")) == len(texts(copy))
    assert_agreement(copy)
    settings = config(copy)
    assert settings["repository"] == {"url": URL, "branch": "main", "path_to_book": ""}
    assert settings["launch_buttons"]["binderhub_url"] == "https://mybinder.org"
    assert settings["launch_buttons"]["colab_url"] == "https://colab.research.google.com"
    assert settings["html"]["use_edit_page_button"] is True
    assert (
        settings["html"]["favicon"] == config(ROOT)["html"]["favicon"]
    )  # what stood there still stands there
    assert all(
        f'%pip install --quiet "qwenlab[notebook] @ git+{URL}@main"' in "".join(c["source"])
        for c in install_cells(copy)
    )


def test_twice_is_once_and_another_address_replaces_the_first(copy):
    set_repository(copy, URL, "main")
    once = texts(copy)
    assert set_repository(copy, URL, "main") == []
    assert texts(copy) == once
    set_repository(copy, "https://gitlab.com/other/course", "v1.0")
    assert_agreement(copy)
    assert not any(URL.encode() in text for text in texts(copy).values())
    assert (
        "colab_url" not in config(copy)["launch_buttons"]
    )  # Colab opens notebooks from GitHub only


def test_an_empty_address_takes_everything_out(copy):
    before = texts(copy)
    set_repository(copy, URL, "main")
    set_repository(copy, "", "main")
    assert texts(copy) == before
    settings = config(copy)
    assert "repository" not in settings and "launch_buttons" not in settings
    assert "use_edit_page_button" not in settings["html"]
    assert_agreement(copy)


@pytest.mark.parametrize(
    "url",
    [
        "http://github.com/a/b",
        "git@github.com:a/b.git",
        "https://github.com/a",
        "https://github.com/a/b/c",
        "https://localhost/a/b",
        "https://user:secret@github.com/a/b",
        'https://github.com/a/b"; rm -rf "',
        "https://github.com/a/b\nhtml:",
        "/home/me/course",
        "file:///home/me/course",
    ],
)
def test_a_wrong_address_is_refused_in_one_line_and_nothing_is_written(copy, url):
    before = texts(copy)
    with pytest.raises(RepositoryError, match="expected https://host/owner/repository") as error:
        set_repository(copy, url, "main")
    assert "\n" not in str(error.value)
    assert texts(copy) == before


@pytest.mark.parametrize("branch", ["", "-x", "a b", "../main", 'main"', "feature/"])
def test_a_wrong_branch_is_refused(copy, branch):
    with pytest.raises(RepositoryError, match="expected the name of a branch"):
        set_repository(copy, URL, branch)


def test_a_broken_notebook_or_config_is_named_and_nothing_is_written(copy):
    (copy / "notebooks" / "00-broken.ipynb").write_text("{", encoding="utf-8")
    before = texts(copy)
    with pytest.raises(RepositoryError, match=r"notebooks/00-broken\.ipynb: not a notebook"):
        set_repository(copy, URL, "main")
    assert texts(copy) == before
    (copy / "notebooks" / "00-broken.ipynb").unlink()
    (copy / "_config.yml").write_text("title: x\n", encoding="utf-8")
    with pytest.raises(RepositoryError, match=r"_config\.yml"):
        set_repository(copy, URL, "main")


def test_a_notebook_without_an_install_cell_gets_one_before_its_first_code_cell(copy):
    path = next((copy / "notebooks").glob("*.ipynb"))
    notebook = json.loads(path.read_text(encoding="utf-8"))
    notebook["cells"] = [c for c in notebook["cells"] if c.get("id") != INSTALL_CELL_ID]
    path.write_text(json.dumps(notebook), encoding="utf-8")
    set_repository(copy, "", "main")
    assert_agreement(copy)
    assert (
        json.loads(path.read_text(encoding="utf-8"))["cells"][0]["cell_type"] == "markdown"
    )  # the title stays first


@pytest.mark.parametrize("url", ["", URL])
@pytest.mark.parametrize("present", [True, False])
def test_the_install_cell_installs_only_where_qwenlab_is_missing(url, present, monkeypatch, capsys):
    from IPython.core.interactiveshell import InteractiveShell

    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if present else None)
    shell, installed = InteractiveShell(), []
    shell.register_magic_function(installed.append, magic_name="pip")
    shell.run_cell(install_cell(url, "main")).raise_error()
    assert len(installed) == (1 if url and not present else 0)
    assert all(
        f"git+{url}@main" in line and "torch" not in line and "upgrade" not in line
        for line in installed
    )
    said = capsys.readouterr().out
    assert said.count("\n") == (1 if not url and not present else 0)


def test_make_says_what_is_missing_and_exits_with_2(copy):
    run = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "set_repository.py"), "--url", "http://x"],
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    assert run.returncode == 2
    assert run.stderr.count("\n") == 1 and "Traceback" not in run.stderr
    run = subprocess.run(
        ["make", "-s", "-C", str(ROOT), "repository"],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin"},
        encoding="utf-8",
    )
    assert run.returncode == 2
    assert "make repository URL=https://" in run.stderr
