"""The scores that need no method."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.spatial.distance import mahalanobis
from torch.nn import functional as F

from laplacian_metric import metrics
from tests.metrics.reference import unit
from tests.trust.reference import EPS, match_inputs, ranked


def test_norms_by_hand() -> None:
    vectors = torch.tensor([[3.0, 4.0], [0.0, 2.0]])
    assert metrics.feature_norm(vectors).tolist() == [5, 2]
    assert metrics.embedding_norm(vectors).tolist() == pytest.approx([0.2, 0.5])


def test_nearest_distance_by_hand() -> None:
    z = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
    assert metrics.nearest_distance(z).tolist() == pytest.approx([0.8**0.5, 0.4**0.5, 0.4**0.5], rel=1e-7)
    assert metrics.nearest_distance(z, database=z).tolist() == [0, 0, 0]


@pytest.mark.parametrize("shrinkage", [0.0, 0.1, 1.0])
def test_mahalanobis_is_the_smallest_over_classes(shrinkage: float) -> None:
    generator = torch.Generator().manual_seed(0)
    train, labels = torch.randn(60, 4, generator=generator) * torch.tensor([1, 2, 3, 4]), torch.arange(60) % 3
    train += labels[:, None]
    test = torch.randn(10, 4, generator=generator) * 3
    means = np.stack([train[labels == c].double().mean(0).numpy() for c in range(3)])
    centred = train.double().numpy() - means[labels.numpy()]
    covariance = centred.T @ centred / 60
    covariance = (1 - shrinkage) * covariance + shrinkage * np.trace(covariance) / 4 * np.eye(4)
    inverse = np.linalg.inv(covariance)
    expected = [min(mahalanobis(x, m, inverse) for m in means) for x in test.double().numpy()]
    distances = metrics.mahalanobis_distance(test, train, labels, shrinkage=shrinkage)
    assert distances.tolist() == pytest.approx(expected)


def test_fewer_images_than_dimensions_need_shrinkage() -> None:
    train, test = torch.randn(6, 20, generator=torch.Generator().manual_seed(0)), torch.zeros(2, 20)
    assert bool(metrics.mahalanobis_distance(test, train, [0, 0, 0, 1, 1, 1]).isfinite().all())
    with pytest.raises(ValueError, match=r"cannot be inverted with shrinkage 0\.0: use a greater one"):
        metrics.mahalanobis_distance(test, train, [0, 0, 0, 1, 1, 1], shrinkage=0.0)


def test_what_is_far_from_all_classes_has_the_greater_scores() -> None:
    generator = torch.Generator().manual_seed(0)
    train, labels = torch.randn(200, 5, generator=generator), torch.arange(200) % 2
    train[labels == 1] += 6
    inside, outside = train[:50] + 0.1, torch.randn(50, 5, generator=generator) - 8
    scores = [metrics.mahalanobis_distance(x, train, labels) for x in (inside, outside)]
    assert metrics.ood_auroc(*scores) == 1


def test_bad_input_is_named() -> None:
    features = torch.zeros(3, 2)
    cases = [
        (lambda: metrics.feature_norm(torch.zeros(0, 2)), "features is empty"),
        (lambda: metrics.embedding_norm(torch.full((1, 2), torch.nan)), "raw_embeddings has NaN"),
        (
            lambda: metrics.mahalanobis_distance(features, torch.zeros(3, 4), [0, 0, 1]),
            "features has 2 columns",
        ),
        (
            lambda: metrics.mahalanobis_distance(features, features, [0, 0]),
            "train_labels has 2 entries for 3",
        ),
        (lambda: metrics.mahalanobis_distance(features, features, [0] * 3, shrinkage=2), "shrinkage is 2"),
        (lambda: metrics.nearest_distance(2 * unit(3, 2)), "embeddings is not normalised"),
    ]
    for call, message in cases:
        with pytest.raises(ValueError, match=message):
            call()


def test_trivial_scores_are_those_of_loops() -> None:
    generator = torch.Generator().manual_seed(0)
    hs, h = torch.randn(40, 6, generator=generator), torch.randn(7, 6, generator=generator)
    labels = [str(i % 3) for i in range(40)]
    head = torch.nn.Linear(6, 4)
    scores = metrics.trivial_scores((hs, labels), h, encoder=head)
    with torch.no_grad():
        zs, z = head(hs).numpy(), head(h).numpy()
    for i in range(7):
        inputs = match_inputs(h[i].numpy(), z[i], hs.numpy(), zs, labels)
        assert float(scores["gallery distance"][i]) == pytest.approx(np.exp(inputs[0]) - EPS, rel=1e-4)
        assert float(scores["feature distance"][i]) == pytest.approx(np.exp(inputs[1]) - EPS, rel=1e-4)
        assert float(scores["LOF"][i]) == pytest.approx(inputs[3], abs=1e-4)
        assert float(scores["margin"][i]) == pytest.approx(-inputs[4], abs=1e-4)
        assert float(scores["kernel vote"][i]) == pytest.approx(1 / (1 + np.exp(inputs[6])), abs=1e-4)
        assert float(scores["vote"][i]) == pytest.approx(1 - inputs[7])
        tenth = ranked(h[i].numpy(), list(hs.numpy()))[9][0]
        assert float(scores["kNN feature distance"][i]) == pytest.approx(tenth, rel=1e-4)
    assert torch.allclose(scores["feature norm"], h.double().norm(dim=1))
    assert torch.allclose(scores["embedding norm"], 1 / torch.from_numpy(z).double().norm(dim=1))
    assert all(values.dtype == torch.float64 for values in scores.values())


def test_without_labels_there_are_neither_margins_nor_votes() -> None:
    generator = torch.Generator().manual_seed(0)
    hs, h = torch.randn(20, 4, generator=generator), torch.randn(3, 4, generator=generator)
    labelled, bare = (metrics.trivial_scores((hs, labels), h) for labels in ([0] * 20, None))
    assert set(labelled) - set(bare) == {"margin", "vote", "kernel vote"}
    order = metrics.nearest_distance(F.normalize(h, dim=1), database=F.normalize(hs, dim=1)).argsort()
    assert torch.equal(bare["gallery distance"].argsort(), order)
