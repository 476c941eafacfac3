"""The triplet loss of unit embeddings (Weinberger and Saul, 2009): points, compared three at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor
from torch.nn import functional as F

from laplacian_metric.core.method import Embedder, FitData, Learner, Setup
from laplacian_metric.core.points import PointEmbedder
from laplacian_metric.encoder import Encoder
from laplacian_metric.methods.pairs.triplet_learner import TripletLearner, TripletMethod
from laplacian_metric.methods.pairs.triplet_loss import triplet_hinge
from laplacian_metric.methods.pairs.triplet_mining import pairwise


@dataclass(frozen=True)
class Triplet(TripletMethod):
    """Trains an encoder with the mean of max(0, |a - p|^2 - |a - n|^2 + margin) over hard triplets.

    Attributes:
        margin: between squared distances of unit embeddings.
        only_hard: whether only triplets that violate |a - p|^2 < |a - n|^2 - margin are trained on; by default those
            out of a cache, and not those of a batch.
        mining: where negatives come from, "cache" or "batch".
        negatives: how many of an anchor: the nearest of the cache, or any of the batch.
        cache: how many images are in the cache.
        refresh: after how many steps it is drawn anew.

    Example:
        >>> Triplet(mining="batch").margin
        0.1
    """

    name: ClassVar[str] = "triplet"
    has_uncertainty: ClassVar[bool] = False

    def learner(self, encoders: Sequence[Encoder], setup: Setup) -> Learner:
        return PlainTripletLearner(self.encoder(encoders, setup), self)


class PlainTripletLearner(TripletLearner):
    """An encoder and its triplet loss."""

    def __init__(self, encoder: Encoder, method: Triplet) -> None:
        super().__init__(encoder, method)
        self.encoder = encoder
        self.method = method

    def loss(self, inputs: Any, labels: Tensor) -> Tensor:
        squared = pairwise(F.normalize(self.encoder.raw(inputs)))
        return triplet_hinge(squared, self.triplets(squared, labels), self.method.margin)

    def mined_points(self, inputs: Any) -> Tensor:
        return F.normalize(self.encoder.raw(inputs))

    def points(self, inputs: Any) -> Tensor:
        return self.encoder.raw(inputs)

    def embedder(self, data: FitData) -> Embedder:
        return PointEmbedder(self.encoder)
