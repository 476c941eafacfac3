"""Is confidence what it says? By the consensus of sampled neighbours, and by the rank of the uncertainty."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from laplacian_metric.core.checked import Number
from laplacian_metric.core.search import DEFAULT_MEMORY, search
from laplacian_metric.metrics.positives import Labels, Positives, as_labels, check_length
from laplacian_metric.metrics.ranking import Ranking, check_uncertainty, rank
from laplacian_metric.metrics.statistics import calibration_gap, rank_calibration_gap

NUM_BINS = 10

Samples = Tensor | Iterable[Tensor]


@dataclass(frozen=True)
class Bin:
    """The queries with a confidence between `low` and `high`; NaN where there are none."""

    low: float
    high: float
    count: int
    confidence: Number
    accuracy: Number


class Calibration(BaseModel):
    """How well a confidence agrees with the share of right answers.

    Attributes:
        ece: the expected calibration error, over ten bins.
        brier: the mean squared distance of the confidence from 1 (right) or 0 (wrong).
        samples: how many sampled embeddings the confidence is a vote of; 0 where it is a predicted probability.
        bins: the ten bins, for a reliability diagram.
    """

    model_config = ConfigDict(frozen=True, populate_by_name=True)

    ece: Number
    brier: Number = math.nan
    samples: int = 0
    bins: tuple[Bin, ...] = Field(default=(), alias="table")

    @classmethod
    def of(cls, right: Tensor, confidence: Tensor, bins: Tensor, samples: int = 0) -> Calibration:
        """Return the calibration of confidences (A,) with whether each answer is right (A,) and its bin (A,)."""
        right, confidence = right.double(), confidence.double()
        member = torch.nn.functional.one_hot(bins, NUM_BINS).double()
        counts = member.sum(0)
        means = [((values @ member) / counts).tolist() for values in (confidence, right)]
        rows = zip(counts.long().tolist(), *means, strict=True)
        ones = torch.ones_like(right)
        return cls(
            ece=float(calibration_gap(right, confidence, bins, ones, NUM_BINS)),
            brier=float((confidence - right).square().mean()),
            samples=samples,
            table=tuple(Bin(at / NUM_BINS, (at + 1) / NUM_BINS, *row) for at, row in enumerate(rows)),
        )


def reliability(right: Tensor, probability: Tensor) -> Calibration:
    """Return the calibration of a predicted probability (N,) that an answer is right, with whether it is (N,).

    Example:
        >>> calibration = reliability(torch.tensor([1.0, 0.0]), torch.tensor([0.8, 0.8]))
        >>> round(calibration.ece, 4), round(calibration.brier, 4), calibration.bins[8].count
        (0.3, 0.34, 2)
    """
    predicted = check_uncertainty("probability", probability, len(right), "answers")
    if bool(((predicted < 0) | (predicted > 1)).any()):
        raise ValueError(
            f"probability reaches from {predicted.min():g} to {predicted.max():g}, not from 0 to 1"
        )
    return Calibration.of(right.to(predicted.device), predicted, probability_bins(predicted))


def probability_bins(probability: Tensor) -> Tensor:
    """Return the bin of each probability (N,), 0 to 9; 1 is in the last."""
    return (NUM_BINS * probability).long().clamp_max(NUM_BINS - 1)


@dataclass(frozen=True)
class Consensus:
    """The class that most of S sampled spaces give each answerable query (A,) by its nearest neighbour.

    ``votes`` (A,) of the S samples are for the ``prediction`` (A,), the smallest label among equals;
    ``right`` (A,) is 1.0 where that is the query's label. ``answerable`` (Q,) says which queries have a
    positive.

    Example:
        >>> votes, right = torch.tensor([3, 2]), torch.tensor([1.0, 0.0])
        >>> agreed = Consensus(torch.tensor([0, 1]), votes, right, torch.ones(2).bool(), num_samples=3)
        >>> agreed.bins.tolist(), round(agreed.error, 4)
        ([9, 6], 0.3333)
    """

    prediction: Tensor
    votes: Tensor
    right: Tensor
    answerable: Tensor
    num_samples: int

    @property
    def confidence(self) -> Tensor:
        """The share of the samples that agree, float64 (A,)."""
        return self.votes.double() / self.num_samples

    @property
    def bins(self) -> Tensor:
        """The bin of each query, 0 to 9; in whole numbers, so that 1 is in the last and 3 of 10 in the fourth."""
        return (NUM_BINS * self.votes // self.num_samples).clamp_max(NUM_BINS - 1)

    @property
    def error(self) -> float:
        """The expected calibration error: the gap of each bin, weighted by its share of the queries."""
        return self.calibration.ece

    @property
    def calibration(self) -> Calibration:
        """The calibration error with the bins that it is made of."""
        return Calibration.of(self.right, self.confidence, self.bins, self.num_samples)


def retrieval_ece(
    samples: Samples,
    labels: Labels,
    *,
    database: Samples | None = None,
    database_labels: Labels | None = None,
) -> float:
    """Expected calibration error of retrieval by the consensus of jointly sampled spaces.

    ``samples`` (S, N, Z), or an iterator of S tensors (N, Z), are unit vectors: sample s embeds all images
    with the same draw of the weights. A query's prediction is the most frequent label of its S nearest
    neighbours, its confidence the share of that label, compared in ten bins. ``database`` is sampled alike,
    or one fixed tensor (M, Z).

    Example:
        >>> z = torch.tensor([[1.0, 0.0], [0.96, 0.28], [0.28, 0.96], [0.0, 1.0]])
        >>> retrieval_ece(torch.stack([z, z]), [0, 0, 1, 1]), retrieval_ece(torch.stack([z, z]), [0, 1, 0, 1])
        (0.0, 1.0)
    """
    return consensus(samples, labels, database=database, database_labels=database_labels).error


def consensus(
    samples: Samples,
    labels: Labels,
    *,
    database: Samples | None = None,
    database_labels: Labels | None = None,
    memory: int = DEFAULT_MEMORY,
) -> Consensus:
    """What the nearest neighbours in S sampled spaces agree on; one sample is in memory at a time."""
    if isinstance(labels, Positives):
        raise TypeError("labels are positives, but neighbours can only agree on a class: pass labels")
    if (database is None) != (database_labels is None):
        present, missing = (
            ("database_labels", "database") if database is None else ("database", "database_labels")
        )
        raise ValueError(f"{present} is given without {missing}: a gallery needs both")
    queries = as_labels("labels", labels)
    gallery = queries if database_labels is None else as_labels("database_labels", database_labels)
    answerable = Positives.from_labels(queries, None if database is None else gallery).counts > 0
    if not bool(answerable.any()):
        raise ValueError(
            f"none of the {len(queries)} queries has a positive in the gallery: no metric is defined"
        )
    votes: list[Tensor] = []
    for embeddings, others in _pairs(samples, database):
        check_length("labels", len(queries), len(embeddings), "embeddings")
        if others is not None:
            check_length("database_labels", len(gallery), len(others), "embeddings in the database")
        nearest = search(embeddings, 1, database=others, memory=memory).indices[:, 0]
        votes.append(gallery[nearest.to(gallery.device)])
    if not votes:
        raise ValueError("samples is empty: at least one sampled set of embeddings is needed")
    prediction, count = _mode(torch.stack(votes, dim=1)[answerable])
    right = (prediction == queries[answerable]).double()
    return Consensus(prediction, count, right, answerable, len(votes))


def ece_at_k(
    embeddings: Tensor,
    labels: Labels | Positives,
    uncertainty: Tensor,
    k: int = 5,
    *,
    database: Tensor | None = None,
    database_labels: Labels | None = None,
) -> float:
    """The calibration error of the Bayesian triplet loss: mAP@k of ten bins by rank of the uncertainty.

    The bins hold equal counts, the most uncertain first; the b-th has the confidence (b - 1/2)/10. Queries of
    equal uncertainty share the mean of their average precisions.

    Example:
        >>> z = torch.nn.functional.normalize(torch.randn(20, 3, generator=torch.manual_seed(0)), dim=1)
        >>> round(ece_at_k(z, [0] * 20, torch.arange(20.0)), 4)
        0.5
    """
    ranking = rank(embeddings, labels, k, database=database, database_labels=database_labels)
    return ranking_ece(ranking, uncertainty, k)


def ranking_ece(ranking: Ranking, uncertainty: Tensor, k: int) -> float:
    """ECE@k of a ranking by an uncertainty (Q,)."""
    uncertainty, precision = ranking.of_answerable(uncertainty), ranking.average_precision(k)
    return float(rank_calibration_gap(uncertainty, precision, torch.ones_like(precision), NUM_BINS))


def _pairs(samples: Samples, database: Samples | None) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Each sampled set of embeddings with its sampled (or fixed) gallery."""
    if isinstance(samples, Tensor) and samples.ndim != 3:
        raise ValueError(
            f"samples has shape {tuple(samples.shape)}, (S, N, Z) is needed: S embeddings of N images"
        )
    if database is None:
        yield from ((embeddings, None) for embeddings in samples)
        return
    if isinstance(database, Tensor) and database.ndim == 2:
        yield from ((embeddings, database) for embeddings in samples)
        return
    others, end = iter(database), object()
    for number, embeddings in enumerate(samples):
        other = next(others, end)
        if not isinstance(other, Tensor):
            raise ValueError(f"database has {number} samples, samples has more: both are drawn together")
        yield embeddings, other
    if next(others, end) is not end:
        raise ValueError("database has more samples than samples: both are drawn together")


def _mode(labels: Tensor) -> tuple[Tensor, Tensor]:
    """The most frequent label of each row (A, S), the smallest among equals, and how often it occurs."""
    ordered = labels.sort(dim=1).values.contiguous()
    count = torch.searchsorted(ordered, ordered, right=True) - torch.searchsorted(ordered, ordered)
    # argmax gives the first of equals, and labels ascend.
    first = count.argmax(dim=1, keepdim=True)
    return ordered.gather(1, first).squeeze(1), count.gather(1, first).squeeze(1)
