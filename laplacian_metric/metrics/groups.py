"""Statistics of the same images by name: of a search, of uncertainties, of a probability; evaluations are made of them.

Each takes weights, so that a metric and its value for a draw of the bootstrap are one function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from laplacian_metric.metrics import statistics
from laplacian_metric.metrics.calibration import NUM_BINS, Consensus, probability_bins
from laplacian_metric.metrics.out_of_distribution import SUREST, crop_outcome, detection_statistics
from laplacian_metric.metrics.ranking import Normalisation, Ranking, check_uncertainty
from laplacian_metric.metrics.resampling import Statistic


@dataclass(frozen=True, eq=False)
class Uncertainties:
    """One uncertainty of every query (Q,), of each set of OOD images (M,) and, where there are any, of crops (Q,).

    Example:
        >>> Uncertainties(torch.tensor([0.1, 0.2]), {"digits": torch.tensor([0.9])}).ood.keys()
        dict_keys(['digits'])
    """

    queries: Tensor
    ood: Mapping[str, Tensor] = field(default_factory=dict)
    crops: Tensor | None = None


def ood_name(name: str, label: str) -> str:
    """Return what the number of one set of OOD images is called; the set of a single tensor is called "ood".

    Example:
        >>> ood_name("average_precision", "ood"), ood_name("average_precision", "digits")
        ('ood_average_precision', 'average precision digits')
    """
    return f"{label}_{name}" if label == "ood" else f"{name.replace('_', ' ')} {label}"


@dataclass(frozen=True)
class Group:
    """Statistics by name over the same images: as many of each stratum as `sizes` says; `label` is an OOD set's."""

    statistics: dict[str, Statistic]
    sizes: tuple[int, ...]
    device: torch.device
    label: str | None = None

    def values(self) -> dict[str, float]:
        """Return the numbers by the names of ``statistics``."""
        ones = torch.ones(sum(self.sizes), dtype=torch.float64, device=self.device)
        return {name: float(statistic(ones)) for name, statistic in self.statistics.items()}

    def named(self) -> dict[str, Statistic]:
        """Return the statistics by the names of `Evaluation.values`, which have the OOD set in them."""
        if self.label is None:
            return self.statistics
        return {ood_name(name, self.label): statistic for name, statistic in self.statistics.items()}

    def named_values(self) -> dict[str, float]:
        """Return the numbers by the names of `Evaluation.values`."""
        return dict(zip(self.named(), self.values().values(), strict=True))


def groups_of(
    ranking: Ranking, own: Uncertainties, probability: Tensor | None, ks: Sequence[int]
) -> list[Group]:
    """Return the statistics of a search, of the method's uncertainty and of its probability, for other draws."""
    groups = [of_retrieval(ranking, ks, "min"), *of_score(own, ranking, ks, None)]
    if probability is not None:
        groups.append(of_reliability(ranking.hits[:, 0].double(), probability))
    merged: dict[tuple[str | None, tuple[int, ...]], Group] = {}
    for group in groups:  # those of the same images meet the same draws
        key = (group.label, group.sizes)
        before = merged[key].statistics if key in merged else {}
        merged[key] = replace(group, statistics={**before, **group.statistics})
    return list(merged.values())


def of_retrieval(ranking: Ranking, ks: Sequence[int], normalisation: Normalisation) -> Group:
    """Return recall@k and map@k of the answerable queries; R-precision and map@r where the search went so deep."""
    outcomes: dict[str, Tensor] = {}
    for k in ks:
        outcomes[f"recall@{k}"] = ranking.recall(k)
        outcomes[f"map@{k}"] = ranking.average_precision(k, normalisation)
    if ranking.hits_at_r is not None and ranking.precision_at_r is not None:
        outcomes["r_precision"] = ranking.hits_at_r[ranking.answerable]
        outcomes["map@r"] = ranking.precision_at_r[ranking.answerable]
    means: dict[str, Statistic] = {
        name: partial(statistics.mean, values) for name, values in outcomes.items()
    }
    return Group(means, (int(ranking.answerable.sum()),), ranking.hits.device)


def of_consensus(agreed: Consensus) -> Group:
    """Return the calibration error of the consensus of sampled embeddings."""
    gap = partial(statistics.calibration_gap, agreed.right, agreed.confidence, agreed.bins, num_bins=NUM_BINS)
    return Group({"retrieval_ece": gap}, (len(agreed.right),), agreed.right.device)


def of_reliability(right: Tensor, probability: Tensor) -> Group:
    """Return the calibration error and the Brier score of the probability (Q,) that each answer is right (Q,)."""
    predicted = probability.detach().double().to(right.device)
    bins = probability_bins(predicted)
    errors: dict[str, Statistic] = {
        "probability_ece": partial(statistics.calibration_gap, right, predicted, bins, num_bins=NUM_BINS),
        "brier": partial(statistics.mean, (predicted - right).square()),
    }
    return Group(errors, (len(right),), right.device)


def of_score(
    score: Uncertainties,
    ranking: Ranking | None,
    ks: Sequence[int],
    entropy: Tensor | None,
    classes: Tensor | None = None,
) -> list[Group]:
    """What an uncertainty says of the answerable queries, of all queries, and of each set of OOD images."""
    device = score.queries.device if ranking is None else ranking.hits.device
    inside = check_uncertainty(
        "uncertainty", score.queries, None if ranking is None else len(ranking.hits)
    ).to(device)
    groups = []
    if ranking is not None:
        errors = _errors(ranking, inside[ranking.answerable], ks)
        if classes is not None:
            of = classes.to(device)[ranking.answerable]
            wrong = 1 - ranking.first_is_right()
            errors["r_auroc_within"] = partial(statistics.auroc_within, inside[ranking.answerable], wrong, of)
        groups.append(Group(errors, (int(ranking.answerable.sum()),), device))
    whole: dict[str, Statistic] = {}
    if score.crops is not None:
        whole["crop_test"] = partial(statistics.mean, crop_outcome(inside, score.crops))
    if entropy is not None:
        reference = check_uncertainty("label_entropy", entropy, len(inside)).to(device)
        whole["rank_correlation"] = partial(statistics.spearman, inside, reference)
    if whole:
        groups.append(Group(whole, (len(inside),), device))
    right = None if ranking is None else ranking.hits[:, 0]
    return groups + [
        Group(detection_statistics(inside, ood, right), (len(inside), len(ood)), device, label)
        for label, ood in score.ood.items()
    ]


def _errors(ranking: Ranking, uncertainty: Tensor, ks: Sequence[int]) -> dict[str, Statistic]:
    """What an uncertainty (A,) says about the errors of the answerable queries."""
    right = ranking.first_is_right()

    def curve(score: Tensor, weights: Tensor) -> Tensor:
        return statistics.sparsification_curve(score, right, weights)

    def area(score: Tensor, weights: Tensor) -> Tensor:
        return statistics.area(curve(score, weights))

    errors: dict[str, Statistic] = {
        "r_auroc": partial(statistics.auroc, uncertainty, 1 - right),
        "ausc": partial(area, uncertainty),
        "ausc_oracle": partial(area, -right),
        "ausc_random": partial(statistics.mean, right),
        "nausc": lambda weights: _normalised(
            area(uncertainty, weights), statistics.mean(right, weights), area(-right, weights)
        ),
        "ausc_gap": lambda weights: area(-right, weights) - area(uncertainty, weights),
        "surest_error": lambda weights: 1 - curve(uncertainty, weights)[..., 100 - SUREST],
    }
    for k in ks:
        errors[f"ece@{k}"] = partial(
            statistics.rank_calibration_gap, uncertainty, ranking.average_precision(k), num_bins=NUM_BINS
        )
    return errors


def _normalised(value: Tensor, random: Tensor, oracle: Tensor) -> Tensor:
    """Return where a value lies between chance, 0, and an oracle, 1; NaN where these are equal."""
    return (value - random) / torch.where(oracle > random, oracle - random, torch.nan)
