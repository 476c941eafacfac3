"""What is gained by refusing: for each share of refused queries the errors among those that are answered."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, computed_field

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
