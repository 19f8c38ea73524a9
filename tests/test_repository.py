"""The course's address stands in many places, written by one script: `make repository URL=...
BRANCH=...`."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from set_repository import (
    BLOCKS,
    INSTALL_CELL_ID,
    INSTALL_CELL_METADATA,
    RepositoryError,
    check_address,
    install_cell,
    set_repository,
)

ROOT = Path(__file__).resolve().parent.parent

URL = "https://github.com/someone/qwenlab"
COLAB = "https://colab.research.google.com"


@pytest.fixture
def copy(tmp_path):
    """A copy of what carries the address, whatever address this repository has."""
    (tmp_path / "book").mkdir()
    for name in BLOCKS:
        shutil.copy(ROOT / name, tmp_path / name)
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
        for path in [*map(root.joinpath, BLOCKS), *(root / "notebooks").glob("*.ipynb")]
    }


def assert_agreement(root):
    """Every notebook's install cell says what book/setup.md says, and so do the other files."""
    setup = (root / "book" / "setup.md").read_text(encoding="utf-8")
    cloned = re.search(r"git clone --branch (\S+) (\S+)", setup)
    branch, url = cloned.groups() if cloned else ("main", "")
    address = check_address(url, branch, config(root)["html"].get("baseurl", ""))
    for name, (begin, _, block) in BLOCKS.items():
        text = (root / name).read_text(encoding="utf-8")
        assert text.count(begin) == 1 and block(address) in text
    cells = list(install_cells(root))
    assert cells
    for cell in cells:
        assert cell["id"] == INSTALL_CELL_ID
        assert cell["metadata"] == INSTALL_CELL_METADATA
        assert "".join(cell["source"]) == install_cell(address)


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
    assert settings["html"]["baseurl"] == "https://someone.github.io/qwenlab/"
    assert all(
        f'"qwenlab{{extra}} @ git+{URL}@main"' in "".join(c["source"]) for c in install_cells(copy)
    )
    readme = (copy / "README.md").read_text(encoding="utf-8")
    assert f"{URL}/actions/workflows/test.yml/badge.svg?branch=main" in readme
    assert "<https://someone.github.io/qwenlab/>" in readme
    lesson = "notebooks/01-why-batch.ipynb"
    assert f"https://mybinder.org/v2/gh/someone/qwenlab/main?urlpath=lab/tree/{lesson})" in readme
    assert f"{COLAB}/github/someone/qwenlab/blob/main/{lesson})" in readme
    assert (ROOT / lesson).is_file() and (ROOT / ".github" / "workflows" / "test.yml").is_file()
    setup = (copy / "book" / "setup.md").read_text(encoding="utf-8")
    assert f"git clone --branch main {URL}\ncd qwenlab\n" in setup


@pytest.mark.parametrize(
    ("url", "pages", "expected"),
    [
        (URL, "", "https://someone.github.io/qwenlab/"),
        ("https://github.com/Someone/someone.github.io", "", "https://someone.github.io/"),
        ("https://gitlab.com/someone/course", "", "https://someone.gitlab.io/course/"),
        ("https://git.example.org/a/b", "", ""),
        ("https://git.example.org/a/b", "https://example.org", "https://example.org/"),
        (URL, "https://example.org/a/course/", "https://example.org/a/course/"),
        ("", "https://example.org", ""),
    ],
)
def test_the_site_is_where_the_host_publishes_it_or_where_pages_says(copy, url, pages, expected):
    set_repository(copy, url, "main", pages)
    assert config(copy)["html"].get("baseurl", "") == expected
    readme = (copy / "README.md").read_text(encoding="utf-8")
    assert (f"Read the course at <{expected}>" in readme) == bool(expected)
    assert_agreement(copy)


def test_what_only_github_can_is_left_out_elsewhere(copy):
    before = config(copy)
    set_repository(copy, "https://gitlab.com/other/course", "v1/x")
    assert "colab_url" not in config(copy)["launch_buttons"]
    set_repository(copy, "https://git.example.org/other/course", "v1/x")
    assert_agreement(copy)
    assert config(copy) == before  # the site's theme knows no buttons for it
    readme = (copy / "README.md").read_text(encoding="utf-8")
    assert "colab" not in readme.partition("<<<")[0] and "actions/workflows" not in readme
    place = "git/https%3A%2F%2Fgit.example.org%2Fother%2Fcourse/v1%2Fx?urlpath="
    assert f"https://mybinder.org/v2/{place}" in readme


def test_twice_is_once_and_another_address_replaces_the_first(copy):
    set_repository(copy, URL, "main")
    once = texts(copy)
    assert set_repository(copy, URL, "main") == []
    assert texts(copy) == once
    set_repository(copy, "https://gitlab.com/other/course", "v1.0")
    assert_agreement(copy)
    assert not any(b"someone/qwenlab" in text for text in texts(copy).values())


def test_an_empty_address_takes_everything_out(copy):
    before = texts(copy)
    set_repository(copy, URL, "main")
    set_repository(copy, "", "main")
    assert texts(copy) == before
    settings = config(copy)
    assert "repository" not in settings and "launch_buttons" not in settings
    assert "use_edit_page_button" not in settings["html"] and "baseurl" not in settings["html"]
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


@pytest.mark.parametrize("pages", ["http://a.org", "a.org/b", "https://a.org/b?c", "https://a"])
def test_a_wrong_address_of_the_site_is_refused(copy, pages):
    before = texts(copy)
    with pytest.raises(RepositoryError, match="expected the site's address"):
        set_repository(copy, URL, "main", pages)
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


NOTEBOOK = {"ipywidgets", "matplotlib"}  # of a machine for notebooks, such as Colab's


@pytest.mark.parametrize("url", ["", URL])
@pytest.mark.parametrize(
    ("present", "extra"),
    [({"qwenlab"}, None), (set(), "[notebook]"), ({"matplotlib"}, "[notebook]"), (NOTEBOOK, "")],
)
def test_the_install_cell_installs_only_what_is_missing(url, present, extra, monkeypatch, capsys):
    missing = "qwenlab" not in present
    calls = []

    def pip(command, **options):
        calls.append(command)
        return subprocess.CompletedProcess(command, 0, "downloading", "a warning")

    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: object() if name in present else None
    )
    monkeypatch.setattr("subprocess.run", pip)
    exec(install_cell(check_address(url, "main")), {})
    wanted = [sys.executable, "-m", "pip", "install", "--quiet"]
    wanted += [f"qwenlab{extra} @ git+{URL}@main"]
    assert calls == ([wanted] if url and missing else [])
    said = capsys.readouterr().out
    assert said.count("\n") == (1 if not url and missing else 0)


def test_the_install_cell_says_what_pip_said_when_pip_fails(monkeypatch, capsys):
    failed = subprocess.CompletedProcess([], 1, "", "no route to host\n")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("subprocess.run", lambda *command, **options: failed)
    exec(install_cell(check_address(URL, "main")), {})
    assert "no route to host" in capsys.readouterr().out


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
