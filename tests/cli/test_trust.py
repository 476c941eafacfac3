"""Trust on the command line: fit --calibrate, evaluate, report, embed, index and query say what the library does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from laplacian_metric import metrics
from laplacian_metric.laplace.model_folder import ModelFolder
from tests.cli.running import clusters, refused, worked

QUICK = ("--resamples", 20, "--samples", 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Features of four classes in three parts, of something else, and a model with Trust."""
    folder = tmp_path_factory.mktemp("trust")
    for seed, name in enumerate(("train", "validation", "test", "calibration")):
        features, labels = clusters(500, spread=0.45, seed=seed)
        np.savez(
            folder / f"{name}.npz",
            features=features,
            labels=labels,
            ids=[f"{name}{row}" for row in range(500)],
        )
    np.save(folder / "ood.npy", -3 * np.ones((60, 6), dtype=np.float32) + clusters(60, seed=9)[0])
    worked(
        *(
            "fit",
            "--features",
            folder / "train.npz",
            "--validation",
            folder / "validation.npz",
            "--calibrate",
        ),
        *("--head", "identity", "--out", folder / "model"),
    )
    return folder


def test_the_model_keeps_trust(folder: Path) -> None:
    model = ModelFolder.load(folder / "model")
    assert model.trust is not None
    assert model.lam.confidence is None
    assert len(model.trust.gallery) == 500
    assert model.about["calibration_error"]["queries"] == 500
    answer = model.trust(clusters(500, spread=0.45, seed=2)[0])
    assert set(answer.labels or []) == {"0", "1", "2", "3"}
    right = np.array(answer.labels, dtype=int) == clusters(500, seed=2)[1]
    assert answer.probability[right].mean() > answer.probability[~right].mean() + 0.1


def test_too_few_validation_images_are_refused(tmp_path: Path) -> None:
    features, labels = clusters(200)
    np.savez(tmp_path / "few.npz", features=features, labels=labels)
    said = refused("fit", "--features", tmp_path / "few.npz", "--calibrate", "--out", tmp_path / "m")
    assert "50" in said
    assert not (tmp_path / "m").exists()


def test_evaluate_says_the_numbers_of_trust(folder: Path) -> None:
    arguments = ("evaluate", folder / "model", folder / "test.npz", "--ood", folder / "ood.npy", *QUICK)
    found = worked(*arguments, "--json").json()
    model = ModelFolder.load(folder / "model")
    features, labels = (torch.from_numpy(one) for one in clusters(500, spread=0.45, seed=2))
    assert model.trust is not None
    trust = model.trust.with_gallery(features, [str(label) for label in labels.tolist()])
    probability = torch.from_numpy(trust.items().probability)
    outside = torch.from_numpy(trust(np.load(folder / "ood.npy")).probability)
    point = model.lam.embed_features(features).point
    expected = metrics.evaluate(
        point, labels, probability=probability, ood_uncertainty={"ood": 1 - outside}, resamples=0
    )
    for name in ("recall@1", "r_auroc", "probability_ece", "brier"):
        assert found["values"][name] == pytest.approx(expected[name]), name
    assert found["scores"]["own"]["ood"]["ood"] == pytest.approx(expected.scores["own"].ood["ood"])
    assert found["scores"]["novelty"]["ood"]["ood"]["auroc"] > 0.9
    assert "vote, no method" in found["scores"]
    shown = worked(*arguments).out
    for said in ("probability_ece", "open-set AUROC ood", "gallery distance, no method"):
        assert said in shown


def test_a_report_shows_whether_the_probability_is_right(folder: Path, tmp_path: Path) -> None:
    worked("report", folder / "model", folder / "test.npz", *QUICK, "--out", tmp_path / "r")
    page = (tmp_path / "r" / "report.html").read_text(encoding="utf-8")
    assert "Is the probability right?" in page
    assert "1 - probability of Trust" in page
    assert "kernel vote, no method" in page
