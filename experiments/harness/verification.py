"""How well pairs of images are verified, and what an uncertainty tells about that: as section 4 of the HIB paper."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from laplacian_metric.metrics import statistics
from laplacian_metric.metrics.positives import check_length
from laplacian_metric.metrics.ranking import check_uncertainty

NUM_BINS = 20


def pair_average_precision(scores: Tensor, matching: Tensor) -> float:
    """The average precision of scores (P,), the greater the more alike, at telling pairs that match; NaN without any.

    Example:
        >>> round(pair_average_precision(torch.tensor([0.9, 0.8, 0.1]), torch.tensor([True, False, True])), 4)
        0.8333
    """
    values = check_uncertainty("scores", scores)
    check_length("matching", len(matching), len(values), "scores")
    if not bool(matching.any()):
        return math.nan
    return float(statistics.average_precision(values, matching.long(), torch.ones_like(values)))


def binned(
    uncertainty: Tensor, performance: Callable[[Tensor], float], num_bins: int = NUM_BINS
) -> list[float]:
    """The performance of items in bins of equal size, those with the lowest uncertainty (N,) first.

    Where the number of items is no multiple of that of bins, the first bins have one more. Equal uncertainties are in
    the order of the index.

    Args:
        uncertainty: (N,), at least as many as bins.
        performance: of the items at some positions (B,).
        num_bins: how many bins.

    Example:
        >>> right = torch.tensor([1.0, 0.0, 1.0, 1.0])
        >>> binned(torch.tensor([0.1, 0.9, 0.8, 0.2]), lambda rows: float(right[rows].mean()), 2)
        [1.0, 0.5]
    """
    values = check_uncertainty("uncertainty", uncertainty)
    if not 2 <= num_bins <= len(values):
        raise ValueError(
            f"{len(values)} items cannot be put into {num_bins} bins: take from 2 to {len(values)} bins"
        )
    order = values.argsort(stable=True)
    return [performance(rows) for rows in order.tensor_split(num_bins)]


def kendall_tau(first: Tensor, second: Tensor) -> float:
    """Kendall's tau-b of two lists (N,); NaN where one is constant, or fewer than two entries are left.

    Entries that are NaN in one of them are left out.

    Example:
        >>> kendall_tau(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 3.0, 2.0])) == 1 / 3
        True
    """
    if first.shape != second.shape or first.ndim != 1:
        raise ValueError(
            f"the lists have shapes {tuple(first.shape)} and {tuple(second.shape)}: two of one length are needed"
        )
    defined = ~(first.isnan() | second.isnan())
    signs = [torch.sign(x[defined, None].double() - x[defined].double()).flatten() for x in (first, second)]
    orders = [float(sign.abs().sum()) for sign in signs]
    if min(orders) == 0:
        return math.nan
    return float(signs[0] @ signs[1]) / math.sqrt(orders[0] * orders[1])


def falling(performance: list[float]) -> float:
    """How surely performance falls from bin to bin: Kendall's tau with the number of the bin, its sign turned.

    Example:
        >>> falling([0.9, 0.8, 0.5]), falling([0.1, 0.2])
        (1.0, -1.0)
    """
    # What differs by a rounding error is equal.
    rounded = torch.tensor(performance, dtype=torch.float64).round(decimals=12)
    return -kendall_tau(torch.arange(len(performance)), rounded)


def distances(first: Tensor, second: Tensor) -> Tensor:
    """Return Euclidean distances (N, M), by differences: a product would lose the digits of points that are close."""
    return torch.cdist(first, second, compute_mode="donot_use_mm_for_euclid_dist")


def vote(labels: Tensor) -> Tensor:
    """Return the class (Q,) that most of the neighbours' labels (Q, k), the nearest first, say.

    Of classes with as many votes the one is taken whose nearest member is nearest.

    Example:
        >>> vote(torch.tensor([[1, 2, 2, 3, 1], [5, 6, 6, 7, 8]])).tolist()
        [1, 6]
    """
    votes = (labels[:, :, None] == labels[:, None, :]).sum(2)
    # argmax takes the first of the greatest, which is the nearest.
    return labels.gather(1, votes.argmax(1, keepdim=True))[:, 0]
