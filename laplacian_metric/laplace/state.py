"""What a fit leaves behind."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from laplacian_metric.laplace.layer import LayerCurvature


@dataclass(frozen=True, eq=False)
class Fitted:
    """A curvature and what it is the curvature of.

    Attributes:
        curvature: of the loss's average, unscaled.
        num_images: how many images it was fitted to.
        num_positives, num_negatives: the pairs that the average is over.
        num_batches: over how many batches they were summed.
        loss_value: L(theta*).
        gradient: dL/d[W | b] at theta*, (Z, H').
        bias_is_random: whether H' counts the bias.
        fingerprint: of the encoder.
        length: the root mean square of |u| over the images, before the norm; None where it is not known.
        curvature_error: the error of the curvature's diagonal in the l2 norm, where pairs were sampled.
    """

    curvature: LayerCurvature
    num_images: int
    num_positives: float
    num_negatives: float
    num_batches: int
    loss_value: float
    gradient: Tensor
    bias_is_random: bool
    fingerprint: str
    length: float | None = None
    curvature_error: float = 0.0
