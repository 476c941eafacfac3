"""Metrics of retrieval and of its uncertainty, as pure functions of embeddings, labels and numbers.

Common to all: cosine similarity of unit vectors, found exactly; a query's own copy is left out by its index;
equal distances are decided by the index and counted; a query without a positive in the gallery is left out of
every metric and counted. Uncertainties are in rank, the greater the less sure; equal ones count in
expectation.
"""

from __future__ import annotations

from laplacian_metric.metrics.calibration import (
    Calibration,
    Consensus,
    consensus,
    ece_at_k,
    reliability,
    retrieval_ece,
)
from laplacian_metric.metrics.classification import clustering_nmi, knn_accuracy, linear_probe, weighted_votes
from laplacian_metric.metrics.evaluation import Evaluation, Uncertainties, evaluate, evaluate_ranking
from laplacian_metric.metrics.out_of_distribution import (
    crop_test,
    label_entropy,
    ood_auroc,
    ood_average_precision,
    open_set_auroc,
    rank_correlation,
    roc,
)
from laplacian_metric.metrics.positives import Positives
from laplacian_metric.metrics.query_records import QueryRecord, paired_intervals
from laplacian_metric.metrics.ranking import Ranking, map_at_k, map_at_r, r_precision, rank, recall_at_k
from laplacian_metric.metrics.resampling import Interval, PairedComparison, bootstrap, compare_paired
from laplacian_metric.metrics.sparsification import Sparsification, ausc, r_auroc, sparsify
from laplacian_metric.metrics.trivial import (
    embedding_norm,
    feature_norm,
    nearest_distance,
    trivial_scores,
)

__all__ = [
    "Calibration",
    "Consensus",
    "Evaluation",
    "Interval",
    "PairedComparison",
    "Positives",
    "QueryRecord",
    "Ranking",
    "Sparsification",
    "Uncertainties",
    "ausc",
    "bootstrap",
    "clustering_nmi",
    "compare_paired",
    "consensus",
    "crop_test",
    "ece_at_k",
    "embedding_norm",
    "evaluate",
    "evaluate_ranking",
    "feature_norm",
    "knn_accuracy",
    "label_entropy",
    "linear_probe",
    "map_at_k",
    "map_at_r",
    "nearest_distance",
    "ood_auroc",
    "ood_average_precision",
    "open_set_auroc",
    "paired_intervals",
    "r_auroc",
    "r_precision",
    "rank",
    "rank_correlation",
    "recall_at_k",
    "reliability",
    "retrieval_ece",
    "roc",
    "sparsify",
    "trivial_scores",
    "weighted_votes",
]
