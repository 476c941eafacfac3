"""The runner: what its results hold, what cells can ask it to measure, what it skips and what cells share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from experiments.harness import cell_fitting, results, runner
from laplacian_metric.metrics.evaluation import ood_name
from tests.experiments.harness.miniature import BASE, LAPLACE, RETRIEVAL, folder_with

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
        assert set(record["retrieval"]["test"]) == set(record["retrieval"]["validation"]) == RETRIEVAL
        assert all(set(score) == SCORE for score in record["scores"].values())
        assert all(set(score["ood"]) == {"digits"} for score in record["scores"].values())
        assert record["counts"]["images"] == {"test": 60, "validation": 60, "corrupted": 48, "digits": 30}
    assert set(plain["scores"]) == {"feature norm", "embedding norm", "nearest distance"}
    assert plain["calibration"] is plain["curves"] is None
    assert [entry["epoch"] for entry in plain["training"]["history"]] == [1, 2]
    assert set(laplace["scores"]) == {"own", "1/kappa", "variance"}
    assert laplace["training"] is None
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
    # The weights that a post-hoc method starts from are not touched by it.
    assert folder.run(["mini/deterministic"]).ok
    assert folder.result("mini/deterministic")["retrieval"] == folder.result("mini/laplace")["retrieval"]


def test_more_can_be_measured(tmp_path: Path) -> None:
    evaluation = {"crop_test": True, "trivial": True, "resamples": 20, "corrupted": False}
    data = {
        **BASE["data"],
        "out": [*BASE["data"]["out"], {"name": "sample-mnist", "label": "few", "limit": 9}],
    }
    folder = folder_with(tmp_path, laplace={**LAPLACE, "data": data, "evaluation": evaluation})
    folder.run(["mini/laplace"])
    result = folder.result("mini/laplace")
    assert set(result["scores"]) == {
        "own",
        "1/kappa",
        "variance",
        "feature norm",
        "embedding norm",
        "nearest distance",
    }
    low, high = (result["intervals"]["recall@1"][key] for key in ("low", "high"))
    assert low <= result["retrieval"]["test"]["recall@1"] <= high
    for label in ("digits", "few"):
        for name, value in result["scores"]["own"]["ood"][label].items():
            interval = result["intervals"][ood_name(name, label)]
            assert interval["low"] <= value <= interval["high"]


def test_a_methods_own_similarity_is_ranked_beside_the_points(tmp_path: Path) -> None:
    hib = {"inherit": "mini/deterministic", "method": {"name": "hib", "normalize": False}}
    folder = folder_with(tmp_path, hib=hib, vmf={"inherit": "mini/deterministic", "method": "vmf"})
    assert folder.run(["mini/hib", "mini/vmf"]).ok
    result = folder.result("mini/hib")["retrieval"]
    assert set(result["own_similarity"]) == RETRIEVAL | {"ece@1", "ece@5"}


def test_result_files_are_readable_and_whole(tmp_path: Path) -> None:
    kept = results.Results(tmp_path)
    curves = {"sparsification": {"own": [1 / 3]}}
    kept.write("a/b", 3, {"status": "done", "error": None, "curves": curves, "config": {}})
    path = kept.path("a/b", 3)
    with pytest.raises(ValueError, match="sparsification"):
        kept.write("a/b", 4, {"curves": {"sparsification": 1}})
    assert not kept.path("a/b", 4).exists()
    content = json.loads(path.read_text(encoding="utf-8"))
    assert list(content)[:4] == ["cell", "seed", "status", "error"]
    assert content["curves"]["sparsification"]["own"] == [0.33333]
