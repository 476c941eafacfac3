"""Scores of the image alone and of image and gallery, also those submitted in a file, against loops and the metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from experiments.harness.suites.judging import (
    GALLERY_DISTANCE,
    TRUST,
    GalleryScores,
    MatchRisk,
    Searched,
    intervals,
    retrieval_numbers,
)
from experiments.harness.suites.measuring import safe_retrieval
from experiments.harness.suites.submission import Submission, judge
from laplacian_metric import metrics
from laplacian_metric.metrics import statistics

LABELS = torch.arange(12).repeat_interleave(20)


def points(seed: int, spread: float = 0.8) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(12, 6, generator=generator)
    return F.normalize(centres[LABELS] + spread * torch.randn(240, 6, generator=generator))


@pytest.fixture(scope="module")
def searched() -> Searched:
    return Searched.of(points(0), LABELS)


@pytest.fixture(scope="module")
def uncertainty() -> Tensor:
    return torch.rand(240, generator=torch.Generator().manual_seed(7))


def test_it_finds_what_the_metrics_find(searched: Searched, uncertainty: Tensor) -> None:
    z = points(0)
    numbers = retrieval_numbers(searched, {"own": uncertainty, GALLERY_DISTANCE: metrics.nearest_distance(z)})
    assert numbers["recall@1"] == metrics.recall_at_k(z, LABELS)
    assert numbers["scores"]["own"]["r_auroc"] == pytest.approx(metrics.r_auroc(z, LABELS, uncertainty))
    free = metrics.trivial_scores((z, LABELS))
    both = GalleryScores.fit(searched, uncertainty)(searched, uncertainty)
    for name in (GALLERY_DISTANCE, "margin", "vote", "kernel vote"):
        assert torch.allclose(both[name], free[name])


def test_r_auroc_within_classes_is_that_of_a_loop(searched: Searched, uncertainty: Tensor) -> None:
    coarse = (uncertainty * 10).floor()  # with ties
    above = pairs = 0.0
    for label in range(12):
        rows = (label == LABELS).nonzero()[:, 0].tolist()
        for i in rows:
            for j in rows:
                if not searched.right[i] and searched.right[j]:
                    pairs += 1
                    above += float(coarse[i] > coarse[j]) + 0.5 * float(coarse[i] == coarse[j])
    assert retrieval_numbers(searched, {"u": coarse})["scores"]["u"]["r_auroc_within"] == pytest.approx(
        above / pairs
    )
    wrong = torch.from_numpy(~searched.right).double()
    weights = torch.randint(0, 3, (4, 240), generator=torch.Generator().manual_seed(1)).double()
    many = statistics.auroc_within(coarse, wrong, LABELS, weights)
    for draw, weight in zip(many, weights, strict=True):
        rows = torch.repeat_interleave(torch.arange(240), weight.long())
        ones = torch.ones(len(rows)).double()
        assert draw == pytest.approx(
            float(statistics.auroc_within(coarse[rows], wrong[rows], LABELS[rows], ones))
        )


def test_intervals_draw_classes_and_pair_differences(searched: Searched, uncertainty: Tensor) -> None:
    both = GalleryScores.fit(searched, uncertainty)(searched, uncertainty)
    ends = intervals(searched, both, {"same": (TRUST, TRUST), "gap": (TRUST, GALLERY_DISTANCE)}, 100)
    value = retrieval_numbers(searched, both)["scores"][TRUST]["r_auroc"]
    assert ends[TRUST].low < value < ends[TRUST].high
    assert (ends["same"].low, ends["same"].high) == (0.0, 0.0)
    assert ends["gap"].high - ends["gap"].low < 0.5


def test_safe_retrieval_is_that_of_loops(searched: Searched, uncertainty: Tensor) -> None:
    values = safe_retrieval(searched, uncertainty, 0.3)
    z = points(0).double()
    cosines = z @ z.T - 2 * torch.eye(240)
    kept = uncertainty.argsort()[:168]
    assert values["all"] == pytest.approx(metrics.recall_at_k(points(0), LABELS))
    assert values["queries"] == pytest.approx(float(searched.right[kept.numpy()].mean()))
    nearest = kept[cosines[:, kept].argmax(1)]
    right = (LABELS[nearest] == LABELS).double()
    assert values["gallery"] == pytest.approx(float(right.mean()))
    assert values["both"] == pytest.approx(float(right[kept].mean()))


def test_the_match_risk_is_the_same_for_any_increasing_map(searched: Searched, uncertainty: Tensor) -> None:
    others = Searched.of(points(1), LABELS)
    one, other = (MatchRisk.fit(searched, u) for u in (uncertainty, uncertainty.exp() * 50))
    assert torch.allclose(one(others, uncertainty), other(others, uncertainty.exp() * 50))


ROWS = 90


def arrays(prefix: str = "", seed: int = 0) -> dict[str, NDArray[Any]]:
    generator = np.random.default_rng(seed)
    labels = np.repeat(np.arange(6), 15)
    embeddings = np.eye(6)[labels] + 0.5 * generator.standard_normal((ROWS, 6))
    return {
        f"{prefix}embeddings": embeddings,
        f"{prefix}labels": labels,
        f"{prefix}uncertainty": generator.random(ROWS),
    }


def test_its_numbers_are_those_of_the_metrics(tmp_path: Path) -> None:
    content = arrays()
    np.savez(tmp_path / "mine.npz", **content)
    _, listed = judge(Submission.read(tmp_path / "mine.npz"), resamples=20)
    z = torch.nn.functional.normalize(torch.from_numpy(content["embeddings"]))
    labels, u = torch.from_numpy(content["labels"]), torch.from_numpy(content["uncertainty"])
    assert len(listed) == 1  # without validation images nothing of the gallery can be calibrated
    assert listed[0].recall["scores"] == pytest.approx(metrics.recall_at_k(z, labels))
    assert listed[0].r_auroc["scores"] == pytest.approx(metrics.r_auroc(z, labels, u))
    assert listed[0].low <= listed[0].r_auroc["scores"] <= listed[0].high


def test_validation_images_calibrate_scores_of_the_gallery(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", **arrays(), **arrays("validation_", 1))
    _, listed = judge(Submission.read(tmp_path / "mine.npz"), resamples=0)
    by_score = {row.score: row for row in listed}
    assert {"own", "match risk", "Trust", "gallery distance"} <= set(by_score)
    assert by_score["own"].group == "image alone"
    assert by_score["match risk"].group == "image and gallery"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"uncertainty": None}, "uncertainty"),
        ({"embeddings": np.zeros((ROWS, 2, 2))}, "embeddings"),
        ({"embeddings": np.zeros((ROWS, 2))}, "embeddings"),
        ({"uncertainty": np.zeros(3)}, "uncertainty"),
        ({"uncertainty": np.full(ROWS, np.nan)}, "uncertainty"),
        ({"labels": np.zeros(ROWS)}, "labels"),
        ({"labels": np.arange(ROWS)}, "labels"),
        ({"validation_labels": np.zeros(ROWS)}, "validation_embeddings"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    content = {name: value for name, value in {**arrays(), **change}.items() if value is not None}
    np.savez(tmp_path / "mine.npz", **content)
    with pytest.raises(ValueError, match=named):
        Submission.read(tmp_path / "mine.npz")
