"""The cells of N-digit MNIST on a miniature, and the script that makes their tables and pictures."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from tests.experiments.harness.miniature import Folder
from tests.experiments.sets import miniatures

# Of every kind one.
RUN = ("N2_D2_point", "N2_D2_gaussian", "N2_D2_mixture", "N3_D3_gaussian_beta0")
SETS = ("test", "corrupt", "unseen", "unseen corrupt")


@pytest.fixture(scope="module")
def ran(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """The cells with few images and steps; everything else is what it is."""
    place = tmp_path_factory.mktemp("n_digit")
    miniatures.mnist(place / "data")
    shutil.copytree(root / "experiments" / "cells" / "n_digit", place / "cells" / "n_digit")
    for path in (place / "cells").rglob("*.yaml"):
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        if "training" in content:
            content["training"] |= {"epochs": 2, "batch_size": 8, "steps_per_epoch": 3, "learning_rate": 1e-3}
        if "evaluation" in content:
            content["evaluation"]["ks"] = [1, 5]
            content["evaluation"]["verification"] |= {
                "pairs": 60, "random_pairs": 4000, "bins": 3, "repeats": 2, "drawn": 20
            }  # fmt: skip
        if "options" in content.get("data", {}):
            # Of a miniature's classes there would be one image each, and pairs need two.
            few = 210 if content["data"]["options"]["digits"] == 2 else 720
            content["data"]["options"] |= {"num_images": few, "held_out": 20}
        path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    folder = Folder(place)
    summary = folder.run([f"n_digit/{name}" for name in RUN], seeds=[0], data_dir=place / "data")
    assert not summary.failed, summary.failed
    return folder


@pytest.mark.parametrize("name", RUN)
def test_a_cell_runs_and_measures_pairs(ran: Folder, name: str) -> None:
    record = ran.result(f"n_digit/{name}")
    assert len(record["training"]["history"]) == 2
    point = name.endswith("point")
    sets = record["verification"]
    # Those with two digits in the plane were run before it was known that corrupt images cannot be read.
    assert tuple(sets) == (SETS if name.startswith("N2_D2") else (*SETS, "mixed"))
    for key, one in sets.items():
        assert 0 <= one["average_precision"] <= 1
        assert (one["knn_in_gallery"] is not None) is ("corrupt" in key)
        assert ("own" in one["correlations"]) is not point
    # Seen and unseen numbers are different ones.
    seen, unseen = (set(sets[key]["space"]["centres"]["labels"]) for key in ("test", "unseen"))
    assert not seen & unseen
    assert sets["test"]["space"]["labels"] == sets["corrupt"]["space"]["labels"]
