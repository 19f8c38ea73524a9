"""The button that opens the first lesson in Colab: there where an address is set, else gone."""

import subprocess
import sys

import pytest
from site_files import ROOT, elements

from qwenlab.teach.colab_button import FIRST_LESSON, colab_link

OPTIONS = {
    "repository_url": "https://github.com/someone/course",
    "repository_branch": "stable",
    "launch_buttons": {"colab_url": "https://colab.research.google.com"},
}
ADDRESS = f"https://colab.research.google.com/github/someone/course/blob/stable/{FIRST_LESSON}"


@pytest.mark.parametrize(("options", "addresses"), [(OPTIONS, [ADDRESS]), ({}, [])])
def test_it_is_on_the_page_where_an_address_is_set(tmp_path, options, addresses):
    (tmp_path / "conf.py").write_text(
        'extensions = ["myst_parser", "qwenlab.teach.colab_button"]\n'
        'myst_enable_extensions = ["substitution"]\n'
        f'html_theme = "sphinx_book_theme"\nhtml_theme_options = {options!r}\n',
        encoding="utf-8",
    )
    (tmp_path / "index.md").write_text(
        "# Page\n\nStart {{ open_in_colab }} end.\n", encoding="utf-8"
    )
    command = [sys.executable, "-m", "sphinx", "-W", "-n", "-q", ".", "html"]
    run = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=120, encoding="utf-8"
    )
    assert run.returncode == 0, run.stderr
    links = [
        a.get("href", "") for tag, a in elements(tmp_path / "html" / "index.html") if tag == "a"
    ]
    assert [link for link in links if "colab" in link] == addresses


def test_colab_opens_the_first_lesson_from_github_only():
    assert (ROOT / FIRST_LESSON).is_file()
    assert colab_link(OPTIONS | {"repository_url": "https://gitlab.com/someone/course"}) == ""
    assert colab_link(OPTIONS | {"launch_buttons": {}}) == ""
