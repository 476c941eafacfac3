"""The statistics behind the metrics, each defined once, for items that count a whole number of times.

``weights`` (..., N) say how often each item counts: ones give the metric itself, the counts of a bootstrap
draw give its value for that draw, many draws at a time. Items with equal scores are never told apart: their
contribution is its expectation over all orders.
"""

from __future__ import annotations

import torch
from torch import Tensor


def mean(values: Tensor, weights: Tensor) -> Tensor:
    """The weighted mean of ``values`` (N,): shape (...,).

    Example:
        >>> float(mean(torch.tensor([0.0, 1.0]).double(), torch.tensor([1.0, 3.0]).double()))
        0.75
    """
    return weights @ values / weights.sum(-1)


def auroc(scores: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """The probability that a target's score is above a non-target's, equal ones counting 1/2; NaN if one kind
    is missing.

    Example:
        >>> scores, targets = torch.tensor([0.1, 0.5, 0.5, 0.9]), torch.tensor([0, 0, 1, 1])
        >>> float(auroc(scores, targets, torch.ones(4).double()))
        0.875
    """
    groups = _Groups(scores, weights)
    positive = groups.sums(targets)
    negative = groups.sums() - positive
    below = negative.cumsum(-1) - negative
    return (positive * (below + negative / 2)).sum(-1) / (positive.sum(-1) * negative.sum(-1))


def auroc_within(scores: Tensor, targets: Tensor, classes: Tensor, weights: Tensor) -> Tensor:
    """As `auroc`, of pairs of a target and a non-target of one class (N,) only: classes that are harder play no part.

    Example:
        >>> scores, targets = torch.tensor([0.1, 0.2, 0.8, 0.9]), torch.tensor([1, 0, 1, 0])
        >>> float(auroc_within(scores, targets, torch.tensor([0, 1, 0, 1]), torch.ones(4).double()))
        nan
        >>> float(auroc_within(scores, targets, torch.tensor([0, 0, 1, 1]), torch.ones(4).double()))
        0.0
    """
    members = torch.unique(classes, return_inverse=True)[1]
    levels = torch.unique(scores, return_inverse=True)[1]
    # One order for all: class after class, and by score in each.
    groups = _Groups(members * (int(levels.max()) + 1) + levels, weights)
    positive = groups.sums(targets)
    negative = groups.sums() - positive
    of_class = members[groups.order[groups.ends]]
    totals = torch.zeros(
        *weights.shape[:-1], int(members.max()) + 1, dtype=weights.dtype, device=weights.device
    )
    negatives, positives = (totals.index_add(-1, of_class, values) for values in (negative, positive))
    before = negative.cumsum(-1) - negative - (negatives.cumsum(-1) - negatives)[..., of_class]
    return (positive * (before + negative / 2)).sum(-1) / (positives * negatives).sum(-1)


def average_precision(scores: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """The precision at each threshold, weighted by the targets gained there; no interpolation. NaN without a
    target.

    Example:
        >>> scores, targets = torch.tensor([0.9, 0.5, 0.5, 0.1]), torch.tensor([1, 1, 0, 0])
        >>> round(float(average_precision(scores, targets, torch.ones(4).double())), 4)
        0.8333
    """
    groups = _Groups(scores, weights, descending=True)
    gained = groups.sums(targets)
    passed = groups.sums().cumsum(-1)
    precision = gained.cumsum(-1) / passed.clamp_min(1)
    return (gained * precision).sum(-1) / gained.sum(-1)


def spearman(first: Tensor, second: Tensor, weights: Tensor) -> Tensor:
    """The correlation of the ranks, equal values sharing their mean rank; NaN where one side is constant.

    Example:
        >>> a, b = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([10.0, 30.0, 20.0])
        >>> float(spearman(a, b, torch.ones(3).double()))
        0.5
    """
    ranks = [_Groups(values, weights).mean_ranks() for values in (first, second)]
    total = weights.sum(-1, keepdim=True)
    # The mean of all ranks is (n + 1)/2 whatever the ties.
    a, b = (rank - (total + 1) / 2 for rank in ranks)
    covariance = (weights * a * b).sum(-1)
    return covariance / ((weights * a * a).sum(-1) * (weights * b * b).sum(-1)).sqrt()


def sparsification_curve(uncertainty: Tensor, values: Tensor, weights: Tensor) -> Tensor:
    """The mean value of what is left without the floor(q n/100) most uncertain, q = 0..99: shape (..., 100).

    Example:
        >>> curve = sparsification_curve(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 0.0]), torch.ones(2).double())
        >>> float(curve[49]), float(curve[50])
        (0.5, 1.0)
    """
    total = weights.sum(-1, keepdim=True)
    removed = torch.floor(torch.arange(100, device=weights.device, dtype=torch.float64) * total / 100)
    gone = _sum_of_most_uncertain(uncertainty, values, weights, removed)
    return ((weights @ values.double())[..., None] - gone) / (total - removed)


def area(curve: Tensor) -> Tensor:
    """The trapezoid over q = 0..99 divided by 99: shape (...,) from (..., 100)."""
    return torch.trapezoid(curve, dim=-1) / 99


def calibration_gap(
    values: Tensor, confidence: Tensor, bins: Tensor, weights: Tensor, num_bins: int
) -> Tensor:
    """The gap between mean value and mean confidence of each bin, weighted by its share of the items: shape
    (...,).

    Example:
        >>> right, confidence = torch.tensor([1.0, 0.0]).double(), torch.tensor([0.8, 0.8]).double()
        >>> round(float(calibration_gap(right, confidence, torch.tensor([8, 8]), torch.ones(2).double(), 10)), 4)
        0.3
    """
    member = torch.nn.functional.one_hot(bins, num_bins).double()
    return ((weights * (values - confidence)) @ member).abs().sum(-1) / weights.sum(-1)


def rank_calibration_gap(uncertainty: Tensor, values: Tensor, weights: Tensor, num_bins: int = 10) -> Tensor:
    """As `calibration_gap`, with ``num_bins`` bins of equal count by rank, the most uncertain first; the b-th
    of them has the confidence (b - 1/2)/num_bins.

    Example:
        >>> values = torch.linspace(0.05, 0.95, 10).double()
        >>> round(float(rank_calibration_gap(-values, values, torch.ones(10).double())), 6)
        0.0
    """
    total = weights.sum(-1, keepdim=True)
    bounds = torch.arange(num_bins + 1, device=weights.device, dtype=torch.float64)
    # The item of rank r (from 0) is in bin floor(r num_bins/n): bin b begins at the next whole number from
    # b n/num_bins.
    begins = torch.ceil(bounds * total / num_bins)
    sums = _sum_of_most_uncertain(uncertainty, values, weights, begins).diff(dim=-1)
    confidence = (bounds[1:] - 0.5) / num_bins
    return (sums - confidence * begins.diff(dim=-1)).abs().sum(-1) / total.squeeze(-1)


def _sum_of_most_uncertain(uncertainty: Tensor, values: Tensor, weights: Tensor, number: Tensor) -> Tensor:
    """The expected sum of the values of the ``number`` (..., B) most uncertain items: shape (..., B)."""
    groups = _Groups(uncertainty, weights, descending=True)
    size, value = groups.sums(), groups.sums(values)
    passed, gained = size.cumsum(-1), value.cumsum(-1)
    # The first group that reaches the number; it gives the share of its sum that is still missing.
    last = torch.searchsorted(passed, number.contiguous()).clamp_max(size.shape[-1] - 1)
    inside, share = size.gather(-1, last), value.gather(-1, last)
    missing = number - (passed.gather(-1, last) - inside)
    return gained.gather(-1, last) - share + share * missing / inside.clamp_min(1)


class _Groups:
    """Weighted items (..., N) in the order of their scores (N,), equal scores together."""

    def __init__(self, scores: Tensor, weights: Tensor, descending: bool = False) -> None:
        ordered, self.order = torch.sort(scores, descending=descending)
        last = torch.ones_like(ordered, dtype=torch.bool)
        last[:-1] = ordered[1:] != ordered[:-1]
        self.ends = last.nonzero().flatten()
        self.weights = weights.index_select(-1, self.order)

    def sums(self, values: Tensor | None = None) -> Tensor:
        """The sum of the weights over each group, or of the weighted ``values`` (N,): (..., G)."""
        terms = self.weights if values is None else self.weights * values[self.order]
        cumulative = terms.cumsum(-1).index_select(-1, self.ends)
        return torch.diff(cumulative, dim=-1, prepend=torch.zeros_like(cumulative[..., :1]))

    def mean_ranks(self) -> Tensor:
        """The mean rank (from 1) of each item's group: (..., N)."""
        size = self.sums()
        rank = size.cumsum(-1) - size + (size + 1) / 2
        sizes = torch.diff(self.ends, prepend=self.ends.new_full((1,), -1))
        group = torch.empty_like(self.order)
        group[self.order] = torch.repeat_interleave(torch.arange(len(sizes), device=sizes.device), sizes)
        return rank.index_select(-1, group)
