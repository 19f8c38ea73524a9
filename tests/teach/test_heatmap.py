"""teach.heatmap: the one visual language, as HTML, as text and as a matplotlib figure."""

import math
import shutil

import numpy as np
import pytest
import torch
from bs4 import BeautifulSoup

from qwenlab.teach import heatmap, image, palette, side_by_side


def cells(picture):
    """[[(text, classes), ...], ...] of a heatmap's HTML."""
    table = BeautifulSoup(picture._repr_html_(), "html.parser").table
    return [
        [(td.text, td["class"]) for td in tr.find_all("td")] for tr in table.tbody.find_all("tr")
    ]


def test_tokens_and_pads():
    picture = heatmap(
        [["pad", "2", "\n"], ["3", " +", "<b>"]],
        pads=[[True, False, False], [False] * 3],
        title="ids",
    )
    assert cells(picture) == [
        [("pad", ["p"]), ("2", ["t"]), ("⏎", ["t"])],
        [("3", ["t"]), ("␣+", ["t"]), ("<b>", ["t"])],
    ]
    assert BeautifulSoup(picture._repr_html_(), "html.parser").figcaption.text == "ids"


@pytest.mark.parametrize("make", [torch.tensor, np.array, list], ids=["tensor", "numpy", "lists"])
def test_a_mask_says_one_or_zero_and_is_light_or_dark(make):
    picture = heatmap(make([[True, False], [True, True]]))
    assert cells(picture) == [[("1", ["a"]), ("0", ["m"])], [("1", ["a"]), ("1", ["a"])]]


def test_numbers_are_readable_and_nan_is_the_only_alarm():
    picture = heatmap(torch.tensor([[0.5, -1.0, math.nan], [-math.inf, 0.0, 1e-38]]))
    (a, b, c), (d, e, f) = cells(picture)
    assert [x[0] for x in (a, b, c, d, e, f)] == ["0.50", "-1.00", "NaN", "-inf", "0", "1.0e-38"]
    assert (a[1], b[1], c[1], d[1]) == (["v"], ["g", "w"], ["n"], ["m"])
    assert "NaN" in repr(picture) and "-1.00" in repr(picture)


def test_nan_is_seen_even_at_a_pad():
    assert cells(heatmap([[math.nan, 1.0]], pads=[[True, True]])) == [
        [("NaN", ["n"]), ("1.00", ["p"])]
    ]


def test_a_dark_cell_can_say_why_and_a_row_can_be_faint():
    why = [["", "later"], ["pad", ""]]
    picture = heatmap([[True, False], [False, True]], texts=why, faint=[0], title="why")
    assert cells(picture) == [[("", ["a"]), ("later", ["m"])], [("pad", ["m"]), ("", ["a"])]]
    rows = BeautifulSoup(picture._repr_html_(), "html.parser").tbody.find_all("tr")
    assert [row.get("class") for row in rows] == [["faint"], None]
    assert "later" in repr(picture) and "0" not in repr(picture).splitlines()[2][3:]
    axes = picture.figure().axes[0]
    assert [patch.get_alpha() for patch in axes.patches] == 2 * [palette.FAINT] + 2 * [1]
    inks = {text.get_text(): text.get_color() for text in axes.texts if text.get_text()}
    assert inks == {"later": palette.LIGHT["ink"], "pad": "#ffffff"}  # a faint cell is pale


def test_axes_carry_the_labels_and_the_alt_text_is_there():
    picture = heatmap([[1, 2]], ["row 7"], ["a", "\n"], title="ids", alt="two ids")
    soup = BeautifulSoup(picture._repr_html_(), "html.parser")
    assert [th.text for th in soup.find_all("th")] == ["a", "⏎", "row 7"]
    assert soup.find(attrs={"aria-label": "two ids"})
    assert heatmap([[1, 2]], title="ids").alt == "ids: 1 rows, 2 columns."


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            dict(values=torch.zeros(1, 1, 2, 2)),
            r"values must be a matrix, got shape \(1, 1, 2, 2\)",
        ),
        (dict(values=[]), "values is empty"),
        (dict(values=[[1, 2], [3]]), "row 1 of values has 1 cells, row 0 has 2"),
        (dict(values=[[1, 2]], rows=["a", "b"]), "2 labels in rows, but the matrix has 1 rows"),
        (dict(values=[[1, 2]], pads=[[True]]), "pads is 1 x 1, values are 1 x 2"),
        (dict(values=[[1, 2]], texts=[["a"]]), "texts is 1 x 1, values are 1 x 2"),
    ],
)
def test_bad_input_gets_one_line(arguments, words):
    with pytest.raises(ValueError, match=words):
        heatmap(**arguments)


def test_a_grid_takes_about_three_kilobytes():
    assert len(heatmap([[151643] * 12] * 6, title="ids").body) < 3000


def test_the_figure_says_the_same_and_none_stays_open():
    from matplotlib import pyplot

    picture = heatmap(
        [[1.0, math.nan], [0.25, -math.inf]],
        ["r0", "r1"],
        ["x", "$"],
        title="scores",
        pads=[[1, 0], [0] * 2],
    )
    figure = picture.figure()
    axes = figure.axes[0]
    assert [text.get_text() for text in axes.texts] == ["1.00", "NaN", "0.25", "-inf"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["r0", "r1"]
    assert axes.get_title() == "scores" and axes.patches[0].get_hatch()
    assert image(figure, "scores")._repr_html_().count('alt="scores"') == 1
    assert pyplot.get_fignums() == []


def test_side_by_side_has_one_style_sheet():
    html = side_by_side(heatmap([[1]]), heatmap([[2]]))._repr_html_()
    assert html.count("<style>") == 1 and html.count("<table") == 2


def contrast(a, b):
    low, high = sorted((palette.luminance(a), palette.luminance(b)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [palette.LIGHT, palette.DARK], ids=["light", "dark"])
def test_every_text_can_be_read(theme):
    pairs = [
        ("ink", "paper"),
        ("muted", "paper"),
        ("pad-ink", "pad"),
        ("pad-ink", "hatch"),
        ("good", "paper"),
    ]
    pairs = [(theme[a], theme[b]) for a, b in pairs]
    pairs += [("#000000", theme["token"]), ("#000000", theme["allowed"])]
    pairs += [("#ffffff", theme["masked"]), ("#ffffff", theme["alarm"])]
    assert min(contrast(*pair) for pair in pairs) >= 4.5
    scale = [
        palette.mix(level, high) for level in range(101) for high in (palette.PLUS, palette.MINUS)
    ]
    assert min(contrast(colour, palette.ink_on(colour)) for colour in scale) >= 4.5


def test_pictures_with_one_vmax_give_equal_numbers_equal_colours():
    def colours(values, **options):
        table = BeautifulSoup(heatmap(values, **options)._repr_html_(), "html.parser").table
        return [td["style"] for td in table.tbody.find_all("td")]

    first, second = [[0.5, 1.0]], [[0.5, 4.0]]
    assert colours(first)[0] != colours(second)[0]
    assert colours(first, vmax=2.0)[0] == colours(second, vmax=2.0)[0]
    assert colours(second, vmax=2.0)[1] == colours([[2.0]], vmax=2.0)[0]  # no darker than vmax


def test_an_unknown_name_is_answered_by_name():
    import qwenlab.teach

    with pytest.raises(AttributeError, match=r"no 'heatmaq'; it has .*heatmap"):
        _ = qwenlab.teach.heatmaq


def test_a_mask_with_focus_lets_every_row_be_picked_and_says_what_it_sees():
    picture = heatmap([[True, False], [False, False]], ["q0", "q1"], ["a", "<"], focus=True)
    table = BeautifulSoup(picture._repr_html_(), "html.parser").table
    rows = table.tbody.find_all("tr")
    assert "see" in table["class"] and [row["tabindex"] for row in rows] == ["0", "0"]
    assert [row["aria-label"] for row in rows] == ["q0 sees a", "q1 sees nothing"]
    plain = heatmap([[True, False], [False, False]], ["q0", "q1"], ["a", "<"])
    assert "tr tabindex" not in plain._repr_html_() and repr(plain) == repr(picture)
    assert [text.get_text() for text in picture.figure().axes[0].texts] == ["1", "0", "0", "0"]


@pytest.mark.browser
@pytest.mark.skipif(not shutil.which("chromium"), reason="no Chromium")
def test_a_picked_row_outlines_its_keys_and_underlines_their_columns(tmp_path):
    sync_api = pytest.importorskip("playwright.sync_api")
    path = tmp_path / "page.html"
    mask = [[True, False, True], [False, False, True]]
    path.write_text(
        "<!doctype html><meta charset=utf-8>"
        + heatmap(mask, columns=list("abc"), focus=True)._repr_html_(),
        encoding="utf-8",
    )
    outlined = "[...document.querySelectorAll('tbody td')].map((td) => getComputedStyle(td).outlineStyle == 'solid')"
    underlined = (
        "[...document.querySelectorAll('thead th')]"
        ".map((th) => getComputedStyle(th).textDecorationLine == 'underline')"
    )
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        tab = browser.new_page()
        tab.goto(path.as_uri())
        assert not any(tab.evaluate(outlined) + tab.evaluate(underlined))
        for pick in (
            lambda row: row.locator("th").hover(),
            lambda row: (tab.mouse.move(0, 0), row.focus()),
        ):
            for i, row in enumerate(tab.locator("tbody tr").all()):
                pick(row)
                assert tab.evaluate(outlined) == [
                    see and r == i for r, line in enumerate(mask) for see in line
                ]
                assert tab.evaluate(underlined) == mask[i]
        browser.close()
