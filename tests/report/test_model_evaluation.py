"""The evaluation of a model folder with a calibrated `Trust`."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch

from hessians import ContrastiveLoss
from laplacian_metric import LAM, Encoder, Trust, metrics
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.laplace.model_folder import ModelFolder
from laplacian_metric.report.model_evaluation import evaluate, evaluated
from tests.cli.running import clusters


@pytest.fixture(scope="module")
def model() -> ModelFolder:
    """A posterior and a Trust over clusters of features."""
    (h, labels), (queries, classes) = clusters(400, spread=0.45), clusters(300, spread=0.45, seed=1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        encoder = Encoder(torch.nn.Identity(), torch.nn.Linear(6, 4))
    lam = LAM(encoder, ContrastiveLoss())
    lam.fit_features(torch.from_numpy(h), torch.from_numpy(labels), check_mode=False)
    names = np.array([*"abcd"])
    return ModelFolder(lam, trust=Trust.fit((h, names[labels]), (queries, names[classes]), encoder=encoder))


def data(seed: int, count: int = 200) -> Dataset:
    h, labels = clusters(count, spread=0.45, seed=seed)
    return Dataset(torch.from_numpy(h), torch.from_numpy(labels), class_names=(*"abcd",), name=f"data{seed}")


OOD = Dataset(3 + torch.from_numpy(clusters(30, seed=9)[0]), name="elsewhere")


def test_the_probability_is_that_of_trust_over_the_gallery(
    model: ModelFolder, caplog: pytest.LogCaptureFixture
) -> None:
    queries, items = data(2), data(3)
    with caplog.at_level(logging.WARNING):
        run = evaluated(model, queries, [OOD], gallery=items, samples=0)
    assert model.trust is not None
    trust = model.trust.with_gallery(items.inputs, items.label_names.tolist())
    answer, outside = trust(queries.inputs), trust(OOD.inputs)
    np.testing.assert_allclose(np.asarray(run.probability), answer.probability)
    np.testing.assert_allclose(run.queries.uncertainty, 1 - answer.probability)
    np.testing.assert_allclose(run.ood["elsewhere"].uncertainty, 1 - outside.probability)
    np.testing.assert_allclose(run.scores["novelty"].ood["elsewhere"], outside.novelty)
    result = evaluate(model, queries, [OOD], gallery=items, samples=0, resamples=0)
    right = torch.from_numpy(answer.labels == queries.label_names)
    expected = metrics.reliability(right.double(), torch.from_numpy(answer.probability))
    assert result["probability_ece"] == pytest.approx(expected.ece)


@pytest.mark.parametrize("count", [200, 800])  # with views in folds, and with one view
def test_without_a_gallery_every_image_is_left_out_of_its_own_response(
    model: ModelFolder, count: int
) -> None:
    queries = data(4, count)
    assert model.trust is not None
    trust = model.trust.with_gallery(queries.inputs, queries.label_names.tolist())
    answer = trust.items()
    cosine = run_cosines(model, queries)
    np.testing.assert_array_equal(answer.nearest, cosine.argmax(1))
    np.testing.assert_allclose(answer.distance, 1 - cosine.max(1).values, atol=1e-6)
    np.testing.assert_array_equal(answer.labels, queries.label_names[answer.nearest])
    run = evaluated(model, queries, samples=0)
    np.testing.assert_allclose(np.asarray(run.probability), answer.probability)
    right = np.asarray(answer.labels) == queries.label_names
    assert abs(float(answer.probability.mean() - np.mean(right))) < 0.08


def run_cosines(model: ModelFolder, images: Dataset) -> torch.Tensor:
    with torch.no_grad():
        z = torch.nn.functional.normalize(model.encoder.head(images.inputs).double(), dim=1)
    return (z @ z.T).fill_diagonal_(-2)
