"""The cells of the LAM paper's tables: their settings, and where their data are to be had."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import experiments.published  # noqa: F401 (cells as published need what it registers)
from experiments.harness import Cells
from tests.experiments.harness.miniature import Folder

FAMILIES = ("cub", "lfw", "msls", "cifar10_svhn", "grocery")
PAGES = {
    "cub": "data.caltech.edu/records/65de6-vp158",
    "lfw": "kaggle datasets download -d jessicali9530/lfw-dataset",
    "msls": "www.mapillary.com/dataset/places",
    "cifar10_svhn": "cifar",
    "grocery": "there is no folder",
}


def test_one_set_of_features_serves_all_cells_on_a_frozen_backbone(root: Path) -> None:
    cells = Cells(root / "experiments" / "cells")
    places = {cells[name].features_at(seed) for name in cells.matching(["grocery/*"]) for seed in (0, 1)}
    assert len(places) == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_without_its_data_a_cell_says_where_they_are(family: str, root: Path, tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.cells = root / "experiments" / "cells"
    name = f"{family}/deterministic"
    summary = folder.run([name], seeds=[0], data_dir=tmp_path / "none")
    assert list(summary.without_data) == [f"{name}, seed 0"]
    assert PAGES[family].lower() in summary.without_data[f"{name}, seed 0"].lower()
    assert not list(folder.results.rglob("*.json"))


def test_the_papers_settings_are_in_the_cells(root: Path) -> None:
    cells = Cells(root / "experiments" / "cells")
    for family, epochs in (("cub", 20), ("lfw", 200), ("msls", 200)):
        config = cells.config(f"{family}/online")
        training = config["training"]
        assert (training["epochs"], training["learning_rate"], training["decay"]) == (epochs, 1e-7, 0.1)
        assert (training["optimizer"], training["schedule"]) == ("rmsprop", "exponential")
        assert config["method"]["memory"] == 1e-4
        assert config["network"]["pretrained"]
        assert config["network"]["dim"] == 2048
        published = cells.config(f"{family}/online_published")
        assert published["training"]["learning_rate"] == pytest.approx(1e-7 * 32)
        assert published["training"]["decay"] == 0.01
        assert published["loss"]["published"] is True
    for start in ("posthoc", "online"):
        for distance in ("euclidean", "arccos"):
            for kept in ("fixed", "positive", "full"):
                for as_published in ("", "_published"):
                    config = cells.config(f"lfw/hessian_{start}_{distance}_{kept}{as_published}")
                    assert config["loss"]["distance"] == distance
                    assert config["method"]["approximation"] == kept
                    assert json.dumps(config)
