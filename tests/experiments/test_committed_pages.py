"""The committed pages and pictures are made of the committed results, and verdicts follow from intervals."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from experiments import papers, which_score
from experiments.claims import numbers_at, of_cells, of_numbers, of_settings, of_situations, page, verdict
from experiments.harness.results import read_results
from laplacian_metric.metrics.resampling import PairedComparison

COMPARISON = re.compile(r"\b(ahead of|behind|better than|worse than|outperforms?|beats)\b")
MEASURED = re.compile(r"\]\([^)]*(figures/|evidence\.md)[^)]*\)")
PAGES = ("README.md", "docs/results.md", "docs/trust.md", "docs/ancestors.md")


def blocks(text: str) -> list[str]:
    """The paragraphs and list items of a page, without code and tables."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    lines = "\n".join(line for line in prose.splitlines() if not line.startswith("|"))
    return [block for block in re.split(r"\n\s*\n|\n(?=- )", lines) if block.strip()]


@pytest.mark.parametrize("name", PAGES)
def test_a_comparison_links_to_what_was_measured(root: Path, name: str) -> None:
    """Of ways to compute, "behind" and the like are no claims about results: these blocks have no number."""
    bare = [
        " ".join(block.split())[:90]
        for block in blocks((root / name).read_text(encoding="utf-8"))
        if COMPARISON.search(block) and re.search(r"\d\.\d|\.\d{2}", block) and not MEASURED.search(block)
    ]
    assert not bare, f"{name}: these compare, and link to no measurement: {bare}"


def test_the_page_of_claims_is_made_of_the_committed_results(root: Path) -> None:
    themes = yaml.safe_load((root / "experiments" / "claims.yaml").read_text(encoding="utf-8"))
    text = page(themes, root / "figures" / "results")
    assert text == (root / "docs" / "evidence.md").read_text(encoding="utf-8")
    for theme in themes:
        assert (root / theme["table"]).is_file()


@pytest.mark.parametrize(
    ("expect", "low", "high", "said"),
    [
        ("above", 0.1, 0.3, "holds"),
        ("above", -0.3, -0.1, "does not hold"),
        ("above", -0.1, 0.3, "not decided"),
        ("below", -0.3, -0.1, "holds"),
        ("alike", -0.1, 0.3, "no difference seen"),
        ("alike", 0.1, 0.3, "does not hold"),
    ],
)
def test_a_verdict_follows_from_the_interval(expect: str, low: float, high: float, said: str) -> None:
    paired = PairedComparison((low + high) / 2, low, high, 0.95, 3)
    assert said in verdict(expect, paired, "seeds")


def test_numbers_are_paired_by_what_both_have(root: Path, tmp_path: Path) -> None:
    results = list(read_results(root / "figures" / "results"))
    compared = {"metric": "mAP@1", "first": "fashion_mnist/ensemble", "second": "fashion_mnist/deterministic"}
    first, second, _ = of_cells(compared, results)
    assert len(first) == len(second) == 3
    for number, (own, rivals) in enumerate([(0.9, (0.5, 0.8)), (0.7, (0.6, 0.4))]):
        scores = {"trust": {"R": own}, "vote": {"R": rivals[0]}, "margin": {"R": rivals[1]}}
        (tmp_path / f"{number}-0.json").write_text(json.dumps({"name": str(number), "scores": scores}))
    best = {"measure": "R", "first": "trust", "second": "best", "among": ["vote", "margin"]}
    assert of_settings(best, tmp_path)[:2] == ([0.9, 0.7], [0.8, 0.6])
    run = {"scores": {"a": {"R": 0.4}, "b": {"R": 0.3}}, "accuracy": {"a": 0.2, "b": 0.1}}
    (tmp_path / "few").mkdir()
    for seed in range(2):
        (tmp_path / "few" / f"few-labels-{seed}.json").write_text(json.dumps(run))
    for measure, expected in (("R", (0.4, 0.3)), ("accuracy", (0.2, 0.1))):
        values = of_situations({"measure": measure, "first": "a", "second": "b"}, tmp_path / "few")
        assert (values[0], values[1]) == ([expected[0]], [expected[1]])


def test_numbers_of_a_file_are_paired_by_what_stands_in_the_place_of_the_star(tmp_path: Path) -> None:
    content = {"cosine/0": {"r": 0.5}, "cosine/1": {"r": 0.6}, "other/1": {"r": 0.7}, "other/2": {"r": 0.8}}
    (tmp_path / "file.json").write_text(json.dumps(content))
    compared = {"file": "file.json", "first": ["other/*", "r"], "second": ["cosine/*", "r"], "by": "seeds"}
    assert of_numbers(compared, tmp_path) == ([0.7], [0.6], "seeds")
    assert of_numbers({**compared, "without": ["1"]}, tmp_path) == ([], [], "seeds")
    settings = {"a": [{"x": 1}, {"x": 3}], "b": [{"x": 5}]}
    assert numbers_at(settings, ["*", "x"]) == {"a": 2.0, "b": 5.0}
    assert numbers_at({"v": {"0": 1, "1": 2}}, ["v", "*"]) == {"0": 1.0, "1": 2.0}


NAMES = ("published_numbers", "papers", "tables")


@pytest.fixture
def content(root: Path) -> dict[str, dict[str, Any]]:
    return {
        name: yaml.safe_load((root / "experiments" / f"{name}.yaml").read_text(encoding="utf-8"))
        for name in NAMES
    }


def test_the_page_of_the_papers_is_made_of_the_committed_tables(
    root: Path, content: dict[str, dict[str, Any]]
) -> None:
    text = papers.page(root / "figures" / "tables", *(content[name] for name in NAMES))
    assert text == (root / "figures" / "papers.md").read_text(encoding="utf-8")


def test_a_published_table_needs_a_reason(root: Path, content: dict[str, dict[str, Any]]) -> None:
    content["papers"].pop("hib_n3_d3")
    with pytest.raises(ValueError, match="hib_n3_d3"):
        papers.page(root / "figures" / "tables", *(content[name] for name in NAMES))


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [("0.852 ± 0.010", "0.78 ± 0.01", "+0.07"), ("missing", "0.78", ""), ("0.1", "0.250", "-0.1")],
)
def test_differences_have_the_digits_that_both_have(ours: str, theirs: str, expected: str) -> None:
    assert papers.difference(ours, theirs) == expected


def test_the_picture_is_drawn_from_the_results(root: Path, tmp_path: Path) -> None:
    results = root / "figures" / "results" / "trust"
    assert which_score.main(["--results", str(results), "--out", str(tmp_path / "p.png")]) == 0
    settings = which_score.read(results)
    assert len(settings) >= 10
    table = (root / "figures" / "tables" / "trust.md").read_text(encoding="utf-8")
    row = next(line for line in table.splitlines() if line.startswith("| cifar-lite0 |"))
    assert f"| {settings['cifar-lite0']['trust']['R']:.3f} |".replace(" 0.", " .") in row
