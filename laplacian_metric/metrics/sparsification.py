"""Does uncertainty find the wrong answers? Leave the most uncertain queries out, and look at the rest."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from laplacian_metric.metrics.positives import Labels, Positives
from laplacian_metric.metrics.ranking import Ranking, rank
from laplacian_metric.metrics.statistics import area, auroc, sparsification_curve


@dataclass(frozen=True)
class Sparsification:
    """Recall@1 of the queries that are left when the floor(q N/100) most uncertain are removed, q = 0..99.

    ``curve`` and ``oracle_curve`` are (100,); ``area``, ``oracle`` and ``random`` are the areas by
    uncertainty, by the errors themselves and in random order (which is recall@1). The areas depend on how
    good the ranking is; the ``gap`` to the oracle is what the uncertainty costs.
    """

    curve: Tensor
    oracle_curve: Tensor
    area: float
    oracle: float
    random: float

    @property
    def gap(self) -> float:
        """How much area the oracle has more."""
        return self.oracle - self.area


def sparsify(ranking: Ranking, uncertainty: Tensor) -> Sparsification:
    """The sparsification curve of a ranking by an uncertainty (Q,); among equal uncertainties, its expectation.

    Example:
        >>> import torch
        >>> from laplacian_metric.metrics.ranking import rank
        >>> z = torch.tensor([[1.0, 0.0], [0.96, 0.28], [0.28, 0.96], [0.0, 1.0]])
        >>> found = sparsify(rank(z, [0, 0, 1, 0]), torch.tensor([0.0, 0.0, 0.0, 1.0]))
        >>> round(found.random, 4), round(found.area, 4), found.gap
        (0.6667, 0.8872, 0.0)
    """
    uncertainty, right = ranking.of_answerable(uncertainty), ranking.first_is_right()
    ones = torch.ones_like(right)
    curve = sparsification_curve(uncertainty, right, ones)
    oracle = sparsification_curve(-right, right, ones)
    return Sparsification(curve, oracle, float(area(curve)), float(area(oracle)), float(right.mean()))


def ausc(
    embeddings: Tensor,
    labels: Labels | Positives,
    uncertainty: Tensor,
    *,
    database: Tensor | None = None,
    database_labels: Labels | None = None,
) -> float:
    """The area under the sparsification curve; the gallery stays whole while queries are removed.

    Example:
        >>> import torch
        >>> z = torch.tensor([[1.0, 0.0], [0.96, 0.28], [0.28, 0.96], [0.0, 1.0]])
        >>> ausc(z, [0, 0, 1, 1], torch.tensor([1.0, 2.0, 3.0, 4.0]))
        1.0
    """
    ranking = rank(embeddings, labels, database=database, database_labels=database_labels)
    return sparsify(ranking, uncertainty).area


def r_auroc(
    embeddings: Tensor,
    labels: Labels | Positives,
    uncertainty: Tensor,
    *,
    database: Tensor | None = None,
    database_labels: Labels | None = None,
) -> float:
    """The probability that a query whose nearest neighbour is wrong is more uncertain than one whose is right.

    Ties count 1/2. NaN where all nearest neighbours are right, or all wrong: there is nothing to tell apart.

    Example:
        >>> import torch
        >>> z = torch.tensor([[1.0, 0.0], [0.96, 0.28], [0.28, 0.96], [0.0, 1.0]])
        >>> r_auroc(z, [0, 0, 1, 0], torch.tensor([0.1, 0.2, 9.0, 0.2]))
        0.75
    """
    ranking = rank(embeddings, labels, database=database, database_labels=database_labels)
    return error_auroc(ranking, uncertainty)


def error_auroc(ranking: Ranking, uncertainty: Tensor) -> float:
    """R-AUROC of a ranking by an uncertainty (Q,)."""
    wrong = 1 - ranking.first_is_right()
    return float(auroc(ranking.of_answerable(uncertainty), wrong, torch.ones_like(wrong)))
