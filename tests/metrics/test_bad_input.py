"""What the metrics refuse: the error names the argument."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch

from laplacian_metric import metrics
from laplacian_metric.metrics import Positives, QueryRecord
from laplacian_metric.metrics.ranking import rank_by, rank_by_distance
from laplacian_metric.metrics.sparsification import refusals
from laplacian_metric.metrics.statistics import mean
from tests.metrics.reference import unit

Z, CLASSES, NAN = unit(4, 2), [0, 0, 1, 1], math.nan
GALLERY = {"database": Z, "database_labels": CLASSES}


def recall(embeddings: Any = Z, labels: Any = CLASSES, **more: Any) -> float:
    return metrics.recall_at_k(embeddings, labels, **more)


def ece(samples: Any = Z[None], labels: Any = CLASSES, **more: Any) -> float:
    return metrics.retrieval_ece(samples, labels, **more)


def evaluate(labels: Any = CLASSES, **more: Any) -> metrics.Evaluation:
    return metrics.evaluate(Z, labels, **{"ks": (1,), **more})


def record(**changes: Any) -> QueryRecord:
    usual = {"images": "x", "hits": ("1", "0"), "positives": [1, 1], "uncertainty": [0, 1]}
    return QueryRecord.model_validate({**usual, **changes})


def by_constant(
    shape: tuple[int, int], labels: list[int], value: float = 0.0, **more: Any
) -> metrics.Ranking:
    return rank_by(lambda chosen: torch.full(shape, value), labels, **more)


bootstrap = partial(metrics.bootstrap, partial(mean, torch.zeros(3).double()), 3)
knn, probe = (partial(function, Z, CLASSES) for function in (metrics.knn_accuracy, metrics.linear_probe))
doubts, scores = torch.zeros(4), torch.zeros(3)


@pytest.mark.parametrize(
    ("use", "named"),
    [
        # retrieval
        (lambda: recall(labels=[0, 0, 1]), "labels has 3"),
        (lambda: recall(labels=[0, 1, 2, 3]), "positive"),
        (lambda: recall(labels=[]), "labels"),
        (lambda: recall(labels=[CLASSES]), r"labels has shape \(1, 4\)"),
        (lambda: recall(labels=torch.tensor([0.0, math.pi, 1.0, 2.0])), "labels"),
        (lambda: recall(torch.zeros(0, 2)), "labels has 4"),
        (lambda: recall(k=4), "k is 4"),
        (lambda: recall(database=unit(5, 2)), "database_labels"),
        (lambda: recall(database_labels=[0, 0]), "database_labels"),
        (lambda: recall(database=unit(5, 2), database_labels=[0, 1]), "database_labels has 2"),
        (lambda: recall(database=unit(5, 2), database_labels=[7] * 5), "positive"),
        (lambda: recall(labels=Positives.from_labels([0, 0, 1])), "positives"),
        (lambda: recall(labels=Positives.from_labels(CLASSES), **GALLERY), "database_labels"),
        (lambda: metrics.map_at_k(Z, CLASSES, 1, normalisation="none"), "normalisation"),
        (lambda: metrics.rank(Z, CLASSES, k=2).recall(3), "k is 3"),
        (lambda: by_constant((3, 2), [0, 0, 1]), "scores"),
        (lambda: by_constant((3, 3), [0, 0, 1], NAN), "NaN"),
        (lambda: by_constant((3, 3), [0, 1, 2]), "metric"),
        (lambda: by_constant((3, 3), [0, 0, 1], k=3), "k is 3"),
        (lambda: rank_by_distance(Z, torch.tensor(CLASSES), 4), "k is 4"),
        (lambda: rank_by_distance(Z, torch.tensor(CLASSES[:3])), "labels"),
        (lambda: Positives.within(-1.0, torch.zeros(2, 2)), "radius is -1.0"),
        (lambda: Positives.within(1.0, torch.full((2, 2), NAN)), "positions"),
        (lambda: Positives.within(1.0, torch.zeros(2, 2), torch.zeros(2, 3)), "positions"),
        (lambda: record(hits=("1", "11")), "hits"),
        (lambda: record(hits=("1", "x")), "hits"),
        (lambda: record(positives=[1.0]), "positives"),
        # uncertainty
        (lambda: metrics.r_auroc(Z, CLASSES, torch.zeros(3)), "uncertainty has 3"),
        (lambda: metrics.ausc(Z, CLASSES, torch.zeros(4, 1)), r"uncertainty has shape \(4, 1\)"),
        (lambda: metrics.ausc(Z, CLASSES, doubts * NAN), "uncertainty"),
        (lambda: metrics.ece_at_k(Z, CLASSES, scores, k=1), "uncertainty has 3"),
        (lambda: metrics.open_set_auroc(scores, doubts[:2], doubts[:2]), "right has 3"),
        (lambda: refusals([], []), "uncertainty"),
        (lambda: refusals([0.1], [0], {"digits": [0.1, NAN]}), "digits"),
        (lambda: metrics.ood_auroc(torch.zeros(0), doubts), "uncertainty_in"),
        (lambda: metrics.ood_auroc(doubts, torch.zeros(0)), "uncertainty_out"),
        (lambda: metrics.ood_average_precision(doubts, doubts * NAN), "uncertainty_out"),
        (lambda: metrics.crop_test(doubts, scores), "crop_uncertainty has 3"),
        (lambda: metrics.rank_correlation(doubts, scores), "reference has 3"),
        (lambda: metrics.label_entropy(torch.tensor([[1.0, 0.0], [0.0, 0.0]])), "counts"),
        (lambda: metrics.feature_norm(torch.zeros(0, 2)), "features"),
        (lambda: metrics.embedding_norm(torch.full((1, 2), NAN)), "raw_embeddings"),
        (lambda: metrics.nearest_distance(2 * Z), "embeddings"),
        (lambda: metrics.trivial_scores((Z, [0, 1]), Z), "labels"),
        # calibration
        (lambda: metrics.reliability(torch.ones(2), torch.tensor([0.5, 1.2])), "0 to 1"),
        (lambda: metrics.reliability(torch.ones(2), torch.tensor([0.5])), "probability has 1"),
        (lambda: ece(Z), "samples"),
        (lambda: ece(iter(())), "samples"),
        (lambda: ece(torch.zeros(0, 4, 2)), "samples"),
        (lambda: ece(Z[None, :3]), "labels has 4"),
        (lambda: ece(2 * Z[None]), "embeddings"),
        (lambda: ece(labels=[0, 1, 2, 3]), "positive"),
        (lambda: ece(database=Z), "database_labels"),
        (lambda: ece(database=Z, database_labels=[0]), "database_labels has 1"),
        (lambda: ece(database=iter(()), database_labels=[0]), "database"),
        (lambda: ece(database=Z[None].expand(3, -1, -1), database_labels=CLASSES), "database"),
        # classes
        (lambda: knn(**GALLERY, k=0), "k is 0"),
        (lambda: knn(database=Z, database_labels=[0, 0]), "database_labels"),
        (lambda: probe(database=Z, database_labels=[0] * 4), "class"),
        (lambda: metrics.linear_probe(Z * NAN, CLASSES, **GALLERY), "features"),
        (lambda: metrics.clustering_nmi(Z, CLASSES, clusters=9), "clusters is 9"),
        # everything at once
        (lambda: evaluate(ood_uncertainty=torch.zeros(2)), "ood_uncertainty"),
        (lambda: evaluate(label_entropy=doubts), "label_entropy"),
        (lambda: evaluate(uncertainty=scores), "uncertainty"),
        (lambda: evaluate(uncertainty=doubts, label_entropy=scores), "label_entropy"),
        (lambda: evaluate(uncertainty=doubts, crop_uncertainty=scores), "crop_uncertainty"),
        (lambda: evaluate(database_samples=Z), "database_samples"),
        (lambda: evaluate(samples=Z[None], **GALLERY), "database_samples"),
        (lambda: evaluate(Positives.within(1.0, torch.zeros(4, 1)), samples=Z[None]), "positives"),
        (lambda: evaluate(ks=()), "ks"),
        (lambda: evaluate(ks=(1, 4)), "k is 4"),
        (lambda: evaluate(ks=(0, 1)), "k is 0"),
        (lambda: evaluate(neighbours=3), "gallery"),
        (lambda: evaluate(features=Z), "together"),
        (lambda: evaluate(Positives.from_labels(CLASSES), clusters=2), "classes"),
        # intervals
        (lambda: bootstrap(resamples=0), "resamples"),
        (lambda: bootstrap(level=95.0), "level"),
        (lambda: metrics.compare_paired([1.0, 2.0], [1.0]), "first has 2 seeds"),
        (lambda: metrics.compare_paired([1.0], [1.0]), "1 seeds"),
        (lambda: metrics.compare_paired([1.0, NAN], [1.0, 2.0]), "seed number 1"),
    ],
)
def test_bad_input_is_named(use: Any, named: str) -> None:
    with pytest.raises((ValueError, TypeError), match=named):
        use()
