"""Is the unknown more uncertain than the known? AUROC, average precision, crops, human labels and mixed
queries.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from hessians.checks import check_finite, check_matrix
from laplacian_metric.core.checked import Vector
from laplacian_metric.metrics.positives import check_length
from laplacian_metric.metrics.ranking import check_uncertainty
from laplacian_metric.metrics.resampling import Statistic
from laplacian_metric.metrics.statistics import auroc, average_precision, sparsification_curve, spearman

ROC_POINTS = 201
SUREST = 40  # percent of the queries, whose share of errors is measured


def ood_auroc(uncertainty_in: Tensor, uncertainty_out: Tensor) -> float:
    """The probability that an image from outside the distribution is more uncertain than one from inside;
    ties count 1/2.

    Example:
        >>> ood_auroc(torch.tensor([0.1, 0.5]), torch.tensor([0.5, 0.9]))
        0.875
    """
    scores, outside = stacked(uncertainty_in, uncertainty_out)
    return float(auroc(scores, outside, torch.ones_like(scores)))


def ood_average_precision(uncertainty_in: Tensor, uncertainty_out: Tensor) -> float:
    """The average precision of finding what is outside by its uncertainty: a sum over thresholds, equal
    values together.

    Example:
        >>> round(ood_average_precision(torch.tensor([0.1, 0.5]), torch.tensor([0.5, 0.9])), 4)
        0.8333
    """
    scores, outside = stacked(uncertainty_in, uncertainty_out)
    return float(average_precision(scores, outside, torch.ones_like(scores)))


def open_set_auroc(right: Tensor, trust: Tensor, ood: Tensor) -> float:
    """Return the AUROC of "the nearest item is of the query's class" over known and OOD queries in equal weight.

    An OOD query is always wrong. Ties count 1/2; NaN where no known query is right.

    Args:
        right: (N,), whether the nearest item of each known query is of its class.
        trust: (N,), how far each known query is trusted: the greater, the more.
        ood: (M,), the same of OOD queries.

    Example:
        >>> open_set_auroc(torch.tensor([True, False]), torch.tensor([0.9, 0.2]), torch.tensor([0.1, 0.95]))
        0.6666666666666666
    """
    inside, outside = (check_uncertainty(name, values) for name, values in (("trust", trust), ("ood", ood)))
    check_length("right", len(right), len(inside), "values of trust")
    statistic = detection_statistics(-inside, -outside, torch.as_tensor(right))["open_set_auroc"]
    return float(statistic(torch.ones(len(inside) + len(outside)).to(inside)))


def stacked(uncertainty_in: Tensor, uncertainty_out: Tensor) -> tuple[Tensor, Tensor]:
    """Uncertainties from inside and outside one after the other, and which are from outside (1.0), in float64."""
    inside = check_uncertainty("uncertainty_in", uncertainty_in)
    outside = check_uncertainty("uncertainty_out", uncertainty_out).to(inside.device)
    return torch.cat([inside, outside]), torch.cat([torch.zeros_like(inside), torch.ones_like(outside)])


def detection_statistics(
    inside: Tensor, outside: Tensor, right: Tensor | None = None
) -> dict[str, Statistic]:
    """Return the statistics of detecting out-of-distribution (OOD) images (M,) among queries (N,) by uncertainty.

    With ``right`` (N,), whether each query's answer is right (1.0), also those of the open set, in which an OOD image
    is always answered wrongly and both sides have equal weight: the AUROC of right against wrong answers, and the
    share of errors among the surest 40 %. The statistics take the weights of the N + M images.
    """
    scores, is_out = stacked(inside, outside)
    statistics: dict[str, Statistic] = {
        "auroc": partial(auroc, scores, is_out),
        "average_precision": partial(average_precision, scores, is_out),
    }
    if right is not None:
        wrong = torch.cat([1 - right.double().to(scores.device), is_out[len(right) :]])
        # Whole numbers, as the curve counts items: each query stands for M, each OOD image for N.
        balance = torch.where(is_out > 0, len(right), len(scores) - len(right))
        statistics["open_set_auroc"] = lambda weights: auroc(scores, wrong, weights * balance)
        statistics["open_set_surest_error"] = lambda weights: sparsification_curve(
            scores, wrong, weights * balance
        )[..., 100 - SUREST]
    return statistics


@dataclass(frozen=True, eq=False)
class Roc:
    """A curve in both rates (K,)."""

    false_positive_rate: Vector
    true_positive_rate: Vector

    def __post_init__(self) -> None:
        false, true = len(self.false_positive_rate), len(self.true_positive_rate)
        if false != true:
            raise ValueError(f"has {false} false positive rates for {true} true positive rates")


def roc(uncertainty_in: Tensor, uncertainty_out: Tensor) -> Roc:
    """Return the rates of true and false positives where the threshold goes down, at no more than 201 thresholds.

    Example:
        >>> curve = roc(torch.tensor([0.1, 0.5]), torch.tensor([0.5, 0.9]))
        >>> curve.false_positive_rate.tolist(), curve.true_positive_rate.tolist()
        ([0.0, 0.0, 0.5, 1.0], [0.0, 0.5, 1.0, 1.0])
    """
    scores, is_out = (values.cpu() for values in stacked(uncertainty_in, uncertainty_out))
    ordered, order = scores.sort(descending=True)
    last = torch.ones(len(scores), dtype=torch.bool)
    last[:-1] = ordered[:-1] != ordered[1:]  # of equal scores all are above the threshold, or none
    rates = [kind[order].cumsum(0)[last] / kind.sum() for kind in (1 - is_out, is_out)]
    false, true = (torch.cat([torch.zeros(1, dtype=torch.float64), rate]) for rate in rates)
    if len(true) > ROC_POINTS:
        # Half of the length of the curve is across and half is up: steps along both keep its shape.
        along = true + false
        steps = torch.linspace(0, 2, ROC_POINTS, dtype=torch.float64)
        chosen = torch.searchsorted(along, steps).clamp_max(len(along) - 1).unique()
        true, false = true[chosen], false[chosen]
    return Roc(false.numpy(), true.numpy())


def crop_test(uncertainty: Tensor, crop_uncertainty: Tensor) -> float:
    """The share of images whose crop is more uncertain than they are; ties count 1/2.

    Example:
        >>> crop_test(torch.tensor([1.0, 1.0, 1.0]), torch.tensor([2.0, 1.0, 0.0]))
        0.5
    """
    return float(crop_outcome(uncertainty, crop_uncertainty).mean())


def crop_outcome(uncertainty: Tensor, crop_uncertainty: Tensor) -> Tensor:
    """For each image 1 if its crop is more uncertain, 1/2 if it is equally so, else 0: float64 (N,)."""
    whole = check_uncertainty("uncertainty", uncertainty)
    crop = check_uncertainty("crop_uncertainty", crop_uncertainty, len(whole), "images").to(whole.device)
    return (crop > whole).double() + (crop == whole).double() / 2


def rank_correlation(uncertainty: Tensor, reference: Tensor) -> float:
    """Spearman's correlation, equal values sharing their mean rank; NaN where one side is constant.

    The reference may be the entropy of human labels, or whatever else should order the images alike.

    Example:
        >>> rank_correlation(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.1, 0.3, 0.2]))
        0.5
    """
    first = check_uncertainty("uncertainty", uncertainty)
    second = check_uncertainty("reference", reference, len(first), "uncertainties").to(first.device)
    return float(spearman(first, second, torch.ones_like(first)))


def label_entropy(counts: Tensor) -> Tensor:
    """The entropy in nats (N,) of the labels that people gave: counts or probabilities (N, C).

    Example:
        >>> label_entropy(torch.tensor([[10.0, 0.0], [5.0, 5.0]])).round(decimals=4).tolist()
        [0.0, 0.6931]
    """
    check_matrix("counts", counts)
    check_finite("counts", counts)
    total = counts.double().sum(1, keepdim=True)
    if bool((counts < 0).any()) or bool((total <= 0).any()):
        raise ValueError(
            "counts has a negative entry or a row without any label: each image needs at least one"
        )
    shares = counts.double() / total
    entropy: Tensor = torch.special.entr(shares).sum(1)
    return entropy
