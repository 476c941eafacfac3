"""HET-XL: the covariance of its noise, the log determinant, and the learned temperature."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from experiments.methods.softmax.het_xl import HetXLNetwork, log_determinant
from laplacian_metric.encoder import Encoder


def a_network(dim: int = 5, rank: int = 2) -> HetXLNetwork:
    torch.manual_seed(0)
    return HetXLNetwork(Encoder(nn.Identity(), nn.Linear(6, dim)), 4, rank, 10, seed=1).double()


@pytest.mark.statistical
@pytest.mark.parametrize("shared", [False, True])
def test_the_noise_has_the_covariance_that_it_says(shared: bool) -> None:
    network = a_network()
    u = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        factor, variance = network.covariance(u)
        expected = factor @ factor.mT + torch.diag_embed(variance)
        noise = network.noisy(u, 200_000, torch.Generator().manual_seed(3), shared=shared) - u
    for image in range(3):
        error = torch.cov(noise[:, image].T) - expected[image]
        assert float(error.norm() / expected[image].norm()) < 0.05
        # Of full rank: with noise of one number for all dimensions it would be of rank R + 1.
        assert torch.linalg.matrix_rank(torch.cov(noise[:, image].T), rtol=1e-3) == 5
        assert float(noise[:, image].mean(0).abs().max()) < 0.02


def test_images_have_noise_of_their_own_in_training_and_the_same_numbers_when_embedded() -> None:
    network = a_network()
    u = torch.zeros(2, 5, dtype=torch.float64)
    own = network.noisy(u, 4, torch.Generator().manual_seed(0), shared=False)
    assert not torch.allclose(own[:, 0], own[:, 1])
    same = network.noisy(u, 4, torch.Generator().manual_seed(0), shared=True)
    assert torch.equal(same[:, 0], same[:, 1])


def test_the_log_determinant_is_that_of_the_whole_matrix() -> None:
    g = torch.Generator().manual_seed(0)
    factor = torch.randn(4, 6, 3, generator=g, dtype=torch.float64)
    variance = torch.rand(4, 6, generator=g, dtype=torch.float64) + 0.1
    whole = torch.logdet(factor @ factor.mT + torch.diag_embed(variance))
    assert torch.allclose(log_determinant(factor, variance).double(), whole, atol=1e-5)


def test_the_temperature_starts_at_one_and_stays_within_its_bounds() -> None:
    network = a_network().requires_grad_(False)
    assert float(network.temperature) == pytest.approx(1.0, abs=1e-4)
    for value, expected in ((-9.0, 0.3), (9.0, 3.0)):
        network.raw_temperature.data.fill_(value)
        assert float(network.temperature) == pytest.approx(expected)
