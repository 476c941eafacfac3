"""Everything that a report shows as a number, computed once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from laplacian_metric import metrics
from laplacian_metric.core.embedding import StochasticEmbedding
from laplacian_metric.core.search import search
from laplacian_metric.metrics import Evaluation, Interval, Ranking, Sparsification, statistics
from laplacian_metric.metrics.positives import Positives, as_labels
from laplacian_metric.metrics.sparsification import error_auroc
from laplacian_metric.report.evaluated import Evaluated, OtherScore
from laplacian_metric.report.refusals import Refusal, refusals

OWN = "this run"


@dataclass(frozen=True)
class Value:
    """A number with its interval, where there is one."""

    value: float
    interval: Interval | None = None


@dataclass(frozen=True)
class Strangers:
    """One set of strangers: its embedding, the nearest known image of each (O,), and how well it is told."""

    embedding: StochasticEmbedding
    uncertainty: Tensor
    nearest: Tensor
    auroc: Value
    average_precision: Value


@dataclass(frozen=True)
class ScoreRow:
    """What one uncertainty tells: wrong neighbours (NaN where undefined), and strangers by name."""

    name: str
    r_auroc: float
    ausc: float
    strangers: Mapping[str, float]


@dataclass(frozen=True, eq=False)
class Measured:
    """The numbers of a run, on the CPU.

    ``nearest`` (N,) is the nearest other image of each, None of a single one. ``ranking`` and what follows from it are
    None where no image has another of its class, ``reason`` then says so.
    """

    embedding: StochasticEmbedding
    labels: Tensor
    uncertainty: Tensor
    nearest: Tensor | None
    ranking: Ranking | None
    evaluation: Evaluation | None
    sparsification: Sparsification | None
    refusals: list[Refusal] | None
    strangers: Mapping[str, Strangers]
    scores: list[ScoreRow]
    reason: str = ""

    @property
    def least_certain_first(self) -> Tensor:
        """The rows in the order of their uncertainty."""
        return self.uncertainty.argsort(descending=True, stable=True)

    @property
    def right(self) -> Tensor | None:
        """Whether the nearest neighbour is of the same class, bool (N,)."""
        return None if self.nearest is None else self.labels[self.nearest] == self.labels

    @property
    def answerable(self) -> Tensor:
        """Which images have another of their class, bool (N,)."""
        return (
            torch.zeros_like(self.labels, dtype=torch.bool)
            if self.ranking is None
            else self.ranking.answerable
        )

    def position(self, uncertainty: Tensor) -> Tensor:
        """Where uncertainties lie among those of the known images, 0 (surest) to 1, equal ones in the middle."""
        ordered = self.uncertainty.sort().values
        low, high = (torch.searchsorted(ordered, uncertainty, right=right) for right in (False, True))
        return (low + high) / (2 * len(ordered))


def measure(evaluated: Evaluated, *, resamples: int = 1000, seed: int = 0) -> Measured:
    """All numbers of a report; the intervals are by ``resamples`` draws of a bootstrap, none with 0."""
    embedding = evaluated.embedding.to("cpu")
    labels = as_labels("labels", evaluated.labels).cpu()
    uncertainty = embedding.uncertainty.detach().double()
    ranking, reason = _rank(embedding.point.detach(), labels)
    strangers = {
        name: _strangers(embedding, uncertainty, given.to("cpu"), resamples, seed)
        for name, (given, _) in evaluated.strangers.items()
    }
    nearest = None
    if len(labels) > 1:
        nearest = ranking.nearest if ranking else search(embedding.point.detach(), 1).indices[:, 0]
    evaluation = sparsification = gained = None
    if ranking is not None:
        sparsification = metrics.sparsify(ranking, uncertainty)
        evaluation = metrics.evaluate_ranking(
            ranking,
            uncertainty,
            agreed=evaluated.consensus,
            ks=_depths(len(labels)),
            resamples=resamples,
            generator=torch.Generator().manual_seed(seed),
        )
        gained = refusals(
            ranking.of_answerable(uncertainty).numpy(),
            (ranking.first_is_right() == 0).numpy(),
            {name: found.uncertainty.numpy() for name, found in strangers.items()},
        )
    own = OtherScore(uncertainty, {name: found.uncertainty for name, found in strangers.items()})
    scores = [_score(name, one, ranking) for name, one in {OWN: own, **evaluated.scores}.items()]
    return Measured(
        embedding, labels, uncertainty, nearest, ranking, evaluation, sparsification, gained, strangers, scores, reason
    )  # fmt: skip


def _depths(number: int) -> tuple[int, ...]:
    return tuple(k for k in (1, 5, 10) if k < number)


def _rank(point: Tensor, labels: Tensor) -> tuple[Ranking | None, str]:
    if len(point) < 2:
        return None, "there is only one image, so it has no neighbour"
    if not bool((Positives.from_labels(labels).counts > 0).any()):
        return None, "no image has another of its class, so there is no right answer to any query"
    return metrics.rank(point, labels, max(_depths(len(point))), at_r=True), ""


def _strangers(
    embedding: StochasticEmbedding, inside: Tensor, given: StochasticEmbedding, resamples: int, seed: int
) -> Strangers:
    outside = given.uncertainty.detach().double()
    scores = torch.cat([inside, outside])
    is_out = torch.cat([torch.zeros_like(inside), torch.ones_like(outside)])
    found = []
    for statistic in (statistics.auroc, statistics.average_precision):
        of = partial(statistic, scores, is_out)
        interval = None
        if resamples:
            interval = metrics.bootstrap(
                of,
                (len(inside), len(outside)),
                resamples=resamples,
                generator=torch.Generator().manual_seed(seed),
            )
        found.append(Value(float(of(torch.ones_like(scores))), interval))
    nearest = search(given.point.detach(), 1, database=embedding.point.detach()).indices[:, 0]
    return Strangers(given, outside, nearest, *found)


def _score(name: str, score: OtherScore, ranking: Ranking | None) -> ScoreRow:
    inside = score.inside.detach().cpu().double()
    told = {
        other: metrics.ood_auroc(inside, values.detach().cpu()) for other, values in score.strangers.items()
    }
    if ranking is None:
        return ScoreRow(name, float("nan"), float("nan"), told)
    return ScoreRow(name, error_auroc(ranking, inside), metrics.sparsify(ranking, inside).area, told)
