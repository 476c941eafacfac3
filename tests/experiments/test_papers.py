"""The page of the papers' numbers: none without ours or a reason, and it is that of the committed tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from experiments.papers import difference, page, published_order

NAMES = ("published_numbers", "papers", "tables")


@pytest.fixture
def content(root: Path) -> dict[str, dict[str, Any]]:
    return {
        name: yaml.safe_load((root / "experiments" / f"{name}.yaml").read_text(encoding="utf-8"))
        for name in NAMES
    }


def test_the_committed_page_is_made_of_the_committed_tables(
    root: Path, content: dict[str, dict[str, Any]]
) -> None:
    text = page(root / "figures" / "tables", *(content[name] for name in NAMES))
    assert text == (root / "figures" / "papers.md").read_text(encoding="utf-8")
    printed = sum(
        len(row)
        for name, table in content["published_numbers"].items()
        if "not_run" not in content["papers"][name]
        for row in table["rows"].values()
    )
    assert text.count("\n| ") - text.count("| row | metric |") == printed


def test_a_published_table_needs_a_reason(root: Path, content: dict[str, dict[str, Any]]) -> None:
    content["papers"].pop("hib_n3_d3")
    with pytest.raises(ValueError, match="hib_n3_d3"):
        page(root / "figures" / "tables", *(content[name] for name in NAMES))


def test_rows_are_found_by_what_they_are_published_as(content: dict[str, dict[str, Any]]) -> None:
    assert published_order("fashion_mnist", content["tables"])["LAM (online)"] == "LAM, online"


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [("0.852 ± 0.010", "0.78 ± 0.01", "+0.07"), ("missing", "0.78", ""), ("0.1", "0.250", "-0.1")],
)
def test_differences_have_the_digits_that_both_have(ours: str, theirs: str, expected: str) -> None:
    assert difference(ours, theirs) == expected
