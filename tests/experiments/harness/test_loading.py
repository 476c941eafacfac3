"""What a cell embeds with, taken out of the folder of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from experiments import harness as runs
from experiments.convert import convert_work
from experiments.harness.image_sets import spread
from experiments.harness.work import CONFIG
from laplacian_metric import data, metrics
from tests.experiments.harness.miniature import LAPLACE, folder_with


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
