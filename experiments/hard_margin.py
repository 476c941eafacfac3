"""The contrastive loss with a hard margin, of points off the sphere: the other baseline of the HIB paper (appendix B).

Importing this makes the method "hard-margin" known to cells; `experiments.harness` imports it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from pydantic.dataclasses import dataclass
from torch import Tensor

from hessians import Pairs
from laplacian_metric import methods
from laplacian_metric.core.arguments import Positive
from laplacian_metric.core.method import Learner, Setup, only
from laplacian_metric.encoder import Encoder
from laplacian_metric.methods.gaussian.match_probability import Balance, distances_of
from laplacian_metric.methods.gaussian.soft_contrastive import SoftContrastive, SoftContrastiveLearner


@dataclass(frozen=True)
class HardMargin(SoftContrastive):
    """Trains an encoder with d^2 for pairs that match and max(0, margin - d)^2 for those that do not (equation 1).

    The match probability that pairs are ranked by falls with d, as in `SoftContrastive`; its a and b are not trained
    here, and say nothing of how probable a match is.

    Attributes:
        margin: of the distance d.
    """

    name: ClassVar[str] = "hard-margin"

    normalize: bool = False
    balance: Literal[Balance.TYPES] = Balance.TYPES
    margin: Positive = 1.0

    def learner(self, encoders: Sequence[Encoder], setup: Setup) -> Learner:
        return HardMarginLearner(self, only(encoders, self.name), setup)


class HardMarginLearner(SoftContrastiveLearner):
    """Trains the encoder alone."""

    def __init__(self, method: HardMargin, encoder: Encoder, setup: Setup) -> None:
        super().__init__(method, encoder, setup)
        self.margin = method.margin
        self.network.match.requires_grad_(False)

    def loss(self, inputs: Any, labels: Tensor) -> Tensor:
        points = self.network(inputs)
        return hard_margin_loss(points, self.pairs(points, labels), self.margin)


def hard_margin_loss(points: Tensor, pairs: Pairs, margin: float) -> Tensor:
    """Half the average of d^2 over the positive pairs and half that of max(0, margin - d)^2 over the negative ones.

    Args:
        points: (N, Z).
        pairs: over the N images.
        margin: of the distance.

    Example:
        >>> import torch
        >>> float(hard_margin_loss(torch.tensor([[0.0], [0.5], [1.0]]), Pairs.from_labels([0, 0, 1]), 1.0))
        0.1875
    """
    positive, negative = (block.to(points.dtype).triu(1) for block in pairs.block(0, len(points)))
    distance = distances_of(points, points)
    terms = (positive, distance.square()), (negative, (margin - distance).clamp(min=0).square())
    halves = ((weight * term).sum() / (2 * weight.sum().clamp(min=1)) for weight, term in terms)
    return sum(halves, points.sum() * 0)


methods.register(HardMargin)
