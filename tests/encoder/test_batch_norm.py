"""Batch norm statistics under other weights: against the moments of what the layer sees."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from laplacian_metric.encoder.layers import batch_norm_statistics, tracking_layers


def network() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))
    layers.train()
    layers(torch.randn(5, 3, generator=torch.Generator().manual_seed(1)))
    return layers.double()


def images(count: int) -> Tensor:
    return torch.randn(count, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


@pytest.mark.parametrize("sizes", [[12], [4, 4, 4], [7, 3, 2]])
def test_they_are_averages_over_the_images(sizes: list[int]) -> None:
    layers, x = network(), images(12)
    W, b = torch.full((4, 3), 0.5, dtype=torch.float64), torch.ones(4, dtype=torch.float64)
    W[1, 2] = 3.0
    before = {name: tensor.clone() for name, tensor in layers.state_dict().items()}
    parts = list(x.split(sizes))
    statistics = batch_norm_statistics(
        layers, {"0.weight": W, "0.bias": b}, [(part, torch.zeros(0)) for part in parts]
    )
    seen = [part @ W.T + b for part in parts]
    mean = sum(len(h) * h.mean(0) for h in seen) / 12
    variance = sum(len(h) * h.var(0) for h in seen) / 12
    assert statistics.keys() == {"1.running_mean", "1.running_var"}
    torch.testing.assert_close(statistics["1.running_mean"], mean)
    torch.testing.assert_close(statistics["1.running_var"], variance)
    assert all(torch.equal(tensor, before[name]) for name, tensor in layers.state_dict().items())
    assert layers[1].momentum == 0.1
    assert all(module.training for module in layers.modules())


def test_layers_without_statistics_need_none() -> None:
    assert tracking_layers(nn.Sequential(nn.BatchNorm1d(4, track_running_stats=False), nn.LayerNorm(4))) == {}
    assert list(tracking_layers(nn.Sequential(nn.Sequential(nn.BatchNorm2d(4))))) == ["0.0"]


def test_without_images_there_are_none() -> None:
    with pytest.raises(ValueError, match="the loader is empty"):
        batch_norm_statistics(network(), {}, [])
