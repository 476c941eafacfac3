"""The HTML page, its plots, and that a folder of results is written whole or not at all."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from laplacian_metric.report import OutputFolderError, Page, Paragraph, Picture, Section, Table, output_folder
from laplacian_metric.report.plots import (
    concentration_histograms,
    loss_curve,
    signed_histograms,
)
from tests.report.reading import Reader

PNG = b"\x89PNG\r\n\x1a\nrest"


def sample_page(text: str = "x") -> str:
    blocks = [Paragraph(text), Table(text, (text,), [(text,)], frozenset({0})), Picture(PNG, text, text)]
    return Page(text, [Section(text, blocks)]).html()


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1).filter(lambda text: text.strip()))
def test_no_text_becomes_markup(text: str) -> None:
    plain, other = Reader(sample_page()), Reader(sample_page(text))
    assert [tag for tag, _ in other.tags] == [tag for tag, _ in plain.tags]
    assert "".join(other.texts).count(text) >= 7
    assert next(attributes for tag, attributes in other.tags if tag == "img")["alt"] == text


def test_markup_in_a_label_stays_text() -> None:
    page = sample_page('"><script>alert(1)</script>')
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_the_policy_allows_the_style_and_nothing_from_elsewhere() -> None:
    page = sample_page()
    reader = Reader(page)
    policy = next(a["content"] for _, a in reader.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    style = re.search("<style>(.*?)</style>", page, flags=re.DOTALL)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style.group(1).encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    for _, attributes in reader.tags:
        assert "style" not in attributes
        assert "href" not in attributes
        assert attributes.get("src", "data:").startswith("data:")  # type: ignore[union-attr]


def test_a_picture_is_inlined_whole() -> None:
    source = next(a["src"] for tag, a in Reader(sample_page()).tags if tag == "img")
    assert source is not None
    assert base64.b64decode(source.removeprefix("data:image/png;base64,")) == PNG


def test_blocks_name_what_is_wrong_with_them() -> None:
    with pytest.raises(ValueError, match="row 1 of the table 'times' has 1 cells for 2 columns"):
        Table("times", ("a", "b"), [("1", "2"), ("3",)])
    with pytest.raises(ValueError, match="'loss' is not a PNG"):
        Picture(b"<svg>", "alt", "loss")
    with pytest.raises(ValueError, match="'loss' has no alt text"):
        Picture(PNG, " ", "loss")


PLOTS: list[Callable[[], bytes]] = [
    lambda: loss_curve([1.0, 0.5, 0.4], steps_per_epoch=2),
    lambda: concentration_histograms({"a": torch.tensor([0.0, 1.0, 20.0]), "b": torch.tensor([5.0])}),
    lambda: signed_histograms({"a": torch.tensor([-1.0, 0.0, 1e-9, 2.0]), "b": torch.zeros(4)}, "curvature"),
]


@pytest.mark.parametrize("plot", PLOTS)
def test_plots_are_pngs_and_the_same_twice(plot: Callable[[], bytes]) -> None:
    picture = plot()
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    assert len(picture) > 2000
    assert plot() == picture


def test_a_histogram_shows_which_entries_are_negative() -> None:
    values = torch.linspace(0.1, 1.0, 50)
    assert signed_histograms({"a": values}, "x") != signed_histograms({"a": -values}, "x")


def test_plots_name_what_is_wrong() -> None:
    with pytest.raises(ValueError, match="losses is empty"):
        loss_curve([], 1)
    with pytest.raises(ValueError, match="steps_per_epoch is 0"):
        loss_curve([1.0], 0)
    with pytest.raises(ValueError, match=r"values\['a'\] is empty"):
        signed_histograms({"a": torch.zeros(0)}, "x")
    with pytest.raises(ValueError, match="values has no positive entry"):
        concentration_histograms({"a": torch.zeros(3)})


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("existing", [False, True])
def test_results_appear_when_all_is_done(tmp_path: Path, existing: bool) -> None:
    out = tmp_path / "deep" / "out"
    if existing:
        out.mkdir(parents=True)
    with output_folder(out) as folder:
        (folder / "a.txt").write_text("a")
        assert not (out / "a.txt").exists()
    assert names(out) == ["a.txt"]
    assert names(out.parent) == ["out"]


def interrupted(out: Path) -> None:
    with output_folder(out, force=True) as folder:
        (folder / "a.txt").write_text("new")
        raise KeyboardInterrupt


@pytest.mark.parametrize("existing", [False, True])
def test_a_failure_leaves_nothing_behind(tmp_path: Path, existing: bool) -> None:
    out = tmp_path / "out"
    if existing:
        out.mkdir()
        (out / "a.txt").write_text("old")
    with pytest.raises(KeyboardInterrupt):
        interrupted(out)
    assert names(tmp_path) == (["out"] if existing else [])
    if existing:
        assert (out / "a.txt").read_text() == "old"


def test_a_folder_with_files_needs_force(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    (out / "a.txt").write_text("old")
    with pytest.raises(OutputFolderError, match=r"is not empty.*--force"), output_folder(out):
        pytest.fail("the block must not be entered")
    with output_folder(out, force=True) as folder:
        (folder / "a.txt").write_text("new")
    assert (out / "mine.txt").read_text() == "mine"
    assert (out / "a.txt").read_text() == "new"
    assert names(tmp_path) == ["out"]


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(OutputFolderError, match="is a file"), output_folder(tmp_path / "out", force=True):
        pytest.fail("the block must not be entered")
    with pytest.raises(OutputFolderError, match="cannot be made"), output_folder(tmp_path / "out" / "deeper"):
        pytest.fail("the block must not be entered")
