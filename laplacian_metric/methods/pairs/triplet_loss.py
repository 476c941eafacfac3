"""The triplet loss of points, and of points that have a noise: what the Bayesian triplet loss is compared with."""

from __future__ import annotations

from typing import NoReturn

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn import functional as F

from hessians import Pairs
from hessians.pair_loss import PairBlocks, PairLoss
from hessians.pairs import LabelPairs
from laplacian_metric.core.arguments import Count, NotNegative
from laplacian_metric.core.embedding import StochasticEmbedding
from laplacian_metric.methods.pairs.triplet_mining import Triplets, batch_triplets, pairwise
from laplacian_metric.vmf import length_and_variance
from laplacian_metric.vmf.checks import precise

ENTRIES_AT_ONCE = 1 << 22


def squared_distances(points: Tensor, others: Tensor) -> Tensor:
    """|x - y|^2 of all pairs of points (Q, D) and (G, D), (Q, G), by a product in float64.

    Example:
        >>> squared_distances(torch.zeros(1, 2), torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        tensor([[25.,  0.]], dtype=torch.float64)
    """
    x, y = precise(points), precise(others)
    sums = x.square().sum(1, keepdim=True) + y.square().sum(1)
    return (sums - 2 * (x @ y.T)).clamp(min=0)


def expected_distances(points: Tensor, spread: Tensor, others: Tensor, other_spread: Tensor) -> Tensor:
    """E|x - y|^2 of all pairs, (Q, G).

    Args:
        points, others: E x, (Q, D), and E y, (G, D): of a distribution on the sphere they are shorter than 1.
        spread, other_spread: the traces of the covariances, (Q,) and (G,).

    Example:
        >>> one = torch.ones(1)
        >>> expected_distances(torch.zeros(1, 2), 0.5 * one, torch.tensor([[3.0, 4.0]]), 0.25 * one)
        tensor([[25.7500]], dtype=torch.float64)
    """
    return squared_distances(points, others) + precise(spread)[:, None] + precise(other_spread)


def mean_and_spread(e: StochasticEmbedding) -> tuple[Tensor, Tensor]:
    """E x (N, D) and the trace of the covariance (N,): of the Gaussians where there are any, else on the sphere.

    Example:
        >>> z, kappa = torch.eye(3)[:1], torch.tensor([10.0])
        >>> [round(float(x.norm()), 4) for x in mean_and_spread(StochasticEmbedding(z, z, kappa, 1 / kappa))]
        [0.9, 0.19]
    """
    if e.gaussians is not None:
        return e.gaussians.mean, e.variance.sum(1)
    length, variance = length_and_variance(e.kappa, e.dim)
    return e.mean * length[:, None].to(e.mean.dtype), variance.to(e.mean.dtype)


def difference_covariance(
    queries: StochasticEmbedding, gallery: StochasticEmbedding, *, expected: bool = False
) -> Tensor:
    """The trace of cov(x - y) for every query x and its nearest neighbour y in a gallery, (Q,).

    It is the sum of both traces: how unsure the distance to the answer is, of the query's own account and of the
    answer's. The Bayesian triplet loss tells images from another world by it.

    Args:
        queries, gallery: of one method. A query that is in the gallery is its own neighbour.
        expected: whether the neighbour is the nearest by the expected distance rather than by that of the means (the
            points, where there are no Gaussians).

    Example:
        >>> z, kappa = torch.eye(3), torch.tensor([1e6, 10.0, 10.0])
        >>> e = StochasticEmbedding(z, z, kappa, 1 / kappa)
        >>> [round(x, 4) for x in difference_covariance(e, e[slice(1, 3)]).tolist()]
        [0.19, 0.38, 0.38]
    """
    mean, spread = mean_and_spread(queries)
    other_mean, other_spread = mean_and_spread(gallery)
    if not expected and queries.gaussians is None:
        mean, other_mean = queries.point, gallery.point
    covariance = torch.empty_like(spread)
    rows = max(1, ENTRIES_AT_ONCE // len(gallery))
    for start in range(0, len(queries), rows):
        block = slice(start, start + rows)
        distances = squared_distances(mean[block], other_mean)
        if expected:
            distances = distances + precise(other_spread)
        covariance[block] = spread[block] + other_spread[distances.argmin(1)]
    return covariance


def residuals(squared: Tensor, triplets: Triplets, margin: float) -> Tensor:
    """max(0, |a - p|^2 - |a - n|^2 + margin), (T,), from squared distances (N, N).

    Example:
        >>> import torch
        >>> triplets = Triplets(*torch.tensor([[0], [1], [2]]))
        >>> residuals(pairwise(torch.tensor([[0.0], [1.0], [1.5]])), triplets, margin=2.0)
        tensor([0.7500])
    """
    anchor, positive, negative = triplets
    return (squared[anchor, positive] - squared[anchor, negative] + margin).clamp(min=0)


def triplet_hinge(squared: Tensor, triplets: Triplets, margin: float) -> Tensor:
    """The mean of the residuals; 0, with gradients that are 0, where there is no triplet."""
    if not len(triplets.anchor):
        return squared.sum() * 0
    return residuals(squared, triplets, margin).mean()


def triplet_regression(squared: Tensor, noise: Tensor, triplets: Triplets, margin: float) -> Tensor:
    """The residual r as a regression onto 0 whose noise is learned: the mean of r^2/(2 s) + log(s)/2.

    s is the mean of the noises of the three images. With given residuals it is least for s = r^2.

    Args:
        squared: (N, N).
        noise: sigma^2 of every image, (N,), positive.
        triplets: positions in the batch.
        margin: of the residuals.

    Example:
        >>> import torch
        >>> squared = pairwise(torch.tensor([[0.0], [2.0], [1.0]]))
        >>> triplets = Triplets(*torch.tensor([[0], [1], [2]]))  # r = 4 - 1 + 1
        >>> float(triplet_regression(squared, torch.ones(3), triplets, margin=1.0))
        8.0
    """
    if not len(triplets.anchor):
        return (squared.sum() + noise.sum()) * 0
    s = (noise[triplets.anchor] + noise[triplets.positive] + noise[triplets.negative]) / 3
    return (residuals(squared, triplets, margin).square() / (2 * s) + s.log() / 2).mean()


@dataclass(frozen=True)
class TripletLoss(PairLoss):
    """The triplet loss where a method takes a loss over pairs, as MC dropout and the deterministic network do.

    Its triplets are the hard ones of the batch, see `batch_triplets`: of the labels of all pairs, since a choice of
    pairs says nothing of triplets. There is no curvature of it.

    Args:
        margin: between the squared distances of unit embeddings.
        negatives: how many are drawn for every anchor and positive, by torch's global generator.

    Example:
        >>> import torch
        >>> u = torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
        >>> float(TripletLoss(margin=0.25)(u, Pairs.from_labels([0, 0, 1])))  # of 2 - 0 + 1/4 and 2 - 2 + 1/4
        1.25
    """

    margin: NotNegative = 0.1
    negatives: Count = 5
    # Of pair losses; there is nothing to be weighed here.
    negative_weight: float = 0.5

    def __call__(self, u: Tensor, pairs: Pairs) -> Tensor:
        if not isinstance(pairs, LabelPairs):
            raise ValueError(
                f"the triplet loss needs the labels of a batch, and {type(pairs).__name__} has none: leave out the "
                "miner"
            )
        squared = pairwise(F.normalize(self.checked(u, pairs)))
        triplets = batch_triplets(squared, pairs.labels, self.margin, self.negatives)
        return triplet_hinge(squared, triplets, self.margin)

    def pair_values(self, first: Tensor, second: Tensor, positive: bool) -> Tensor:
        return _refuse()

    def pair_blocks(self, first: Tensor, second: Tensor, positive: bool) -> PairBlocks:
        return _refuse()


def _refuse() -> NoReturn:
    raise NotImplementedError(
        "the triplet loss is over triplets and has no curvature by pairs: give a posterior hessians.ContrastiveLoss"
    )
