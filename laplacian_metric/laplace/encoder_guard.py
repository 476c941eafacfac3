"""Whether an encoder, and how its images are prepared, are still those that a posterior is of.

How long embeddings are before the norm tells images that were prepared in another way than those of the fit: pixels
from 0 to 255 in place of 0 to 1 make features, embeddings and their standard deviations longer alike. A direction and
its kappa do not change by that, so that nothing else would notice.
"""

from __future__ import annotations

import warnings
from itertools import chain

import torch
from torch import Tensor

from laplacian_metric.encoder import Encoder

# OOD images and noise are about as long as what was fitted; pixels up to 255 are up to 255 times as long.
FAR = 10.0


class EncoderChangedError(RuntimeError):
    """The encoder has other weights than when the posterior was made."""


class Watch:
    """An encoder's fingerprint, computed anew only when a tensor was written to or replaced.

    torch counts the writes to a tensor, except those that go through ``.data``, which are not seen until something
    else changes.
    """

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self.fingerprint = encoder.fingerprint()
        self._tensors, self._marks = _marks(encoder)

    def check(self, fingerprint: str) -> None:
        """Refuse an encoder that does not have this fingerprint any more."""
        tensors, marks = _marks(self.encoder)
        if marks != self._marks:
            self.fingerprint = self.encoder.fingerprint()
            self._tensors, self._marks = tensors, marks
        if self.fingerprint != fingerprint:
            raise EncoderChangedError(
                "the encoder has changed since this posterior was fitted, which is around its former weights: fit "
                "again, or load the weights that it had"
            )


def _marks(encoder: Encoder) -> tuple[list[Tensor], list[tuple[int, ...]]]:
    """All tensors, which are kept so that no other takes their place in memory, and what changes when they do."""
    tensors = list(chain(encoder.parameters(), encoder.buffers()))
    marks = [(id(t), t.data_ptr(), 0 if t.is_inference() else t._version) for t in tensors]
    return tensors, [(int(encoder.normalize),), *marks]


class PreparationWarning(UserWarning):
    """These images look as if they were prepared in another way than those that the posterior was fitted to."""


def sum_of_squares(u: Tensor) -> float:
    """Of the entries of raw embeddings u (N, Z), in float64.

    Example:
        >>> sum_of_squares(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        25.0
    """
    return float(torch.linalg.vector_norm(u, dtype=torch.float64)) ** 2


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
