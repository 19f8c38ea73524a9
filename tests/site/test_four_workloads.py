"""The page on the four workloads: its pictures are true, its figures are those stored, its links
lead somewhere, and the published table stands nowhere else."""

import ast
import contextlib
import io
import json
import re
import sys
from itertools import pairwise

import nbformat
import pytest
from site_files import ROOT

from qwenlab.bench import memory_plan
from qwenlab.bench.conclusions import FAILS, HOLDS, PARTLY
from qwenlab.bench.workloads import PUBLISHED
from qwenlab.model.config import Config
from qwenlab.teach import stored
from qwenlab.teach.heatmaps import Heatmap

PAGE = ROOT / "book" / "four-workloads.md"
CELL = re.compile(r"```\{code-cell\} python3\n(?::tags: [^\n]*\n)?\n(.*?)```\n", re.DOTALL)
# Figures of the two published tables that nobody would write by chance.
THEIRS = ("185.4", "174.7", "108.4", "340.8", "243.3", "63.7", "43.4", "44.9", "167.2")


class Page:
    """The page's cells after they have run: what they printed, and what they drew."""

    def __init__(self):
        self.names = {}
        self.printed = []
        self.pictures = {}  # by the first word of the title
        make = Heatmap.__init__

        def noted(picture, *arguments, **named):
            make(picture, *arguments, **named)
            self.pictures[picture.title.partition(":")[0]] = picture

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Heatmap, "__init__", noted)
            for source in CELL.findall(PAGE.read_text(encoding="utf-8")):
                out = io.StringIO()
                with contextlib.redirect_stdout(out):
                    self.run(source)
                self.printed.append(out.getvalue())

    def run(self, source):
        tree = ast.parse(source)
        exec(compile(tree, PAGE.name, "exec"), self.names)

    def table(self, word):
        """The cells of the printed table whose head has `word`, line by line."""
        (text,) = [text for text in self.printed if word in text.partition("\n")[0]]
        rows = {}
        for line in text.splitlines()[1:]:
            name, *cells = re.split(r"\s{2,}", line.strip())
            rows[name] = cells
        return rows


@pytest.fixture(scope="module")
def page():
    return Page()


def kinds(picture):
    """t for a token and p for a pad, row by row."""
    return ["".join(cell.kind for cell in row) for row in picture.cells]


def test_pads_stand_where_the_page_says(page):
    drawn = page.pictures
    evaluation = kinds(drawn["evaluation"])
    assert all(re.fullmatch("p*t+", row) for row in evaluation) and "p" in "".join(evaluation)
    mask = drawn["attention_mask"]
    assert [[cell.text for cell in row] for row in mask.cells] == [
        ["0" if kind == "p" else "1" for kind in row] for row in evaluation
    ]
    assert set("".join(kinds(drawn["self-consistency"]))) == {"t"}
    assert len({tuple(cell.text for cell in row) for row in drawn["self-consistency"].cells}) == 1
    assert all(re.fullmatch("p*t+", row) for row in kinds(drawn["GRPO"]))
    assert all(re.fullmatch("t+p*", row) for row in kinds(drawn["distillation"]))
    assert "p" in "".join(kinds(drawn["GRPO"])) and "p" in "".join(kinds(drawn["distillation"]))


@pytest.mark.parametrize("name", ["GRPO", "distillation"])
def test_the_loss_counts_answers_up_to_their_end_and_nothing_else(page, name):
    picture = page.pictures[name]
    for place, row in enumerate(picture.cells):
        texts = [cell.text for cell in row]
        counted = [column for row_place, column in sorted(picture.marked) if row_place == place]
        assert counted == list(range(texts.index("⋯") + 1, texts.index("■") + 1))


def test_rollouts_have_the_reward_of_their_answer(page):
    names = page.names
    rewards = [float(answer == names["GOLD"]) for _, answer in names["samples"]]
    assert rewards == names["rewards"] and 0 < sum(rewards) < len(rewards)
    for label, reward in zip(page.pictures["GRPO"].rows, rewards, strict=True):
        assert label.startswith(f"{reward:.0f} (")


def test_every_picture_says_what_it_shows(page):
    assert len(page.pictures) == 5
    for picture in page.pictures.values():
        assert picture.alt.endswith(".") and "columns" not in picture.alt  # its own, no default


def test_memory_is_what_the_plan_says(page):
    table = page.table("rows in 8")
    config = Config.from_dict(page.names["SHAPE"])
    for size, told in zip((8, 24, 80), table["evaluation"][2:], strict=True):
        plan = memory_plan(config, size * 2**30, page.names["CONTEXT"], "bfloat16")
        assert int(told) == plan.rows
    once, row, *_ = map(float, table["training, logits kept"])
    assert once == pytest.approx(4 * float(table["evaluation"][0]), abs=0.03)
    assert row > float(table["training, logits in pieces"][1]) > float(table["evaluation"][1])


def test_what_training_keeps_grows_with_layers_and_tokens(page):
    names = page.names
    kept = names["kept_for_backward"]
    one, layer = names["one_layer"], names["layer"]
    assert kept(3, tokens=32) == pytest.approx(one + 2 * layer, rel=0.02)
    config = names["config"]
    assert layer > 2 * (3 * config.intermediate_size + 4 * config.hidden_size)  # in bfloat16


def test_the_published_rows_are_those_of_the_library(page):
    table = page.table("H100")
    assert list(table) == list(PUBLISHED)
    for task, one in PUBLISHED.items():
        (h100, h100_batched), (spark, spark_batched) = one.h100, one.spark
        assert table[task] == [
            str(one.batch),
            f"{one.gigabytes[0]} → {one.gigabytes[1]}",
            f"{h100} → {h100_batched}",
            f"{h100 / h100_batched:.1f}x",
            f"{spark} → {spark_batched}",
            f"{spark / spark_batched:.1f}x",
        ]


def test_our_rows_are_those_stored(page):
    table = page.table("MiB beyond loading")
    runs = stored("workloads")["runs"]
    for single, batched in zip(runs[::2], runs[1::2], strict=True):
        told = table[single["task"]]
        assert told[0] == str(batched["batch"])
        medians = [run["seconds"]["median"] for run in (single, batched)]
        assert [float(cell.split()[0]) for cell in told[1:3]] == pytest.approx(medians, abs=0.05)
        assert float(told[3].rstrip("x")) == pytest.approx(medians[0] / medians[1], abs=0.05)


def test_the_verdicts_follow_from_what_is_stored(page):
    found = page.names["found"]
    lines = page.names["lines"]
    assert len(found) == 5 and len(lines) == 10
    for place, one in enumerate(found):
        assert one.claim in lines[2 * place] and lines[2 * place + 1].rstrip().endswith(
            f"So it **{one.verdict}**."
        )
    runs = stored("workloads")["runs"]
    gains = []
    for single, batched in zip(runs[::2], runs[1::2], strict=True):
        gains.append(single["seconds"]["median"] / batched["seconds"]["median"])
    most = less = 0
    for gain, one in zip(gains, PUBLISHED.values(), strict=True):
        h100, spark = one.h100[0] / one.h100[1], one.spark[0] / one.spark[1]
        most += int(h100 > max(spark, gain))
        less += int(gain < spark)
    of_four = [FAILS, PARTLY, PARTLY, PARTLY, HOLDS]
    assert [one.verdict for one in found[:2]] == [of_four[most], of_four[less]]
    pads = stored("batches")["pads"]
    slower = [d > e for d, e in zip(pads["different"], pads["equal"], strict=True)]
    assert found[3].verdict == (HOLDS if all(slower) else FAILS)


def test_the_stored_measurements_say_where_they_come_from():
    about = stored("batches")["provenance"]
    assert about["command"].startswith("python scripts/stored_batches.py")
    assert {"machine", "torch", "dtype", "date", "repeats"} <= set(about)
    sizes = [point["batch_size"] for point in stored("batches")["sweep"]]
    assert all(doubled == 2 * size for size, doubled in pairwise(sizes))


def test_the_script_makes_such_results(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import stored_batches

    few = {"ROWS": (1, 2), "PROMPT": 4, "NEW": 2, "PADDED": 3, "TRAINED": 2, "REPEATS": 1}
    for name, value in few.items():
        monkeypatch.setattr(stored_batches, name, value)
    out = tmp_path / "batches.json"
    monkeypatch.setattr(sys, "argv", ["stored_batches.py", "--out", str(out)])
    stored_batches.main()
    made, kept = json.loads(out.read_text(encoding="utf-8")), stored("batches")
    assert made.keys() == kept.keys() and made["provenance"].keys() == kept["provenance"].keys()
    for name in ("pads", "rows_of_four"):
        assert made[name].keys() == kept[name].keys()
    assert [point["batch_size"] for point in made["sweep"]] == [1, 2]


def sources():
    """The text of every page and lesson, outputs left out."""
    for path in sorted((ROOT / "book").glob("*.md")):
        yield path, path.read_text(encoding="utf-8")
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        cells = nbformat.read(path, as_version=4).cells
        yield path, "\n".join(cell.source for cell in cells)


def test_the_published_tables_stand_on_this_page_only():
    for path, text in sources():
        told = [number for number in THEIRS if re.search(rf"(?<![\d.]){number}(?!\d)", text)]
        if path != PAGE:
            assert not told, f"{path.name}: {told}"
    text = PAGE.read_text(encoding="utf-8")
    typed = [number for number in THEIRS if number in text]
    assert typed == ["185.4", "167.2"]  # of the other table; this one is printed by its cell
    assert "rasbt/reasoning-from-scratch" in text and "Raschka" in text


def test_its_links_lead_somewhere_and_the_lessons_lead_here():
    text = PAGE.read_text(encoding="utf-8")
    for address in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        assert address.startswith("https://") or (PAGE.parent / address).is_file(), address
    leading = [path.stem for path, text in sources() if PAGE.name in text]
    expected = {"welcome", "teach", "11-evaluation", "14-distillation"}
    assert expected <= set(leading)
