"""Discrimination of images without labels: NT-Xent, and ISIF, which also spreads the other images apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any, ClassVar

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from laplacian_metric.core.arguments import NotNegative, Positive
from laplacian_metric.core.embedding import unit_rows
from laplacian_metric.core.info_nce import info_nce
from laplacian_metric.core.method import (
    Embedder,
    FitData,
    Learner,
    Method,
    PointEmbedder,
    Setup,
    all_pairs,
    only,
)
from laplacian_metric.data.views import ImageViews
from laplacian_metric.encoder import Encoder
from laplacian_metric.methods.self_supervised.set_losses import spread_loss
from laplacian_metric.methods.self_supervised.two_views import TwoViewLearner
from laplacian_metric.vmf.checks import result_dtype


@dataclass(frozen=True)
class NTXent(Method):
    """Trains an encoder so that each view of an image finds the other among all views of the batch (SimCLR's loss).

    Attributes:
        temperature: tau, what cosines are divided by.
        spread: the weight of ISIF's spread term.
        views: how views are made.

    Example:
        >>> NTXent(temperature=0.5).spread
        0.0
    """

    name: ClassVar[str] = "nt-xent"
    has_uncertainty: ClassVar[bool] = False
    needs_labels: ClassVar[bool] = False

    temperature: Positive = 0.1
    spread: NotNegative = 0.0
    views: ImageViews = field(default_factory=ImageViews)

    def learner(self, encoders: Sequence[Encoder], setup: Setup) -> Learner:
        learner = InstanceLearner(only(encoders, self.name), self)
        return TwoViewLearner(check_pairs(learner, setup), self.views, setup.seed)


@dataclass(frozen=True)
class ISIF(NTXent):
    """NT-Xent and a term that lowers the probability of each wrong image (Ye et al., 2019, as its paper prints it).

    Example:
        >>> ISIF().spread
        1.0
    """

    name: ClassVar[str] = "isif"

    spread: NotNegative = 1.0


class InstanceLearner(Learner):
    """An encoder whose views of one image are contrasted with those of all others of a batch."""

    def __init__(self, encoder: Encoder, method: NTXent) -> None:
        super().__init__(encoder, encoder)
        self.method = method

    def loss(self, inputs: Any, labels: Tensor) -> Tensor:
        u = self.encoder.raw(inputs)
        with torch.autocast(u.device.type, enabled=False):
            z = unit_rows(u.to(result_dtype(u)))
            logits = z @ z.T / self.method.temperature
            value = info_nce(logits, labels, negatives="all")
            return value + self.method.spread * spread_loss(logits, labels) if self.method.spread else value

    def embedder(self, data: FitData) -> Embedder:
        return PointEmbedder(self.encoder)


def check_pairs(learner: Learner, setup: Setup) -> Learner:
    """Return the learner; refuse a choice of pairs, which contrasting with the whole batch does not have."""
    if setup.pairs is not all_pairs:
        raise ValueError(
            "each view is contrasted with all others of the batch, but a choice of pairs is given: leave the pairs at "
            "all of the batch"
        )
    return learner
