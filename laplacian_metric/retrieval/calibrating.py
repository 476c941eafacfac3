"""All calibrations of an index at once, from queries whose classes are known."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from laplacian_metric.retrieval.abstention import choose_threshold
from laplacian_metric.retrieval.calibrations import Calibrations
from laplacian_metric.retrieval.credible import CredibleCaps
from laplacian_metric.retrieval.drift import DriftMonitor
from laplacian_metric.retrieval.index import Index
from laplacian_metric.retrieval.items import Items
from laplacian_metric.retrieval.likelihood import log_expected_likelihood
from laplacian_metric.retrieval.matching import MatchProbability

if TYPE_CHECKING:
    from laplacian_metric.trust.answer import Answer

LOGGER = logging.getLogger(__name__)


def calibrate(
    index: Index,
    queries: Items,
    labels: ArrayLike,
    item_labels: ArrayLike,
    *,
    alpha: float | None = 0.05,
    delta: float = 0.1,
    level: float | None = 0.9,
    k: int = 10,
    false_alarm: float = 0.01,
    generator: np.random.Generator | None = None,
    features: Any = None,
) -> Index:
    """The same index with a threshold, credible caps, a match probability and a drift monitor.

    Each promise is about queries like these and about these items, so the queries must have played no part in training,
    and in nothing that was chosen before. To drop uncertain items comes first (`Index.cleaned`): other items are
    another promise.

    Args:
        index: its items are what is searched.
        queries: (Q,) calibration queries, by the posterior that made the items.
        labels: (Q,), the class of each.
        item_labels: (N,), the class of each row of the index.
        alpha: the error rate of the nearest item among answered queries; None for no threshold.
        delta: the probability of a calibration set for which that is not so.
        level: the share of queries whose credible set has an item of their class; None for no caps.
        k: match probabilities are fitted to each query's k nearest items; where all of these match, or none, there is
            nothing to tell apart, and no match probability.
        false_alarm: of the drift monitor, which watches the queries' concentrations.
        generator: of the part of the queries that proposes thresholds.
        features: (Q, H) of the queries, where the index has a `Trust`: the threshold is then about 1 - its probability,
            and the drift monitor watches its novelty.

    Raises:
        ValueError: a promise cannot be made with these queries; the message says what would help.

    Example:
        >>> generator = np.random.default_rng(0)
        >>> classes = np.arange(600) % 3
        >>> raw = np.eye(3)[classes] + 0.3 * generator.normal(size=(600, 3))
        >>> length = np.linalg.norm(raw, axis=1)
        >>> all_of_them = Items(raw / length[:, None], 11 * length, 1 / length, None, "a4f0")
        >>> index = calibrate(Index(all_of_them[:300]), all_of_them[300:], classes[300:], classes[:300])
        >>> index.query(all_of_them[300:302], k=2, abstain=True).answered
        array([ True,  True])
    """
    own, others = _labels("labels", labels, len(queries)), _labels("item_labels", item_labels, len(index))
    _check_classes(own, others)
    if index.trust is not None and features is None:
        raise ValueError(
            "features are missing: this index has a Trust, which answers by the queries' features"
        )
    answers = index.query(queries, min(k, len(index)), features=features)
    assert answers.rows is not None
    same = others[answers.rows] == own[:, None]
    _warn_of_items(answers.similarity[:, 0])
    likelihood = log_expected_likelihood(
        answers.similarity, queries.kappa[:, None], index.items.kappa[answers.rows], index.dim
    )
    angle = None if level is None else index.angle_to_right(queries, own, others)
    return index.calibrated(
        calibrations_of(
            queries,
            same,
            likelihood,
            angle,
            answers.trust,
            alpha=alpha,
            delta=delta,
            level=level,
            false_alarm=false_alarm,
            generator=generator,
        )
    )


def calibrations_of(
    queries: Items,
    same: NDArray[np.bool_],
    likelihood: NDArray[np.float64],
    angle: NDArray[np.float64] | None,
    trusted: Answer | None,
    *,
    alpha: float | None,
    delta: float,
    level: float | None,
    false_alarm: float,
    generator: np.random.Generator | None,
) -> Calibrations:
    """Return all calibrations from what a search found for calibration queries.

    Args:
        queries: (Q,).
        same: (Q, k), whether the k nearest items are of the query's class.
        likelihood: (Q, k), their log expected likelihood.
        angle: (Q,), to the nearest item of the query's class, where there is a ``level``.
        trusted: what `Trust` says about each query, where there is one.
        alpha, delta, level, false_alarm, generator: as `calibrate` takes them.

    Example:
        >>> queries = Items(np.eye(3), [10, 20, 30], [0.1, 0.05, 0.03], None, "a4f0")
        >>> same = np.array([[True, False], [True, True], [False, False]])
        >>> promised = {"alpha": None, "delta": 0.1, "level": None, "false_alarm": 0.01, "generator": None}
        >>> calibrations_of(queries, same, np.ones((3, 2)), None, None, **promised).matching.num_pairs
        6
    """
    uncertainty, watched = queries.uncertainty, queries.kappa.astype(np.float64)
    if trusted is not None:
        uncertainty, watched = 1 - trusted.probability, trusted.novelty
    threshold = caps = None
    if alpha is not None:
        threshold = choose_threshold(uncertainty, ~same[:, 0], alpha=alpha, delta=delta, generator=generator)
    if level is not None and angle is not None:
        caps = CredibleCaps.calibrate(angle, queries.kappa, queries.dim, level=level)
    matching = None
    if same.any() and not same.all():
        matching = MatchProbability.fit(likelihood.ravel(), same.ravel())
    else:
        LOGGER.warning(
            "of the %d nearest items of each query all match, or none: no match probability", same.shape[1]
        )
    drift = DriftMonitor(watched, false_alarm=false_alarm)
    return Calibrations(threshold, caps, matching, drift)


def _check_classes(own: NDArray[np.generic], others: NDArray[np.generic]) -> None:
    """Refuse queries none of which has a class among the items: no threshold could help."""
    comparable = np.issubdtype(own.dtype, np.number) == np.issubdtype(others.dtype, np.number)
    if len(own) and not (comparable and np.isin(own, others).any()):
        raise ValueError(
            f"none of the classes of the calibration queries (such as {own[0].item()!r}) is among those of the items "
            f"(such as {others[0].item()!r}): name the classes of both alike"
        )


def _warn_of_items(similarity: NDArray[np.floating]) -> None:
    """Say where queries are items of the index, which find themselves."""
    same = int((similarity > 1 - 1e-6).sum())
    if same > len(similarity) / 2:
        LOGGER.warning(
            "%d of %d calibration queries are items of the index themselves, or equal to one: they find what no later "
            "query finds, and nothing is promised. Take queries that are not among the items",
            same,
            len(similarity),
        )


def _labels(name: str, labels: ArrayLike, count: int) -> NDArray[np.generic]:
    array = np.asarray(labels)
    if array.shape != (count,):
        raise ValueError(f"{name} has shape {array.shape}, ({count},) is needed: one class for each")
    return array
