"""All metrics of one method on one data set, from one search."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from laplacian_metric.metrics import statistics
from laplacian_metric.metrics.calibration import NUM_BINS, Consensus, Samples, consensus
from laplacian_metric.metrics.out_of_distribution import crop_outcome, stacked
from laplacian_metric.metrics.positives import Labels, Positives
from laplacian_metric.metrics.ranking import Normalisation, Ranking, rank
from laplacian_metric.metrics.resampling import Interval, Statistic, bootstrap_all
from laplacian_metric.metrics.retrieval import at_r
from laplacian_metric.metrics.uncertainty import check_uncertainty


@dataclass(frozen=True)
class Evaluation:
    """The metrics by name, with their intervals, and what was counted on the way.

    ``values`` has those metrics whose inputs were given: recall@k, map@k, map@r, r_precision; with an
    uncertainty r_auroc, ausc, ausc_oracle, ausc_random, ausc_gap and ece@k; with samples retrieval_ece;
    ood_auroc and ood_average_precision; crop_test; rank_correlation. A value that is not defined on these
    data is NaN, such as the R-AUROC of a perfect retrieval. ``intervals`` are over queries; those
    of calibration errors lie a little high, since a draw with repeats is less even than the set.
    Crop test, correlation and detection need no positives and are over all images.
    """

    values: dict[str, float]
    num_queries: int
    num_answerable: int
    gallery_size: int
    num_tied_queries: int
    num_samples: int = 0
    num_out: int = 0
    intervals: dict[str, Interval] = field(default_factory=dict)

    def __getitem__(self, name: str) -> float:
        if name not in self.values:
            raise KeyError(f"{name} was not evaluated, there are: {', '.join(self.values)}")
        return self.values[name]

    @property
    def num_unanswerable(self) -> int:
        """How many queries have no positive in the gallery; they are left out of every metric of retrieval."""
        return self.num_queries - self.num_answerable

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for a result file; what is not defined is None, since JSON has no NaN."""
        return {
            "values": {name: _plain(value) for name, value in self.values.items()},
            "intervals": {
                name: {key: _plain(value) for key, value in asdict(interval).items()}
                for name, interval in self.intervals.items()
            },
            "counts": {
                "queries": self.num_queries,
                "answerable": self.num_answerable,
                "unanswerable": self.num_unanswerable,
                "gallery": self.gallery_size,
                "tied_queries": self.num_tied_queries,
                "samples": self.num_samples,
                "out": self.num_out,
            },
        }


def evaluate(
    embeddings: Tensor,
    labels: Labels | Positives,
    uncertainty: Tensor | None = None,
    *,
    database: Tensor | None = None,
    database_labels: Labels | None = None,
    samples: Samples | None = None,
    database_samples: Samples | None = None,
    ood_uncertainty: Tensor | None = None,
    crop_uncertainty: Tensor | None = None,
    label_entropy: Tensor | None = None,
    ks: Sequence[int] = (1, 5, 10),
    normalisation: Normalisation = "min",
    resamples: int = 1000,
    level: float = 0.95,
    generator: torch.Generator | None = None,
) -> Evaluation:
    """Every metric for which the inputs are there, from one search of the embeddings.

    Embeddings (Q, Z) are unit vectors with labels (Q,) or `Positives`, uncertainty is (Q,), samples are (S,
    Q, Z) or an iterator of (Q, Z). ``ood_uncertainty`` (O,) is of images from elsewhere, ``crop_uncertainty``
    (Q,) of a crop of each image, ``label_entropy`` (Q,) of what people said about it. Without ``resamples``
    (0) there are no intervals.

    Example:
        >>> z = torch.tensor([[1.0, 0.0], [0.96, 0.28], [0.28, 0.96], [0.0, 1.0]])
        >>> found = evaluate(z, [0, 0, 1, 0], torch.tensor([0.1, 0.2, 9.0, 0.3]), ks=(1, 2))
        >>> round(found["recall@1"], 4), found["r_auroc"], found.num_unanswerable
        (0.6667, 1.0, 1)
    """
    if samples is not None and (database is None) != (database_samples is None):
        raise ValueError(
            "with samples, database and database_samples go together: the gallery is sampled with the queries, or "
            "pass the database itself as database_samples to keep it fixed"
        )
    if samples is None and database_samples is not None:
        raise ValueError("database_samples is given without samples")
    if not ks:
        raise ValueError("ks is empty: give at least one k, such as ks=(1, 5, 10)")
    agreed: Consensus | None = None
    ranking = rank(embeddings, labels, max(ks), database=database, database_labels=database_labels, at_r=True)
    if samples is not None:
        if isinstance(labels, Positives):
            raise TypeError(
                "samples are given, but neighbours can only agree on a class: pass labels, not positives"
            )
        agreed = consensus(samples, labels, database=database_samples, database_labels=database_labels)
    return evaluate_ranking(
        ranking,
        uncertainty,
        agreed=agreed,
        ood_uncertainty=ood_uncertainty,
        crop_uncertainty=crop_uncertainty,
        label_entropy=label_entropy,
        ks=ks,
        normalisation=normalisation,
        resamples=resamples,
        level=level,
        generator=generator,
    )


def evaluate_ranking(
    ranking: Ranking,
    uncertainty: Tensor | None = None,
    *,
    agreed: Consensus | None = None,
    ood_uncertainty: Tensor | None = None,
    crop_uncertainty: Tensor | None = None,
    label_entropy: Tensor | None = None,
    ks: Sequence[int] = (1,),
    normalisation: Normalisation = "min",
    resamples: int = 1000,
    level: float = 0.95,
    generator: torch.Generator | None = None,
) -> Evaluation:
    """As `evaluate`, of a search that was done before: for several uncertainties, or a mixture of two sets.

    Example:
        >>> from laplacian_metric.metrics.ranking import rank
        >>> ranking = rank(torch.tensor([[1.0, 0.0], [0.96, 0.28], [0.28, 0.96]]), [0, 1, 1])
        >>> for uncertainty in (torch.tensor([0.0, 1.0, 0.5]), torch.tensor([0.0, 0.0, 1.0])):
        ...     evaluate_ranking(ranking, uncertainty)["r_auroc"]
        1.0
        0.0
    """
    needs = {
        "ood_uncertainty": ood_uncertainty,
        "crop_uncertainty": crop_uncertainty,
        "label_entropy": label_entropy,
    }
    for name, given in needs.items():
        if given is not None and uncertainty is None:
            raise ValueError(f"{name} is given without uncertainty, which it is compared with")
    device = ranking.hits.device
    metrics = _retrieval(ranking, ks, normalisation)
    if agreed is not None:
        right, confidence, bins = (
            agreed.right.to(device),
            agreed.confidence.to(device),
            agreed.bins.to(device),
        )
        metrics["retrieval_ece"] = partial(
            statistics.calibration_gap, right, confidence, bins, num_bins=NUM_BINS
        )
    groups: list[tuple[dict[str, Statistic], tuple[int, ...]]] = [(metrics, (int(ranking.answerable.sum()),))]
    if uncertainty is not None:
        metrics |= _errors(ranking, ranking.of_answerable(uncertainty), ks)
        groups += _whole_set(uncertainty.to(device), crop_uncertainty, label_entropy, ood_uncertainty)
    values: dict[str, float] = {}
    intervals: dict[str, Interval] = {}
    for group, sizes in groups:
        ones = torch.ones(sum(sizes), dtype=torch.float64, device=device)
        values |= {name: float(statistic(ones)) for name, statistic in group.items()}
        if resamples:
            intervals |= bootstrap_all(
                group, sizes, resamples=resamples, level=level, generator=generator, device=device
            )
    return Evaluation(
        values=values,
        num_queries=len(ranking.hits),
        num_answerable=int(ranking.answerable.sum()),
        gallery_size=ranking.gallery_size,
        num_tied_queries=int((ranking.ties > 0).sum()),
        num_samples=0 if agreed is None else agreed.num_samples,
        num_out=0 if ood_uncertainty is None else len(ood_uncertainty),
        intervals=intervals,
    )


def _retrieval(ranking: Ranking, ks: Sequence[int], normalisation: Normalisation) -> dict[str, Statistic]:
    metrics: dict[str, Statistic] = {}
    for k in ks:
        metrics[f"recall@{k}"] = partial(statistics.mean, ranking.recall(k))
        metrics[f"map@{k}"] = partial(statistics.mean, ranking.average_precision(k, normalisation))
    if ranking.precision_at_r is not None:
        hits, precision = at_r(ranking)
        metrics["map@r"] = partial(statistics.mean, precision)
        metrics["r_precision"] = partial(statistics.mean, hits)
    return metrics


def _errors(ranking: Ranking, uncertainty: Tensor, ks: Sequence[int]) -> dict[str, Statistic]:
    """What an uncertainty says about the errors of the answerable queries."""
    right = ranking.first_is_right()

    def area(score: Tensor, weights: Tensor) -> Tensor:
        return statistics.area(statistics.sparsification_curve(score, right, weights))

    metrics: dict[str, Statistic] = {
        "r_auroc": partial(statistics.auroc, uncertainty, 1 - right),
        "ausc": partial(area, uncertainty),
        "ausc_oracle": partial(area, -right),
        "ausc_random": partial(statistics.mean, right),
        "ausc_gap": lambda weights: area(-right, weights) - area(uncertainty, weights),
    }
    for k in ks:
        metrics[f"ece@{k}"] = partial(
            statistics.rank_calibration_gap, uncertainty, ranking.average_precision(k), num_bins=NUM_BINS
        )
    return metrics


def _whole_set(
    uncertainty: Tensor, crop: Tensor | None, entropy: Tensor | None, out: Tensor | None
) -> list[tuple[dict[str, Statistic], tuple[int, ...]]]:
    """Metrics that need no retrieval, over all images, with the number of items that each draw has."""
    inside = check_uncertainty("uncertainty", uncertainty)
    images: dict[str, Statistic] = {}
    if crop is not None:
        images["crop_test"] = partial(statistics.mean, crop_outcome(inside, crop))
    if entropy is not None:
        reference = check_uncertainty("label_entropy", entropy, len(inside)).to(inside.device)
        images["rank_correlation"] = partial(statistics.spearman, inside, reference)
    groups: list[tuple[dict[str, Statistic], tuple[int, ...]]] = [(images, (len(inside),))] if images else []
    if out is not None:
        scores, outside = stacked(inside, out)
        detection: dict[str, Statistic] = {
            "ood_auroc": partial(statistics.auroc, scores, outside),
            "ood_average_precision": partial(statistics.average_precision, scores, outside),
        }
        groups.append((detection, (len(inside), len(scores) - len(inside))))
    return groups


def _plain(value: float) -> float | None:
    return None if isinstance(value, float) and not math.isfinite(value) else value
