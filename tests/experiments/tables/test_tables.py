"""Tables: numbers recomputed by hand, the rule for bold, and what is not there."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from experiments.harness.results import Result, read_results
from experiments.harness.tables.descriptions import (
    PublishedNumber,
    PublishedTable,
    TableDescription,
    parse_table,
)
from experiments.harness.tables.table_columns import find
from experiments.harness.tables.table_text import ResultTable
from experiments.harness.tables.tables import build_table
from laplacian_metric.metrics.evaluation import Score
from tests.experiments.tables.synthetic import failure, result, write

T = {1: 12.706204736432095, 2: 4.302652729911275}  # Student's 97.5 % quantiles for 1 and 2 degrees of freedom


def of(cell: str, values: Sequence[float], *, score: str = "own") -> list[Result]:
    """Results with an R-AUROC for each seed and nothing else."""
    return [
        Result(
            cell=cell, seed=seed, retrieval={"test": {"map@1": value}}, scores={score: Score(r_auroc=value)}
        )
        for seed, value in enumerate(values)
    ]


def table(*cells: str, columns: Sequence[Any] = ("R-AUROC",), **more: Any) -> TableDescription:
    rows = [{"label": f"method {cell}", "cell": cell} for cell in cells]
    return parse_table("t", {"title": "T", "columns": list(columns), "rows": rows, **more})


def line(built: ResultTable, label: str) -> list[str]:
    return next([entry.text for entry in line.entries] for line in built.lines if line.label == label)


def bold(built: ResultTable) -> list[str]:
    return [line.label for line in built.lines if line.entries and line.entries[0].bold]


def test_numbers_by_hand(tmp_path: Path) -> None:
    contents = [result("m/a", seed) for seed in range(3)]
    for content in contents:
        write(tmp_path, content)
    columns = ["mAP@5", {"metric": "AUROC", "out": "svhn"}, "ECE", "seconds, training"]
    built = build_table(table("m/a", columns=columns), read_results(tmp_path))
    values = [
        [content["retrieval"]["test"]["map@5"] for content in contents],
        [content["scores"]["own"]["out"]["svhn"]["auroc"] for content in contents],
        [content["calibration"]["ece"] for content in contents],
    ]
    expected = [f"{statistics.mean(v):.3f} ± {statistics.stdev(v):.3f}" for v in values]
    assert line(built, "method m/a") == [*expected, "11.0 ± 1.0", "3"]


def test_what_is_not_there_is_seen_and_said(tmp_path: Path) -> None:
    for seed in range(3):
        write(tmp_path, result("good", seed))
        write(tmp_path, failure("broken", seed, "it | diverged"))
    write(tmp_path, result("half", 0))
    write(tmp_path, failure("half", 1))
    no_value = result("gap", 0)
    no_value["scores"]["own"]["r_auroc"] = None
    for content in (no_value, result("gap", 1), result("gap", 2)):
        write(tmp_path, content)
    built = build_table(table("good", "broken", "half", "absent", "gap"), read_results(tmp_path))
    assert line(built, "method broken") == ["failed", "0 of 3"]
    assert line(built, "method absent") == ["missing", "0 of 3"]
    assert line(built, "method half")[1] == "1 of 3"
    assert line(built, "method gap")[1] == "3"
    notes = "\n".join(built.notes)
    assert "`broken`: seeds 0, 1, 2 failed: it | diverged." in notes
    assert "method gap: R-AUROC is defined for 2 of 3 seeds only." in notes


def test_bold_is_what_the_intervals_separate() -> None:
    low, high = [0.50, 0.51, 0.52], [0.60, 0.61, 0.62]
    reach = T[2] * 0.01 / math.sqrt(3)
    assert 2 * reach < 0.1  # so the two intervals are apart
    assert bold(build_table(table("a", "b"), of("a", low) + of("b", high))) == ["method b"]
    near = [value - 0.1 + 2 * reach - 1e-4 for value in high]
    assert bold(build_table(table("a", "b"), of("a", low) + of("b", near))) == []
    apart = [value - 0.1 + 2 * reach + 1e-4 for value in high]
    assert bold(build_table(table("a", "b"), of("a", low) + of("b", apart))) == ["method b"]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([0.9], [0.1, 0.1, 0.1], []),  # the best has no interval
        ([0.5], [0.60, 0.61, 0.62], ["method b"]),  # the value of a single seed is outside
        ([0.6], [0.60, 0.61, 0.62], []),
        ([0.5, 0.5], [0.5, 0.5], []),  # the same
        ([], [0.60, 0.61, 0.62], []),  # nothing to compare with
    ],
)
def test_bold_where_there_is_little(first: list[float], second: list[float], expected: list[str]) -> None:
    assert bold(build_table(table("a", "b"), of("a", first) + of("b", second))) == expected


def test_a_published_number_is_of_the_same_ood_images() -> None:
    numbers = {"AUROC/svhn": PublishedNumber.parse("0.78"), "ECE": PublishedNumber.parse("0.02")}
    published = PublishedTable(source="s", rows={"row": numbers})
    assert published.number("row", find("AUROC", out="svhn")) == numbers["AUROC/svhn"]
    assert published.number("row", find("AUROC", out="mnist")) is None
    assert published.number("row", find("ECE")) == numbers["ECE"]


def test_pairs_are_compared_seed_by_seed() -> None:
    before, after = [0.50, 0.60, 0.70], [0.53, 0.64, 0.75]
    content = {"title": "T", "columns": ["R-AUROC"], "pairs": [{"label": "P", "before": "a", "after": "b"}]}
    built = build_table(parse_table("t", content), of("a", before) + of("b", after))
    reach = T[2] * statistics.stdev([0.03, 0.04, 0.05]) / math.sqrt(3)
    expected = f"+0.040 [{0.04 - reach:+.3f}, {0.04 + reach:+.3f}]"
    assert line(built, "as published") == ["0.600 ± 0.100", "3"]
    assert line(built, "difference") == [expected, "3"]
    assert bold(built) == ["difference"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"columns": ["ECE"]}, "title"),
        ({"title": "T", "columns": ["ECE"]}, "rows"),
        ({"title": "T", "columns": ["EZE"], "rows": []}, "EZE"),
        ({"title": "T", "columns": ["AUROC"], "rows": []}, "AUROC"),
        ({"title": "T", "columns": ["ECE"], "row": []}, "row"),
        ({"title": "T", "columns": ["ECE"], "rows": [{"label": "x"}]}, "rows[0].cell"),
        ({"title": "T", "columns": ["ECE"], "rows": [{"label": "x", "cell": "a"}] * 2}, "'x'"),
        ({"title": "T", "columns": ["ECE"], "pairs": [{"label": "x"}]}, "pairs[0].before"),
        ({"title": "T", "columns": ["ECE"], "rows": ["a"]}, "rows[0]"),
    ],
)
def test_a_wrong_description_is_named(content: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_table("t", content)
