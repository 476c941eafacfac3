"""The mutual likelihood score of Gaussian embeddings (Shi and Jain, 2019): do two images have the same embedding?

For N(mu_i, diag s_i) and N(mu_j, diag s_j) it is the log density of the difference z_i - z_j at zero,

    -1/2 sum_l [(mu_il - mu_jl)^2 / (s_il + s_jl) + log(s_il + s_jl)] - Z/2 log(2 pi).
"""

from __future__ import annotations

import math

from torch import Tensor
from torch.utils.checkpoint import checkpoint

from hessians import Pairs

ELEMENTS_AT_ONCE = 1 << 20


def mutual_likelihood_of_pairs(
    mean: Tensor, variance: Tensor, other_mean: Tensor, other_variance: Tensor
) -> Tensor:
    """The score row by row: all arguments (..., Z), broadcast; the result is (...).

    Example:
        >>> import torch
        >>> one, half = torch.ones(1, 1), torch.full((1, 1), 0.5)
        >>> mutual_likelihood_of_pairs(one, half, one, half)  # the density of a standard normal at 0
        tensor([-0.9189])
    """
    total = variance + other_variance
    terms = (mean - other_mean).square() / total + total.log()
    return -0.5 * (terms.sum(-1) + mean.shape[-1] * math.log(2 * math.pi))


def mutual_likelihood_score(
    mean: Tensor, variance: Tensor, other_mean: Tensor, other_variance: Tensor
) -> Tensor:
    """The score of every one of Q Gaussians with every one of G, (Q, G), in blocks of bounded memory.

    Args:
        mean, variance: (Q, Z).
        other_mean, other_variance: (G, Z).

    Example:
        >>> import torch
        >>> mean, variance = torch.eye(2), torch.full((2, 2), 0.5)
        >>> mutual_likelihood_score(mean, variance, mean, variance)
        tensor([[-1.8379, -2.8379],
                [-2.8379, -1.8379]])
    """
    dim = max(1, mean.shape[1])
    columns = max(1, min(len(other_mean), ELEMENTS_AT_ONCE // dim))
    rows = max(1, ELEMENTS_AT_ONCE // (dim * columns))
    scores = mean.new_empty(len(mean), len(other_mean))
    for start in range(0, len(mean), rows):
        for first in range(0, len(other_mean), columns):
            block, part = slice(start, start + rows), slice(first, first + columns)
            scores[block, part] = mutual_likelihood_of_pairs(
                mean[block, None], variance[block, None], other_mean[part], other_variance[part]
            )
    return scores


def mutual_likelihood_loss(mean: Tensor, variance: Tensor, pairs: Pairs) -> Tensor:
    """The negative score, averaged over the positive pairs of a batch; negative pairs play no part.

    Without a positive pair it is 0, with gradients that are 0.

    Args:
        mean, variance: (N, Z).
        pairs: over the N images.

    Example:
        >>> import torch
        >>> mean, variance = torch.eye(2), torch.full((2, 2), 0.5)
        >>> float(mutual_likelihood_loss(mean, variance, Pairs.from_labels([7, 7])))
        2.837...
    """
    total = variance.sum() * 0
    for first, second, times in pairs.listed(positive=True):
        size = max(1, ELEMENTS_AT_ONCE // max(1, mean.shape[1]))
        for i, j, count in zip(first.split(size), second.split(size), times.split(size), strict=True):
            # Chunks are computed again on the way back, so that what they keep does not add up.
            part = (
                _weighted(mean, variance, i, j, count)
                if len(first) <= size
                else checkpoint(_weighted, mean, variance, i, j, count, use_reentrant=False)
            )
            total = total - part
    return total / pairs.num_positives if pairs.num_positives else total


def _weighted(mean: Tensor, variance: Tensor, i: Tensor, j: Tensor, count: Tensor) -> Tensor:
    return (count * mutual_likelihood_of_pairs(mean[i], variance[i], mean[j], variance[j])).sum()


def equal_variance(mean: Tensor, pairs: Pairs) -> float:
    """The variance that, given to every dimension of every image, makes the positive pairs the most likely.

    Half the mean squared difference of means (N, Z); 0 without a positive pair.

    Example:
        >>> import torch
        >>> equal_variance(torch.tensor([[0.0, 0.0], [2.0, 4.0]]), Pairs.from_labels([7, 7]))
        5.0
    """
    total = sum(
        float(((mean[i] - mean[j]).square().mean(1) * times).sum()) for i, j, times in pairs.listed(True)
    )
    return total / (2 * pairs.num_positives) if pairs.num_positives else 0.0
