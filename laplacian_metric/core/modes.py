"""Modules put into evaluation mode for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Without dropout, batch statistics and gradients inside; every submodule's mode is as before afterwards.

    Example:
        >>> layer = nn.Sequential(nn.Dropout())
        >>> with evaluating(layer):
        ...     layer[0].training
        False
        >>> layer[0].training
        True
    """
    modes = [(part, part.training) for part in module.modules()]
    try:
        for part, training in modes:
            if training:
                part.training = False
        with torch.no_grad():
            yield
    finally:
        for part, training in modes:
            part.training = training
