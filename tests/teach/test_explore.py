"""teach.explore: in the page every state is there, live one picture follows the controls."""

import itertools
import os
import shutil
import sys
from html import unescape
from types import SimpleNamespace

import pytest
from bs4 import BeautifulSoup

from qwenlab.teach import explore, exploring, heatmap, image, side_by_side, sphinx_page
from qwenlab.teach.palette import STYLE

CHROMIUM = shutil.which("chromium")


@pytest.fixture
def page(monkeypatch):
    monkeypatch.setenv("QWENLAB_PAGE", "1")
    monkeypatch.setattr(exploring, "_spent", 0)


@pytest.fixture
def live(monkeypatch):
    monkeypatch.delenv("QWENLAB_PAGE", raising=False)


def grid(pads, side):
    row = [0] * pads + [7, 8] if side == "left" else [7, 8] + [0] * pads
    return heatmap([row], title=f"{pads} {side}", pads=[[value == 0 for value in row]])


def texts(html):
    """Of the cells of a picture's rows; its head has one that is empty, in the corner."""
    return [td.text for td in BeautifulSoup(html, "html.parser").select("tbody td")]


# --- the page ---


def test_every_state_is_in_the_page(page):
    html = explore(grid, pads=range(0, 7), side=["left", "right"])._repr_html_()
    root = BeautifulSoup(html, "html.parser").find(class_="qwl-explore")
    shown = [root.find(class_="qwl-state"), *root.find_all("template")]
    states = list(itertools.product(range(0, 7), ["left", "right"]))
    assert len(shown) == len(states) == 14
    for state, element in zip(states, shown, strict=True):
        assert texts(element.decode_contents()) == [cell.text for cell in grid(*state).cells[0]]
    assert html.count("<style>") == 1  # a widget, not a state
    assert (
        root.find(class_="qwl-controls").has_attr("hidden") and root.noscript
    )  # scripts off: the first state
    slider, *buttons = root.find_all("input")
    assert (slider["type"], slider["max"]) == ("range", "6") and [b["type"] for b in buttons] == [
        "radio"
    ] * 2
    assert root.find("label", attrs={"for": slider["id"]}) and root.find(attrs={"role": "status"})
    assert "http" not in html


def test_equal_states_are_stored_once(page):
    html = explore(lambda a, b: str(a), a=[1, 2], b=["x", "y"])._repr_html_()
    assert html.count("<template>") == 1 and "which=[0, 0, 1, 1]" in html


def test_ids_are_never_used_twice(page):
    two = [
        BeautifulSoup(explore(grid, pads=[1, 2], side=["left"])._repr_html_(), "html.parser")
        for _ in range(2)
    ]
    ids = [element["id"] for soup in two for element in soup.find_all(id=True)]
    assert len(ids) == len(set(ids)) == 6


def test_too_many_states_are_refused_with_their_count(page):
    with pytest.raises(
        ValueError, match=r"63 states \(21 pads x 3 side\), a page holds at most 60"
    ):
        explore(grid, pads=range(21), side=["left", "right", "both"])


def test_too_much_html_is_refused_and_the_total_counts(page):
    def draw(n):
        return str(n) * 60_000

    explore(draw, n=[1, 2, 3])
    explore(draw, n=[1, 2, 3])
    with pytest.raises(
        ValueError, match=r"page's widgets before it 3\d\d,\d\d\d; a page holds at most 400,000"
    ):
        explore(draw, n=[1])


def test_a_failing_state_stops_the_build(page):
    with pytest.raises(ZeroDivisionError):
        explore(lambda n: str(1 / n), n=[1, 0])


def test_figures_become_small_pictures_with_alt_text_and_are_closed(page):
    from matplotlib import pyplot

    def draw(n):
        _, axes = pyplot.subplots(figsize=(3, 2))
        axes.plot([0, n])
        axes.set(title="cost", xlabel="rows", ylabel="ms")  # and forgets to return it

    html = explore(draw, n=[1, 2, 3])._repr_html_()
    assert html.count('alt="Figure: cost, ms, rows"') == 3 and html.count("data:image/png") == 3
    assert pyplot.get_fignums() == [] and len(html) < 60_000


def test_what_cannot_be_shown_is_named(page):
    with pytest.raises(TypeError, match=r"nothing to show: .* got int"):
        explore(lambda n: n, n=[1])
    with pytest.raises(ValueError, match="control 'n' has no values"):
        explore(lambda n: "x", n=[])


def test_words_are_escaped(page):
    html = explore(lambda cure: "</script><b>", cure=["<none>", "</script>"])._repr_html_()
    assert (
        html.count("<script>") == html.count("</script>") == 1
        and "<none>" not in html.split("<script>")[0]
    )


@pytest.mark.browser
@pytest.mark.skipif(not CHROMIUM, reason="no Chromium")
def test_a_browser_shows_each_state_by_keyboard(page, tmp_path):
    sync_api = pytest.importorskip("playwright.sync_api")

    def draw(pads, side, word, loud):
        return side_by_side(grid(pads, side), heatmap([[word, str(loud)]]))

    controls = dict(pads=range(3), side=["left", "right"], word=list("abcde"), loud=True)
    widgets = [
        explore(draw, **controls) for _ in range(2)
    ]  # two on a page do not disturb each other
    path = tmp_path / "page.html"
    path.write_text(
        "<!doctype html><meta charset=utf-8>" + "".join(w._repr_html_() for w in widgets),
        encoding="utf-8",
    )
    problems = []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = browser.new_page()
        tab.on("pageerror", lambda error: problems.append(str(error)))
        tab.on("console", lambda message: problems.append(message.text))
        tab.goto(path.as_uri())
        first, second = tab.locator(".qwl-explore").all()
        untouched = second.inner_text()

        def seen():
            return [td.inner_text() for td in first.locator("tbody td").all()]

        def expected(*state):
            return texts(draw(*state)._repr_html_())

        assert seen() == expected(0, "left", "a", True)
        first.locator("input[type=range]").press("End")
        assert seen() == expected(2, "left", "a", True)
        first.locator("input[type=radio]").first.press("ArrowRight")
        assert seen() == expected(2, "right", "a", True)
        first.locator("select").press("ArrowDown")
        assert seen() == expected(2, "right", "b", True)
        first.locator("input[type=checkbox]").press("Space")
        assert seen() == expected(2, "right", "b", False)
        assert (
            first.locator("[role=status]").inner_text()
            == "pads: 2, side: right, word: b, loud: False"
        )
        first.locator("input[type=range]").press("Home")
        first.locator("input[type=radio]").first.press("ArrowLeft")
        first.locator("select").select_option("0")
        first.locator("input[type=checkbox]").click()
        assert seen() == expected(0, "left", "a", True)
        assert second.inner_text() == untouched
        browser.close()
    assert problems == []


# --- live ---


def parts(box):
    controls, picture = box.children
    return controls.children, picture


def test_live_moves_leave_one_picture_and_no_open_figures(live):
    from matplotlib import pyplot

    def draw(n, kind, on):
        figure, axes = pyplot.subplots(figsize=(2, 1))
        pyplot.figure()  # a second one that nobody returns
        axes.set_title(f"{n} {kind} {on}")
        return figure

    made, picture = parts(explore(draw, n=range(1, 7), kind=["a", "b"], on=False))
    names = [type(widget).__name__ for widget in made]
    assert (
        names == ["SelectionSlider", "ToggleButtons", "Checkbox"]
        and type(picture).__name__ == "HTML"
    )
    seen = {picture.value}
    for widget, value in [(0, 3), (0, 5), (1, 1), (2, True), (0, 0)]:
        made[widget].value = value
        seen.add(picture.value)
        assert picture.value.count("<img") == 1 and pyplot.get_fignums() == []
    assert len(seen) == 6 and 'alt="Figure: 1 b True"' in picture.value


def test_live_errors_are_one_line_and_the_widget_stays_alive(live):
    (slider,), picture = parts(explore(lambda n: str(1 // n), n=[1, 0, 1]))
    slider.value = 1
    line = BeautifulSoup(picture.value.replace(STYLE, ""), "html.parser").text
    assert line == "n: 0: ZeroDivisionError: integer division or modulo by zero"
    slider.value = 2
    assert "Error" not in picture.value


def test_live_controls_by_kind(live):
    made, picture = parts(
        explore(lambda **_: "x", cure=list("abcde"), big=True, lengths=[[1, 2], [3]])
    )
    kinds = [type(widget).__name__ for widget in (*made, picture)]
    assert kinds == ["Dropdown", "Checkbox", "ToggleButtons", "HTML"]


def run_cell(monkeypatch, cell_id, draw, **controls):
    """`explore` as a cell of this id calls it in a kernel of Jupyter."""
    ran = {"header": {}, "metadata": {} if cell_id is None else {"cellId": cell_id}}
    shell = SimpleNamespace(kernel=SimpleNamespace(get_parent=lambda: ran))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    return parts(explore(draw, **controls))


def test_a_cell_that_runs_again_finds_its_controls_where_they_were_left(live, monkeypatch):
    def draw(**state):
        return f"before: {state}"

    controls = dict(n=range(2, 9), side=["left", "right"], cure=list("abcde"), loud=False)
    made, _ = run_cell(monkeypatch, "one", draw, **controls)
    for widget, value in zip(made, (4, 1, 2, True), strict=True):
        widget.value = value

    def draw(**state):  # edited
        return f"after: {state}"

    made, picture = run_cell(monkeypatch, "one", draw, **controls)
    assert [widget.value for widget in made] == [4, 1, 2, True]
    left = "{'n': 6, 'side': 'right', 'cure': 'c', 'loud': True}"
    assert f"after: {left}" in unescape(picture.value)

    # The values are kept, and not their places; one that is no longer offered begins anew.
    made, picture = run_cell(
        monkeypatch, "one", draw, **{**controls, "n": range(5, 9), "side": ["both", "left"]}
    )
    left = "{'n': 6, 'side': 'both', 'cure': 'c', 'loud': True}"
    assert f"after: {left}" in unescape(picture.value)


def test_controls_are_kept_for_their_own_cell_and_names_only(live, monkeypatch):
    def draw(**_):
        return "x"

    (slider,), _ = run_cell(monkeypatch, "two", draw, n=range(5))
    slider.value = 3
    for cell_id, name in [("three", "n"), ("two", "m"), (None, "n")]:
        (slider,), _ = run_cell(monkeypatch, cell_id, draw, **{name: range(5)})
        assert slider.value == 0
    slider.value = 2  # nobody says whose this is
    (slider,), _ = run_cell(monkeypatch, None, draw, n=range(5))
    assert slider.value == 0


def test_without_ipywidgets_one_line_says_so(live, monkeypatch):
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    shown = explore(lambda n: "x", n=[1])
    assert (
        repr(shown) == 'explore needs ipywidgets: pip install "ipywidgets>=7.7"'
        and "needs" in shown._repr_html_()
    )


@pytest.mark.browser
@pytest.mark.skipif(not CHROMIUM, reason="no Chromium")
def test_in_jupyterlab_pictures_grow_with_its_letters_and_leave_the_controls_in_view(
    live, tmp_path
):
    from matplotlib import pyplot

    sync_api = pytest.importorskip("playwright.sync_api")
    picture = heatmap([list(range(8))] * 40, title="many rows")
    figure = pyplot.figure(figsize=(3, 2))
    html = picture._repr_html_() + image(figure, "an empty figure").body
    path = tmp_path / "page.html"
    path.write_text(
        f"""<!doctype html><meta charset=utf-8><div id=elsewhere>{html}</div>
        <div class=jp-Notebook id=usual style="--jp-content-font-size1:14px">{html}</div>
        <div class=jp-Notebook id=presented style="--jp-content-font-size1:21px">
        {html}<div class=qwl-live style="display:flex;flex-direction:column">
        <div class=controls>n</div><div>{html}</div></div></div>""",
        encoding="utf-8",
    )
    measure = """id => {
      const style = (tag) => getComputedStyle(document.querySelector(`#${id} ${tag}`));
      return [parseFloat(style("tbody td").fontSize), parseFloat(style("tbody td").height),
        parseFloat(style(".qwl").fontSize), parseFloat(style("img").width)]}"""
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 960, "height": 540})
        tab.goto(path.as_uri())
        usual = tab.evaluate(measure, "usual")
        assert tab.evaluate(measure, "elsewhere") == usual and min(usual) >= 12
        assert tab.evaluate(measure, "presented") == pytest.approx([1.5 * v for v in usual])
        shown = tab.locator(".qwl-live")
        assert shown.bounding_box()["height"] <= 540 - 120
        before = shown.locator(".controls").bounding_box()
        moved = shown.evaluate("box => (box.lastElementChild.scrollTop = 300)")
        assert moved == shown.evaluate("box => box.lastElementChild.scrollTop") == 300
        assert shown.locator(".controls").bounding_box() == before
        browser.close()


# --- the Sphinx extension ---


class App:
    """As much of Sphinx as the extension uses."""

    def __init__(self, cache):
        self.events, self.srcdir, self.outdir = {}, cache.parent, cache.parent / "html"
        self.config = SimpleNamespace(
            nb_execution_cache_path=str(cache),
            qwenlab_moved={},
            qwenlab_page_models=[],
            root_doc="index",
        )
        self.builder = SimpleNamespace(format="html")

    def connect(self, event, callback, priority=500):
        self.events.setdefault(event, []).append(callback)

    def add_config_value(self, *_):
        pass

    def add_js_file(self, *_):
        pass


def test_the_extension_marks_a_build_and_only_that(monkeypatch, tmp_path):
    names = {"QWENLAB_PAGE", "OMP_NUM_THREADS"}
    for name in names:
        monkeypatch.delenv(name, raising=False)
    app = App(tmp_path / "cache")
    assert sphinx_page.setup(app)["parallel_read_safe"]
    assert os.environ["QWENLAB_PAGE"] == os.environ["OMP_NUM_THREADS"] == "1"
    for callback in app.events["build-finished"]:
        callback(app, None)
    assert not names & set(os.environ)


def test_a_build_keeps_the_threads_that_its_caller_chose(monkeypatch, tmp_path):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    app = App(tmp_path / "cache")
    sphinx_page.setup(app)
    assert os.environ["OMP_NUM_THREADS"] == "3"
    for callback in app.events["build-finished"]:
        callback(app, None)
    assert os.environ["OMP_NUM_THREADS"] == "3"


def test_a_page_at_an_old_address_leads_to_the_new_one(tmp_path):
    app = App(tmp_path / "cache")
    app.config.qwenlab_moved = {"notebooks/05-old": "notebooks/09-new", "old": "book/new"}
    sphinx_page.write_moved(app, None)
    assert 'href="09-new.html"' in (app.outdir / "notebooks" / "05-old.html").read_text(
        encoding="utf-8"
    )
    assert 'href="book/new.html"' in (app.outdir / "old.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("place", ["qwenlab", "notebooks"])
def test_executed_cells_are_kept_until_the_library_changes(monkeypatch, tmp_path, place):
    """Or a module beside the notebooks."""
    library, app = tmp_path / "qwenlab", App(tmp_path / "cache")
    for folder in (library, tmp_path / "notebooks"):
        folder.mkdir()
    monkeypatch.setattr(sphinx_page, "LIBRARY", library)
    sphinx_page.drop_stale_cache(app, app.config)
    (tmp_path / "cache" / "executed").write_text("cells", encoding="utf-8")
    sphinx_page.drop_stale_cache(app, app.config)
    assert (tmp_path / "cache" / "executed").exists()
    (tmp_path / place / "new.py").write_text("x = 1", encoding="utf-8")
    sphinx_page.drop_stale_cache(app, app.config)
    assert not (tmp_path / "cache" / "executed").exists()
