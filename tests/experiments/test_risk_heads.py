"""The experiment that makes the installed heads: its table against definitions, its parts apart, its cards."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from sklearn.metrics import roc_auc_score

from experiments import risk_joint
from experiments.risk_heads import Task, install, judged, resampled, rivals, trained
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.methods import risk
from laplacian_metric.methods.risk.targets import train_classifier
from tests.methods.learning import noisy


@pytest.fixture(scope="module")
def task() -> Task:
    return Task(
        "noise", "noise", "none", noisy(900, 0, 12), noisy(300, 1, 12), {"more noise": noisy(400, 2, 12)}
    )


def test_a_head_is_judged_beside_its_rivals_and_installed_with_its_card(task: Task, tmp_path: Path) -> None:
    heads = trained(task)
    (row,) = judged(task, heads)
    values = rivals(
        task, task.tests["more noise"], train_classifier(task.train.inputs, task.train.labels, 12), 1.0
    )
    expected = roc_auc_score(
        values["wrong"].numpy(), heads[0].predict(task.tests["more noise"].inputs).numpy()
    )
    assert row["seed 0"] == pytest.approx(expected, abs=1e-4)
    assert row["seed 0"] > 0.6
    assert row["distance"] == pytest.approx(
        roc_auc_score(values["wrong"].numpy(), values["distance"].numpy()), abs=1e-3
    )
    loaded = risk.RiskHead.load(install(task, heads[0], [row], tmp_path))
    assert loaded.card["measured"][0]["R-AUROC"] == row["seed 0"]
    assert torch.allclose(loaded(task.train.inputs), heads[0](task.train.inputs), atol=2e-3)


def test_the_error_of_resampled_classes_is_greater_where_classes_differ() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(2000) % 20
    alike = (torch.rand(2000, generator=generator) < 0.5).double()
    by_class = (labels < 10).double()
    noise = 0.5 * torch.randn(2000, generator=generator, dtype=torch.float64)
    errors = []
    for wrong in (alike, by_class):
        score = wrong * (1 + 0.5 * torch.randn(20, generator=generator, dtype=torch.float64)[labels]) + noise
        errors.append(resampled({"wrong": wrong, "head": score, "entropy": noise}, labels)["head"][1])
    assert 0 < errors[0] < errors[1]


def test_a_joint_training_is_measured_once_and_told(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(48) % 4
    images = torch.rand(48, 1, 28, 28, generator=generator) + labels[:, None, None, None]
    sets = {name: Dataset(images, labels) for name in ("train", "validation", "test")}
    results = {
        name: [risk_joint.run(stopped, 0, sets, tmp_path, epochs=1)]
        for name, stopped in (("a", True), ("b", False))
    }
    again = risk_joint.run(True, 0, {**sets, "train": sets["train"].select([0])}, tmp_path, epochs=1)
    assert again == results["a"][0]
    first = [risk_joint.learner(stopped, 0, 4).network.encoder.head.weight for stopped in (True, False)]
    assert torch.equal(*first)
