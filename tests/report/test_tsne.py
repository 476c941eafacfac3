"""Directions in the plane."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

from laplacian_metric.report.plots import angles, principal_plane, tsne_plane


def directions(number: int, dim: int, seed: int = 0) -> torch.Tensor:
    z = torch.randn(number, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.nn.functional.normalize(z, dim=1)


def test_angles_are_those_of_a_loop() -> None:
    z = directions(12, 5).numpy()
    expected = [[math.acos(max(-1, min(1, float(a @ b)))) for b in z] for a in z]
    np.testing.assert_allclose(angles(z), expected, atol=3e-8)
    assert angles(np.stack([z[0], -z[0]]))[0, 1] == pytest.approx(math.pi)


@pytest.mark.parametrize("shape", [(12, 5), (3, 7), (8, 2)])
def test_components_are_those_of_scikit_learn(shape: tuple[int, int]) -> None:
    z = directions(*shape).numpy()
    expected = PCA(2).fit_transform(z)
    np.testing.assert_allclose(np.abs(principal_plane(z)), np.abs(expected), atol=1e-9)


def test_clusters_stay_together_and_the_seed_decides() -> None:
    labels = np.arange(60) % 3
    z = directions(3, 16)[labels] + 0.1 * directions(60, 16, seed=1)
    plane = tsne_plane(z, seed=3)
    distance = np.linalg.norm(plane[:, None] - plane[None], axis=2)
    np.fill_diagonal(distance, np.inf)
    assert (labels[distance.argmin(1)] == labels).all()
    np.testing.assert_array_equal(plane, tsne_plane(z, seed=3))


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("dim", [1, 2, 3])
def test_few_images_are_drawn_too(number: int, dim: int) -> None:
    plane = tsne_plane(directions(number, dim))
    assert plane.shape == (number, 2)
    assert np.isfinite(plane).all()


def test_images_in_one_place_are_in_one_place() -> None:
    assert (tsne_plane(torch.ones(20, 4)) == 0).all()
