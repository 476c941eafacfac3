"""The blocks: what is in them without a script, that nothing breaks out, and that the numbers are right."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from laplacian_metric import metrics
from laplacian_metric.metrics.sparsification import refusals, wilson
from laplacian_metric.report import Page, Paragraph, Section
from laplacian_metric.report.blocks import (
    Card,
    Gallery,
    Image,
    Neighbour,
    Point,
    RefusalSlider,
    Scatter,
    texts,
)
from laplacian_metric.report.blocks.refusal import _Axes
from laplacian_metric.report.blocks.scatter import HEIGHT, WIDTH
from laplacian_metric.report.blocks.texts import attributes, data_script, plain
from laplacian_metric.report.page import INTERACTIVE, Enhancement, asset
from tests.report.reading import HOSTILE, Reader

PIXEL = Image("data:image/png;base64,iVBORw0KGgo=", small=True)


def gallery(text: str = "coat") -> Gallery:
    neighbours = [Neighbour(text, True, 0.9, PIXEL), Neighbour(text, False, 1.0)]
    cards = [
        Card(text, text, False, [text], PIXEL, text, neighbours),
        Card(text, text, None),
        Card(text, text, True),
    ]
    return Gallery(text, text, cards)


def scatter(text: str = "coat") -> Scatter:
    points = [
        Point(0.0, 0.0, 0, 0.1, [text, text], PIXEL),
        Point(4.0, 1.0, 0, 0.9, [text]),
        Point(2.0, 3.0, 1, 0.5, [text]),
    ]
    return Scatter(text, points, [text, text], known=1)


def slider(text: str = "digits") -> RefusalSlider:
    generator = np.random.default_rng(0)
    uncertainty = generator.random(200)
    wrong = generator.random(200) < uncertainty / 2
    return RefusalSlider(text, refusals(uncertainty, wrong, {text: generator.random(50) + 0.5}))


def page(text: str = "coat") -> str:
    return Page(text, [Section(text, [gallery(text), Paragraph(text), scatter(text), slider(text)])]).html()


# --- nothing breaks out ---


@settings(max_examples=25)
@given(st.text(min_size=1).filter(lambda text: plain(text) != ""))
def test_no_text_becomes_markup(text: str) -> None:
    usual, other = Reader(page()), Reader(page(plain(text)))
    assert [(tag, sorted(names)) for tag, names in other.tags] == [
        (tag, sorted(names)) for tag, names in usual.tags
    ]
    assert other.data()[0]["points"][0]["lines"] == [plain(text)]


def test_a_hostile_label_stays_text() -> None:
    html = page(HOSTILE)
    reader = Reader(html)
    assert "<img src=x" not in html
    assert all(attributes.get("src") != "x" for attributes in reader.of("img"))
    assert len(reader.holding("script")) == 1
    assert reader.text.count(HOSTILE) > 20
    points, rows = reader.data()
    assert {line for point in points["points"] for line in point["lines"]} == {HOSTILE}
    assert len(rows["rows"]) == 100
    buttons = [button["aria-label"] for button in reader.of("button")]
    assert buttons == [f"Larger view of {HOSTILE}"] * 3


@settings(max_examples=50)
@given(st.recursive(st.text() | st.integers(), lambda inner: st.lists(inner, max_size=3), max_leaves=5))
def test_data_come_back_and_hold_nothing_that_html_knows(data: Any) -> None:
    written = data_script({"data": data})
    inner = written.removeprefix('<script type="application/json">').removesuffix("</script>")
    assert not set(inner) & set("<>&\u2028\u2029")
    assert json.loads(inner) == {"data": data}


def test_numbers_that_json_does_not_know_are_refused() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        data_script([math.inf])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\u202eb", "ab"),
        ("a\udc80b", "a\ufffdb"),
        ("a\x00b", "a\ufffdb"),
        ("a\r\nb", "a b"),
        (" a\tb ", "a b"),
        ("größe ✓", "größe ✓"),
    ],
)
def test_names_are_one_line_that_can_be_written(text: str, expected: str) -> None:
    assert plain(text) == expected
    assert plain(text).encode("utf-8")


def test_attributes_are_escaped() -> None:
    reader = Reader(f"<img{attributes(alt=HOSTILE, aria_label=HOSTILE, title=None, width=3)}>")
    assert reader.tags == [("img", {"alt": HOSTILE, "aria-label": HOSTILE, "width": "3"})]


@pytest.mark.parametrize(
    "uri",
    [
        "javascript:alert(1)",
        "https://example.org/a.png",
        'data:image/png;base64,AA" onerror="x',
        "data:image/svg+xml;base64,AA",
        "",
    ],
)
def test_only_inlined_pictures_are_images(uri: str) -> None:
    with pytest.raises(ValueError, match="a PNG or JPEG as a data URI"):
        Image(uri)


# --- the policy ---


def digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_the_policy_allows_this_script_and_this_style_alone() -> None:
    reader = Reader(page())
    (script,), (style,) = reader.holding("script"), reader.holding("style")
    directives = dict(part.strip().split(" ", 1) for part in reader.policy.split(";"))
    assert directives == {
        "default-src": "'none'",
        "img-src": "data:",
        "style-src": digest(style),
        "script-src": digest(script),
        "require-trusted-types-for": "'script'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    for _, attrs in reader.tags:
        assert not any(name.startswith("on") for name in attrs)
        assert not {"style", "href", "id"} & set(attrs)
        assert (attrs.get("src") or "data:").startswith("data:")


def test_the_script_puts_nothing_into_the_page_but_text() -> None:
    forbidden = r"innerHTML|outerHTML|insertAdjacent|document\.write|eval|Function\(|\bon\w+="
    forbidden += "|fetch|XMLHttp|import|WebSocket|EventSource|sendBeacon"
    assert re.findall(forbidden, INTERACTIVE.script) == []


def test_a_page_without_such_blocks_has_no_script() -> None:
    html = Page("t", [Section("s", [Paragraph("p")])]).html()
    assert "script" not in html
    assert "trusted" not in html


@pytest.mark.parametrize("text", ["a </script> b", "</STYLE>", "<!-- x", "a\rb"])
def test_an_enhancement_cannot_end_early(text: str) -> None:
    with pytest.raises(ValueError, match="reword it"):
        Enhancement(text, text)


# --- the blocks without a script ---


def test_a_card_says_right_and_wrong_in_words_symbols_and_colours() -> None:
    reader = Reader(gallery().html())
    classes = [attrs.get("class") for tag, attrs in reader.tags if tag == "li"]
    assert classes == ["card", "right", "wrong", "card", "card"]
    assert "✓ right" in reader.text
    assert "✗ wrong" in reader.text
    assert "25.8°" in reader.text  # the arc cosine of 0.9
    assert all("hidden" in attrs for attrs in reader.of("button"))
    assert all(attrs["alt"] for attrs in reader.of("img"))


def test_points_are_larger_and_paler_where_the_uncertainty_is_greater() -> None:
    reader = Reader(scatter().html())
    marks = [mark for mark in reader.of("path") if "transform" in mark]
    scales = [float(str(mark["transform"]).split("scale(")[1].rstrip(")")) for mark in marks]
    assert scales == sorted(scales, reverse=True)
    assert scales[0] == pytest.approx(3 + 6 * 0.9)
    opacity = [float(str(mark["fill-opacity"])) for mark in marks if mark["fill"] != "none"]
    assert opacity == sorted(opacity)
    assert [mark["fill"] == "none" for mark in marks] == [False, True, False]
    assert "(OOD)" in reader.text


def test_the_map_keeps_the_shape_and_stays_inside() -> None:
    (data,) = Reader(scatter().html()).data()
    places = np.array([(point["x"], point["y"]) for point in data["points"]])
    assert (places >= 0).all()
    assert (places <= [WIDTH, HEIGHT]).all()
    coordinates = np.array([(4.0, 1.0), (2.0, 3.0), (0.0, 0.0)])  # the least certain first
    sides = [
        np.linalg.norm(np.diff(points[[0, 1, 2, 0]], axis=0), axis=1) for points in (places, coordinates)
    ]
    np.testing.assert_allclose(sides[0] / sides[0][0], sides[1] / sides[1][0], atol=0.01)
    assert places[1, 1] == places[:, 1].min()  # upwards is up


def test_a_single_point_is_in_the_middle() -> None:
    (data,) = Reader(Scatter("t", [Point(7.0, 7.0, 0, 0.5, ["a"])], ["a"], 1).html()).data()
    assert (data["points"][0]["x"], data["points"][0]["y"]) == (WIDTH / 2, HEIGHT / 2)


def test_a_long_legend_is_folded_away() -> None:
    names = [f"kind {k}" for k in range(30)]
    points = [Point(float(k), 0.0, k, 0.5, [name]) for k, name in enumerate(names)]
    reader = Reader(Scatter("t", points, names, 30).html())
    assert "Legend of 30 groups" in reader.text
    assert len(reader.of("summary")) == 1


def test_blocks_name_what_is_wrong_with_them() -> None:
    with pytest.raises(ValueError, match="the gallery 'x' has no cards"):
        Gallery("x", "", [])
    with pytest.raises(ValueError, match="the plot 'x' has no points"):
        Scatter("x", [], [], 0)
    with pytest.raises(ValueError, match="of group 2, there are 1 groups"):
        Scatter("x", [Point(0.0, 0.0, 2, 0.5, ["a"])], ["a"], 1)
    with pytest.raises(ValueError, match="both have to be finite"):
        Point(math.nan, 0.0, 0, 0.5, ["a"])
    with pytest.raises(ValueError, match=r"uncertainty 1\.5"):
        Point(0.0, 0.0, 0, 1.5, ["a"])
    with pytest.raises(ValueError, match="has no lines"):
        Point(0.0, 0.0, 0, 0.5, [])
    with pytest.raises(ValueError, match="has 1 rows; 100 are needed"):
        RefusalSlider("x", slider().rows[:1])


# --- refusing ---


def by_loop(
    uncertainty: list[float], wrong: list[bool], outside: list[float], percent: int
) -> tuple[float, ...]:
    """What is answered, found by trying every threshold: refuse as many as asked for, but no more."""
    number = len(uncertainty)
    for threshold in sorted(set(uncertainty)):
        kept = [error for score, error in zip(uncertainty, wrong, strict=True) if score <= threshold]
        if number - len(kept) <= percent * number // 100:
            refused = sum(score > threshold for score in outside) / len(outside)
            return threshold, len(kept), sum(kept), refused
    raise AssertionError


@settings(max_examples=30)
@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 0.1, 0.5, 2.0, math.inf]), st.booleans()), min_size=1, max_size=20
    )
)
def test_every_row_is_what_its_threshold_does(queries: list[tuple[float, bool]]) -> None:
    uncertainty, wrong = [score for score, _ in queries], [error for _, error in queries]
    outside = [0.2, 0.5, math.inf]
    rows = refusals(uncertainty, wrong, {"out": outside})
    assert len(rows) == 100
    for percent in (0, 1, 33, 50, 99):
        row = rows[percent]
        counted = (row.threshold, row.answered, row.wrong, row.ood["out"])
        assert counted == pytest.approx(by_loop(uncertainty, wrong, outside, percent))


def test_without_ties_it_is_the_sparsification_curve() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(130) % 4
    z = torch.nn.functional.normalize(torch.randn(130, 3, generator=generator), dim=1)
    uncertainty = torch.rand(130, generator=generator).double()
    ranking = metrics.rank(z, labels)
    rows = refusals(uncertainty.numpy(), ranking.first_is_right().numpy() == 0)
    curve = metrics.sparsify(ranking, uncertainty).curve
    np.testing.assert_allclose([1 - row.error for row in rows], curve.numpy(), atol=1e-12)


@pytest.mark.parametrize(("hits", "number"), [(0, 5), (5, 5), (3, 17), (1, 1000)])
def test_intervals_are_wilsons(hits: int, number: int) -> None:
    expected = stats.binomtest(hits, number).proportion_ci(method="wilson")
    assert wilson(hits, number) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_the_table_and_the_data_of_the_slider_say_the_same() -> None:
    block = slider()
    reader = Reader(block.html())
    (data,) = reader.data()
    assert [row["texts"] for row in data["rows"]] == [block.readings(row) for row in block.rows]
    assert len(reader.of("tr")) == 11
    for percent in range(0, 100, 10):
        for text in block.readings(block.rows[percent]):
            assert text in reader.texts
    (control,) = (element for element in reader.of("div") if element.get("class") == "control")
    assert "hidden" in control
    places = np.array([(row["x"], row["y"]) for row in data["rows"]])
    assert (np.diff(places[:, 0]) > 0).all()
    errors = np.array([row.error for row in block.rows])
    slope, _ = np.polyfit(errors, places[:, 1], 1)
    assert slope < 0
    assert np.corrcoef(errors, places[:, 1])[0, 1] < -0.9999


@pytest.mark.parametrize("largest", [0.0, 0.001, 0.04, 0.123, 0.5, 0.97, 1.0])
def test_the_axis_has_room_for_the_largest_error(largest: float) -> None:
    axes = _Axes(largest)
    assert largest <= axes.top <= 1
    assert 3 <= Reader(f"<svg>{axes.html()}</svg>").text.count("%") - 7 <= 8  # on the axis that goes up


def test_wrong_input_is_named() -> None:
    with pytest.raises(ValueError, match="wrong has shape"):
        refusals([0.1], [0, 1])
    with pytest.raises(ValueError, match=r"uncertainty has shape \(0,\)"):
        refusals([], [])
    with pytest.raises(ValueError, match="digits has NaN in 1 of 2"):
        refusals([0.1], [0], {"digits": [0.1, math.nan]})


# --- colours ---


LIGHT, DARK = (
    dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", part))
    for part in asset("page.css").split("prefers-color-scheme: dark", 1)
)


def contrast(first: str, second: str) -> float:
    """The contrast of two colours as the Web Content Accessibility Guidelines define it, 1 to 21."""
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    channels = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_contrast_is_that_of_the_guidelines() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.005)
    assert contrast("#ff0000", "#ffffff") == pytest.approx(4.0, abs=0.005)


@pytest.mark.parametrize("colours", [LIGHT, DARK])
@pytest.mark.parametrize("name", ["text", "quiet", "right", "wrong", "accent"])
def test_all_text_can_be_read(name: str, colours: dict[str, str]) -> None:
    assert contrast(colours[name], colours["paper"]) >= 4.5
    assert contrast(colours[name], colours["panel"]) >= 4.5


def test_the_dark_page_has_every_colour_of_the_light_one() -> None:
    assert DARK.keys() == LIGHT.keys()


def test_plots_have_the_accent_of_the_page() -> None:
    assert LIGHT["accent"] == texts.ACCENT


@pytest.mark.parametrize("colour", [*texts.CLASSES, texts.OOD])
def test_all_points_can_be_seen(colour: str) -> None:
    assert contrast(colour, LIGHT["paper"]) >= 4.5
    assert len(set(texts.CLASSES)) == len(texts.CLASSES)


def test_the_style_uses_no_further_colours_for_text() -> None:
    written = re.findall(r"(?<![-\w])color: ([^;]+);", INTERACTIVE.style)
    assert written
    on_white = "#1c2430"  # the legend's, whose ground stays white for the colours of the points
    assert contrast(on_white, "#ffffff") >= 4.5
    assert all(colour == on_white or colour.startswith("var(--") for colour in written)
