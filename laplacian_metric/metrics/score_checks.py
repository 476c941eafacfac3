"""Checks of uncertainties: one number for each image, the greater the less sure."""

from __future__ import annotations

import torch
from torch import Tensor


def check_uncertainty(
    name: str, uncertainty: Tensor, number: int | None = None, what: str = "embeddings"
) -> Tensor:
    """An uncertainty (N,) in float64; infinity is allowed (1/kappa of kappa = 0), NaN is not.

    Example:
        >>> check_uncertainty("uncertainty", torch.tensor([0.1, 0.2, 0.3]), 4)
        Traceback (most recent call last):
        ...
        ValueError: uncertainty has 3 entries for 4 embeddings: one for each is needed
    """
    values = torch.as_tensor(uncertainty).detach()
    if values.ndim != 1:
        raise ValueError(
            f"{name} has shape {tuple(values.shape)}, one number for each image is needed, shape (N,)"
        )
    if number is not None and len(values) != number:
        raise ValueError(f"{name} has {len(values)} entries for {number} {what}: one for each is needed")
    if len(values) == 0:
        raise ValueError(f"{name} is empty: at least one number is needed")
    bad = values.isnan().nonzero().flatten()
    if len(bad):
        raise ValueError(
            f"{name} has NaN in {len(bad)} of {len(values)} entries, the first is entry {int(bad[0])}"
        )
    # Rankings of float64 must not be decided in float32; whole numbers are exact in it, up to 2^53.
    return values.double()
