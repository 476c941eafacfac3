"""The script that measures the tail of the triplet likelihood: its exact probability is that of draws."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import f as ratio

from experiments.triplet_tail import DRAWS, draws_of, exact_probability, of_draws, parameters, row


@pytest.mark.statistical
@pytest.mark.parametrize("dim", [2, 9])
def test_the_exact_probability_is_that_of_draws(dim: int) -> None:
    """50,000 draws; 5 standard errors are allowed."""
    generator = torch.Generator().manual_seed(dim)
    for _ in range(4):
        means, variances = parameters(dim, generator)
        tau = draws_of("gaussian", means, variances, 50_000, generator)
        exact = exact_probability(means, variances, 0.1)
        error = math.sqrt(max(exact * (1 - exact), 1e-4) / 50_000)
        assert abs(float((tau < -0.1).double().mean()) - exact) < 5 * error


@pytest.mark.parametrize("dim", [2, 7, 40])
def test_without_an_anchors_noise_and_with_equal_means_it_is_a_ratio_of_variances(dim: int) -> None:
    means = torch.ones(3, dim, dtype=torch.float64)
    variances = torch.tensor([1e-18, 1.0, 2.0], dtype=torch.float64)
    expected = ratio.cdf(2.0, dim, dim)  # |p - a|^2 < |n - a|^2
    assert exact_probability(means, variances, 0.0) == pytest.approx(expected, abs=1e-7)


@pytest.mark.slow
@pytest.mark.statistical
@pytest.mark.parametrize("family", ["gaussian", "vmf"])
@pytest.mark.parametrize("dim", [2, 32])
def test_the_moments_of_random_triplets_are_those_of_a_million_draws(
    family: str, dim: int, long_form: bool
) -> None:
    """4 random triplets of 1,000,000 draws each, 2 of 50,000 in short; 5 standard errors are allowed."""
    sets, draws = (4, DRAWS) if long_form else (2, 50_000)
    moments = of_draws(family, dim, sets, draws, torch.Generator().manual_seed(100 + dim))
    assert moments["mean"] < 5
    assert moments["variance"] < 5


def test_a_row_tells_of_moments_and_of_the_tail() -> None:
    numbers = row("gaussian", 8, sets=2, exact_sets=5, draws=2000, seed=0)
    assert numbers["E tau, standard errors"] < 5
    assert numbers["Var tau, standard errors"] < 5
    assert 0 <= numbers["P, median error"] <= numbers["P, largest error"] < 0.2
    assert row("vmf", 4, sets=1, exact_sets=1, draws=2000, seed=0)["P, largest error"] is None
