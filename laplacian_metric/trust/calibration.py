"""What is calibrated on validation queries: match, novelty, the last sigmoid, and the error to expect."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from laplacian_metric.core.check import Floats, Rows
from laplacian_metric.core.neighbours import Neighbours
from laplacian_metric.trust.fitting import (
    CalibrationError,
    Flags,
    Logistic,
    calibrated,
    cross_validated,
    fit_sigmoid,
    folds_of,
    sigmoid,
)
from laplacian_metric.trust.inputs import CLASS_INPUTS, GAP_INPUTS
from laplacian_metric.trust.novelty import Novelty
from laplacian_metric.trust.observed import EACH_INPUTS, Observed, each_inputs

LEAST_QUERIES = 20
INFLUENCE = 0.5  # a row whose removal moves a standardised weight by more is named
LEAST_CLASS_SIZE = 3  # and the median number of items of a class
LEAST_RIGHT_AND_WRONG = 20  # of left-out items, from which on the last sigmoid is refitted


class TooFewQueriesError(ValueError):
    """Too few validation queries can be used, or none of them is answered rightly."""


@dataclass(frozen=True, eq=False)
class Each:
    """The probability that each of the first k items is right: a logistic of pooled rows, and its last sigmoid."""

    k: int
    match: Logistic
    slope: tuple[float, float]

    def __call__(self, neighbours: Neighbours) -> Floats:
        """Return the probabilities (Q, k) for known queries; NaN where fewer items were found."""
        inputs = each_inputs(neighbours, self.k)
        a, b = self.slope
        logits = self.match.logit(inputs.reshape(-1, inputs.shape[2]))
        return sigmoid(a + b * logits).reshape(inputs.shape[:2])


@dataclass(frozen=True, eq=False)
class Calibration:
    """What validation queries say, and what new queries make of it.

    Attributes:
        match: the logistic of the match inputs.
        novelty: the tails.
        slope: a and b of the last sigmoid.
        expected_ood: the share of OOD queries that is expected; None for no discount.
        alpha: the share of known queries that are flagged as novel.
        logits: (N,), cross-validated, of the match of the queries that the last sigmoid was fitted on.
        totals: (N,), the novelty of these.
        right: (N,), whether their answers were right.
        error: the calibration error to expect; None where the gallery has changed since.
        note: why there is no error.
        each: for the target "each@k".
    """

    match: Logistic
    novelty: Novelty
    slope: tuple[float, float]
    expected_ood: float | None
    alpha: float
    logits: Floats
    totals: Floats
    right: Flags
    error: CalibrationError | None
    note: str = ""
    each: Each | None = None

    def probability(self, match_logits: Floats, novelty: Floats) -> Floats:
        """Return sigmoid(a + b logit(match P(known))), (Q,)."""
        a, b = self.slope
        with np.errstate(invalid="ignore"):  # NaN where a response was empty or too short
            log_known = self.novelty.log_known(novelty, self.expected_ood)
            return sigmoid(a + b * discounted(match_logits, log_known))

    def expecting(self, ood: float | None, items: int) -> Calibration:
        """Return the same match with the last sigmoid refitted for another expected share of OOD queries."""
        check_share("expected_ood", ood)
        return replace(self, expected_ood=ood).recalibrated(self.logits, self.totals, self.right, items)

    def recalibrated(self, logits: Floats, totals: Floats, right: Flags, items: int) -> Calibration:
        """Return the same match and novelty with the last sigmoid fitted to logits (N,) and novelties (N,)."""
        inputs = discounted(logits, self.novelty.log_known(totals, self.expected_ood))
        error = CalibrationError.of(calibrated(inputs, right, folds_of(right)), right, items)
        slope = fit_sigmoid(inputs, right)
        return replace(self, slope=slope, logits=logits, totals=totals, right=right, error=error, note="")

    def over(self, observed: Observed, right: Flags, *, class_size: float, items: int) -> Calibration:
        """Return the same match over another gallery, as items that are left out of their own responses see it.

        The tails are refitted on them, and where enough of them are right and wrong the last sigmoid and the error too.

        Args:
            observed: the responses of the items.
            right: (N,), whether the answer to each item is right.
            class_size: the median number of items of a class.
            items: the number of items of the gallery.
        """
        moved = self.withdrawn("the calibration error was measured on another gallery")
        complete = observed.complete
        if not complete.any():
            return moved
        reference = {name: column[complete] for name, column in observed.novelty.items()}
        moved = replace(moved, novelty=Novelty.fit(reference, self.alpha))
        usable = complete & ~observed.duplicate
        num_right = int(right[usable].sum())
        enough = min(num_right, int(usable.sum()) - num_right) >= LEAST_RIGHT_AND_WRONG
        if not enough or class_size < LEAST_CLASS_SIZE or not set(self.match.names) <= set(observed.match):
            return moved
        inputs = np.column_stack([observed.match[name] for name in self.match.names])[usable]
        totals = moved.novelty.parts(observed.novelty).sum(axis=1)[usable]
        return moved.recalibrated(self.match.logit(inputs), totals, right[usable], items)

    def withdrawn(self, note: str) -> Calibration:
        """Return the same calibration without its error, which was measured on another gallery."""
        return replace(self, error=None, note=note)


def calibrate(
    observed: Observed,
    right: Flags,
    *,
    signs: Mapping[str, int] | None = None,
    expected_ood: float | None,
    alpha: float,
    items: int,
    each_right: Flags | None = None,
) -> Calibration:
    """Return the calibration on validation queries.

    Args:
        observed: their responses.
        right: (Q,), whether the answer to each is right.
        signs: name of a further score -> the sign of its weight, 1 or -1; 0 where it is not known.
        expected_ood: the share of OOD queries that is expected; None for no discount.
        alpha: the share of known queries to flag.
        items: the number of items of the gallery.
        each_right: (Q, k), whether each of the first k items is right, for the target "each@k".
    """
    check_share("expected_ood", expected_ood)
    if not 0 < alpha < 0.5:
        raise ValueError(f"alpha is {alpha}: a share of known queries above 0 and below .5 is needed")
    rows = _usable(observed, right)
    known_signs = {**(signs or {}), **CLASS_INPUTS, **GAP_INPUTS}
    used = {name: known_signs.get(name, 0) for name in observed.match}
    inputs = np.column_stack(list(observed.match.values()))[rows]
    target = right[rows]
    match = Logistic.fit(inputs, target, used)
    _warn_of_influence(match, inputs, target, rows)
    novelty = Novelty.fit({name: column[rows] for name, column in observed.novelty.items()}, alpha)
    totals = novelty.parts({name: column[rows] for name, column in observed.novelty.items()}).sum(axis=1)
    logits = cross_validated(inputs, target, used, folds_of(target))
    empty = np.zeros(0)
    plain = Calibration(match, novelty, (0.0, 1.0), expected_ood, alpha, empty, empty, target, None)
    fitted = plain.recalibrated(logits, totals, target, items)
    if each_right is None:
        return fitted
    return replace(fitted, each=_fit_each(observed, each_right, rows, folds_of(target)))


def discounted(logits: Floats, log_known: Floats) -> Floats:
    """Return the logit of sigmoid(logits) times exp(log_known), of any shape.

    Example:
        >>> discounted(np.array([0.0]), np.log([0.5])).round(4).tolist()
        [-1.0986]
    """
    log_p = -np.logaddexp(0, -logits) + log_known
    values: Floats = log_p - np.log(-np.expm1(np.minimum(log_p, -1e-12)))
    return values


def check_share(name: str, share: float | None) -> None:
    """Refuse a share that is not above 0 and below 1; None passes."""
    if share is not None and not 0 < share < 1:
        raise ValueError(f"{name} is {share}: a share above 0 and below 1 is needed, or None")


def _usable(observed: Observed, right: Flags) -> Rows:
    """Return the rows that are fitted: those with a complete response that are no duplicates of items."""
    complete, duplicate = observed.complete, observed.duplicate
    rows = np.flatnonzero(complete & ~duplicate)
    num_right = int(right[rows].sum())
    said = (
        f"{len(rows)} of {len(right)} validation queries can be used ({int(duplicate.sum())} are duplicates of items, "
        f"{int((~complete & ~duplicate).sum())} have too few neighbours): {num_right} right, "
        f"{len(rows) - num_right} wrong"
    )
    if len(rows) < LEAST_QUERIES or num_right == 0:
        reason = (
            "at least one right answer is needed"
            if len(rows) >= LEAST_QUERIES
            else f"at least {LEAST_QUERIES} are needed"
        )
        raise TooFewQueriesError(
            f"queries cannot calibrate: {said}; {reason}. Are the labels of queries and items alike?"
        )
    if duplicate.any():
        warnings.warn(f"duplicates of items are left out of the calibration: {said}", stacklevel=4)
    if num_right == len(rows):
        warnings.warn(
            f"no validation query is answered wrongly, so the match ranks by its prior only: {said}",
            stacklevel=4,
        )
    return rows


def _warn_of_influence(match: Logistic, inputs: Floats, target: Flags, rows: Rows) -> None:
    influence = match.influence(inputs, target)
    if (influence > INFLUENCE).any():
        named = rows[np.argsort(-influence)][: min(5, int((influence > INFLUENCE).sum()))].tolist()
        warnings.warn(
            f"validation queries {named} each move a weight of the match by more than {INFLUENCE}: "
            "look at their labels",
            stacklevel=4,
        )


def _fit_each(observed: Observed, each_right: Flags, rows: Rows, fold: Rows) -> Each:
    """Return the calibration of each of the first k items, with folds by query and without a discount for novelty."""
    k = each_right.shape[1]
    pooled = each_inputs(observed.neighbours, k)[rows]
    found = np.isfinite(pooled).all(axis=2).ravel()
    inputs, target = pooled.reshape(-1, pooled.shape[2])[found], each_right[rows].ravel()[found]
    logits = cross_validated(inputs, target, EACH_INPUTS, np.repeat(fold, k)[found])
    return Each(k, Logistic.fit(inputs, target, EACH_INPUTS), fit_sigmoid(logits, target))
