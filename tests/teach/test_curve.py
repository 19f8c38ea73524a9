"""teach.curve: medians and spread on log axes, as light SVG with its numbers beneath, and as a
figure."""

import re
from types import SimpleNamespace

import pytest
from bs4 import BeautifulSoup

from qwenlab.teach import curve, explore, palette

SERIES = {
    "measured": [(4, 1100, 1000, 1200), (1, 340, 300, 350), (2, 600, 500, 650)],
    "roofline": [(rows, 900 * rows) for rows in (1, 2, 4, 8)],
}


def soup(picture):
    return BeautifulSoup(picture.body, "html.parser")


def test_the_numbers_are_behind_the_picture():
    picture = curve(SERIES, x="rows", y="tokens/s", title="Throughput")
    table = soup(picture).details.table
    assert [th.text for th in table.find_all("th")] == ["rows", "measured", "roofline"]
    lines = [[td.text for td in tr.find_all("td")] for tr in table.tbody.find_all("tr")]
    assert lines == [
        ["1", "340 (300 to 350)", "900"],
        ["2", "600 (500 to 650)", "1,800"],
        ["4", "1,100 (1,000 to 1,200)", "3,600"],
        ["8", "", "7,200"],
    ]
    assert [line.split("  ") for line in repr(picture).splitlines()[1:]] == lines


def test_values_stand_at_the_points_and_series_differ_without_colour():
    picture = curve(SERIES, x="rows", y="tokens/s")
    words = [text.text for text in soup(picture).svg.find_all("text")]
    for label in (
        "340",
        "600",
        "1,100",
        "900",
        "7,200",
        "measured",
        "roofline",
        "rows",
        "tokens/s",
    ):
        assert label in words
    lines = [bar.lines[0] for bar in picture.figure().axes[0].containers]
    assert (
        len({line.get_marker() for line in lines})
        == len({line.get_linestyle() for line in lines})
        == 2
    )
    some = [text.text for text in soup(curve(SERIES, labels=["measured"])).svg.find_all("text")]
    assert "340" in some and "7,200" not in some


def test_small_numbers_keep_their_digits():
    """Coordinates are cut to two decimals to save bytes, words aren't."""
    svg = soup(curve({"a": [(1, 0.00123), (2, 0.207)]})).svg
    words = [text.text for text in svg.find_all("text")]
    assert {"0.00123", "0.207", "0.005"} <= set(words)
    assert not any(re.search(r"\.\d{3}", path["d"]) for path in svg.find_all("path"))


def test_the_spread_is_drawn_where_there_is_one():
    measured, roofline = curve(SERIES).figure().axes[0].containers
    assert measured.has_yerr and not roofline.has_yerr
    segments = measured.lines[2][0].get_segments()
    assert [sorted(segment[:, 1].tolist()) for segment in segments] == [
        [300, 350],
        [500, 650],
        [1000, 1200],
    ]


@pytest.mark.parametrize("log", ["xy", "x", "y", ""])
def test_axes_are_logarithmic_as_asked(log):
    axes = curve(SERIES, log=log).figure().axes[0]
    assert (axes.get_xscale(), axes.get_yscale()) == (
        "log" if "x" in log else "linear",
        "log" if "y" in log else "linear",
    )
    if "x" in log:
        assert [text.get_text() for text in axes.get_xticklabels()] == ["1", "2", "4", "8"]


def test_it_follows_the_theme_and_disturbs_nothing_else():
    """Colours are variables, no style rule leaks into the page, no id repeats with another meaning."""
    body = curve(SERIES, title="<b>").body
    svg = re.search(r"<svg.*</svg>", body)[0]
    assert not re.findall(r":\s*#[0-9a-f]{3,6}", svg)
    assert "var(--qwl-curve-0)" in svg and "var(--qwl-muted)" in svg
    assert (
        "<style" not in svg
        and "clip-path" not in svg
        and "font-family" not in svg
        and "<b>" not in body
    )
    assert len(body) < 12_000
    assert body == curve(SERIES, title="<b>").body  # the same each time


def test_a_marker_has_one_look_in_the_whole_page():
    """The ids of markers repeat from picture to picture, so the same id must mean the same drawing."""
    pictures = [curve(SERIES), curve(SERIES, log=""), curve(dict(reversed(SERIES.items())))]
    looks = re.findall(
        r'<path id="(\w+)" d="([^"]*)" style="([^"]*)"',
        "".join(picture.body for picture in pictures),
    )
    assert len({name for name, *_ in looks}) == len(set(looks)) > 4


def test_alt_text():
    words = curve(SERIES, x="rows", y="tokens/s", title="Throughput").alt
    assert words == (
        "Throughput: tokens/s over rows. measured goes from 340 at 1 to 1,100 at 4; "
        "roofline goes from 900 at 1 to 7,200 at 8."
    )
    assert soup(curve(SERIES, alt="mine")).find(role="img")["aria-label"] == "mine"


def test_a_spread_of_the_bench_is_a_point():
    spread = SimpleNamespace(median=2.0, low=1.5, high=4.0)
    assert curve({"a": [(1, spread)]}).table()[1] == ["1", "2 (1.5 to 4)"]


def test_pictures_to_compare_have_the_same_axis():
    tall = curve({"a": [(1, 2), (2, 90)]}, y_range=(0.01, 100)).figure().axes[0]
    flat = curve({"a": [(1, 20), (2, 21)]}, y_range=(0.01, 100)).figure().axes[0]
    assert tall.get_ylim() == flat.get_ylim() == (0.01, 100)
    labels = [text.get_text() for text in flat.get_yticklabels()]
    assert [label for label in labels if label in ("0.01", "0.1", "1", "2", "5", "10", "100")] == [
        "0.01", "0.1", "1", "10", "100",
    ]  # fmt: skip
    with pytest.raises(ValueError, match="'a' goes from 2"):
        curve({"a": [(1, 2)]}, y_range=(3, 100))


def test_labels_of_the_x_axis_have_room():
    close = curve({"a": [(1, 2), (256, 3), (283, 4)]}).figure().axes[0]
    assert "283" not in [text.get_text() for text in close.get_xticklabels()]


@pytest.mark.parametrize(
    ("series", "words"),
    [
        ({}, "0 series, expected 1 to 4"),
        ({"a": []}, "'a' has no points"),
        ({"a": [(1, 5, 6, 7)]}, "the median between"),
        ({"a": [(1, float("nan"))]}, "expected finite"),
        ({"a": [(0, 5)]}, "a log axis shows only numbers above 0"),
    ],
)
def test_bad_input_gets_one_line(series, words):
    with pytest.raises(ValueError, match=words):
        curve(series)


def test_inside_explore_no_figure_stays_open(monkeypatch):
    from matplotlib import pyplot

    monkeypatch.setenv("QWENLAB_PAGE", "1")
    html = explore(lambda rows: curve({"a": [(1, 2), (rows, 5)]}), rows=[2, 4, 8])._repr_html_()
    assert html.count("<template>") == 2 and pyplot.get_fignums() == []


@pytest.mark.parametrize("theme", [palette.LIGHT, palette.DARK], ids=["light", "dark"])
def test_every_line_and_its_labels_can_be_read(theme):
    for i in range(4):
        low, high = sorted(
            (palette.luminance(theme[f"curve-{i}"]), palette.luminance(theme["paper"]))
        )
        assert (high + 0.05) / (low + 0.05) >= 4.5
    assert "var(--qwl-curve-0)" in curve(SERIES).body
