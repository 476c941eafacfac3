"""The runner: what its results hold, what it skips and what cells share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.harness import cell_fitting, runner
from experiments.harness.work import Work
from laplacian_metric.core.embedding import StochasticEmbedding
from tests.experiments.harness.miniature import LAPLACE, RETRIEVAL, folder_with

SCORE = {
    "r_auroc",
    "ausc",
    "ausc_oracle",
    "ausc_random",
    "ausc_gap",
    "nausc",
    "surest_error",
    "ece@1",
    "ece@5",
    "validation_r_auroc",
    "corrupted_auroc",
    "ood",
}


def test_results_have_everything_that_reports_read(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, laplace=LAPLACE)
    summary = folder.run()
    assert summary.ok
    assert summary.done == ["mini/deterministic, seed 0", "mini/laplace, seed 0"]
    plain, laplace = folder.result("mini/deterministic"), folder.result("mini/laplace")
    for record in (plain, laplace):
        assert (record["seed"], record["status"], record["error"]) == (0, "done", None)
        assert set(record["retrieval"]["test"]) == set(record["retrieval"]["validation"]) == RETRIEVAL
        assert record["retrieval"]["own_similarity"] is None
        assert all(set(score) == SCORE for score in record["scores"].values())
        assert all(set(score["ood"]) == {"digits"} for score in record["scores"].values())
        assert set(record["seconds"]) == {"training", "fit", "evaluation"}
        assert record["counts"]["images"] == {"test": 60, "validation": 60, "corrupted": 48, "digits": 30}
        assert record["environment"]["torch"] == torch.__version__
        assert record["commit"]
    assert set(plain["scores"]) == {"feature norm", "embedding norm", "nearest distance"}
    assert plain["calibration"] is plain["curves"] is None
    assert [entry["epoch"] for entry in plain["training"]["history"]] == [1, 2]
    assert {"loss", "map@1", "map@5", "map@10", "seconds"} <= set(plain["training"]["history"][0])
    assert set(laplace["scores"]) == {"own", "1/kappa", "variance"}
    assert laplace["training"] is None
    assert laplace["calibration"]["samples"] == 4
    assert len(laplace["calibration"]["table"]) == 10
    assert laplace["calibration"]["table"][3]["low"] == 0.3
    assert {key: len(curve) for key, curve in laplace["curves"]["sparsification"].items()} == {
        "own": 100,
        "oracle": 100,
        "random": 100,
    }
    assert laplace["settings"]["prior_precision"] == 1.0
    assert laplace["config"]["base_config"]["training"]["epochs"] == 2
    assert str(tmp_path) not in json.dumps([plain, laplace])
    # The network is the same, and so is what it retrieves.
    assert laplace["retrieval"] == plain["retrieval"]


def test_what_has_a_result_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_with(tmp_path)
    folder.run()
    monkeypatch.setattr(runner, "fit", None)  # nothing is computed
    summary = folder.run()
    assert (summary.done, summary.skipped) == ([], ["mini/deterministic, seed 0"])
    assert folder.states() == {("mini/deterministic", 0): "done"}


def test_a_base_is_trained_once_for_all_that_need_it(tmp_path: Path) -> None:
    folder = folder_with(
        tmp_path,
        laplace=LAPLACE,
        pfe={"base": "mini/deterministic", "method": "pfe"},
        ensemble={"base": "mini/deterministic", "method": "ensemble"},
    )
    trained = []
    original = cell_fitting.train

    def counted(learner: Any, *args: Any, **kwargs: Any) -> Any:
        trained.append((type(learner).__name__, kwargs["seed"]))
        return original(learner, *args, **kwargs)

    cell_fitting.train = counted
    try:
        # The base itself is not in the list.
        assert folder.run(["mini/laplace", "mini/pfe", "mini/ensemble"], seeds=[0]).ok
    finally:
        cell_fitting.train = original
    assert sorted(trained) == [("DeterministicLearner", 0), ("DeterministicLearner", 1), ("PFELearner", 0)]
    assert folder.states()[("mini/deterministic", 0)] == "to do"
    for seed in (0, 1):
        assert (folder.work / "mini/deterministic" / f"seed{seed}" / "best.safetensors").exists()
    # The weights that a post-hoc method starts from are not touched by it.
    assert folder.run(["mini/deterministic"]).ok
    assert folder.result("mini/deterministic")["retrieval"] == folder.result("mini/laplace")["retrieval"]


def test_an_ensemble_is_made_of_its_own_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_with(tmp_path, ensemble={"base": "mini/deterministic", "method": "ensemble"})
    requested = []
    original = cell_fitting._base_encoder

    def noted(place: Any, base: Any, seed: int) -> Any:
        requested.append(seed)
        return original(place, base, seed)

    monkeypatch.setattr(cell_fitting, "_base_encoder", noted)
    assert folder.run(["mini/ensemble"], seeds=[1]).ok
    assert requested == [2, 3]


def test_features_give_what_images_give(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, laplace=LAPLACE)
    folder.run(["mini/laplace"], keep_features=True)
    place = cell_fitting.Place(folder.read(), Work(folder.work), None, progress=False)
    cells = folder.read()
    with place.work.locked("mini/laplace", 0):
        fitted = cell_fitting.fit(place, cells["mini/laplace"], 0)
    images = place.images(cells["mini/laplace"])
    encoder = cell_fitting._base_encoder(place, cells["mini/deterministic"], 0)
    for name in ("train", "test", "out/digits", "corrupted"):
        with torch.no_grad():
            expected = encoder.features(images[name].inputs)
        assert torch.allclose(fitted.sets[name].inputs, expected, atol=1e-6), name
        assert torch.equal(fitted.sets[name].labels, images[name].labels)
        assert fitted.sets[name].split is images[name].split
        embedded: StochasticEmbedding = fitted.embedder.embed(fitted.sets[name])
        with torch.no_grad():
            assert torch.allclose(embedded.point, encoder(images[name].inputs), atol=1e-5)
    # They were mapped, and not computed once more.
    place_of_features = folder.work / "mini/deterministic/seed0/features"
    stored = next((place_of_features / "train").rglob("features.bin"))
    before = stored.stat().st_mtime_ns
    again = cell_fitting.feature_sets(images, cells["mini/laplace"].data, encoder, place_of_features)["train"]
    assert torch.equal(again.inputs, fitted.sets["train"].inputs)
    assert stored.stat().st_mtime_ns == before


def test_features_go_when_nothing_needs_them_any_more(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, laplace=LAPLACE, pfe={"base": "mini/deterministic", "method": "pfe"})
    place = folder.work / "mini/deterministic/seed0/features"
    folder.run(["mini/laplace"], keep_features=True)
    assert place.is_dir()
    was_present: list[bool] = []
    folder.run(["mini/pfe", "mini/deterministic"], say=lambda line: was_present.append(place.is_dir()))
    assert was_present[0]
    assert not place.exists()


def test_the_network_is_evaluated_by_features_where_others_need_them(tmp_path: Path) -> None:
    alone, shared = folder_with(tmp_path / "a"), folder_with(tmp_path / "b", laplace=LAPLACE)
    alone.run()
    shared.run()
    one, other = (folder.result("mini/deterministic") for folder in (alone, shared))
    assert one["retrieval"] == other["retrieval"]
    for name, score in one["scores"].items():
        assert other["scores"][name]["ood"]["digits"]["auroc"] == pytest.approx(
            score["ood"]["digits"]["auroc"], abs=1e-3
        )
