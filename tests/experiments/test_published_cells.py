"""The cells of the LAM paper's tables, on miniatures of the layouts that their data sets are published in."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import experiments.published  # noqa: F401 (cells as published need what it registers)
from experiments.harness import Cells
from tests.experiments.harness.miniature import Folder
from tests.experiments.sets import miniatures

# Miniatures have few images of a class.
pytestmark = pytest.mark.filterwarnings("ignore:.*single image:")

FAMILIES = ("cub", "lfw", "msls", "cifar10_svhn", "grocery")
PAGES = {
    "cub": "data.caltech.edu/records/65de6-vp158",
    "lfw": "kaggle datasets download -d jessicali9530/lfw-dataset",
    "msls": "www.mapillary.com/dataset/places",
    "cifar10_svhn": "cifar",
    "grocery": "there is no folder",
}
# Instead of the ResNet50: what embeds an image of 8 x 8 or 32 x 32 pixels in no time.
TINY = {"name": "cifar-10", "dim": 8, "pretrained": False, "weights": None}
# Of every kind of method one, some as published.
RUN = {
    "cub": ["deterministic", "ensemble", "hib", "hib_published"],
    "lfw": ["laplace_diag", "laplace_diag_published", "hessian_online_arccos_positive"],
    "msls": ["deterministic", "pfe", "mc_dropout"],
    "cifar10_svhn": ["pfe_published", "online", "online_published"],
    "grocery": ["untrained", "laplace_lowrank"],
}
MSLS_CITIES = 22 + 2


def birds(root: Path) -> None:
    miniatures.cub(root)
    miniatures.cars(root)


def faces(root: Path) -> None:
    miniatures.lfw(root)
    miniatures.cub(root)


def streets(root: Path) -> None:
    from experiments.sets.msls import CITIES

    miniatures.msls(root, CITIES[:MSLS_CITIES])


def objects(root: Path) -> None:
    miniatures.cifar10(root)
    miniatures.svhn(root)
    rng = np.random.default_rng(0)
    for path in sorted((root / "cifar-10-batches-bin").glob("*.bin")):
        records = np.fromfile(path, dtype=np.uint8).reshape(-1, 3073)
        records[:, 1:] = rng.integers(0, 256, (len(records), 3072), dtype=np.uint8)
        records.tofile(path)


def fruit(root: Path) -> None:
    names = tuple("abcdefghijklmn")
    for split, count in (("train", 3), ("val", 1), ("test", 2)):
        miniatures.class_folders(root / "grocery" / split, names, count)
    miniatures.mnist(root)
    miniatures.fashion_mnist(root)
    miniatures.quickdraw(root)
    miniatures.cifar10(root)


LAYOUTS: dict[str, Callable[[Path], None]] = {
    "cub": birds,
    "lfw": faces,
    "msls": streets,
    "cifar10_svhn": objects,
    "grocery": fruit,
}


@pytest.fixture(scope="module")
def shared(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Folder]]:
    """A family's folder, whose networks are trained once for all tests."""
    folders: dict[str, Folder] = {}

    def folder(family: str) -> Folder:
        if family not in folders:
            place = tmp_path_factory.mktemp(family)
            LAYOUTS[family](place / "data")
            folders[family] = small(root / "experiments" / "cells", place, family)
        return folders[family]

    yield folder
    for family in folders.values():
        shutil.rmtree(family.root)


def small(cells: Path, place: Path, family: str) -> Folder:
    """The cells with a tiny network, an epoch and a few images; their data sections are what they are but for that."""
    for group in {family, "cifar10"}:
        shutil.copytree(cells / group, place / "cells" / group)
    for path in (place / "cells").rglob("*.yaml"):
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        path.write_text(yaml.safe_dump(smaller(content), sort_keys=False), encoding="utf-8")
    return Folder(place)


def smaller(content: dict[str, Any]) -> dict[str, Any]:
    training, data = content.get("training", {}), content.get("data", {})
    if training.get("epochs"):
        training["epochs"] = 1
    if "batch_size" in training:
        training["batch_size"] = 8
        training["images_per_class"] = 2
    if "network" in content and "name" in content["network"]:
        content["network"] = {**content["network"], **TINY}
    elif "dim" in content.get("network", {}):
        content["network"]["dim"] = 3
    if "head" in content.get(
        "network", {}
    ):  # the others have a row for each of the tiny network's 9,216 features
        content["network"]["head"] = "random"
    if data.get("train") == "cifar-10":
        data["options"] = {"held_out": 40}
    elif "train" in data:
        data["image_size"] = 32
    for out in data.get("out", []):
        if isinstance(out, dict):
            out.pop("limit", None)
    if content.get("method", {}).get("rank"):
        content["method"]["rank"] = 5
    content["evaluation"] = {**content.get("evaluation", {}), "ks": [1, 5]}
    if "train" in data:
        content |= {"seeds": [0], "members": 2}
        content["evaluation"]["samples"] = min(content["evaluation"].get("samples", 4), 4)
    return content


def run(folder: Folder, family: str, names: list[str]) -> dict[str, dict[str, Any]]:
    wanted = [f"{family}/{name}" for name in names]
    summary = folder.run(wanted, seeds=[0], data_dir=folder.root / "data")
    assert summary.ok, (summary.failed, summary.without_data)
    return {name: folder.result(f"{family}/{name}") for name in names}


def check(result: dict[str, Any], outs: set[str]) -> None:
    """Every number that has to be there is finite and in its range."""
    assert result["status"] == "done"
    for part in ("test", "validation"):
        assert all(0 <= value <= 1 for value in result["retrieval"][part].values())
    assert result["scores"]
    for score in result["scores"].values():
        assert set(score["ood"]) == outs
        for numbers in score["ood"].values():
            assert 0 <= numbers["auroc"] <= 1
            assert 0 < numbers["average_precision"] <= 1
        assert 0 <= score["ausc"] <= score["ausc_oracle"] <= 1
    for entry in (result["training"] or {"history": []})["history"]:
        assert math.isfinite(entry["loss"])


OUTS = {
    "cub": {"cars-196"},
    "lfw": {"cub-200-2011"},
    "msls": set(),
    "cifar10_svhn": {"svhn"},
    "grocery": {"mnist", "fashion-mnist", "quickdraw", "cifar-10"},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_kind_of_cell_runs_on_the_layout_of_its_data(
    family: str, shared: Callable[[str], Folder]
) -> None:
    for result in run(shared(family), family, RUN[family]).values():
        check(result, OUTS[family])


def test_people_with_one_photograph_are_no_queries(shared: Callable[[str], Folder]) -> None:
    counts = run(shared("lfw"), "lfw", ["deterministic"])["deterministic"]["counts"]
    alone = sum(number % 3 == 0 for number in range(1, 20, 2))
    assert counts["unanswerable"] == alone
    assert counts["queries"] == counts["images"]["test"] == counts["answerable"] + alone


def test_places_are_looked_for_in_the_database_within_25_metres(shared: Callable[[str], Folder]) -> None:
    results = run(shared("msls"), "msls", ["deterministic", "pfe"])
    counts = results["deterministic"]["counts"]
    # Each of two cities has 3 queries and 4 images in its database, and in both one is a panorama. Those at 0, 8 and
    # 24 m are left in the database, all within 25 m of the queries, at 3 and 11 m.
    assert (counts["queries"], counts["gallery"], counts["answerable"]) == (4, 6, 4)
    assert counts["images"]["test"] == 10
    own = results["pfe"]["retrieval"]["own_similarity"]
    assert own is not None
    assert 0 <= own["map@5"] <= 1
    assert results["pfe"]["calibration"] is None


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
        assert cells[f"{family}/mc_dropout"].method.make().probability == 0.2  # type: ignore[attr-defined]
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
