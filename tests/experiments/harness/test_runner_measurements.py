"""What cells can ask a runner to measure, and how it writes results."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from experiments.harness import results
from laplacian_metric import metrics
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.metrics.evaluation import ood_name
from tests.experiments.harness.miniature import BASE, LAPLACE, RETRIEVAL, folder_with


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
    assert 0 <= result["scores"]["own"]["crop_test"] <= 1
    assert result["scores"]["own"]["corrupted_auroc"] is None
    low, high = (result["intervals"]["recall@1"][key] for key in ("low", "high"))
    assert low <= result["retrieval"]["test"]["recall@1"] <= high
    assert {"r_auroc", "retrieval_ece"} <= set(result["intervals"])
    for label in ("digits", "few"):
        for name, value in result["scores"]["own"]["ood"][label].items():
            interval = result["intervals"][ood_name(name, label)]
            assert interval["low"] <= value <= interval["high"]


def test_what_cannot_be_measured_is_said(tmp_path: Path) -> None:
    folder = folder_with(
        tmp_path,
        ensemble={
            "base": "mini/deterministic",
            "method": "ensemble",
            "evaluation": {"trivial": True, "samples": 0},
        },
        human={**LAPLACE, "evaluation": {"label_entropy": True}},
    )
    summary = folder.run(["mini/ensemble", "mini/human"])
    assert "trivial scores are those of one network" in summary.failed["mini/ensemble, seed 0"]
    assert "what people said about the test images" in summary.failed["mini/human, seed 0"]


def test_a_methods_own_similarity_is_ranked_beside_the_points(tmp_path: Path) -> None:
    hib = {"inherit": "mini/deterministic", "method": {"name": "hib", "normalize": False}}
    folder = folder_with(tmp_path, hib=hib, vmf={"inherit": "mini/deterministic", "method": "vmf"})
    assert folder.run(["mini/hib", "mini/vmf"]).ok
    result = folder.result("mini/hib")["retrieval"]
    assert set(result["own_similarity"]) == RETRIEVAL | {"ece@1", "ece@5"}
    assert set(result) == {"test", "validation", "own_similarity"}


def test_both_distances_of_the_bayesian_triplet_loss_are_measured_and_the_covariance(tmp_path: Path) -> None:
    method = {"name": "btl", "mining": "batch", "hidden": 8}
    gaussian = {"inherit": "mini/deterministic", "method": method}
    sphere = {"inherit": "mini/deterministic", "method": {**method, "prior": "sphere"}}
    folder = folder_with(tmp_path, gaussian=gaussian, sphere=sphere)
    assert folder.run(["mini/gaussian", "mini/sphere"]).ok
    for name in ("gaussian", "sphere"):
        result = folder.result(f"mini/{name}")
        expected = result["retrieval"]["expected_similarity"]
        assert set(expected) == RETRIEVAL | {"ece@1", "ece@5"}
        assert all(0 <= value <= 1 for value in expected.values())
        # By the cosine, which the means on the sphere are retrieved by anyway.
        assert (result["retrieval"]["own_similarity"] is None) == (name == "sphere")
        assert 0 <= result["scores"]["difference covariance"]["ood"]["digits"]["auroc"] <= 1


def test_the_entropy_of_human_labels_goes_with_the_test_images() -> None:
    from experiments.harness.measurements import label_entropy

    counts = torch.tensor([[5.0, 5.0], [10.0, 0.0]])
    sets = {"test": Dataset(torch.zeros(2, 3), torch.tensor([0, 1]))}
    assert torch.equal(label_entropy(sets, counts), metrics.label_entropy(counts))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="for 1 of 2 test images"):
        label_entropy(sets, counts[:1])  # type: ignore[arg-type]


def test_result_files_are_readable_and_whole(tmp_path: Path) -> None:
    kept = results.Results(tmp_path)
    curves = {"sparsification": {"own": [1 / 3]}}
    written = kept.write("a/b", 3, {"status": "done", "error": None, "curves": curves, "config": {}})
    path = kept.path("a/b", 3)
    assert written.seed == 3
    with pytest.raises(ValueError, match="sparsification"):
        kept.write("a/b", 4, {"curves": {"sparsification": 1}})
    assert not kept.path("a/b", 4).exists()
    content = json.loads(path.read_text(encoding="utf-8"))
    assert list(content)[:4] == ["cell", "seed", "status", "error"]
    assert content["curves"]["sparsification"]["own"] == [0.33333]
    assert re.search(
        r'^  "sparsification": {"own": \[0.33333\]}$', path.read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    assert kept.changes("a/c", 0, {}) == []
