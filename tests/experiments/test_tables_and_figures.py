"""The scripts that make tables and figures, and the files that say what goes into them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments import tables
from laplacian_metric.report import columns
from laplacian_metric.report.published import read_published
from tests.report.synthetic import failure, result, write

FOLDER = Path(tables.__file__).parent


def some_results(folder: Path, seeds: int = 2) -> Path:
    """Results of a few of the cells that the tables name, one of which failed."""
    for seed in range(seeds):
        for cell in ("deterministic", "laplace", "laplace_published"):
            write(folder, result(f"fashion_mnist/{cell}", seed))
        write(folder, failure("fashion_mnist/pfe", seed))
    return folder


def test_the_tables_are_described_rightly() -> None:
    found = tables.descriptions(FOLDER / "tables.yaml")
    published = read_published(FOLDER / "published_numbers.yaml")
    assert {table.name for table in found} >= {
        "fashion_mnist",
        "cifar10",
        "hessian",
        "corrections",
        "strangers",
    }
    for table in found:
        if table.published:
            assert all(row.published in (*published[table.published].rows, "") for row in table.rows)
        if table.rows:  # every table of methods carries the scores that need no method
            assert {"feature norm", "embedding norm", "nearest distance"} <= {row.score for row in table.rows}


def test_the_published_numbers_are_of_known_metrics_and_ordered() -> None:
    published = read_published(FOLDER / "published_numbers.yaml")
    assert len(published) == 8
    for name, table in published.items():
        for row, numbers in table.rows.items():
            assert set(numbers) <= set(columns.names()), (name, row)
            assert all(0 < number.mean <= 1 for number in numbers.values()), (name, row)
            # The average precision of more neighbours of the same list is not above that of fewer, in all tables
            # but that of LFW, whose classes are small.
            if "lfw" not in name and "mAP@1" in numbers:
                means = [numbers[f"mAP@{k}"].mean for k in (1, 5, 10) if f"mAP@{k}" in numbers]
                assert means == sorted(means, reverse=True), (name, row)


def test_tables_are_written_with_where_they_come_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = some_results(tmp_path / "results")
    assert tables.main(["--results", str(results), "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "fashion_mnist: written" in said
    assert "cifar10: none of its cells has been made, left out" in said
    assert "hessian: none of its cells has been made, left out" in said
    made = tmp_path / "out" / "tables"
    assert sorted(path.name for path in made.glob("fashion_mnist.*")) == [
        f"fashion_mnist.{kind}" for kind in ("json", "md", "tex")
    ]
    assert not list(made.glob("cifar10.*"))
    record = json.loads((made / "fashion_mnist.json").read_text(encoding="utf-8"))
    assert {"title", "command", "commit", "environment", "rows", "cells"} <= set(record)
    rows = {(cell["cell"], cell["seed"]): cell for cell in record["cells"] if "seed" in cell}
    assert rows["fashion_mnist/laplace", 1]["commit"] == "abc1234"
    assert rows["fashion_mnist/pfe", 0]["error"] == "the loss is not finite"
    assert rows["fashion_mnist/hib", 0]["status"] == "missing"
    text = (made / "fashion_mnist.md").read_text(encoding="utf-8")
    assert "| PFE | failed |" in text
    assert "| HIB | missing |" in text
    assert "Cells made at commit abc1234" in text
    assert str(tmp_path) not in text + json.dumps(record)
    assert "difference" in (made / "corrections.md").read_text(encoding="utf-8")


def test_only_some_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = some_results(tmp_path / "results", seeds=1)
    assert tables.main(["--results", str(results), "--out", str(tmp_path), "--only", "strangers"]) == 0
    assert [path.name for path in sorted((tmp_path / "tables").glob("*.md"))] == ["strangers.md"]
    assert tables.main(["--results", str(results), "--out", str(tmp_path), "--only", "stranger"]) == 1
    assert "no table is called 'stranger'; there are: fashion_mnist" in capsys.readouterr().err


def test_a_bad_file_ends_the_command_with_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = some_results(tmp_path / "results", seeds=1)
    (results / "fashion_mnist" / "pfe" / "seed0.json").write_text("{", encoding="utf-8")
    assert tables.main(["--results", str(results), "--out", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert "pfe/seed0.json is not whole" in said
    assert "run its cell again" in said
