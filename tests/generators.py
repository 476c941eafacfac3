"""Generators of random numbers that tests share."""

from __future__ import annotations

import torch


def seeded(seed: int = 0) -> torch.Generator:
    """Return a generator with a seed."""
    return torch.Generator().manual_seed(seed)
