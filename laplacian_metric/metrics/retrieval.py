"""How good a ranking is: recall and mean average precision, as means over the queries that have a positive.

Every function takes unit embeddings (Q, Z) with labels (Q,) and searches among them, a query's own copy left
out; with ``database`` (M, Z) and ``database_labels`` (M,) it searches there. In place of the labels,
`Positives` may say what is right.
"""

from __future__ import annotations

from torch import Tensor

from laplacian_metric.metrics.positives import Labels, Positives
from laplacian_metric.metrics.ranking import Normalisation, Ranking, rank


def recall_at_k(
    embeddings: Tensor,
    labels: Labels | Positives,
    k: int = 1,
    *,
    database: Tensor | None = None,
    database_labels: Labels | None = None,
) -> float:
    """The share of queries that have a positive among their k nearest neighbours.

    Example:
        >>> import torch
        >>> z = torch.tensor([[1.0, 0.0], [0.96, 0.28], [0.28, 0.96], [0.0, 1.0]])
        >>> recall_at_k(z, [0, 0, 1, 1]), recall_at_k(z, [0, 1, 0, 1]), recall_at_k(z, [0, 1, 0, 1], k=2)
        (1.0, 0.0, 0.5)
    """
    ranking = rank(embeddings, labels, k, database=database, database_labels=database_labels)
    return float(ranking.recall(k).mean())


def map_at_k(
    embeddings: Tensor,
    labels: Labels | Positives,
    k: int = 5,
    *,
    database: Tensor | None = None,
    database_labels: Labels | None = None,
    normalisation: Normalisation = "min",
) -> float:
    """Mean average precision of the first k: the sum of the precision at each hit, divided by min(positives, k).

    With R positives in the gallery and one hit, at rank 1, of the first k = 10, libraries report 0.01 (R =
    100 as the divisor), 0.1 (min(R, k), what is done here) or 1 (the hits found): ``normalisation``
    "positives", "min" and "hits".

    Example:
        >>> import torch
        >>> z = torch.tensor([[1.0, 0.0], [0.96, 0.28], [0.28, 0.96], [0.0, 1.0]])
        >>> map_at_k(z, [0, 1, 0, 1], k=2), map_at_k(z, [0, 1, 0, 1], k=2, normalisation="hits")
        (0.25, 0.25)
    """
    ranking = rank(embeddings, labels, k, database=database, database_labels=database_labels)
    return float(ranking.average_precision(k, normalisation).mean())


def map_at_r(
    embeddings: Tensor,
    labels: Labels | Positives,
    *,
    database: Tensor | None = None,
    database_labels: Labels | None = None,
) -> float:
    """Mean average precision of the first R, where R is the number of the query's positives.

    Example:
        >>> import torch
        >>> z = torch.tensor([[1.0, 0.0], [0.96, 0.28], [0.28, 0.96], [0.0, 1.0]])
        >>> round(map_at_r(z, [0, 0, 1, 0]), 4)  # the mean of 1/2, 1/2 and 1/4
        0.4167
    """
    ranking = rank(embeddings, labels, database=database, database_labels=database_labels, at_r=True)
    return float(at_r(ranking)[1].mean())


def r_precision(
    embeddings: Tensor,
    labels: Labels | Positives,
    *,
    database: Tensor | None = None,
    database_labels: Labels | None = None,
) -> float:
    """The share of positives among the first R, where R is the number of the query's positives.

    Example:
        >>> import torch
        >>> z = torch.tensor([[1.0, 0.0], [0.96, 0.28], [0.28, 0.96], [0.0, 1.0]])
        >>> r_precision(z, [0, 0, 1, 1])
        1.0
    """
    ranking = rank(embeddings, labels, database=database, database_labels=database_labels, at_r=True)
    return float(at_r(ranking)[0].mean())


def at_r(ranking: Ranking) -> tuple[Tensor, Tensor]:
    """R-precision and average precision at R of each answerable query, (A,) each."""
    if ranking.hits_at_r is None or ranking.precision_at_r is None:
        raise ValueError("this ranking goes k deep for every query: make it with rank(..., at_r=True)")
    return ranking.hits_at_r[ranking.answerable], ranking.precision_at_r[ranking.answerable]
