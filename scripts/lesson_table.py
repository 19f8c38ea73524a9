"""Prints what each lesson asks of its reader: visible code, words, minutes, and where the picture
of the first screen ends.

    .venv/bin/python scripts/lesson_table.py

The last column is taken from the built site, in a window 1280 pixels wide, if Chromium and
Playwright are there (as for scripts/readme_picture.py).
"""

import os
import re
import shutil
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "_build" / "html"
WORDS_A_MINUTE = 180
LINES_A_MINUTE = 12
HEROES = ".qwl-page, .qwl-explore"  # what a first screen may hold


def is_folded(cell: nbformat.NotebookNode) -> bool:
    """Whether the page folds or leaves out a code cell's source."""
    return any(tag.startswith(("hide-", "remove-")) for tag in cell.metadata.get("tags", []))


def is_stub(cell: nbformat.NotebookNode) -> bool:
    """Whether a code cell is where the reader writes an answer."""
    return re.search(r'check\("[\w-]+", my_\w+\)', cell.source) is not None


def line_count(cell: nbformat.NotebookNode) -> int:
    """Lines that are not blank."""
    return sum(bool(line.strip()) for line in cell.source.splitlines())


def visible_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    """The code cells that a reader sees, but for the stubs of the exercises."""
    codes = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [cell for cell in codes if not is_folded(cell) and not is_stub(cell)]


def visible_lines(notebook: nbformat.NotebookNode) -> int:
    return sum(map(line_count, visible_cells(notebook)))


def words_of(text: str) -> int:
    """Words outside what is folded."""
    return len(re.sub(r"<details>.*?</details>", "", text, flags=re.DOTALL).split())


def word_count(notebook: nbformat.NotebookNode) -> int:
    texts = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    return sum(map(words_of, texts))


def minutes(notebook: nbformat.NotebookNode) -> tuple[int, int]:
    """To read the lesson, and for its exercises, which say their own."""
    reading = word_count(notebook) / WORDS_A_MINUTE + visible_lines(notebook) / LINES_A_MINUTE
    exercises = 0
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            exercises += sum(map(int, re.findall(r"^\*(\d+) minutes?\.\*", cell.source, re.M)))
    return round(reading), exercises


def first_screens(names: list[str]) -> dict[str, int]:
    """Page -> where its hero ends, in pixels from the top; none without a site or a browser."""
    found = os.environ.get("QWENLAB_CHROMIUM") or shutil.which("chromium")
    if not SITE.is_dir() or not found:
        return {}
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return {}
    ends = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        for name in names:
            if (SITE / f"{name}.html").is_file():
                page.goto((SITE / f"{name}.html").as_uri())
                hero = page.locator(HEROES).first
                box = hero.bounding_box() if hero.count() else None
                if box:
                    ends[name] = round(box["y"] + box["height"])
        browser.close()
    return ends


def main() -> None:
    paths = sorted((ROOT / "notebooks").glob("*.ipynb"))
    ends = first_screens(["book/welcome", *(f"notebooks/{path.stem}" for path in paths)])
    print("| lesson | visible code, lines | longest cell | words | minutes | hero ends at, px |")
    print("|---|---|---|---|---|---|")
    print(f"| welcome | | | | | {ends.get('book/welcome', '')} |")
    for path in paths:
        notebook = nbformat.read(path, as_version=4)
        longest = max(map(line_count, visible_cells(notebook)), default=0)
        reading, exercises = minutes(notebook)
        end = ends.get(f"notebooks/{path.stem}", "")
        print(
            f"| {path.stem} | {visible_lines(notebook)} | {longest} | {word_count(notebook)} "
            f"| {reading} + {exercises} | {end} |"
        )


if __name__ == "__main__":
    main()
