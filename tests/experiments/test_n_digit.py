"""The cells of N-digit MNIST on a miniature, and the script that makes their tables and pictures."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from experiments import n_digit
from experiments.harness import Cells
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
    assert not summary.without_data
    assert summary.ok
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
        assert 0 <= one["knn"] <= 1
        assert (one["knn_in_gallery"] is not None) is ("corrupt" in key)
        assert ("own" in one["correlations"]) is not point
        assert {"feature norm", "embedding norm", "nearest distance"} <= set(one["correlations"])
        assert len(one["space"]["means"]) == 20
        digits, dim = int(name[1]), int(name[4])
        assert len(one["space"]["means"][0]) == (2 if "mixture" in name else 1)
        assert len(one["space"]["means"][0][0]) == dim
        classes = {label // 10 ** (digits - 1) for label in one["space"]["centres"]["labels"]}
        assert classes <= set(range(10))
    # Seen and unseen numbers are different ones.
    seen, unseen = (set(sets[key]["space"]["centres"]["labels"]) for key in ("test", "unseen"))
    assert not seen & unseen
    assert sets["test"]["space"]["labels"] == sets["corrupt"]["space"]["labels"]


def test_pictures_are_made_of_what_there_is(
    ran: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    n_digit.main(["--results", str(ran.results), "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    assert "n_digit_plane_N2: written" in printed
    assert "n_digit_plane_N2_hidden: none" in printed
    pictures = sorted(path.name for path in (tmp_path / "plots").iterdir())
    assert pictures == ["n_digit_plane_N2.json", "n_digit_plane_N2.png"]
    record = json.loads((tmp_path / "plots" / "n_digit_plane_N2.json").read_text(encoding="utf-8"))
    states = {(entry["cell"], entry["status"]) for entry in record["cells"]}
    assert ("n_digit/N2_D2_mixture", "done") in states
    assert str(tmp_path) not in json.dumps(record)


def test_the_papers_settings_are_in_the_cells(root: Path) -> None:
    cells = Cells(root / "experiments" / "cells")
    names = cells.matching(["n_digit/*"])
    assert len(names) == 22
    for name in names:
        cell = cells[name]
        drawn = name.endswith("_drawn")
        hidden = drawn or name.endswith("_hidden")
        all_pairs = hidden or name.endswith("_all_pairs")
        wider = {"channels": [16, 32]} if all_pairs else {}
        layer = {"hidden": 1024} if hidden else {}
        digits, dim = int(name[9]), int(name[12])
        assert cell.data.options == {"digits": digits}
        assert cell.network.options == {"digits": digits, **wider, **layer}
        assert cell.network.dim == dim
        with_mixed = "mixed" in cell.data.tests
        earlier = (digits, dim) == (2, 2) or name == "n_digit/N2_D3_point"
        assert with_mixed is (name.endswith("_mixed") or not earlier)
        points_of_all_pairs = name in ("n_digit/N2_D2_point_all_pairs", "n_digit/N2_D2_point_hidden")
        one_seed = with_mixed or dim == 3 or (all_pairs and not points_of_all_pairs)
        assert cell.seeds == ((0,) if one_seed else (0, 1) if points_of_all_pairs else (0, 1, 2))
        assert cell.training.batch_size == 128
        assert (cell.data.augment == "cover-digits") is drawn
        assert cell.data.split_options == ({"train": {"occlusion": "clean"}} if drawn else {})
        if all_pairs:  # every pair of a shuffled batch
            assert (cell.training.epochs, cell.training.steps_per_epoch) == (51, None)
        else:
            assert cell.training.epochs * (cell.training.steps_per_epoch or 0) == 20_000
        method: Any = cell.method.make()
        assert method.normalize is False
        if "point" in name or "hard_margin" in name:
            assert cell.method.name == ("soft-contrastive" if "point" in name else "hard-margin")
            continue
        assert (method.samples, method.head.value) == (8, "linear")
        assert method.components == (2 if "mixture" in name else 1)
        assert method.kl_weight == (0.0 if "beta0" in name else 1e-4)
        assert math.isclose(cell.training.learning_rate, 3e-3)


def test_a_posterior_on_frozen_features_is_measured_as_its_network_is(ran: Folder, tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    options = {"digits": 2, "num_images": 210, "held_out": 20}
    base: dict[str, Any] = {
        "data": {
            "train": "n-digit-mnist",
            "options": options,
            "tests": {"corrupt": {"occlusion": "corrupt"}},
        },
        "network": {"name": "n-digit", "dim": 3},
        "training": {"epochs": 1, "batch_size": 30},
        "method": {"name": "deterministic"},
        "seeds": [0],
        "evaluation": {
            "samples": 0,
            "corrupted": False,
            "verification": {
                "pairs": 60,
                "random_pairs": 2000,
                "bins": 3,
                "galleries": {"corrupt": "test"},
            },
        },
    }
    folder.write("mini/deterministic", base)
    folder.write("mini/laplace", {"base": "mini/deterministic", "method": {"name": "laplace", "prior": 1.0}})
    summary = folder.run(data_dir=ran.root / "data", keep_features=True)
    assert summary.ok, summary.failed
    plain, posterior = (
        folder.result(f"mini/{name}")["verification"] for name in ("deterministic", "laplace")
    )
    for name in ("test", "corrupt"):
        # Retrieval goes by the same points, whose features are kept in files for the posterior.
        for key in ("average_precision", "knn", "knn_in_gallery"):
            assert posterior[name][key] == pytest.approx(plain[name][key], abs=0.01), (name, key)
        assert "own" in posterior[name]["correlations"]
        assert "own" not in plain[name]["correlations"]
    assert plain["test"]["average_precision"] != plain["corrupt"]["average_precision"]
    assert list(folder.work.rglob("test-corrupt/*/features.bin"))
