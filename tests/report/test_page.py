"""The HTML page: no text becomes markup, nothing is fetched, and everything can be read."""

from __future__ import annotations

import base64
import io
import math
import re
from importlib.resources import files

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from sklearn.decomposition import PCA

from laplacian_metric.report import Card, Gallery, Neighbour, Page, Paragraph, Picture, Section, Table
from laplacian_metric.report.evaluated import encode
from laplacian_metric.report.page import Block, plain
from laplacian_metric.report.plots import ACCENT, CLASSES, angles, principal_plane, tsne_plane
from tests.report.reading import Reader

PNG = b"\x89PNG\r\n\x1a\nrest"
CSS = (files("laplacian_metric.report") / "templates" / "page.css").read_text(encoding="utf-8")


def sample_page(text: str = "x") -> str:
    neighbours = [Neighbour(text, True, 1.0), Neighbour(text, False, 0.5)]
    blocks: list[Block] = [
        Paragraph(text),
        Table(text, (text,), [(text,)], frozenset({0})),
        Picture(PNG, text, text),
        Gallery(text, text, [Card(text, text, None, (text,), None, text, neighbours)]),
    ]
    return Page(text, [Section(text, blocks)]).html()


@given(st.text(min_size=1).filter(lambda text: plain(text).strip()))
def test_no_text_becomes_markup(text: str) -> None:
    usual, other = Reader(sample_page()), Reader(sample_page(text))
    assert [tag for tag, _ in other.tags] == [tag for tag, _ in usual.tags]
    assert other.text.count(plain(text)) >= 14
    assert other.of("img")[0]["alt"] == plain(text)


def test_nothing_is_fetched_and_pictures_are_inlined_whole() -> None:
    reader = Reader(sample_page())
    assert not reader.of("script")
    assert not reader.of("link")
    assert not re.search(r"url\(|@import", CSS)
    (source,) = [image["src"] or "" for image in reader.of("img")]
    assert base64.b64decode(source.removeprefix("data:image/png;base64,")) == PNG


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a\u202eb\u2066c", "abc"), ("a\r\n\tb", "a b"), ("\x1b[2J", "\ufffd[2J"), ("größe", "größe")],
)
def test_names_are_one_line_that_can_be_written(text: str, expected: str) -> None:
    assert plain(text) == expected


def test_a_card_says_right_and_wrong_in_words_and_symbols() -> None:
    cards = [Card("cat", "nearest is right", True), Card("dog", "nearest is wrong: cat", False)]
    reader = Reader(Page("p", [Section("s", [Gallery("g", "c", cards)])]).html())
    assert "✓ nearest is right" in reader.text
    assert "✗ nearest is wrong: cat" in reader.text


# --- thumbnails ---


def decoded(uri: str) -> npt.NDArray[np.uint8]:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.split(",", 1)[1]))))


@pytest.mark.parametrize("shape", [(28, 28), (10, 64), (32, 32, 3), (1, 1)])
def test_small_images_come_back_exactly(shape: tuple[int, ...]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    np.testing.assert_array_equal(decoded(encode(pixels)), pixels)


@pytest.mark.parametrize(
    ("shape", "side", "expected"), [((300, 200, 3), 100, (100, 67, 3)), ((200, 400), 64, (32, 64))]
)
def test_large_images_are_scaled(shape: tuple[int, ...], side: int, expected: tuple[int, ...]) -> None:
    pixels = np.full(shape, 200, dtype=np.uint8)
    pixels[: shape[0] // 2] = 20
    small = decoded(encode(pixels, side))
    assert small.shape == expected
    assert abs(float(small[0, 0].mean()) - 20) < 6
    assert abs(float(small[-1, -1].mean()) - 200) < 6


# --- colours ---


LIGHT, DARK = (
    dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", part)) for part in CSS.split("prefers-color-scheme: dark", 1)
)


def contrast(first: str, second: str) -> float:
    """The contrast of two colours as the Web Content Accessibility Guidelines define it, 1 to 21."""
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    channels = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_all_text_and_all_points_can_be_seen() -> None:
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.005)  # as the guidelines say
    assert LIGHT.keys() == DARK.keys()
    for colours in (LIGHT, DARK):
        for name in ("text", "quiet", "right", "wrong"):
            assert contrast(colours[name], colours["paper"]) >= 4.5, name
    assert all(contrast(colour, "#ffffff") >= 4.5 for colour in (*CLASSES, ACCENT))


def directions(number: int, dim: int, seed: int = 0) -> torch.Tensor:
    z = torch.randn(number, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.nn.functional.normalize(z, dim=1)


def test_angles_are_those_of_a_loop() -> None:
    z = directions(12, 5).numpy()
    expected = [[math.acos(max(-1, min(1, float(a @ b)))) for b in z] for a in z]
    np.testing.assert_allclose(angles(z), expected, atol=3e-8)
    assert angles(np.stack([z[0], -z[0]]))[0, 1] == pytest.approx(math.pi)


@pytest.mark.parametrize("shape", [(12, 5), (3, 7), (8, 2)])
def test_components_are_those_of_scikit_learn(shape: tuple[int, int]) -> None:
    z = directions(*shape).numpy()
    expected = PCA(2).fit_transform(z)
    np.testing.assert_allclose(np.abs(principal_plane(z)), np.abs(expected), atol=1e-9)


def test_clusters_stay_together_and_the_seed_decides() -> None:
    labels = np.arange(60) % 3
    z = directions(3, 16)[labels] + 0.1 * directions(60, 16, seed=1)
    plane = tsne_plane(z, seed=3)
    distance = np.linalg.norm(plane[:, None] - plane[None], axis=2)
    np.fill_diagonal(distance, np.inf)
    assert (labels[distance.argmin(1)] == labels).all()
    np.testing.assert_array_equal(plane, tsne_plane(z, seed=3))


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("dim", [1, 2, 3])
def test_few_images_are_drawn_too(number: int, dim: int) -> None:
    plane = tsne_plane(directions(number, dim))
    assert plane.shape == (number, 2)
    assert np.isfinite(plane).all()


def test_images_in_one_place_are_in_one_place() -> None:
    assert (tsne_plane(torch.ones(20, 4)) == 0).all()
