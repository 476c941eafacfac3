"""Measured numbers on the pages are those of a table in figures/: none is left behind when tables are made anew."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

SPREAD = re.compile(r"(\d+\.\d+) ± (\d+\.\d+)")


def pairs(path: Path) -> list[tuple[str, str]]:
    """The means and deviations on a page, without what a paper printed, which is in italics."""
    text = re.sub(r"\*[^*\n]*\d ± [^*\n]*\*(?!\*)", "", path.read_text(encoding="utf-8").replace("**", ""))
    return SPREAD.findall(text)


@pytest.fixture(scope="module")
def measured(root: Path) -> set[tuple[str, str]]:
    """Of all tables, as they are printed there and rounded to fewer digits."""
    numbers = set()
    for path in (root / "figures").rglob("*.md"):
        for mean, deviation in pairs(path):
            digits = len(mean.split(".")[1])
            for d in range(1, digits + 1):
                numbers.add((f"{float(mean):.{d}f}", f"{float(deviation):.{d}f}"))
    return numbers


def pages(root: Path) -> list[Path]:
    return [root / "README.md", *sorted((root / "docs").rglob("*.md")), root / "experiments" / "README.md"]


def test_every_mean_with_its_spread_is_in_a_table(root: Path, measured: set[tuple[str, str]]) -> None:
    stale = [
        f"{path.relative_to(root)}: {mean} ± {deviation}"
        for path in pages(root)
        for mean, deviation in pairs(path)
        if (mean, deviation) not in measured
    ]
    assert not stale, "in no table of figures/: " + ", ".join(stale)


def test_the_pages_have_some(root: Path) -> None:
    assert sum(len(pairs(path)) for path in pages(root)) >= 40


def test_what_a_paper_printed_is_left_out(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("| 0.852 ± 0.010 *0.78 ± 0.01* | **0.500 ± 0.001** |\n", encoding="utf-8")
    assert pairs(page) == [("0.852", "0.010"), ("0.500", "0.001")]
