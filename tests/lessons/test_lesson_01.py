"""Lesson 01: what its text says is what happens.

Every state of its widget is right, here and in the browser.
"""

import itertools
import re

import pytest
from browser import Watch
from bs4 import BeautifulSoup
from lesson_cells import code_cells, say, signs
from site_files import SITE, missing

from qwenlab.fast import linear
from qwenlab.teach import exploring

NAME = "01-why-batch"
ROWS = [1, 2, 4, 8, 16, 32]
CONTEXTS = [16, 64, 256]

# Shapes as config.json has them: layers, hidden, query width, key/value width, MLP, vocabulary.
SHAPES = {
    "tiny": (3, 128, 128, 64, 288, 512),
    "4 layers of the 0.6B": (4, 1024, 2048, 1024, 3072, 512),
}


@pytest.fixture(scope="module")
def lesson():
    """The source of each cell by id, and a namespace in which those up to the loops have run.

    No clock is read.
    """
    sources = code_cells(NAME)
    names = {}
    for name in ("load", "one-by-one", "idle", "plain-one", "plain-together"):
        exec(sources[name], names)
    ticks = itertools.count(1)
    names["step_seconds"] = lambda network, rows, context: (
        rows * 1e-3 + context * 1e-5 + next(ticks) * 1e-6
    )
    exec(sources["measure-steps"], names)
    return sources, names


# --- the widget ---


def at_best(model, rows, context, bandwidth, flops):
    """Milliseconds of one step at best: to read the weights, to read keys and values, to compute.

    In float32.
    """
    layers, hidden, query, shared, mlp, vocabulary = SHAPES[model]
    weights = vocabulary * hidden
    for _layer in range(layers):
        weights += hidden * query + hidden * shared + hidden * shared + query * hidden
        weights += hidden * mlp + hidden * mlp + mlp * hidden
    cached = scores = 0
    for _row in range(rows):
        cached += layers * (context * shared + context * shared)
        scores += layers * (2 * context * query + 2 * context * query)
    compute = rows * 2 * weights + scores
    return [1e3 * 4 * weights / bandwidth, 1e3 * 4 * cached / bandwidth, 1e3 * compute / flops]


def expected_tables(model, context, bandwidth, flops, steps):
    """The widget's three tables in one state.

    steps[model, rows, context] is (median, low, high) in ms.
    """
    parts = [at_best(model, rows, context, bandwidth, flops) for rows in ROWS]
    least = [max(weights + cached, compute) for weights, cached, compute in parts]
    ours = [steps[model, rows, context] for rows in ROWS]
    breakdown = [[part[i] for part in parts] for i in range(3)]
    rates = [
        [[1e3 * n / median, 1e3 * n / high, 1e3 * n / low], [1e3 * n / best]]
        for n, (median, low, high), best in zip(ROWS, ours, least, strict=True)
    ]
    waits = [[list(spread), [best]] for spread, best in zip(ours, least, strict=True)]
    return breakdown, rates, waits


def shown_tables(html):
    """The same three tables as the picture says them.

    Each cell is a list: a median, then its spread if it has one.
    """
    tables = []
    for table in BeautifulSoup(html, "html.parser").find_all("table"):
        columns = len(table.thead.find_all("th")) - 1  # the first heads the rows' names
        rows = [row.find_all(["th", "td"])[-columns:] for row in table.tbody.find_all("tr")]
        tables.append([[numbers_in(cell.text) for cell in row] for row in rows])
    return tables


def numbers_in(text):
    return [float(number.replace(",", "")) for number in re.findall(r"[\d.,]+(?:e-\d+)?", text)]


def assert_right(shown, expected, tolerance):
    """Up to the digits that a cell has: two after the point, or three that count."""
    breakdown, rates, waits = expected
    assert len(shown) == 3
    for row, right in zip(shown[0], breakdown, strict=True):
        for (cell,), value in zip(row, right, strict=True):
            assert cell == pytest.approx(
                value, rel=max(tolerance, 0.06 if value < 0.01 else 0), abs=0.0051
            )
    for table, right_table in ((shown[1], rates), (shown[2], waits)):
        for row, right in zip(table, right_table, strict=True):
            for cell, values in zip(row, right, strict=True):
                if len(cell) == 1:  # no spread to tell
                    values = values[:1]
                assert cell == pytest.approx(values, rel=tolerance + 0.006)


def test_every_state_of_the_widget_is_right(lesson, monkeypatch):
    monkeypatch.setenv("QWENLAB_PAGE", "1")
    monkeypatch.setattr(exploring, "_spent", 0)
    sources, names = lesson
    scope = dict(names)
    exec(sources["explore-steps"].replace("\nexplore(", "\nwidget = explore("), scope)
    root = BeautifulSoup(scope["widget"]._repr_html_(), "html.parser").find(class_="qwl-explore")
    shown = [root.find(class_="qwl-state"), *root.find_all("template")]
    states = list(itertools.product(["4 layers of the 0.6B", "tiny"], CONTEXTS))
    assert len(shown) == len(states)
    machine = names["machine"]
    steps = {case: (s.median, s.low, s.high) for case, s in names["steps"].items()}
    for (model, context), picture in zip(states, shown, strict=True):
        right = expected_tables(
            model, context, machine.bytes_per_second, machine.flops_per_second, steps
        )
        assert_right(shown_tables(picture.decode_contents()), right, tolerance=0.001)


@pytest.mark.browser
def test_the_browser_shows_every_state(chromium, address):
    if not (SITE / "notebooks" / f"{NAME}.html").is_file():
        missing(f"the built site has no {NAME}: run `make book`")
    with Watch(chromium, address) as watch:
        page = watch.open(f"notebooks/{NAME}.html")
        said = "\n".join(page.locator(".cell_output pre").all_text_contents())
        bandwidth = 1e9 * float(re.search(r"reads ([\d.,]+) GB a second", said)[1].replace(",", ""))
        flops = 1e9 * float(
            re.search(r"computes ([\d.,]+) billion operations", said)[1].replace(",", "")
        )
        medians = {}  # as the page prints them under the cell that measures
        for model, lines in re.findall(
            r"(.+): a step in ms, median of \d\n(rows.+\n(?: *\d+ cached.+\n?)+)", said
        ):
            for context, *numbers in (
                re.findall(r"[\d.]+", line) for line in lines.splitlines()[1:]
            ):
                for rows, ms in zip(ROWS, numbers, strict=True):
                    medians[model, rows, int(context)] = (float(ms),) * 3
        widget = page.locator(".qwl-explore")
        radios = widget.locator("input[type=radio]")
        slider = widget.locator("input[type=range]")
        seen = set()
        for i, model in enumerate(["4 layers of the 0.6B", "tiny"]):
            radios.nth(i).check()
            slider.press("Home")
            for context in CONTEXTS:
                state = widget.locator("[role=status]").text_content()
                assert state in ("", f"model: {model}, context: {context}")
                html = widget.locator(".qwl-state").inner_html()
                shown = shown_tables(html)
                shown[1:] = [
                    [[cell[:1] for cell in row] for row in table] for table in shown[1:]
                ]  # medians only
                assert_right(
                    shown,
                    expected_tables(model, context, bandwidth, flops, medians),
                    tolerance=0.01,
                )
                seen.add(html)
                slider.press("ArrowRight")
        assert len(seen) == 6
        assert watch.errors == [] and watch.outside == []


# --- what the text says ---


def test_one_row_leaves_the_arithmetic_idle(lesson, capsys):
    sources, names = lesson
    exec(sources["idle"], dict(names))
    said = capsys.readouterr().out
    for name in SHAPES:
        assert f"{name}: a step takes" in said
    assert all(float(share) < 50 for share in re.findall(r"at work ([\d.]+)%", said))


def test_the_answers_and_the_passes(lesson):
    names = lesson[1]
    last = [names["tokenizer"].decode(ids).split("\\boxed")[-1] for ids in names["alone"]]
    assert last == ["{4}", "{38}", "{56}", "{19}", "{49}", "{27}", "{72}", "{124}"]
    steps = [len(ids) + 1 for ids in names["alone"]]  # the stop id takes a step too
    assert names["passes_alone"] == sum(steps) and names["passes_batch"] == max(steps)
    assert names["together"] == names["alone"]


def test_a_static_batch_wastes_what_the_short_answers_leave(lesson, capsys):
    said = say(lesson, "loses-ragged", capsys)
    caps = [3, 5, 4, 24, 3, 6, 4, 5]
    wasted = sum(max(caps) - cap for cap in caps)
    assert f"{sum(caps)} row-steps made a token, {wasted} were wasted" in said
    assert f"That is {wasted / (8 * 24):.0%} of" in said


def test_the_crowd_makes_the_short_question_wait(lesson, capsys):
    said = say(lesson, "loses-latency", capsys)
    alone, crowd = re.findall(r"first token after (\d+) ", said)
    assert int(alone) < int(crowd)


def test_a_step_of_many_rows_makes_hardly_more_calls(lesson, capsys):
    said = say(lesson, "hollow", capsys)
    one, many = map(int, re.findall(r"(\d+) for a step of", said))
    assert 100 < one and many < 1.2 * one


def test_the_fixed_cost_is_a_large_share_of_a_tiny_step_and_a_small_one_of_a_wide_step(lesson):
    sources, names = lesson
    scope = dict(names)
    exec(sources["idle"].split('\nprint("one row')[0], scope)  # the real clock again
    exec(sources["hollow"].split("\npair = ")[0], scope)
    networks = [scope[name] for name in ("hollow", "model", "wide")]
    hollow, tiny, wide = (
        min(scope["step_seconds"](network, 1, 16) for _ in range(9)) for network in networks
    )
    assert hollow > 0.2 * tiny and hollow < 0.5 * wide


def test_several_kernels_for_the_same_product(lesson, capsys):
    sources, names = lesson
    quick = sources["skinny"].replace("SKINNY = [1, 2, 4, 8, 16, 32, 64]", "SKINNY = [1, 4]")
    assert quick != sources["skinny"]
    scope = dict(names, REPEATS=1)
    exec(quick + "\n" + sources["loses-kernel"], scope)
    ways = scope["WAYS"]
    took = scope["took"]
    assert len(ways) >= 3
    lines = capsys.readouterr().out.splitlines()[-len(ways) :]
    for way, line in zip(ways, lines, strict=True):
        share = took[way, 4].median / (4 * took[way, 1].median)
        assert line.split()[0] == way and line.split()[-2:] == ["1.00", f"{share:.2f}"]


def test_what_the_library_chose_is_shown(lesson, capsys, monkeypatch):
    sources, names = lesson
    monkeypatch.setattr(
        linear,
        "chosen",
        {"4 rows, 4096 x 1024, float32, 2 threads": "transposed", "4 rows, 8 x 8": "linear"},
    )
    monkeypatch.delenv("QWENLAB_LINEAR", raising=False)
    exec(sources["kernels-here"], dict(names))
    head, line = capsys.readouterr().out.splitlines()
    assert (
        line.startswith("4096 x 1024") and line[: head.index("4") + 1].split()[-1] == "transposed"
    )


def test_the_bend_moves_out_with_the_context(lesson, capsys):
    sources, names = lesson
    scope = dict(names)
    for cell in ("solution-bytes", "solution-bend", "bend-here"):
        exec(sources[cell], scope)
    said = re.findall(r"the lines (?:meet at ([\d.]+) rows|never meet)", capsys.readouterr().out)
    bends = [float(rows or "inf") for rows in said]
    assert len(bends) == 5 and bends == sorted(bends)
    machine = names["machine"]  # without a context, the weights cancel
    at = 4 * machine.flops_per_second / (2 * machine.bytes_per_second)
    assert bends[0] == pytest.approx(at, rel=0.01, abs=0.051)  # it is shown to a tenth


def test_the_published_tables_are_only_divided(lesson, capsys):
    sources, names = lesson
    exec(sources["loses-published"], names)
    said = capsys.readouterr().out
    assert said.count("THE BATCH LOSES") == 2 and said.count("the batch wins") == 3
    exec(sources["tables"], dict(names))
    h100 = [line for line in capsys.readouterr().out.splitlines() if line.startswith("H100")]
    assert "12.7 times" in h100[0] and "5.6 times" in h100[1]


def test_breaking_shows_what_the_text_says(lesson, capsys):
    long = ("batch = prompts[:4]  # 1", "batch = prompts[:4] + [prompts[0] * 30]  # 1")
    no_mask = ("real = real  # 2", "real = None  # 2")
    fed = ("    # 3", "    new = new[:1].repeat(len(batch), 1)")
    assert signs(say(lesson, "break-me", capsys)) == "===="
    assert signs(say(lesson, "break-me", capsys, long)) == "====="
    assert signs(say(lesson, "break-me", capsys, long, no_mask)) == "----="
    assert signs(say(lesson, "break-me", capsys, no_mask)) == "===="  # a few pads: luck
    assert signs(say(lesson, "break-me", capsys, fed)) == "=---"
