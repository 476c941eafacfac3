"""Frozen backbones, whose features are computed once, and embedders loaded from the folder of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments import harness as runs
from experiments.convert import convert_work
from experiments.harness import cell_fitting
from experiments.harness import image_sets as sets_module
from experiments.harness.image_sets import spread
from experiments.harness.work import CONFIG, Work
from laplacian_metric import data, metrics
from laplacian_metric.encoder import Encoder
from laplacian_metric.encoder.heads import whitening_head
from tests.experiments.harness.miniature import BASE, LAPLACE, Folder, folder_with

FROZEN: dict[str, Any] = {**BASE, "network": {"name": "fashion-mnist", "dim": 3, "frozen": True}}
CELLS: dict[str, Any] = {
    "deterministic": FROZEN,
    "laplace": LAPLACE,
    "online": {"inherit": "mini/deterministic", "method": "online-laplace"},
    "pfe": {"base": "mini/deterministic", "method": "pfe"},
    "ensemble": {"base": "mini/deterministic", "method": "ensemble"},
    "wide": {"inherit": "mini/deterministic", "network": {"dim": 6}},
    "dropout": {"inherit": "mini/deterministic", "method": {"name": "mc-dropout", "samples": 4}},
}


def place_of(folder: Folder) -> cell_fitting.Place:
    return cell_fitting.Place(folder.read(), Work(folder.work), None, progress=False)


def fitted(folder: Folder, name: str, seed: int = 0) -> cell_fitting.Fitted:
    place = place_of(folder)
    with place.work.locked(name, seed):
        return cell_fitting.fit(place, place.cells[name], seed)


def test_all_methods_go_by_features_that_are_computed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[str] = []
    original = sets_module.collect_features

    def counted(*arguments: Any, folder: Path, **options: Any) -> Any:
        computed.append(folder.name)
        return original(*arguments, folder=folder, **options)

    monkeypatch.setattr(sets_module, "collect_features", counted)
    folder = folder_with(tmp_path, **CELLS)
    summary = folder.run(seeds=[0, 1])
    assert summary.ok, summary.failed
    assert sorted(computed) == ["corrupted", "out-digits", "test", "train", "validation"]
    # They are gone with the last run that needed them.
    assert not list(folder.work.rglob("features.bin"))
    assert folder.result("mini/laplace")["retrieval"] == folder.result("mini/deterministic")["retrieval"]


@pytest.mark.parametrize(("base", "name"), [(FROZEN, "mini/deterministic"), (BASE, "mini/laplace")])
def test_features_are_those_of_the_images(base: dict[str, Any], name: str, tmp_path: Path) -> None:
    folder = folder_with(tmp_path, deterministic=base, laplace=LAPLACE)
    folder.run([name], keep_features=True)
    cell, place = fitted(folder, name), place_of(folder)
    if base is FROZEN:
        encoder = Encoder.from_name("fashion-mnist", dim=3, seed=cell_fitting.FROZEN_SEED).eval()
    else:
        encoder = cell_fitting._base_encoder(place, place.cells["mini/deterministic"], 0)
    images = place.images(place.cells[name])
    for part in ("train", "test", "out/digits", "corrupted"):
        with torch.no_grad():
            expected = encoder.features(images[part].inputs)
        assert torch.allclose(cell.sets[part].inputs, expected, atol=1e-6), part
        assert torch.equal(cell.sets[part].labels, images[part].labels)


@pytest.mark.parametrize("head", ["identity", "whitening"])
def test_an_untrained_head_is_what_it_is_called(head: str, tmp_path: Path) -> None:
    network = {"name": "torchvision:resnet18", "dim": 512 if head == "identity" else 5}
    network |= {"frozen": True, "head": head}
    data = {**BASE["data"], "image_size": 32, "channels": 3}
    cell = {**BASE, "data": data, "network": network, "training": {"epochs": 0}}
    folder = folder_with(tmp_path, deterministic=cell)
    folder.run(keep_features=True)
    result = folder.result("mini/deterministic")
    assert result["status"] == "done", result["error"]
    fitted_cell = fitted(folder, "mini/deterministic")
    train = fitted_cell.sets["train"].inputs
    expected = train if head == "identity" else whitening_head(train, 5)(train)
    with torch.no_grad():
        assert torch.allclose(fitted_cell.encoder.raw(train), expected, atol=1e-5)


def test_missing_weights_are_missing_data(tmp_path: Path) -> None:
    cell = {**FROZEN, "network": {**FROZEN["network"], "weights": "weights/none.safetensors"}}
    folder = folder_with(tmp_path, deterministic=cell)
    summary = folder.run(data_dir=tmp_path)
    said = summary.without_data["mini/deterministic, seed 0"]
    assert "weights/none.safetensors" in said
    assert folder.states()[("mini/deterministic", 0)] == "to do"


def test_the_embedder_of_a_finished_cell_is_the_one_that_was_measured(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, laplace=LAPLACE)
    folder.run()
    weights = (folder.work / "mini" / "deterministic" / "seed0" / "best.safetensors").read_bytes()
    cell = runs.fitted("mini/laplace", 0, cells_dir=folder.cells, work=folder.work)
    e = cell.embedder.embed(cell.sets["test"])
    measured = folder.result("mini/laplace")["scores"]["own"]["r_auroc"]
    assert metrics.r_auroc(e.point, cell.sets["test"].labels, e.uncertainty) == pytest.approx(measured)
    assert bool(torch.isfinite(e.kappa).all())
    assert (folder.work / "mini" / "deterministic" / "seed0" / "best.safetensors").read_bytes() == weights


def test_a_network_that_an_earlier_version_trained_is_converted(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, laplace=LAPLACE)
    assert folder.run(["mini/deterministic"]).ok
    path = folder.work / "mini" / "deterministic" / "seed0" / CONFIG
    config = json.loads(path.read_text(encoding="utf-8"))
    del config["training"]["clip_norm"], config["loss"]["published"]
    path.write_text(json.dumps(config), encoding="utf-8")
    weights = path.with_name("best.safetensors").stat().st_mtime_ns
    with pytest.raises(runs.RunError, match="other settings"):
        folder.run()
    assert convert_work(folder.work) == 1
    assert folder.run().done == ["mini/laplace, seed 0"]
    assert path.with_name("best.safetensors").stat().st_mtime_ns == weights


def test_images_are_embedded_where_the_embedder_takes_features(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, pfe={"base": "mini/deterministic", "method": "pfe"})
    for name in ("mini/pfe", "mini/deterministic"):
        cell = runs.fitted(name, 0, cells_dir=folder.cells, work=folder.work, progress=False)
        expected = cell.embedder.embed(cell.sets["test"])
        images = spread(data.load("sample-fashion-mnist", "test"), 60)
        for inputs in (images, images.floats(), [(images.floats(), images.labels)]):
            e = cell.embed(inputs)
            torch.testing.assert_close(e.point, expected.point, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(e.kappa, expected.kappa, rtol=1e-3, atol=0)
