"""Distances between images that are distributions: E|x - y|^2 = |E x - E y|^2 + tr cov x + tr cov y."""

from __future__ import annotations

import torch
from torch import Tensor

from laplacian_metric.core.embedding import StochasticEmbedding
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
    if not len(gallery):
        raise ValueError("the gallery is empty: no query has a neighbour")
    if queries.dim != gallery.dim:
        raise ValueError(
            f"queries have {queries.dim} dimensions and the gallery {gallery.dim}: embed them alike"
        )
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
