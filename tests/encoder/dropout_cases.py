"""Encoders whose layers dropout is put between."""

from __future__ import annotations

import torch
from torch import nn

from laplacian_metric.encoder import Encoder


def small_encoder(seed: int = 0, dim: int = 3) -> Encoder:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        backbone = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU())
        return Encoder(backbone, nn.Linear(16, dim))


def conv_encoder() -> Encoder:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        inner = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.MaxPool2d(2))
        return Encoder(nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), inner, nn.Flatten()), nn.Linear(16, 3))
