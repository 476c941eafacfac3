"""The head of one variance beside that of the mean."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from laplacian_metric.encoder import Encoder
from laplacian_metric.encoder.layers import GeM
from laplacian_metric.encoder.uncertainty import FLOOR, LARGEST, MeanAndVariance, VarianceHead


def test_the_variance_is_two_layers_and_softplus() -> None:
    head = VarianceHead(5, hidden=4, variance=0.1, seed=0)
    h = torch.randn(7, 5)
    hidden = torch.relu(h @ head.first.weight.T + head.first.bias)
    expected = FLOOR + torch.log1p((hidden @ head.second.weight.T + head.second.bias).exp())[:, 0]
    torch.testing.assert_close(head(h), expected)


@pytest.mark.parametrize("variance", [1e-5, 0.3, 1.0, 50.0, 1e3])
def test_it_starts_at_the_variance_that_is_asked_for(variance: float) -> None:
    actual = VarianceHead(5, hidden=4, variance=variance, seed=0)(torch.zeros(1, 5)).item()
    assert actual == pytest.approx(variance, rel=1e-3)


def test_it_stays_positive_and_finite() -> None:
    head = VarianceHead(1, hidden=1, variance=1.0)
    with torch.no_grad():
        head.first.weight.fill_(1)
        head.second.weight.fill_(-1)
    assert head(torch.tensor([[1e6]])).item() == pytest.approx(FLOOR)
    with torch.no_grad():
        head.second.weight.fill_(1)
    assert head(torch.tensor([[1e30]])).item() == pytest.approx(LARGEST)


def test_weights_come_from_the_seed() -> None:
    one, same, other = (VarianceHead(5, hidden=4, variance=1.0, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one.first.weight, same.first.weight)
    assert not torch.equal(one.first.weight, other.first.weight)


def test_a_generalised_mean_is_pooled_anew_for_the_variance() -> None:
    trunk = nn.Conv2d(1, 6, 3)
    encoder = Encoder(nn.Sequential(trunk, nn.ReLU(), GeM()), nn.Linear(6, 2))
    network = MeanAndVariance(encoder, VarianceHead(6, hidden=4, variance=1.0, seed=0))
    assert network.pool is not None
    assert network.pool is not encoder.backbone[2]
    with torch.no_grad():
        network.pool.p.fill_(1.0)
    x = torch.rand(3, 1, 8, 8)
    u, variance = network(x)
    maps = trunk(x).relu()
    torch.testing.assert_close(u, encoder.raw(x))
    torch.testing.assert_close(variance, network.variance(maps.clamp(min=1e-6).mean((2, 3))))
    (u.sum() + variance.sum()).backward()
    assert network.pool.p.grad is not None
    own = encoder.backbone[2].p.grad
    assert own is not None
    assert not torch.equal(own, network.pool.p.grad)
    assert not encoder.backbone[2]._forward_pre_hooks
    names = set(network.state_dict())
    assert {"pool.p", "encoder.backbone.2.p"} <= names


def test_without_one_both_heads_have_the_same_features() -> None:
    encoder = Encoder(nn.Identity(), nn.Linear(4, 2))
    network = MeanAndVariance(encoder, VarianceHead(4, hidden=4, variance=1.0))
    h = torch.randn(3, 4)
    u, variance = network(h)
    assert network.pool is None
    torch.testing.assert_close(u, encoder.head(h))
    torch.testing.assert_close(variance, network.variance(h))
    assert u.dtype == variance.dtype == torch.float32
