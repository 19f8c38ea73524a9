"""What every lesson keeps, as functions that return what is wrong.

    python tests/lessons/contract.py notebooks/03-combined-mask.ipynb

prints it for one lesson, without running it. `lesson_table` computes lines and minutes; `verdicts`
runs a lesson with other readings.
"""

import re
import sys
from pathlib import Path

import nbformat

if __name__ == "__main__":
    ROOT = Path(__file__).resolve().parents[2]
    sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "src")]

from lesson_table import (
    is_folded,
    is_stub,
    line_count,
    minutes,
    visible_cells,
    visible_lines,
)

from qwenlab.teach import lesson_tools
from qwenlab.teach.questions import questions_of

TEMPLATE = Path(__file__).resolve().parents[2] / "notebooks" / "template" / "lesson.ipynb"
OPENING = ["title", "install", "load", "hero", "hero-python", "about"]
OLD_HEADINGS = {
    "See it fail",
    "Look at it",
    "Mend it",
    "Measure it",
    "Where this loses",
    "Break it",
}
SHARED_HEADINGS = ["Exercises", "Three questions", "Recap"]  # in this order
MOST_LINES = 150
MOST_LINES_A_CELL = 25
MOST_LINES_OF_THE_HERO = 15
PICTURES = ("heatmap(", "timeline(", "fixed_slots(", "curve(", "explore(")
LESSON_TOOLS = ("ask", "shown", "until_stop", "compare", "difference", "speed_verdict")
assert all(hasattr(lesson_tools, name) for name in LESSON_TOOLS)

# Facts from data sheets and papers: a piece of a sentence that has a link to them. Lesson -> pieces.
FROM_SOURCES: dict[str, tuple[str, ...]] = {
    "15-throughput-and-memory": ("1.8 GB one problem at a time and 23.4 GB with 64 rows",),
}


# --- Parts of a notebook ---------------------------------------------------------------------------


def codes(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def texts(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "markdown"]


def by_id(notebook, name):
    return next((cell for cell in notebook.cells if cell["id"] == name), None)


def without_code(text):
    """Markdown without fenced code."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def headings(notebook, levels="##+"):
    found = []
    for cell in texts(notebook):
        found += re.findall(rf"^{levels} (.+?) *$", without_code(cell.source), re.MULTILINE)
    return found


def section(notebook, heading):
    """The cells from a heading of the second level up to the next one."""
    inside = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown" and re.match("## ", cell.source):
            if inside:
                break
            if cell.source.startswith(f"## {heading}\n") or cell.source == f"## {heading}":
                inside.append(cell)
        elif inside:
            inside.append(cell)
    return inside


# --- The contract, part by part --------------------------------------------------------------------


def opening(notebook):
    wrong = []
    ids = [cell["id"] for cell in notebook.cells[: len(OPENING)]]
    if ids != OPENING:
        return [f"the first cells are {ids}, expected {OPENING}"]
    title = by_id(notebook, "title").source
    found = re.fullmatch(r"# .+\n\n\*\*(.+)\.\*\*\n\n((?:.+\n?)+)", title.strip())
    if not found:
        wrong.append("title: a title, a claim in one bold sentence, and one paragraph")
    else:
        if re.search(r"[.!?] ", found[1]):
            wrong.append("title: the claim is more than one sentence")
        if "?" not in found[2]:
            wrong.append("title: nothing asks for a prediction")
    hero = by_id(notebook, "hero")
    if not is_folded(hero) or not re.search(r"\.widget\(|explore\(", hero.source):
        wrong.append("hero: a folded cell with a widget")
    python = by_id(notebook, "hero-python")
    if is_folded(python):
        wrong.append("hero-python: it is folded")
    if line_count(python) > MOST_LINES_OF_THE_HERO:
        wrong.append(
            f"hero-python: {line_count(python)} lines, at most {MOST_LINES_OF_THE_HERO} are allowed"
        )
    if not any(call in python.source for call in PICTURES):
        wrong.append("hero-python: no heatmap, timeline, curve or explore")
    return wrong + about(by_id(notebook, "about").source, notebook)


def about(text, notebook):
    wrong = []
    if "After this lesson you can" not in text:
        wrong.append('about: no "After this lesson you can"')
    verbs = re.findall(r"^- \*\*\w+\*\* ", text, re.MULTILINE)
    if len(verbs) != 3:
        wrong.append(f"about: {len(verbs)} bullets `- **verb** ...`, expected 3")
    if "*Before you start:*" not in text:
        wrong.append("about: no *Before you start:*")
    said = re.search(r"\*Time:\* (\d+) minutes? to read, (\d+) minutes? for the exercises\.", text)
    reading, exercises = minutes(notebook)
    due = f"*Time:* {reading} minutes to read, {exercises} minutes for the exercises."
    if not said or (int(said[1]), int(said[2])) != (reading, exercises):
        wrong.append(f"about: expected {due!r}")
    return wrong


def moving_pictures(notebook):
    """The browser's tests move its controls, and look at every state."""
    found = any(re.search(r"^explore\(", cell.source, re.MULTILINE) for cell in codes(notebook))
    return [] if found else ["no cell that ends in explore(...)"]


def visible_code(notebook):
    wrong = []
    if visible_lines(notebook) > MOST_LINES:
        wrong.append(f"{visible_lines(notebook)} visible lines of code, at most {MOST_LINES}")
    for cell in visible_cells(notebook):
        if line_count(cell) > MOST_LINES_A_CELL:
            wrong.append(
                f"{cell['id']}: {line_count(cell)} visible lines, at most {MOST_LINES_A_CELL}"
            )
    return wrong


def folding(notebook):
    """A folded cell is folded everywhere: on the page, in JupyterLab and in Colab."""
    wrong = []
    for cell in codes(notebook):
        if cell["id"] == "install" and "hide-cell" not in cell.metadata.get("tags", []):
            wrong.append("install: no tag hide-cell")
        if is_folded(cell):
            if not cell.metadata.get("jupyter", {}).get("source_hidden"):
                wrong.append(f"{cell['id']}: folded, without jupyter.source_hidden")
            if cell.metadata.get("cellView") != "form":
                wrong.append(f"{cell['id']}: folded, without cellView: form")
            if not re.match(r"# @title \w", cell.source):
                wrong.append(f"{cell['id']}: folded, without a first line `# @title ...`")
        elif cell.metadata.get("jupyter", {}).get("source_hidden") or "cellView" in cell.metadata:
            wrong.append(f"{cell['id']}: folded in Jupyter or Colab, but not on the page")
    return wrong


def own_headings(notebook):
    found = headings(notebook)
    wrong = [f"an old heading: {name}" for name in found if name in OLD_HEADINGS]
    top = headings(notebook, "##")
    if [name for name in top if name in SHARED_HEADINGS] != SHARED_HEADINGS:
        wrong.append(f"the headings {', '.join(SHARED_HEADINGS)}: once each, in this order")
    if len(top) < len(SHARED_HEADINGS) + 3:
        wrong.append(f"only {len(top)} headings: {top}")
    if len(set(found)) < len(found):
        wrong.append("a heading stands twice")
    return wrong


def plain_markdown(notebook):
    """No role or directive, which JupyterLab, Colab and VS Code show raw."""
    wrong = []
    for cell in texts(notebook):
        text = re.sub(r"``.*?``", "", without_code(cell.source))
        found = re.findall(r"(?<!`)\{[A-Za-z][\w:+-]*\}`[^`]*`", text)
        found += re.findall(r"^ *:::.*|^ *`{3,}\{.*", cell.source, re.MULTILINE)
        found += re.findall(r"^\([\w-]+\)=$|^\+\+\+.*$|^% .*$", text, re.MULTILINE)
        wrong += [f"{cell['id']}: {piece}" for piece in found]
    return wrong


def transformers_box(notebook):
    boxes = [cell for cell in texts(notebook) if "> **In transformers.** " in cell.source]
    return [] if boxes else ["no box `> **In transformers.** ...`"]


def exercises(notebook):
    wrong = []
    inside = section(notebook, "Exercises")
    stubs = [cell for cell in inside if cell.cell_type == "code" and is_stub(cell)]
    if not 2 <= len(stubs) <= 3:
        wrong.append(f"{len(stubs)} exercises, expected 2 or 3")
    if len(stubs) != sum(map(is_stub, codes(notebook))):
        wrong.append("a stub stands outside the section Exercises")
    text = "\n\n".join(cell.source for cell in inside if cell.cell_type == "markdown")
    for piece, pattern in (
        ("*N minutes.*", r"^\*\d+ minutes?\.\*"),
        ("folded hint", r"<details>\s*<summary>Hint</summary>\n\n"),
    ):
        found = len(re.findall(pattern, text, re.MULTILINE))
        if found != len(stubs):
            wrong.append(f"{len(stubs)} exercises, but {found} times a {piece}")
    for cell in stubs:
        for exercise, name in re.findall(r'check\("([\w-]+)", my_(\w+)\)', cell.source):
            solution = f'check("{exercise}", {name}_solution)'
            folded = [c for c in codes(notebook) if solution in c.source and is_folded(c)]
            if len(folded) != 1:
                wrong.append(f"{exercise}: {len(folded)} folded cells with {solution}")
    tags = [tag for cell in codes(notebook) for tag in cell.metadata.get("tags", [])]
    for tag in ("break", "restore"):
        if tags.count(tag) != 1:
            wrong.append(f"{tags.count(tag)} cells tagged {tag}, expected one")
    return wrong


def three_questions(notebook, path):
    wrong = []
    inside = [c for c in section(notebook, "Three questions") if c.cell_type == "code"]
    calling = [cell for cell in codes(notebook) if re.search(r"^quiz\(", cell.source, re.M)]
    if inside != calling or len(inside) != 3:
        return [f"{len(calling)} cells with a quiz, expected three under Three questions"]
    for number, cell in enumerate(inside, start=1):
        if not cell.source.startswith(f"# @title Question {number}\n"):
            wrong.append(f"{cell['id']}: its first line is not `# @title Question {number}`")
        if "hide-input" not in cell.metadata.get("tags", []):
            wrong.append(f"{cell['id']}: no tag hide-input")
    asked = list(questions_of(path))
    if len(asked) != 3:
        wrong.append(f"{len(asked)} questions, expected 3")
    for question in asked:
        if not 3 <= len(question.choices) <= 4:
            wrong.append(f"{question.question} has {len(question.choices) - 1} wrong choices")
        if not question.question.endswith("?"):
            wrong.append(f"not a question: {question.question}")
    return wrong


def recap(notebook):
    wrong = []
    inside = section(notebook, "Recap")
    text = "\n\n".join(cell.source for cell in inside if cell.cell_type == "markdown")
    if re.findall(r"^(\d)\. ", text.split("<details>")[0], re.M) != list("12345"):
        wrong.append("recap: expected five numbered lines")
    if not re.search(r"^\*Next:\* .*\[.+\]\(.+\)", text, re.MULTILINE):
        wrong.append("recap: no `*Next:* ...` with a link")
    folded = re.search(
        r"<details>\s*<summary>For instructors</summary>\n\n(.*)</details>", text, re.S
    )
    for words in ("**Say.**", "**Break live.**", "**Students get wrong.**"):
        if not folded or words not in folded[1]:
            wrong.append(f"for instructors, folded: no {words}")
    if notebook.cells[-1] not in inside:
        wrong.append("something follows the recap")
    return wrong


def own_tools(notebook):
    """What lessons share comes from qwenlab.teach."""
    wrong = []
    for cell in codes(notebook):
        for name in re.findall(r"^def (\w+)\(", cell.source, re.MULTILINE):
            if name in LESSON_TOOLS:
                wrong.append(f"{cell['id']}: defines {name}, which qwenlab.teach has")
    return wrong


# --- Numbers in prose ------------------------------------------------------------------------------

NUMBER = r"(?<![\w.,])(?:about |some )?\d[\d.,]*(?:–\d[\d.,]*)?[ \u00a0\u202f-]?"
FEW = (
    "(?:an?|half an?|one|two|three|four|five|six|seven|eight|nine|ten|twelve|twenty|thirty|fifty|"
    "hundred|a few|several|tens of|dozens of|hundreds of) "
)
CLOCK = r"(?:milliseconds?|microseconds?|nanoseconds?|ms|µs|μs|us|ns|seconds?|hours?)\b"
SIZE = r"(?:[kKMGT]i?B|(?:kilo|mega|giga|tera)bytes?|[MGTP]FLOPS?|[MGT]FLOP/s|[GM]Hz)\b"
RATE = r"(?:(?:new |real |generated |sampled )?tokens?|steps?|requests?|answers?|GB|operations?)"
TIMES = r"(?:(?:\d[\d.,]*|two|three|four|five|six|seven|eight|nine|ten|twenty|a hundred) times|twice|half|a third|a quarter)"
MEASURED = [
    NUMBER + CLOCK,
    NUMBER + r"(?<=[ \u00a0\u202f])s\b",
    NUMBER + r"minutes?\b",
    FEW + CLOCK.replace("|us|ns", "").replace("seconds?|hours?", "seconds|hours?"),
    r"\bhalf a second\b",
    NUMBER + SIZE,
    r"(?<![\w.,])\d{1,3}(?:,\d{3})+ bytes\b",
    NUMBER + RATE + r"(?:/s\b| (?:per|a|each) second\b)",
    NUMBER + r"(?:%|per ?cent\b)",
    TIMES + r" as (?:fast|long|slow|quick|quickly|slowly|late)\b",
    TIMES + r" (?:faster|slower|quicker|longer)\b",
    TIMES + r" the (?:speed|seconds|time|throughput|tokens per second)\b",
    r"\d(?:\.\d+)?[x×] (?:as|faster|slower|longer|speed)",
]
MEASUREMENT = re.compile("|".join(f"(?:{pattern})" for pattern in MEASURED), re.IGNORECASE)
SUPPOSED = re.compile(r"\b(suppose|imagine|assume|say that|let us say|if a)\b", re.IGNORECASE)
MINUTES_SAID = re.compile(r"^\*Time:\*.*$|^\*\d+ minutes?\.\*", re.MULTILINE)
FOR_INSTRUCTORS = "<summary>For instructors</summary>"  # who are told how many minutes to give


def sentences(text):
    """The sentences of Markdown, without code, formulas, tables of figures and what links lead to.

    A link is left as [words]().
    """
    text = MINUTES_SAID.sub("", without_code(text))
    before, mark, after = text.partition(FOR_INSTRUCTORS)
    text = before + mark + re.sub(r"\d+ minutes?", "minutes", after)
    text = re.sub(r"\$\$.*?\$\$|\$[^$\n]+\$", " ", text, flags=re.DOTALL)
    text = re.sub(r"`[^`\n]*`", "`", text)
    text = re.sub(r"\]\([^)]*\)", "]()", text)
    text = re.sub(r"</?[a-z]+[^>]*>", "\n\n", text)
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*>|]|\d+\.) )", text):
        yield from re.split(r"(?<=[.!?:])\s+(?=[A-Z*\[“\"(`])", " ".join(paragraph.split()))


def typed_measurements(text, allowed=()):
    """Sentences of Markdown that state a measurement. A cell should print it; a fact from a source
    needs a link and its piece in `allowed`, and a case that is only supposed says so."""
    found = []
    for sentence in sentences(text):
        measured = MEASUREMENT.search(sentence)
        known = "]()" in sentence and any(piece in sentence for piece in allowed)
        if measured and not known and not SUPPOSED.search(sentence):
            found.append(f"“{measured[0]}” is typed: {sentence}")
    return found


VERDICT = re.compile(r"\b(faster|slower|quicker|hardly)\b", re.IGNORECASE)
OPEN = re.compile(r"\?|\b(if|whether|may|might|can|could|would|how much|never)\b", re.IGNORECASE)


def typed_verdicts(notebook):
    """Sentences and headings right above or below a measurement that say how it ends."""
    wrong = []
    cells = notebook.cells
    for i, cell in enumerate(cells):
        beside = [other for other in cells[max(i - 1, 0) : i + 2] if other is not cell]
        timed = any(c.cell_type == "code" and "alternate(" in c.source for c in beside)
        if cell.cell_type != "markdown" or not timed:
            continue
        for sentence in sentences(re.sub(r"^(#+ .*)$", r"\1\n", cell.source, flags=re.MULTILINE)):
            verdict = VERDICT.search(sentence)
            if verdict and not OPEN.search(sentence):
                wrong.append(
                    f"{cell['id']}: “{verdict[0]}” is typed beside a measurement: {sentence}"
                )
    return wrong


def prose(notebook, path):
    allowed = FROM_SOURCES.get(path.stem, ())
    wrong = []
    for cell in texts(notebook):
        wrong += [f"{cell['id']}: {told}" for told in typed_measurements(cell.source, allowed)]
    for question in questions_of(path):
        reasons = [reason for _, reason in question.choices]
        said = [question.choices[question.right][0], *reasons]
        if not typed_measurements(question.question):  # a question may give figures to reckon with
            for text in said:
                wrong += [f"quiz: {told}" for told in typed_measurements(text, allowed)]
    return wrong


def stale_sources(notebooks):
    """Pieces in FROM_SOURCES that no lesson says any longer."""
    stale = []
    for path in notebooks:
        text = path.read_text(encoding="utf-8").replace('\\"', '"')
        stale += [piece for piece in FROM_SOURCES.get(path.stem, ()) if piece not in text]
    return stale


# --- All of it -------------------------------------------------------------------------------------


def complaints(path):
    """Everything that a lesson's file does wrong, one line each."""
    notebook = nbformat.read(path, as_version=4)
    wrong = [*opening(notebook), *moving_pictures(notebook)]
    wrong += [*visible_code(notebook), *folding(notebook)]
    wrong += [*own_headings(notebook), *plain_markdown(notebook), *transformers_box(notebook)]
    wrong += [*exercises(notebook), *three_questions(notebook, path), *recap(notebook)]
    wrong += [*own_tools(notebook), *prose(notebook, path), *typed_verdicts(notebook)]
    return wrong


def shared_headings(paths):
    """Headings that two lessons have, but for those that all have and those of exercises, which
    say of what kind one is."""
    seen = {}
    wrong = []
    for path in paths:
        for name in headings(nbformat.read(path, as_version=4)):
            if name in SHARED_HEADINGS or re.match(r"Exercise \d: ", name):
                continue
            if seen.setdefault(name, path.stem) != path.stem:
                wrong.append(f"{path.stem} and {seen[name]}: {name}")
    return wrong


def still_the_template_s(path):
    """Ids of the cells that a lesson has taken over as they stand, but for `install` and the
    shared headings, which are about no subject."""
    shared = {"install", "exercises", "quiz", "questions"}
    kept = []
    first = {cell.source for cell in nbformat.read(TEMPLATE, as_version=4).cells}
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.source in first and cell["id"] not in shared:
            kept.append(cell["id"])
    return kept


def main(paths):
    for path in map(Path, paths):
        found = complaints(path)
        print(f"{path.stem}: {len(found)} to mend")
        for line in found:
            print(f"    {line}")
        kept = still_the_template_s(path)
        if kept:
            print(f"    still the template's: {', '.join(kept)}")


if __name__ == "__main__":
    main(sys.argv[1:])
