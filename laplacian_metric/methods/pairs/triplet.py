"""The triplet loss of unit embeddings (Weinberger and Saul, 2009), and the regression of its residual onto 0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor
from torch.nn import functional as F

from laplacian_metric.core.embedding import StochasticEmbedding, unit_rows
from laplacian_metric.core.gaussian import Gaussians
from laplacian_metric.core.method import Embedder, FitData, Learner, PointEmbedder, Setup
from laplacian_metric.encoder import Encoder
from laplacian_metric.encoder.networks.gaussian_heads import MeanAndVariance
from laplacian_metric.encoder.networks.small import seeded
from laplacian_metric.encoder.networks.uncertainty import LinearUncertaintyHead, check_variance
from laplacian_metric.methods.pairs.triplet_learner import NeighbourEmbedder, TripletLearner, TripletMethod
from laplacian_metric.methods.pairs.triplet_loss import triplet_hinge, triplet_regression
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

    def points(self, inputs: Any) -> Tensor:
        return self.encoder.raw(inputs)

    def embedder(self, data: FitData) -> Embedder:
        return PointEmbedder(self.encoder)


@dataclass(frozen=True)
class TripletRegression(TripletMethod):
    """Trains an encoder and, as one more dimension beside the embedding, the logarithm of its noise.

    The residual of a triplet, r = max(0, |a - p|^2 - |a - n|^2 + margin), is regressed onto 0, with a Gaussian noise
    whose variance s is the mean of those of its images: r^2/(2 s) + log(s)/2. It says nothing of where an embedding
    is; as a distribution of the embedding it is taken to be N(z, s I/Z).

    Attributes:
        margin: between squared distances of unit embeddings.
        only_hard: whether only triplets that violate |a - p|^2 < |a - n|^2 - margin are trained on; by default those
            out of a cache, and not those of a batch.
        mining: where negatives come from, "cache" or "batch".
        negatives: how many of an anchor: the nearest of the cache, or any of the batch.
        cache: how many images are in the cache.
        refresh: after how many steps it is drawn anew.
        variance: the initial noise.

    Example:
        >>> TripletRegression(variance=0.5).mining
        <Mining.CACHE: 'cache'>
    """

    name: ClassVar[str] = "triplet-regression"

    variance: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_variance(self.variance)

    def learner(self, encoders: Sequence[Encoder], setup: Setup) -> Learner:
        encoder = self.encoder(encoders, setup)
        with seeded(setup.seed):  # its weights are zero; torch's own generator stays as it was
            head = LinearUncertaintyHead(encoder.num_features, 1, variance=self.variance)
        return TripletRegressionLearner(MeanAndVariance(encoder, head, is_log=True), self)


class TripletRegressionLearner(TripletLearner):
    """The regression loss of unit embeddings and their noise."""

    def __init__(self, network: MeanAndVariance, method: TripletRegression) -> None:
        super().__init__(network, method)
        self.network = network
        self.method = method

    def loss(self, inputs: Any, labels: Tensor) -> Tensor:
        u, noise = self.network(inputs)
        squared = pairwise(F.normalize(u))
        return triplet_regression(squared, noise, self.triplets(squared, labels), self.method.margin)

    def points(self, inputs: Any) -> Tensor:
        return self.network.encoder.raw(inputs)

    def embedder(self, data: FitData) -> Embedder:
        return TripletRegressionEmbedder(self.network, data)


class TripletRegressionEmbedder(NeighbourEmbedder):
    """Unit embeddings, unsure by their noise."""

    def __init__(self, network: MeanAndVariance, data: FitData) -> None:
        super().__init__(network, data)
        self.network = network

    def embed_batch(self, inputs: Any) -> StochasticEmbedding:
        u, noise = self.network(inputs)
        z = unit_rows(u)
        shared = (noise / z.shape[1])[:, None].expand_as(z)
        return StochasticEmbedding.from_gaussians(Gaussians(z, shared)).with_uncertainty(noise)
