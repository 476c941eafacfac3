"""`lam experiment` and `lam data`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from experiments.losses import LOSSES
from laplacian_metric import data, runs
from tests.cli.running import lam, refused, worked
from tests.experiments.sets import miniatures
from tests.experiments.harness.miniature import BASE, LAPLACE, folder_with


@pytest.fixture
def options(tmp_path: Path) -> list[object]:
    small = {**BASE, "data": {**BASE["data"], "limit": 30}, "training": {"epochs": 1, "batch_size": 20}}
    folder = folder_with(tmp_path, laplace=LAPLACE)
    folder.write("mini/deterministic", small)
    return ["--cells-dir", folder.cells, "--work", folder.work, "--results", folder.results]


def test_a_module_is_imported_before_cells_are_read(tmp_path: Path, options: list[object]) -> None:
    listed = "experiment", "list", *options, "--json"
    worked("--import", "experiments.published", *listed)
    assert "published" in LOSSES.names()
    missing = lam("--import", "no_such_module", *listed)
    assert missing.code == 2
    assert "--import" in missing.err
    assert "no_such_module" in missing.err


def test_cells_are_run_listed_and_put_into_tables(tmp_path: Path, options: list[object]) -> None:
    def states() -> dict[str, str]:
        listed = worked("experiment", "list", *options, "--json").json()
        return {one["cell"]: one["state"] for one in listed}

    assert states() == {"mini/deterministic": "to do", "mini/laplace": "to do"}
    done = worked("experiment", "run", *options, "--json")
    assert done.json()["done"] == ["mini/deterministic, seed 0", "mini/laplace, seed 0"]
    assert "recall@1" in done.err
    assert states() == {"mini/deterministic": "done", "mini/laplace": "done"}
    again = worked("experiment", "run", *options, "--json").json()
    assert (again["done"], len(again["skipped"])) == ([], 2)
    assert "mini/laplace" in worked("experiment", "list", *options, "--cells", "mini/l*").out

    description = {
        "mini": {
            "title": "Miniature",
            "columns": ["mAP@1", "R-AUROC"],
            "rows": [{"label": "Laplace", "cell": "mini/laplace"}],
        }
    }
    (tmp_path / "tables.yaml").write_text(yaml.safe_dump({"tables": description}))
    arguments = (
        "experiment",
        "tables",
        "--results",
        tmp_path / "results",
        "--tables",
        tmp_path / "tables.yaml",
    )
    printed = worked(*arguments).out
    assert "| Laplace |" in printed
    result = runs.Results(tmp_path / "results").read("mini/laplace", 0)
    assert result is not None
    assert f"{result.retrieval['test']['map@1']:.2f}" in printed
    worked(*arguments, "--out", tmp_path / "made")
    assert (tmp_path / "made" / "mini.md").read_text().strip() == printed.strip()
    assert "tabular" in (tmp_path / "made" / "mini.tex").read_text()
    assert worked(*arguments, "--json").json()[0]["name"] == "mini"
    assert "is not empty" in refused(*arguments, "--out", tmp_path / "made")
    assert "no table is called 'x'" in refused(*arguments, "--only", "x")
    assert "there is no file" in refused(*arguments[:4], "--tables", tmp_path / "none.yaml")


def test_wrong_experiments(tmp_path: Path, options: list[object]) -> None:
    assert "no cell is called" in refused("experiment", "run", *options, "--cells", "maxi/*")
    assert "no folder of cells" in refused(
        "experiment", "run", "--cells-dir", tmp_path / "none", *options[2:]
    )
    (tmp_path / "t.yaml").write_text("tables: {}")
    (tmp_path / "none").mkdir()
    said = refused("experiment", "tables", "--results", tmp_path / "none", "--tables", tmp_path / "t.yaml")
    assert "run the experiments first" in said


def test_a_failed_cell_ends_with_1(tmp_path: Path, options: list[object]) -> None:
    cell = tmp_path / "cells" / "mini" / "deterministic.yaml"
    cell_content: dict[str, Any] = yaml.safe_load(cell.read_text())
    cell_content["data"]["train"] = "cub-200-2011"
    cell_content["network"] = {"name": "cifar-10"}
    cell.write_text(yaml.safe_dump(cell_content))
    done = lam(
        "experiment", "run", *options, "--data-dir", tmp_path, "--cells", "mini/deterministic", "--json"
    )
    assert done.code == 1
    assert "was not found" in json.loads(done.out)["without_data"]["mini/deterministic, seed 0"]


def test_an_interrupted_run(options: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object, **more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "run", interrupted)
    done = lam("experiment", "run", *options)
    assert done.code == 130
    assert "run the same command again" in done.err


# --- data ---


def test_data_sets_are_listed() -> None:
    listed = worked("data", "list", "--json").json()
    assert [one["name"] for one in listed] == list(data.names())
    assert listed[-1]["licence"]
    assert "cub-200-2011" in worked("data", "list").out


def test_data_sets_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for make in (
        miniatures.fashion_mnist,
        miniatures.mnist,
        miniatures.cifar10,
        miniatures.cub,
        miniatures.svhn,
    ):
        make(tmp_path)
    present = {"fashion-mnist", "mnist", "cifar-10", "cub-200-2011", "svhn", "n-digit-mnist"}
    present |= {"folder", "sample-mnist", "sample-fashion-mnist"}
    checked = {one["name"]: one for one in worked("data", "check", "--data-dir", tmp_path, "--json").json()}
    assert {name for name, one in checked.items() if one["found"]} == present
    assert checked["sample-mnist"]["place"] == "installed with the package"
    assert checked["cub-200-2011"]["place"] == str(tmp_path / "CUB_200_2011")
    assert "cars196" in checked["cars-196"]["problem"]
    assert worked("data", "check", "mnist", "--data-dir", tmp_path).code == 0
    done = lam("data", "check", "mnist", "cars-196", "--data-dir", tmp_path)
    assert done.code == 1
    assert "lam data where" in done.out
    monkeypatch.setenv("LAPLACIAN_METRIC_DATA", str(tmp_path))
    assert worked("data", "where", "--json").json()["folders"][0] == str(tmp_path)
    folders = worked("data", "where", "cub-200-2011", "--json").json()["data"]
    assert folders[0]["page"].startswith("https://")
    assert "layout" in worked("data", "where", "cub-200-2011").out
    assert "did you mean 'mnist'" in refused("data", "check", "mnst")
