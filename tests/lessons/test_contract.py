"""The contract of the lessons finds what it should, and leaves honest prose alone."""

import contract
import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook


@pytest.mark.parametrize(
    "sentence",
    [
        "A step takes 3 ms here.",
        "A step takes about 3.5 milliseconds.",
        "It needs 0.4 s.",
        "It needs 2–3 seconds.",
        "It takes two seconds, or half a second.",
        "The cache holds 1.5 GB.",
        "The cache holds 114,688 bytes.",
        "It reads 20 GB/s.",
        "It makes 310 tokens per second.",
        "It makes 310 tokens/s.",
        "Pads are 40 % of it.",
        "Pads are 40% of it.",
        "Pads are 40 per cent of it.",
        "A batch is 3.2 times as fast.",
        "A batch is twice as fast.",
        "A step takes 1.3 times as long.",
        "It is three times slower.",
        "It is 3x faster.",
        "You get five times the throughput.",
    ],
)
def test_a_typed_measurement_is_found(sentence):
    assert contract.typed_measurements(f"Some words before. {sentence} And after.")
    assert contract.typed_measurements(f"- a point\n- {sentence}")
    assert contract.typed_measurements(f"> {sentence}")


@pytest.mark.parametrize(
    "sentence",
    [
        "The batch has 32 rows and 8 of them stop.",
        "A second row joins, and the first 3 steps are alike.",
        "In Qwen3-0.6B each of 28 layers has 16 heads.",
        "It prints how many times as fast the batch is.",
        "The cell prints `3 ms` or `40 %`.",
        "With $t = 3$ s the sum is $20\\%$.",
        "Pages from the 1990s said so.",
        "A bfloat16 value has 2 bytes.",
        "Row 3 starts, and step 12 ends it.",
        "Suppose a step takes 10 ms.",
        "*5 minutes.* Write the loop.",
        "*Time:* 12 minutes to read, 15 minutes for the exercises.",
        "```python\ntook = '3 ms'\n```",
        "<details>\n<summary>For instructors</summary>\n\nGive them 5 minutes.\n\n</details>",
    ],
)
def test_other_numbers_are_left_alone(sentence):
    assert contract.typed_measurements(sentence) == []


def test_a_fact_needs_its_source_and_its_place_in_the_list():
    fact = "An H100 reads [3.35 TB a second](https://example.org)."
    assert contract.typed_measurements(fact.replace("a second", ""), ())
    assert contract.typed_measurements(fact.replace("a second", ""), ("H100 reads",)) == []
    assert contract.typed_measurements("An H100 reads 3.35 TB.", ("H100 reads",))


@pytest.mark.parametrize(
    "text",
    [
        "A {term}`pad`.",
        "As in {cite:t}`vaswani`.",
        ":::{note}\nwords\n:::",
        "```{admonition} Title\nwords\n```",
        "````{exercise}\nwords\n````",
        "(a-target)=\n# Title",
    ],
)
def test_a_role_or_directive_is_found(text):
    assert contract.plain_markdown(new_notebook(cells=[new_markdown_cell(text, id="a")]))


def test_plain_markdown_is_left_alone():
    text = "A set {1, 2}, `{term}`, `f'{x}'`, $x_{a}$.\n\n```python\nx = {y}\n```\n\n> quoted"
    assert contract.plain_markdown(new_notebook(cells=[new_markdown_cell(text, id="a")])) == []


def cell(source, folded=False, tags=(), **fields):
    metadata = {"tags": list(tags)} if tags else {}
    if folded:
        source = f"# @title Words\n{source}"
        metadata = {"tags": list(tags) or ["hide-input"], "cellView": "form"}
        metadata |= {"jupyter": {"source_hidden": True}}
    return new_code_cell(source, metadata=metadata, **fields)


QUIZ = """# @title Question {number}
quiz(
    "Question {number}?",
    right=("Yes.", "So it is."),
    wrong=[("No.", "It is."), ("Never.", "Always.")],
)"""
EXERCISE = """### Exercise {number}

*5 minutes.* Return one.

<details>
<summary>Hint</summary>

Look.

</details>"""
TITLE = "# A lesson\n\n**A claim in one sentence.**\n\nSome words. *What will happen?*"
ABOUT = """After this lesson you can

- **see** it,
- **do** it,
- **say** it.

*Before you start:* nothing.

*Time:* 1 minutes to read, 10 minutes for the exercises."""
RECAP = """## Recap

1. One.
2. Two.
3. Three.
4. Four.
5. Five.

*Next:* [another](02-left-padding.ipynb).

<details>
<summary>For instructors</summary>

**Say.** This.

**Break live.** That.

**Students get wrong.** All of it.

</details>"""


def whole_lesson():
    cells = [
        new_markdown_cell(TITLE, id="title"),
        cell("1", folded=True, tags=["hide-cell"], id="install"),
        cell("1", folded=True, id="load"),
        cell("page_model('tiny').widget('batch')", folded=True, id="hero"),
        cell("heatmap([[1]])", id="hero-python"),
        new_markdown_cell(ABOUT, id="about"),
        new_markdown_cell("## The failure\n\nWords."),
        new_markdown_cell("## The cure\n\n> **In transformers.** An argument does it."),
        new_markdown_cell("## The price\n\nWords."),
        cell("explore(draw, rows=range(3))", folded=True, id="explore"),
        new_markdown_cell("## Exercises"),
    ]
    for number in (1, 2):
        cells += [
            new_markdown_cell(EXERCISE.format(number=number)),
            cell(f'def my_f{number}():\n    return None\n\n\ncheck("f-{number}", my_f{number})'),
            cell(f'check("f-{number}", f{number}_solution)', folded=True),
        ]
    cells += [cell("1", tags=["break"]), cell("1", tags=["restore"])]
    cells.append(new_markdown_cell("## Three questions"))
    for number in (1, 2, 3):
        cells.append(cell("1", folded=True, id=f"quiz-{number}"))
        cells[-1].source = QUIZ.format(number=number)
    return new_notebook(cells=[*cells, new_markdown_cell(RECAP, id="recap")])


def complaints(notebook, folder):
    path = folder / "01-why-batch.ipynb"
    nbformat.write(notebook, path)
    return contract.complaints(path)


def test_a_whole_lesson_keeps_the_contract(tmp_path):
    assert complaints(whole_lesson(), tmp_path) == []


@pytest.mark.parametrize(
    "name, old, new, told",
    [
        ("title", "A claim in one sentence.", "A claim. And another.", "more than one sentence"),
        ("title", "happen?", "happen.", "prediction"),
        ("hero-python", "heatmap", "print", "no heatmap"),
        ("hero-python", "heatmap([[1]])", "heatmap()\n" * 16, "16 lines"),
        ("about", "1 minutes to read", "2 minutes to read", "expected '*Time:* 1"),
        ("about", "10 minutes for", "12 minutes for", "10 minutes for the exercises"),
        ("about", "- **say** it.", "", "2 bullets"),
        ("explore", "explore(draw, rows=range(3))", "draw(3)", "no cell that ends in explore"),
        ("load", "# @title Words", "# words", "load: folded, without a first line"),
        ("quiz-2", "Question 2\n", "Question 3\n", "Question 2"),
        ("quiz-2", ', ("Never.", "Always.")', "", "1 wrong choices"),
        ("quiz-2", "So it is.", "It takes 3 ms.", "“3 ms” is typed"),
        ("recap", "5. Five.\n", "", "five numbered lines"),
        ("recap", "**Break live.**", "**Break.**", "no **Break live.**"),
        ("recap", "*Next:*", "Next:", "no `*Next:*"),
        ("recap", "That.", "That. {term}`pad`", "{term}`pad`"),
        ("recap", "## Recap", "## Break it\n\n## Recap", "an old heading"),
    ],
)
def test_each_fault_is_found(tmp_path, name, old, new, told):
    notebook = whole_lesson()
    changed = contract.by_id(notebook, name)
    assert old in changed.source
    changed.source = changed.source.replace(old, new)
    assert told in "\n".join(complaints(notebook, tmp_path))


def test_long_and_many_visible_cells_are_found(tmp_path):
    notebook = whole_lesson()
    notebook.cells.insert(7, cell("1\n" * 26, id="long"))
    notebook.cells[8:8] = [cell("1\n" * 25) for _ in range(5)]
    found = "\n".join(complaints(notebook, tmp_path))
    assert "long: 26 visible lines" in found and "154 visible lines of code" in found


def test_a_heading_of_another_lesson_is_found(tmp_path):
    paths = [tmp_path / "01-a.ipynb", tmp_path / "02-b.ipynb"]
    for path, heading in zip(paths, ("## One\n\n## Recap", "## Two\n\n## Recap"), strict=True):
        nbformat.write(new_notebook(cells=[new_markdown_cell(heading)]), path)
    assert contract.shared_headings(paths) == []
    nbformat.write(new_notebook(cells=[new_markdown_cell("### One")]), paths[1])
    assert contract.shared_headings(paths) == ["02-b and 01-a: One"]


@pytest.mark.parametrize("place", [0, 1], ids=["above", "below"])
def test_a_verdict_typed_beside_a_measurement_is_found(place):
    def found(text):
        cells = [new_code_cell("alternate(run, cases, 3)")]
        cells.insert(place, new_markdown_cell(text, id="beside"))
        return contract.typed_verdicts(new_notebook(cells=cells))

    for text in ("## Together is faster", "Words. The batch is slower.", "It hardly matters."):
        assert len(found(text)) == 1
    for text in ("Is it faster?", "If the batch is slower, so are you.", "Guess how much faster."):
        assert found(text) == []


def test_cells_that_are_still_the_template_s_are_named(tmp_path):
    notebook = nbformat.read(contract.TEMPLATE, as_version=4)
    about = contract.by_id(notebook, "about")
    about.source += "\n\nOf a subject of its own."
    nbformat.write(notebook, tmp_path / "18-own.ipynb")
    kept = contract.still_the_template_s(tmp_path / "18-own.ipynb")
    assert "hero" in kept and "about" not in kept and "install" not in kept
    assert (
        contract.still_the_template_s(contract.TEMPLATE.parents[1] / "05-batched-generation.ipynb")
        == []
    )
