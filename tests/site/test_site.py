"""The book: a failing cell fails the build, and the built site is whole, small and asks nothing of
the network."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
import pytest
import yaml
from helpers import count
from set_repository import BINDER, COLAB, check_address, set_repository
from site_files import ROOT, SITE, built_pages, elements

from qwenlab.teach.api_page import public_packages

URL = "https://github.com/someone/qwenlab"
MAX_PAGE = 600_000  # bytes of a page with its pictures
MAX_WIDGETS = 400_000  # bytes of widget HTML in a page


EXECUTED_PROSE = """---
jupytext: {text_representation: {extension: .md, format_name: myst}}
kernelspec: {display_name: Python 3, name: python3}
---
# A page of prose

```{code-cell} python3
print(6 * 7)
```
"""


def small_book(folder, cell, **metadata):
    """A book with our _config.yml, one page of prose and one notebook with one cell."""
    for name in ("_config.yml", "_static", "assets"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name)
    shutil.copytree(ROOT / "book", folder / "book", ignore=shutil.ignore_patterns("*.md"))
    (folder / "_toc.yml").write_text(
        "format: jb-book\nroot: book/page\nchapters:\n- file: notebooks/01-one-cell\n",
        encoding="utf-8",
    )
    for name in ("README.md", "book/setup.md"):
        shutil.copy(ROOT / name, folder / name)  # they carry the address too
    (folder / "book" / "page.md").write_text("# A page of prose\n\nWords.\n", encoding="utf-8")
    notebook = nbformat.v4.new_notebook(
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}},
        cells=[
            nbformat.v4.new_markdown_cell("# One cell\n\n**A claim, in *bold* type.**\n\nWords."),
            nbformat.v4.new_code_cell(cell, metadata=metadata),
        ],
    )
    (folder / "notebooks").mkdir()
    nbformat.write(notebook, folder / "notebooks" / "01-one-cell.ipynb")


def build(folder, *flags):
    command = [str(Path(sys.executable).parent / "jupyter-book"), "build", str(folder), *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=1800, encoding="utf-8")


def test_a_failing_cell_fails_the_build_each_time(tmp_path):
    small_book(tmp_path, "1/0")
    # No flags: even the plain command must fail, and (at full count) again from what it left.
    for _ in range(count(1, 2)):
        run = build(tmp_path)
        assert run.returncode != 0
        assert "ZeroDivisionError" in run.stdout + run.stderr


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A small book that has an address and passed, in a checkout that has an environment in it."""
    folder = tmp_path_factory.mktemp("published")
    small_book(folder, "# @title One by one\n1/1", tags=["hide-input"])
    (folder / "book" / "page.md").write_text(EXECUTED_PROSE, encoding="utf-8")
    shutil.copy(ROOT / "book" / "api.md", folder / "book")
    with (folder / "_toc.yml").open("a", encoding="utf-8") as toc:
        toc.write("- file: book/api\n")
    for place in ("env/lib/tool/README.md", "env/lib/tool/.hidden/README.md"):
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text("# A tool\n\n[Nowhere](nowhere.md)\n", encoding="utf-8")
    set_repository(folder, URL, "main")
    run = build(folder, "-W", "-n", "--keep-going")
    assert run.returncode == 0, run.stdout + run.stderr
    return folder


def site_elements(folder, page):
    return elements(folder / "_build" / "html" / page)


def test_a_good_cell_passes_and_launch_addresses_are_notebooks(published):
    def launches(page):
        links = [a.get("href") or "" for tag, a in site_elements(published, page) if tag == "a"]
        return [link for link in links if "mybinder.org" in link or "colab.research" in link]

    index = site_elements(published, "index.html")
    assert [a["href"] for tag, a in index if tag == "a"] == ["book/page.html"]
    # Without one, some browsers ask for favicon.ico, and complain that it isn't there.
    assert "icon" in [a.get("rel") for tag, a in index if tag == "link"]

    assert launches("book/page.html") == []  # Colab cannot open prose
    assert "42" in (published / "_build" / "html" / "book" / "page.html").read_text("utf-8")
    binder, colab = sorted(launches("notebooks/01-one-cell.html"), key=lambda link: "colab" in link)
    assert (
        binder
        == "https://mybinder.org/v2/gh/someone/qwenlab/main?urlpath=lab/tree/notebooks/01-one-cell.ipynb"
    )
    assert (
        colab
        == "https://colab.research.google.com/github/someone/qwenlab/blob/main/notebooks/01-one-cell.ipynb"
    )
    lesson = (published / "_build" / "html" / "notebooks" / "01-one-cell.html").read_text("utf-8")
    assert "One by one" in lesson and "Hide: One by one" in lesson
    assert "Show code cell" not in lesson  # a folded cell is announced by its title
    assert not (published / "_build" / "html" / "env").exists()


def test_every_button_and_link_of_a_published_book_leads_to_a_file(published):
    site = published / "_build" / "html"
    pages = [
        site / "404.html",
        *(site / "book").glob("*.html"),
        site / "notebooks/01-one-cell.html",
    ]
    check_addresses(site, pages, "/qwenlab/")
    address = check_address(URL, "main")
    leads = {path for page in pages for _, path in repository_links(page, published, address)}
    assert leads == {"", "book/page.md", "book/api.md", "notebooks/01-one-cell.ipynb"}


def meta(page):
    """The content of a page's tags, by their names."""
    tags = [a for tag, a in page if tag == "meta"]
    return {a.get("name") or a.get("property"): a.get("content") for a in tags}


def test_a_page_says_what_it_is_about_and_has_a_preview(published):
    base = "https://someone.github.io/qwenlab"
    lesson = meta(site_elements(published, "notebooks/01-one-cell.html"))
    assert lesson["description"] == lesson["og:description"] == "A claim, in bold type."
    assert lesson["og:title"] == "One cell" and lesson["og:site_name"] == "qwenlab"
    assert lesson["og:url"] == f"{base}/notebooks/01-one-cell.html"
    assert lesson["og:image"] == f"{base}/_static/lesson.png"
    assert (published / "_build" / "html" / "_static" / "lesson.png").is_file()
    assert meta(site_elements(published, "book/api.html"))["description"].startswith("Everything")
    assert "og:title" not in meta(site_elements(published, "search.html"))


def test_the_page_for_wrong_addresses_finds_the_site_from_any_depth(published):
    links = [a["href"] for tag, a in site_elements(published, "404.html") if tag == "a"]
    assert "/qwenlab/notebooks/01-one-cell.html" in links and "/qwenlab/book/page.html" in links
    assert list(resources(published / "_build" / "html" / "404.html")) == ["data:,"]


def test_every_public_name_is_described(published):
    page = site_elements(published, "book/api.html")
    ids = {a["id"] for _, a in page if a.get("id")}
    names = [name for _, names in public_packages() for name in names]
    assert {"load", "generate", "evaluate", "grpo", "sweep", "optimize", "heatmap"} < set(names)
    assert {name.lower().replace("_", "-") for name in names} <= ids


def test_every_notebook_is_a_page_of_the_site():
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    pages = [chapter["file"] for part in toc["parts"] for chapter in part["chapters"]]
    notebooks = [path.stem for path in sorted((ROOT / "notebooks").glob("*.ipynb"))]
    assert (
        [page.removeprefix("notebooks/") for page in pages if page.startswith("notebooks/")]
        == notebooks
        != []
    )
    assert all(re.fullmatch(r"\d\d(-[a-z0-9]+)+", name) for name in notebooks)


def test_the_first_page_shows_the_path_through_all_lessons_in_order():
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    path = []
    caption = ""
    for part in toc["parts"]:
        caption = part.get("caption", caption)  # without one, the part above goes on, numbered
        files = [chapter["file"] for chapter in part["chapters"]]
        if files[0].startswith("notebooks/"):
            path += [caption, *files]
    text = (ROOT / "book" / "welcome.md").read_text(encoding="utf-8").partition("## The path")[2]
    steps = re.findall(r"^\*\*(.*?)\.\*\*|^(\d+)\. \[[^]]*\]\(\.\./(.*?)\.ipynb\)", text, re.M)
    assert [part or lesson for part, _, lesson in steps] == path
    numbers = [(int(number), lesson.split("/")[1][:2]) for _, number, lesson in steps if number]
    assert all(number == int(name) for number, name in numbers)


FIRST_EDITION = """01-why-batch 02-left-padding 03-combined-mask 04-nan-rows 05-linear-attention
06-hiding-padding 07-batched-generation 08-early-stop 09-continuous-batching 10-shared-prefix
11-evaluation 12-self-consistency 13-grpo 14-distillation""".split()


def test_an_address_of_the_first_edition_is_that_page_or_leads_to_it():
    """By the rest of its name: numbers have changed, pages have not."""
    built_pages()
    for name in FIRST_EDITION:
        page = SITE / "notebooks" / f"{name}.html"
        if page.stat().st_size < 2_000:  # it leads on
            (address,) = [a["href"] for tag, a in elements(page) if tag == "a"]
            page = page.parent / address
        assert page.is_file() and page.name[3:] == f"{name}.html"[3:]
        assert page.stat().st_size > 50_000, f"{page.name} is no lesson"


def repository_links(page, root, address):
    """The links of a page that open something in the course's repository, and the file in it that
    each needs ("" for the repository itself). Each has been looked for below `root`."""
    for tag, attributes in elements(page):
        link = attributes.get("href") or ""
        if tag != "a" or not link.startswith((address.url, BINDER, COLAB)):
            continue
        if link.startswith(BINDER):
            path = link.partition("urlpath=lab/tree/")[2]
            assert link == address.in_binder(path), link
        elif link.startswith(COLAB):
            path = link.partition(f"/blob/{address.branch}/")[2]
            assert link == address.in_colab(path), link
        else:
            place = link.removeprefix(address.url)
            path = re.sub(f"^/(edit|blob|tree)/{re.escape(address.branch)}/", "", place)
            assert place == "" or path != place, link
        if not link.startswith(address.url):
            assert path.endswith(".ipynb"), f"{page.name}: {link}"
        assert (root / path).exists(), f"{page.name}: {link}"
        yield link, path


@pytest.mark.full
def test_the_whole_book_with_an_address_leads_to_files_only(tmp_path):
    """Every page and button, after `make repository`. No cell runs, so the pages have no outputs."""
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, encoding="utf-8"
    )
    for name in filter(None, names.stdout.split("\0")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    set_repository(tmp_path, URL, "main")
    config = (tmp_path / "_config.yml").read_text("utf-8")
    (tmp_path / "_config.yml").write_text(
        config.replace("notebooks: cache", "notebooks: 'off'"), encoding="utf-8"
    )
    run = build(tmp_path, "-W", "-n", "--keep-going")
    assert run.returncode == 0, run.stdout + run.stderr
    site = tmp_path / "_build" / "html"
    pages = [page for page in site.rglob("*.html") if "_static" not in page.parts]
    check_addresses(site, pages, "/qwenlab/")
    address = check_address(URL, "main")
    leads = {path for page in pages for _, path in repository_links(page, tmp_path, address)}
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    sources = {chapter["file"] for part in toc["parts"] for chapter in part["chapters"]}
    assert {str(Path(path).with_suffix("")) for path in leads if path} == sources | {toc["root"]}


def resources(page):
    """Addresses that a browser fetches by itself when it opens the page."""
    for tag, attributes in elements(page):
        if tag == "link" and attributes.get("rel") in (
            "canonical",
            "next",
            "prev",
            "search",
            "index",
            "author",
        ):
            continue
        if tag in (
            "script",
            "img",
            "iframe",
            "source",
            "video",
            "audio",
            "embed",
            "link",
            "object",
        ):
            for name in ("src", "href", "data", "poster"):
                if attributes.get(name):
                    yield attributes[name]


def test_no_page_fetches_from_elsewhere():
    for page in built_pages():
        for address in resources(page):
            parts = urlsplit(address)
            assert parts.scheme in ("", "data") and not parts.netloc, f"{page.name}: {address}"
    for sheet in SITE.rglob("*.css"):
        text = re.sub(r"/\*.*?\*/", "", sheet.read_text(encoding="utf-8"), flags=re.DOTALL)
        assert not re.search(r"""(@import|url\()\s*["']?(https?:)?//""", text), sheet.name


def test_every_address_within_the_site_leads_somewhere():
    settings = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    own = settings["html"].get("baseurl", "/")
    check_addresses(SITE, built_pages(), urlsplit(own).path)


def check_addresses(site, pages, root="/"):
    """Whether the links and resources of the site's pages are there; `root` is its path."""
    anchors = {page: {a["id"] for _, a in elements(page) if a.get("id")} for page in pages}
    for page in anchors:
        links = [a.get("href") for tag, a in elements(page) if tag == "a"]
        for address in {*filter(None, links), *resources(page)}:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            if parts.path.startswith("/"):
                assert parts.path.startswith(root), f"{page.name}: {address}"
                target = site / unquote(parts.path.removeprefix(root))
            assert target.is_file(), f"{page.name}: {address}"
            if parts.fragment and target in anchors:
                assert unquote(parts.fragment) in anchors[target] | {""}, f"{page.name}: {address}"


def test_pages_stay_small():
    for page in built_pages():
        pictures = {
            a["src"]
            for tag, a in elements(page)
            if tag == "img" and "_images" in (a.get("src") or "")
        }
        size = page.stat().st_size + sum(
            (page.parent / picture).stat().st_size for picture in pictures
        )
        assert size <= MAX_PAGE, f"{page.name}: {size:,} bytes"
        html = page.read_text(encoding="utf-8")
        widgets = sum(
            len(part.encode())
            for part in re.findall(r'<div class="qwl qwl-explore".*?</script>', html, re.DOTALL)
        )
        assert widgets <= MAX_WIDGETS, f"{page.name}: {widgets:,} bytes of widgets"


def test_every_picture_says_what_it_shows():
    for page in built_pages():
        for tag, attributes in elements(page):
            if tag == "img":
                alt = attributes.get("alt") or ""
                assert alt and not alt.endswith((".png", ".svg")), (
                    f"{page.name}: {attributes.get('src', '')[:80]}"
                )


def test_no_page_shows_an_error():
    for page in built_pages():
        html = page.read_text(encoding="utf-8")
        assert "system-message" not in html and 'class="problematic"' not in html, page.name
        assert "Traceback" not in html, page.name
