"""The network for digits side by side: its shapes, its names, its seeds."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from laplacian_metric.encoder import Encoder
from laplacian_metric.encoder.networks.small import n_digit_backbone, n_digit_features


@pytest.mark.parametrize("digits", [1, 2, 3])
@pytest.mark.parametrize("channels", [(8, 16), (4, 5)])
@pytest.mark.parametrize("padded", [False, True])
def test_as_many_features_as_it_says(digits: int, channels: tuple[int, int], padded: bool) -> None:
    backbone = n_digit_backbone(digits, channels, padded)
    features = backbone(torch.zeros(2, 1, 28, 28 * digits))
    assert features.shape == (2, n_digit_features(digits, channels, padded))
    assert n_digit_backbone(digits, channels, padded, 7)(torch.zeros(2, 1, 28, 28 * digits)).shape == (2, 7)
    kinds = [type(layer) for layer in backbone]
    assert kinds == [nn.Conv2d, nn.MaxPool2d, nn.ReLU] * 2 + [nn.Flatten]
    assert [layer.kernel_size for layer in backbone if isinstance(layer, nn.Conv2d)] == [(5, 5), (5, 5)]


def test_by_name() -> None:
    encoder = Encoder.from_name("n-digit", dim=3, seed=0, digits=3)
    assert encoder(torch.rand(2, 1, 28, 84)).shape == (2, 3)
    again = Encoder.from_name("n-digit", dim=3, seed=0, digits=3)
    assert torch.equal(encoder.head.weight, again.head.weight)
    assert Encoder.from_name("n-digit").dim == 2
    with pytest.raises(ValueError, match="n-digit has no option 'digit'; did you mean 'digits'"):
        Encoder.from_name("n-digit", digit=3)


def test_wrong_options_are_named() -> None:
    with pytest.raises(ValueError, match="hidden is -1"):
        n_digit_backbone(hidden=-1)
    with pytest.raises(ValueError, match="digits is 0"):
        n_digit_backbone(0)
    with pytest.raises(ValueError, match=r"channels is \[8\]"):
        n_digit_backbone(2, (8,))  # type: ignore[arg-type]
