"""The experiment on embeddings without labels, on random images: every number is there, and the tables have them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from experiments import self_supervised as experiment
from hessians import ContrastiveLoss
from laplacian_metric import methods
from laplacian_metric.core.method import FitData, Setup
from laplacian_metric.data.dataset import Dataset
from laplacian_metric.data.views import ImageViews
from laplacian_metric.encoder import Encoder
from laplacian_metric.runs.cell_fitting import Fitted
from laplacian_metric.runs.image_sets import OUT, TEST, TRAIN, VALIDATION


def _images(number: int, seed: int, first: int = 0) -> Dataset:
    generator = torch.Generator().manual_seed(seed)
    labels = first + torch.arange(number) % 3
    pixels = 0.5 * torch.rand(number, 3, 8, 8, generator=generator) + labels[:, None, None, None] % 3 / 6
    return Dataset(pixels, labels)


def _run(method: str, first: int = 0) -> Fitted:
    sets: dict[str, Any] = {
        TRAIN: _images(90, 0),
        VALIDATION: _images(60, 1),
        TEST: _images(60, 2, first),
        **{OUT + label: _images(20, 3) for label in experiment.OUTSIDE},
    }
    encoder = Encoder.from_name("small-cnn", dim=4, width=2, seed=0)
    learner = methods.make(method).learner([encoder], Setup(ContrastiveLoss(), 90))
    embedder = learner.embedder(FitData(sets[TRAIN], sets[VALIDATION]))
    return Fitted(embedder, encoder, sets, None, 0.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["isif", "umm"])
def test_every_number_is_measured_and_tabulated(method: str) -> None:
    record = experiment.evaluate(_run(method), ImageViews())
    assert set(record["quality"]) == set(experiment.QUALITY)
    assert (record["quality"]["trace"] is None) == (method == "isif")
    assert ("own" in record["scores"]) == (method == "umm")
    for numbers in record["scores"].values():
        assert set(numbers) == {"R-AUROC", *experiment.CORRUPTIONS, *experiment.OUTSIDE}
        assert all(0 <= value <= 1 for value in numbers.values())
    text = experiment.tables({"a": [record, record]}, {"a": "Title"})
    assert "| Title | 2 |" in text
    assert "± .000" in text
    assert "| LAM, InfoNCE: 1/kappa |" in text


def test_classes_that_were_not_seen_have_a_table_of_their_own() -> None:
    record = experiment.evaluate(_run("umm", first=3), ImageViews())
    assert set(record) == {"unseen"}
    assert set(record["unseen"]) == set(experiment.UNSEEN)
    assert "| Unseen | 1 |" in experiment.tables({"a": [record]}, {"a": "Unseen"})
