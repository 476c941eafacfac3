"""Everything that a report shows: the numbers of one `Evaluation`, and the nearest known image of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from laplacian_metric import metrics
from laplacian_metric.core.embedding import StochasticEmbedding
from laplacian_metric.core.search import search
from laplacian_metric.metrics import Evaluation, Ranking
from laplacian_metric.metrics.positives import Positives, as_labels
from laplacian_metric.report.evaluated import Evaluated

DEPTHS = (1, 5, 10)


@dataclass(frozen=True)
class OutOfDistribution:
    """One set of out-of-distribution images: its embedding, and the nearest known image of each (M,)."""

    embedding: StochasticEmbedding
    nearest: Tensor

    @property
    def uncertainty(self) -> Tensor:
        """Float64 (M,)."""
        return self.embedding.uncertainty.detach().double()


@dataclass(frozen=True, eq=False)
class Measured:
    """The images of a run and their numbers, on the CPU.

    ``nearest`` (N,) is the nearest other image of each, None of a single one. Where no image has another of its class,
    the evaluation has no retrieval, nothing is ``answerable`` (N,), there is no ``ranking``, and ``reason`` says so.
    """

    embedding: StochasticEmbedding
    labels: Tensor
    uncertainty: Tensor
    nearest: Tensor | None
    answerable: Tensor
    evaluation: Evaluation
    ood: Mapping[str, OutOfDistribution]
    reason: str = ""
    ranking: Ranking | None = None

    @property
    def least_certain_first(self) -> Tensor:
        """The rows in the order of their uncertainty."""
        return self.uncertainty.argsort(descending=True, stable=True)

    @property
    def right(self) -> Tensor | None:
        """Whether the nearest neighbour is of the same class, bool (N,)."""
        return None if self.nearest is None else self.labels[self.nearest] == self.labels

    def position(self, uncertainty: Tensor) -> Tensor:
        """Return where uncertainties lie among those of the known images, 0 (surest) to 1, equal ones in the middle."""
        ordered = self.uncertainty.sort().values
        low, high = (torch.searchsorted(ordered, uncertainty, right=right) for right in (False, True))
        return (low + high) / (2 * len(ordered))


def measure(evaluated: Evaluated, *, resamples: int = 1000, seed: int = 0) -> Measured:
    """Return all that a report shows; the intervals are by ``resamples`` draws of a bootstrap, none with 0."""
    embedding = evaluated.embedding.to("cpu")
    point = embedding.point.detach()
    labels = as_labels("labels", evaluated.labels).cpu()
    ranking, reason = _rank(point, labels)
    ood = {}
    for name, (outside, _) in evaluated.ood.items():
        outside = outside.to("cpu")
        nearest = search(outside.point.detach(), 1, database=point).indices[:, 0]
        ood[name] = OutOfDistribution(outside, nearest)
    uncertainty = embedding.uncertainty.detach().double()
    evaluation = metrics.evaluate_ranking(
        ranking,
        uncertainty,
        agreed=evaluated.consensus,
        probability=evaluated.probability,
        ood_uncertainty={name: images.uncertainty for name, images in ood.items()},
        scores=evaluated.scores,
        ks=[k for k in DEPTHS if k < len(labels)],
        resamples=resamples,
        generator=torch.Generator().manual_seed(seed),
    )
    alone = len(labels) < 2
    return Measured(
        embedding=embedding,
        labels=labels,
        uncertainty=uncertainty,
        nearest=None if alone else ranking.nearest if ranking else search(point, 1).indices[:, 0],
        answerable=torch.zeros(len(labels), dtype=torch.bool) if ranking is None else ranking.answerable,
        evaluation=evaluation,
        ood=ood,
        reason=reason,
        ranking=ranking,
    )


def _rank(point: Tensor, labels: Tensor) -> tuple[Ranking | None, str]:
    if len(point) < 2:
        return None, "there is only one image, so it has no neighbour"
    if not bool((Positives.from_labels(labels).counts > 0).any()):
        return None, "no image has another of its class, so there is no right answer to any query"
    return metrics.rank(point, labels, max(k for k in DEPTHS if k < len(point)), at_r=True), ""
