"""How long embeddings are before the norm: what tells images that were prepared in another way than those of the fit.

Pixels from 0 to 255 in place of 0 to 1 make features, embeddings and their standard deviations longer alike. A
direction and its kappa do not change by that, so that nothing else would notice.
"""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor

# OOD images and noise are about as long as what was fitted; pixels up to 255 are up to 255 times as long.
FAR = 10.0


class PreparationWarning(UserWarning):
    """These images look as if they were prepared in another way than those that the posterior was fitted to."""


def sum_of_squares(u: Tensor) -> float:
    """Of the entries of raw embeddings u (N, Z), in float64.

    Example:
        >>> sum_of_squares(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        25.0
    """
    return float(torch.linalg.vector_norm(u, dtype=torch.float64)) ** 2


def root_mean_square(squares: float, num_images: float) -> float:
    """The root of the mean squared length of N embeddings, from the sum of their squares."""
    return math.sqrt(squares / num_images)


def warn_if_longer(u: Tensor, fitted: float | None) -> None:
    """Say so where half of the embeddings u (N, Z) are more than `FAR` times as long as the fitted ones.

    Args:
        u: raw, before the norm.
        fitted: the root mean square of the lengths at the fit; None where it is not known.

    Example:
        >>> with warnings.catch_warnings(record=True) as said:
        ...     warn_if_longer(torch.full((3, 2), 100.0), fitted=1.0)
        >>> said[0].category.__name__
        'PreparationWarning'
    """
    if not fitted or not len(u):
        return
    times = float(torch.linalg.vector_norm(u, dim=1).median()) / fitted
    if times > FAR:
        warnings.warn(
            f"before the norm these embeddings are {times:.3g} times as long as those that the posterior was fitted "
            "to: prepare the images as those were, with pixels in the same range. kappa cannot be trusted here: it "
            "does not depend on the length",
            PreparationWarning,
            stacklevel=4,
        )
