"""The scripts that make tables and figures, and the files that say what goes into them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments import figures, tables
from experiments.images import ImagesOfResults
from laplacian_metric import data
from laplacian_metric.core.checked import read_yaml
from experiments.harness.tables import table_columns
from experiments.harness.tables.descriptions import parse_figure, parse_tables, read_published, read_tables
from experiments.harness.results import Result
from tests.experiments.tables.synthetic import failure, result, write

FOLDER = Path(tables.__file__).parent


def some_results(folder: Path, seeds: int = 2) -> Path:
    """Results of a few of the cells that the tables name, one of which failed."""
    for seed in range(seeds):
        for cell in ("deterministic", "laplace_diag", "online", "online_published"):
            content = result(f"fashion_mnist/{cell}", seed)
            content["config"]["data"] = {
                "train": "sample-fashion-mnist",
                "out": [
                    {"name": "sample-mnist", "label": "mnist"},
                    {"name": "sample-mnist", "label": "svhn", "limit": 250},
                ],
            }
            write(folder, content)
        write(folder, failure("fashion_mnist/pfe", seed))
    return folder


def test_the_tables_are_described_rightly() -> None:
    every_table = read_tables(FOLDER / "tables.yaml")
    published = read_published(FOLDER / "published_numbers.yaml")
    cells = {
        path.relative_to(FOLDER / "cells").with_suffix("").as_posix()
        for path in FOLDER.glob("cells/*/*.yaml")
    }
    assert {cell for table in every_table for cell in table.cells()} <= cells
    assert {table.name for table in every_table} >= {
        "fashion_mnist",
        "cifar10",
        "hessian",
        "corrections",
        "ood_cifar10",
    }
    for table in every_table:
        if table.published:
            assert all(row.published in (*published[table.published].rows, "") for row in table.rows)
        # A table of uncertainties carries the scores that need no method.
        if table.rows and any(column.about_uncertainty for column in table.columns):
            assert {"feature norm", "embedding norm", "nearest distance"} <= {row.score for row in table.rows}


def test_the_published_numbers_are_of_known_metrics_and_ordered() -> None:
    published = read_published(FOLDER / "published_numbers.yaml")
    assert len([name for name in published if name.startswith("lam_")]) == 8
    for name, table in published.items():
        for row, numbers in table.rows.items():
            for metric in numbers:  # each is a column, with its OOD images where it needs them
                plain, _, out = metric.partition("/")
                assert table.number(row, table_columns.find(plain, out=out)) == numbers[metric], (name, row)
            for metric, number in numbers.items():
                least = -1 if metric.startswith("tau") else 0
                assert least < number.mean <= 1, (name, row, metric)
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
    folder = tmp_path / "out" / "tables"
    assert sorted(path.name for path in folder.glob("fashion_mnist.*")) == [
        f"fashion_mnist.{kind}" for kind in ("json", "md", "tex")
    ]
    assert not list(folder.glob("cifar10.*"))
    record = json.loads((folder / "fashion_mnist.json").read_text(encoding="utf-8"))
    assert {"title", "command", "commit", "environment", "rows", "cells"} <= set(record)
    rows = {(cell["cell"], cell["seed"]): cell for cell in record["cells"] if "seed" in cell}
    assert rows["fashion_mnist/laplace_diag", 1]["commit"] == "abc1234"
    assert rows["fashion_mnist/pfe", 0]["error"] == "the loss is not finite"
    assert rows["fashion_mnist/hib", 0]["status"] == "missing"
    text = (folder / "fashion_mnist.md").read_text(encoding="utf-8")
    assert "| PFE | failed |" in text
    assert "| HIB | missing |" in text
    assert "Cells made at commit abc1234" in text
    assert str(tmp_path) not in text + json.dumps(record)
    assert "difference" in (folder / "corrections.md").read_text(encoding="utf-8")


def test_only_some_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = some_results(tmp_path / "results", seeds=1)
    assert tables.main(["--results", str(results), "--out", str(tmp_path), "--only", "corrections"]) == 0
    assert [path.name for path in sorted((tmp_path / "tables").glob("*.md"))] == ["corrections.md"]
    assert tables.main(["--results", str(results), "--out", str(tmp_path), "--only", "correction"]) == 1
    assert "no table is called 'correction'; there are: fashion_mnist" in capsys.readouterr().err


def test_a_bad_file_ends_the_command_with_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = some_results(tmp_path / "results", seeds=1)
    (results / "fashion_mnist" / "pfe" / "seed0.json").write_text("{", encoding="utf-8")
    assert tables.main(["--results", str(results), "--out", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert "pfe/seed0.json is not whole" in said
    assert "run its cell again" in said


def test_the_figures_are_described_rightly() -> None:
    content = read_yaml(FOLDER / "tables.yaml")
    described = parse_tables(content["tables"])
    every_figure = [parse_figure(name, entry, described) for name, entry in content["figures"].items()]
    assert {figure.kind for figure in every_figure} == set(figures.DRAW)
    looks = figures.looks_of(described)
    assert looks["LAM, online"].colour == "#000000"
    main = next(table for table in described if table.name == "fashion_mnist")
    own = [row.label for row in main.rows if row.score == "own"]
    assert len({looks[label].colour for label in own}) == len(own)


def test_figures_are_written_with_where_they_come_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = some_results(tmp_path / "results")
    arguments = ["--results", str(results), "--out", str(tmp_path / "out"), "--data", str(tmp_path)]
    assert figures.main(arguments) == 0
    said = capsys.readouterr().out
    assert "extremes_fashion_mnist: written" in said
    assert "training_cifar10: none of its cells has what it shows, left out" in said
    folder = tmp_path / "out" / "plots"
    pictures = sorted(path.stem for path in folder.glob("*.png"))
    assert pictures == sorted(path.stem for path in folder.glob("*.json"))
    assert "roc" in pictures
    assert "sparsification_cifar10" not in pictures
    record = json.loads((folder / "roc.json").read_text(encoding="utf-8"))
    rows = {(cell["cell"], cell["seed"]): cell for cell in record["cells"]}
    assert rows["fashion_mnist/laplace_diag", 0]["commit"] == "abc1234"
    assert rows["fashion_mnist/pfe", 1]["status"] == "failed"
    assert str(tmp_path) not in json.dumps(record)


def test_pictures_of_images_need_the_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = some_results(tmp_path / "results", seeds=1)
    arguments = ["--results", str(results), "--out", str(tmp_path), "--only", "extremes_fashion_mnist"]
    assert figures.main(arguments) == 0
    assert "extremes_fashion_mnist: needs --data, left out" in capsys.readouterr().out
    assert figures.main([*arguments[:-1], "extremes"]) == 1
    assert "no figure is called 'extremes'; there are: summary" in capsys.readouterr().err


def test_data_that_are_not_there_leave_out_one_figure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in some_results(tmp_path / "results", seeds=1).rglob("*.json"):
        path.write_text(path.read_text(encoding="utf-8").replace("sample-", ""), encoding="utf-8")
    (tmp_path / "data").mkdir()
    arguments = [
        "--results",
        str(tmp_path / "results"),
        "--out",
        str(tmp_path),
        "--data",
        str(tmp_path / "data"),
    ]
    assert figures.main([*arguments, "--only", "extremes_fashion_mnist", "sparsification_fashion_mnist"]) == 0
    said = capsys.readouterr().out
    assert "extremes_fashion_mnist: left out, " in said
    assert "sparsification_fashion_mnist: written" in said


def of(config: dict[str, Any]) -> Result:
    return Result(cell="a", seed=0, config=config)


def test_positions_lead_to_the_images_that_were_embedded(tmp_path: Path) -> None:
    images = ImagesOfResults(tmp_path)
    limited = {"name": "sample-mnist", "label": "digits", "limit": 250}
    limited_result = of({"data": {"train": "sample-fashion-mnist", "out": ["sample-mnist", limited]}})
    test_images = data.load("sample-fashion-mnist", "test")
    ood = data.load("sample-mnist", "test")
    (first, second) = images.pictures(limited_result, "test", [3, 999])
    assert torch.equal(first, test_images[3][0])
    assert torch.equal(second, test_images[999][0])
    assert torch.equal(images.pictures(limited_result, "sample-mnist", [7])[0], ood[7][0])
    # Every fourth of 1,000.
    assert torch.equal(images.pictures(limited_result, "digits", [7])[0], ood[28][0])
    assert images.class_names(limited_result)[1] == "Trouser"
    assert images.title(limited_result, "test") == "sample-fashion-mnist"


def test_options_of_the_test_split_are_heeded(tmp_path: Path) -> None:
    config = {"train": "sample-fashion-mnist", "splits": {"test": "validation"}}
    own = {**config, "split_options": {"test": {"held_out": 100}}}
    image, other = (
        ImagesOfResults(tmp_path).pictures(of({"data": section}), "test", [5])[0] for section in (own, config)
    )
    assert torch.equal(image, data.load("sample-fashion-mnist", "validation", held_out=100)[5][0])
    assert not torch.equal(image, other)


@pytest.mark.parametrize(
    ("config", "name", "message"),
    [
        ({}, "test", "does not say which data it was made from"),
        ({"data": {"train": "sample-mnist"}}, "svhn", "which its config does not name under data.out"),
        (
            {"data": {"train": "sample-mnist"}},
            "test",
            "names image 1000 of test, but sample-mnist has 1000 images",
        ),
    ],
)
def test_a_result_that_does_not_fit_the_data(
    tmp_path: Path, config: dict[str, Any], name: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        ImagesOfResults(tmp_path).pictures(of(config), name, [1000])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "pie"}, "figure f: kind is 'pie'"),
        ({"panels": {"u": "U"}}, "no table with rows is called 'u'; there are: t"),
        ({"columns": ["AURO"]}, "figure f: no metric is called 'AURO'; did you mean 'AUROC'"),
        ({"kind": "summary"}, "figure f: 'columns' are missing"),
        ({"rows": ["y"]}, "no table has a row 'y'"),
        ({"colour": "red"}, "figure f: there is no key 'colour'"),
    ],
)
def test_a_wrong_figure_is_said(change: dict[str, Any], message: str) -> None:
    table = {"title": "T", "out": "m", "columns": ["ECE"], "rows": [{"label": "x", "cell": "a"}]}
    described = parse_tables({"t": table})
    with pytest.raises(ValueError, match=message):
        parse_figure("f", {"kind": "roc", "title": "F", "panels": {"t": "T"}} | change, described)


def test_a_label_has_one_style() -> None:
    rows = [{"label": "x", "cell": "a"}]
    tables = {
        "t": {"title": "T", "columns": ["ECE"], "rows": rows},
        "u": {"title": "U", "columns": ["ECE"], "rows": [{**rows[0], "style": "pfe"}]},
    }
    with pytest.raises(ValueError, match="the label 'x' has two styles"):
        figures.looks_of(parse_tables(tables))
