"""Starts a lesson of your own (`make new-lesson NAME=18-my-lesson TITLE="My lesson"`).

It copies notebooks/template/lesson.ipynb under that name and title, and adds the lesson to the
site's contents (_toc.yml) and to the path on its first page (book/welcome.md), behind the last one.
book/own-lesson.md says how to go on.
"""

import argparse
import re
import sys
from pathlib import Path

import nbformat
from lesson_table import minutes

ROOT = Path(__file__).resolve().parent.parent
TEMPLATE = "notebooks/template/lesson.ipynb"
TITLE = "TITLE"  # stands in the template where the title belongs
TIME = re.compile(r"^\*Time:\*.*$", re.MULTILINE)


class LessonError(ValueError):
    """A name or title that can't be taken, or a file without a place for it; in one line."""


def new_lesson(root: Path, name: str, title: str) -> Path:
    """Writes the lesson below `root` and returns its path.

    Raises LessonError; then nothing has been written.
    """
    last = sorted((root / "notebooks").glob("[0-9][0-9]-*.ipynb"))[-1]
    number = int(last.stem[:2]) + 1
    if not re.fullmatch(rf"{number:02}(-[a-z0-9]+)+", name):
        raise LessonError(
            f"NAME={name!r}: expected the next number and lower-case words, joined by hyphens, "
            f"such as {number:02}-my-lesson"
        )
    title = title.strip()
    if not title or re.search(r"[\n\[\]<>`*_\\]", title):
        raise LessonError(
            f'TITLE={title!r}: expected the words of a heading, such as TITLE="My lesson"'
        )
    entry = f"{number}. [{title}](../notebooks/{name}.ipynb): say in one line what it shows."
    texts = {
        "_toc.yml": with_line_behind(
            root / "_toc.yml", rf"( *- file: notebooks/){last.stem}", rf"\g<1>{name}"
        ),
        "book/welcome.md": with_line_behind(
            root / "book/welcome.md", rf"{number - 1}\. \[.*\]\(.*/{last.name}\).*", entry
        ),
        f"notebooks/{name}.ipynb": notebook_text(root, last, title),
    }
    for file, text in texts.items():
        (root / file).write_text(text, encoding="utf-8", newline="\n")
    return root / "notebooks" / f"{name}.ipynb"


def with_line_behind(path: Path, line: str, added: str) -> str:
    """The file's text, with a line behind the only one that matches `line`; `added` may name its
    groups."""
    text, found = re.subn(
        rf"^{line}$",
        lambda match: f"{match[0]}\n{match.expand(added) if match.groups() else added}",
        path.read_text(encoding="utf-8"),
        flags=re.MULTILINE,
    )
    if found != 1:
        raise LessonError(f"{path.name}: expected one line with the last lesson, {line!r}")
    return text


def notebook_text(root: Path, last: Path, title: str) -> str:
    """The template with this title, its minutes, and the install cell that every lesson has."""
    notebook = nbformat.read(root / TEMPLATE, as_version=4)
    course = {cell["id"]: cell for cell in nbformat.read(last, as_version=4).cells}
    for cell in notebook.cells:
        if cell["id"] == "install":
            cell.source = course["install"].source
        if cell.cell_type == "markdown":
            cell.source = cell.source.replace(TITLE, title)
    reading, exercises = minutes(notebook)
    told = f"*Time:* {reading} minutes to read, {exercises} minutes for the exercises."
    for cell in notebook.cells:
        if cell["id"] == "about":
            cell.source = TIME.sub(told, cell.source)
    return nbformat.writes(notebook) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", help="such as 18-my-lesson")
    parser.add_argument("title", help="the heading of its page")
    arguments = parser.parse_args()
    try:
        path = new_lesson(ROOT, arguments.name, arguments.title)
    except LessonError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"wrote {path.relative_to(ROOT)}, and its lines in _toc.yml and book/welcome.md")
    print("Now:")
    print("  1. make lab: open it, and replace the template's text and code with your own;")
    print("  2. book/welcome.md: say in its line what the lesson shows;")
    print(f'  3. make book, then make test ARGS="-k {path.stem}": each failure says what is due.')
    print("The page book/own-lesson.md (Write your own lesson) explains each part.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
