"""Leaving out the most uncertain queries: the sparsification curve, and what refusing a share of them is worth."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from pydantic import BaseModel, ConfigDict, Field, computed_field
from torch import Tensor

from laplacian_metric.metrics.positives import Labels, Positives
from laplacian_metric.metrics.ranking import Ranking, error_auroc, rank
from laplacian_metric.metrics.statistics import area, sparsification_curve


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
        >>> curve = sparsify(rank(z, [0, 0, 1, 0]), torch.tensor([0.0, 0.0, 0.0, 1.0]))
        >>> round(curve.random, 4), round(curve.area, 4), curve.gap
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


SHARES = 100
_Z = 1.959963984540054  # 95 % of a Gaussian are within so many deviations


class Refusal(BaseModel):
    """What happens if queries are answered where their uncertainty is at most `threshold`.

    Attributes:
        threshold: the greatest uncertainty that is answered.
        answered: how many queries are.
        wrong: how many of these have a wrong answer.
        total: how many queries there are.
        ood: for each set of out-of-distribution images the share of it that is refused.
    """

    model_config = ConfigDict(frozen=True)

    threshold: float
    answered: int
    wrong: int
    total: int
    ood: dict[str, float] = Field(default_factory=dict)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def share(self) -> float:
        """Of the queries, the share that is refused."""
        return 1 - self.answered / self.total

    @computed_field  # type: ignore[prop-decorator]
    @property
    def error(self) -> float:
        """Of the answers, the share that is wrong."""
        return self.wrong / self.answered

    @computed_field  # type: ignore[prop-decorator]
    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's interval of the error, 95 %."""
        return wilson(self.wrong, self.answered)


def wilson(hits: int, number: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share: hits out of a number.

    Example:
        >>> [round(end, 4) for end in wilson(1, 10)]
        [0.0179, 0.4042]
    """
    middle = (hits + _Z**2 / 2) / (number + _Z**2)
    reach = _Z / (number + _Z**2) * math.sqrt(hits * (number - hits) / number + _Z**2 / 4)
    return max(0.0, middle - reach) if hits else 0.0, min(1.0, middle + reach) if hits < number else 1.0


def refusals(
    uncertainty: npt.ArrayLike,
    wrong: npt.ArrayLike,
    ood: Mapping[str, npt.ArrayLike] | None = None,
) -> list[Refusal]:
    """Return, for q = 0 to 99, the threshold that refuses the floor(q N/100) most uncertain of N queries.

    Queries of equal uncertainty are answered or refused together: where that many cannot be refused exactly, fewer are,
    so that every row is what its threshold does. ``wrong`` (N,) says which queries have a wrong answer, ``ood`` has the
    uncertainties of sets of out-of-distribution images.

    Example:
        >>> rows = refusals([0.1, 0.2, 0.3, 0.3], [0, 0, 0, 1], {"digits": [0.1, 0.9]})
        >>> [(row.threshold, row.answered, row.error, row.ood["digits"]) for row in (rows[0], rows[30], rows[60])]
        [(0.3, 4, 0.25, 0.5), (0.3, 4, 0.25, 0.5), (0.2, 2, 0.0, 0.5)]
    """
    scores = np.asarray(uncertainty, dtype=np.float64)
    errors = np.asarray(wrong, dtype=bool)
    if scores.ndim != 1 or len(scores) == 0:
        raise ValueError(f"uncertainty has shape {scores.shape}; one number for each query is needed, (N,)")
    if errors.shape != scores.shape:
        raise ValueError(
            f"wrong has shape {errors.shape} for {len(scores)} queries; one entry for each is needed"
        )
    outside = {name: np.asarray(values, dtype=np.float64) for name, values in (ood or {}).items()}
    for name, values in {"uncertainty": scores, **outside}.items():
        if np.isnan(values).any():
            raise ValueError(f"{name} has NaN in {int(np.isnan(values).sum())} of {len(values)} entries")
    order = np.argsort(scores, kind="stable")
    ordered, errors = scores[order], errors[order].cumsum()
    total = len(ordered)
    rows = []
    for share in range(SHARES):
        threshold = float(ordered[total - share * total // SHARES - 1])
        answered = int(np.searchsorted(ordered, threshold, side="right"))
        refused = {
            name: float(np.mean(values > threshold)) for name, values in outside.items() if len(values)
        }
        wrong_answers = int(errors[answered - 1])
        rows.append(
            Refusal(threshold=threshold, answered=answered, wrong=wrong_answers, total=total, ood=refused)
        )
    return rows
