"""The triplet loss of unit embeddings (Weinberger and Saul, 2009), and the regression of its residual onto 0.

What all methods that train on triplets have in common is here too: their options, a learner that mines, its embedder.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Any, ClassVar

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional as F

from hessians.checks import Choice
from laplacian_metric.core.arguments import Count, NotNegative, Variance
from laplacian_metric.core.batch import Batch, Loader, map_batches
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.embedding import StochasticEmbedding, unit_rows
from laplacian_metric.core.gaussian import Gaussians
from laplacian_metric.core.method import (
    Embedder,
    FitData,
    Learner,
    Method,
    PointEmbedder,
    Setup,
    all_pairs,
    only,
    scores_of,
)
from laplacian_metric.encoder import Encoder
from laplacian_metric.encoder.layers import seeded
from laplacian_metric.encoder.uncertainty import LinearUncertaintyHead, MeanAndVariance
from laplacian_metric.methods.pairs.triplet_loss import (
    difference_covariance,
    triplet_hinge,
    triplet_regression,
)
from laplacian_metric.methods.pairs.triplet_mining import (
    Triplets,
    batch_triplets,
    laid_out,
    mined_batches,
    pairwise,
)

COVARIANCE = "difference covariance"


class NeighbourEmbedder(Embedder):
    """An embedder whose scores tell how unsure the difference from the nearest training image is.

    Args:
        module: everything that has weights.
        data: the training images are embedded when scores are asked for first, and kept.
        expected: whether the nearest is that by the expected distance.
    """

    def __init__(self, module: nn.Module, data: FitData, *, expected: bool = False) -> None:
        super().__init__(module)
        self.expected = expected
        self._train: Loader | None = data.train
        self._gallery: StochasticEmbedding | None = None

    def scores(self, inputs: Any) -> dict[str, Tensor]:
        """As of every method, and "difference covariance": the trace of cov(x - y) with the nearest training image y.

        It is left out where there were no training images.
        """
        e = self.embed(inputs)
        gallery = self.gallery()
        if gallery is None:
            return scores_of(e)
        covariance = difference_covariance(e, gallery, expected=self.expected)
        return {**scores_of(e), COVARIANCE: covariance}

    def gallery(self) -> StochasticEmbedding | None:
        """The training images; None where there were none."""
        if self._train is not None:
            empty = isinstance(self._train, Sized) and not len(self._train)
            self._gallery = None if empty else self.embed(self._train, progress=False)
            self._train = None
        return self._gallery


class Mining(Choice):
    """Where negatives come from."""

    CACHE = "cache"
    """A cache of embedded training images, which is drawn anew at the beginning of every epoch and every ``refresh``
    steps. The images of a batch are anchors then: every one brings a positive and its negatives."""
    BATCH = "batch"
    """The batch itself, in which every ordered pair of a class is an anchor and a positive. Their negatives are drawn
    by lot: a network with random weights that is given only the nearest makes all images alike."""


@dataclass(frozen=True)
class TripletMethod(Method):
    """The options of methods that train on triplets.

    Attributes:
        margin: between squared distances.
        only_hard: whether only triplets that violate |a - p|^2 < |a - n|^2 - margin are trained on; by default those
            out of a cache, and not those of a batch.
        mining: see `Mining`.
        negatives: how many of an anchor: the nearest of the cache, or any of the batch.
        cache: how many images are in the cache.
        refresh: after how many steps it is drawn anew. (A checkpoint inside of an epoch does so too.)
    """

    margin: NotNegative = 0.1
    only_hard: bool | None = None
    mining: Mining = Mining.CACHE
    negatives: Count = 5
    cache: Count = 5000
    refresh: Count = 1000

    def encoder(self, encoders: Sequence[Encoder], setup: Setup) -> Encoder:
        """The one that is trained; a choice of pairs, which triplets cannot heed, is refused."""
        if setup.pairs is not all_pairs:
            raise ValueError(
                f"{self.name} trains on triplets, which it mines itself, but a choice of pairs is given: leave out the "
                "miner, and sample no pairs"
            )
        return only(encoders, self.name)


class TripletLearner(Learner):
    """A learner whose batches are mined out of a cache, or whose triplets out of a batch.

    Triplets are hard by the distances of `mined_points`.
    """

    def __init__(self, module: nn.Module, method: TripletMethod, encoder: Encoder | None = None) -> None:
        super().__init__(module, encoder)
        self.options = method
        # Replaced by `begin`.
        self.generator = torch.Generator().manual_seed(0)
        self.refresh = method.refresh if method.mining is Mining.CACHE else None

    @property
    def constraint(self) -> float | None:
        """The margin by which triplets are hard; None where all are trained on."""
        only_hard = self.options.only_hard
        if only_hard is None:
            only_hard = self.options.mining is Mining.CACHE
        return self.options.margin if only_hard else None

    def mined_points(self, inputs: Any) -> Tensor:
        """Return the points (N, Z) whose distances the loss compares: those of length 1."""
        return F.normalize(self.points(inputs))

    def choose(self, images: Dataset, rows: Sequence[Tensor]) -> list[Tensor]:
        def points(batch: Batch) -> Tensor:
            return self.mined_points(batch.inputs).float()

        def embed(chosen: Tensor) -> Tensor:
            return torch.cat(map_batches(points, images.select(chosen), self.module, progress=False))

        return mined_batches(
            embed,
            images.labels,
            rows,
            cache=self.options.cache,
            negatives=self.options.negatives,
            margin=self.constraint,
            generator=self.generator,
        )

    def triplets(self, squared: Tensor, labels: Tensor) -> Triplets:
        """Those of a batch with squared distances (N, N) and labels (N,)."""
        if self.options.mining is Mining.CACHE:
            return laid_out(labels, self.options.negatives)
        return batch_triplets(squared, labels, self.constraint, self.options.negatives, self.generator)


@dataclass(frozen=True)
class Triplet(TripletMethod):
    """Trains an encoder with the mean of max(0, |a - p|^2 - |a - n|^2 + margin) over hard triplets.

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
        super().__init__(encoder, method, encoder)
        self.method = method

    def loss(self, inputs: Any, labels: Tensor) -> Tensor:
        squared = pairwise(F.normalize(self.encoder.raw(inputs)))
        return triplet_hinge(squared, self.triplets(squared, labels), self.method.margin)

    def embedder(self, data: FitData) -> Embedder:
        return PointEmbedder(self.encoder)


@dataclass(frozen=True)
class TripletRegression(TripletMethod):
    """Trains an encoder and, as one more dimension beside the embedding, the logarithm of its noise.

    The residual of a triplet, r = max(0, |a - p|^2 - |a - n|^2 + margin), is regressed onto 0, with a Gaussian noise
    whose variance s is the mean of those of its images: r^2/(2 s) + log(s)/2. It says nothing of where an embedding
    is; as a distribution of the embedding it is taken to be N(z, s I/Z).

    Attributes:
        variance: the initial noise.

    Example:
        >>> TripletRegression(variance=0.5).mining
        <Mining.CACHE: 'cache'>
    """

    name: ClassVar[str] = "triplet-regression"

    variance: Variance = 1.0

    def learner(self, encoders: Sequence[Encoder], setup: Setup) -> Learner:
        encoder = self.encoder(encoders, setup)
        with seeded(setup.seed):  # its weights are zero; torch's own generator stays as it was
            head = LinearUncertaintyHead(encoder.num_features, 1, variance=self.variance)
        return TripletRegressionLearner(MeanAndVariance(encoder, head, is_log=True), self)


class TripletRegressionLearner(TripletLearner):
    """The regression loss of unit embeddings and their noise."""

    def __init__(self, network: MeanAndVariance, method: TripletRegression) -> None:
        super().__init__(network, method, network.encoder)
        self.network = network
        self.method = method

    def loss(self, inputs: Any, labels: Tensor) -> Tensor:
        u, noise = self.network(inputs)
        squared = pairwise(F.normalize(u))
        return triplet_regression(squared, noise, self.triplets(squared, labels), self.method.margin)

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
