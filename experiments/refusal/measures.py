"""What refusing does: errors among what is answered, promises over many calibrations, sets, probabilities, alarms."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from experiments.refusal.embedded import Embedded
from laplacian_metric.retrieval.abstention import NoThresholdError, choose_threshold
from laplacian_metric.retrieval.credible import CredibleCaps
from laplacian_metric.retrieval.drift import DriftMonitor
from laplacian_metric.retrieval.likelihood import log_expected_likelihood
from laplacian_metric.retrieval.matching import MatchProbability, Reliability

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
ROWS = 1000  # queries compared with the gallery at a time
NEIGHBOURS = 10


@dataclass(frozen=True)
class SplitSearch:
    """Half of the test images, searched for among the other half.

    Attributes:
        queries, gallery: positions among the test images.
        wrong: (Q,), whether the nearest item is of another class.
        angle_to_right: (Q,), from the query's mean to the mean of the nearest item of its class; infinite without.
        reach: (Q, C), the greatest cosine of the query's mean with an item of each class.
        similarity: (Q, 10), cosines of the means with the nearest ten items, and ``nearest`` (Q, 10) who they are.
        same: (Q, 10), whether they are of the query's class.
    """

    queries: NDArray[np.int64]
    gallery: NDArray[np.int64]
    wrong: Mask
    angle_to_right: Array
    reach: Array
    similarity: Array
    nearest: NDArray[np.int64]
    same: Mask


def halves(number: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Queries and gallery: the same images for every method and seed."""
    order = np.random.default_rng(0).permutation(number)
    return np.sort(order[: number // 2]), np.sort(order[number // 2 :])


def split_search(e: Embedded) -> SplitSearch:
    """All queries, a block at a time."""
    queries, gallery = halves(len(e.labels))
    parts = [_block(e, queries[i : i + ROWS], gallery) for i in range(0, len(queries), ROWS)]
    return SplitSearch(queries, gallery, *(np.concatenate(part) for part in zip(*parts, strict=True)))


def _block(e: Embedded, rows: NDArray[np.int64], gallery: NDArray[np.int64]) -> tuple[NDArray, ...]:  # type: ignore[type-arg]
    right = e.labels[rows][:, None] == e.labels[gallery][None, :]
    first = (e.point[rows] @ e.point[gallery].T).argmax(1)
    cosine = e.mean[rows] @ e.mean[gallery].T
    reachable = np.where(right, cosine, -np.inf).max(1).astype(np.float64)
    angle = np.where(np.isfinite(reachable), np.arccos(np.clip(reachable, -1, 1)), np.inf)
    classes = e.labels[gallery]
    reach = np.stack([cosine[:, classes == label].max(1) for label in np.unique(classes)], axis=1)
    top = np.argsort(-cosine, axis=1, kind="stable")[:, :NEIGHBOURS]
    taken = np.arange(len(rows))[:, None], top
    return (
        ~right[np.arange(len(rows)), first],
        angle,
        reach,
        cosine[taken].astype(np.float64),
        gallery[top],
        right[taken],
    )


# --- refusing ---


def error_at(uncertainty: Array, wrong: Mask, rejected: float) -> float:
    """The share of wrong answers when the most uncertain share of the queries is refused; equal ones at random."""
    order = np.lexsort((np.random.default_rng(0).random(len(wrong)), uncertainty))
    kept = order[: len(order) - round(rejected * len(order))]
    return float(wrong[kept].mean())


def rejection_curve(uncertainty: Array, wrong: Mask, shares: Array) -> Array:
    """The error among what is answered at each rejected share."""
    return np.array([error_at(uncertainty, wrong, share) for share in shares])


@dataclass(frozen=True)
class Promise:
    """How a promise did over many calibration sets.

    ``broken``: of how many sets the threshold answers with a greater error rate; ``none``: of how many none was found.
    ``answered`` and ``error``: means over the others.
    """

    sets: int
    broken: int
    none: int
    answered: float
    error: float


def promise(
    uncertainty: Array, wrong: Mask, *, alpha: float, delta: float, sets: int, seed: int, size: int
) -> Promise:
    """Thresholds of calibration sets drawn from the queries, judged by all queries.

    Drawn with replacement, so that the queries are the population and its error rate is known: measured on what a
    split leaves over, the error rate would have a noise of its own, which is no fault of the threshold.
    """
    broken, none, answered, errors = 0, 0, [], []
    for draw, generator in _draws(sets, seed):
        rows = generator.integers(len(wrong), size=size)
        try:
            threshold = choose_threshold(
                uncertainty[rows],
                wrong[rows],
                alpha=alpha,
                delta=delta,
                generator=np.random.default_rng(draw),
            )
        except NoThresholdError:
            none += 1
            continue
        kept = threshold.answers(uncertainty)
        error = float(wrong[kept].mean())
        broken += error > alpha
        answered.append(float(kept.mean()))
        errors.append(error)
    return Promise(sets, broken, none, _mean(answered), _mean(errors))


@dataclass(frozen=True)
class Coverage:
    """How credible sets did over many splits: how often an item of the class is in them, and how large they are.

    ``items`` and ``classes`` are how many of them a set has in the mean, ``certain`` and ``uncertain`` how many classes
    for the most and the least certain tenth of the queries.
    """

    coverage: float
    deviation: float
    items: float
    classes: float
    certain: float
    uncertain: float


def coverage(
    e: Embedded, search: SplitSearch, kappa: Array, *, level: float, splits: int, seed: int
) -> Coverage:
    """Calibrated on a random half of the queries, measured on the other."""
    covered, number = [], len(search.wrong)
    items, classes, counted = np.zeros(number), np.zeros(number), np.zeros(number)
    dim = e.mean.shape[1]
    cosines = np.sort(e.mean[search.queries] @ e.mean[search.gallery].T, axis=1)
    for _, generator in _draws(splits, seed):
        first, second = np.split(generator.permutation(number), [number // 2])
        caps = CredibleCaps.calibrate(search.angle_to_right[first], kappa[first], dim, level=level)
        covered.append(float(caps.contains(search.angle_to_right[second], kappa[second]).mean()))
        edge = np.cos(caps.radius(kappa[second]))
        inside = [np.searchsorted(cosines[q], c) for q, c in zip(second, edge, strict=True)]
        items[second] += cosines.shape[1] - np.array(inside)
        classes[second] += (search.reach[second] >= edge[:, None]).sum(1)
        counted[second] += 1
    drawn = np.maximum(counted, 1)
    items, classes = items / drawn, classes / drawn
    order, tenth = np.argsort(-kappa), max(number // 10, 1)
    return Coverage(
        _mean(covered),
        float(np.std(covered)),
        float(items.mean()),
        float(classes.mean()),
        float(classes[order[:tenth]].mean()),
        float(classes[order[-tenth:]].mean()),
    )


# --- safe retrieval ---


def safe_errors(
    e: Embedded, search: SplitSearch, uncertainty: Array, share: float, *, per_class: bool
) -> dict[str, float]:
    """Error rates: of all, refusing a share of the queries, dropping that share of the items, and both."""
    keep_queries = _certain(
        uncertainty[search.queries], e.labels[search.queries] if per_class else None, share
    )
    keep_items = _certain(uncertainty[search.gallery], e.labels[search.gallery] if per_class else None, share)
    clean = search.gallery[keep_items]
    nearest = np.concatenate(
        [
            clean[(e.point[search.queries[i : i + ROWS]] @ e.point[clean].T).argmax(1)]
            for i in range(0, len(search.queries), ROWS)
        ]
    )
    wrong = e.labels[nearest] != e.labels[search.queries]
    return {
        "all": float(search.wrong.mean()),
        "queries refused": float(search.wrong[keep_queries].mean()),
        "items dropped": float(wrong.mean()),
        "both": float(wrong[keep_queries].mean()),
    }


def _certain(uncertainty: Array, groups: NDArray[np.int64] | None, share: float) -> Mask:
    """All but the most uncertain share, of all or of each group."""
    keep = np.ones(len(uncertainty), dtype=bool)
    where = (
        [np.arange(len(uncertainty))]
        if groups is None
        else [np.flatnonzero(groups == g) for g in np.unique(groups)]
    )
    for rows in where:
        order = rows[np.argsort(uncertainty[rows], kind="stable")]
        keep[order[len(order) - round(share * len(order)) :]] = False
    return keep


# --- the probability of a match ---


@dataclass(frozen=True)
class Matched:
    """Negative log-likelihood and calibration error of match probabilities on pairs that they were not fitted to."""

    loss: float
    error: float
    table: Reliability


def matched(e: Embedded, search: SplitSearch, kappa: Array | None) -> Matched:
    """Fitted on the ten nearest items of half of the queries, measured on those of the others.

    By the log expected likelihood of the two distributions, or, without kappa, by the cosine alone.
    """
    score = (
        search.similarity
        if kappa is None
        else log_expected_likelihood(
            search.similarity, kappa[search.queries][:, None], kappa[search.nearest], e.mean.shape[1]
        )
    )
    order = np.random.default_rng(1).permutation(len(search.queries))
    first, second = np.split(order, [len(order) // 2])
    fitted = MatchProbability.fit(score[first].ravel(), search.same[first].ravel())
    predicted, same = fitted.probability(score[second]).ravel(), search.same[second].ravel()
    likelihood = np.where(same, predicted, 1 - predicted).clip(1e-12)
    table = Reliability.of(predicted, same)
    return Matched(float(-np.log(likelihood).mean()), table.error, table)


# --- drift ---


@dataclass(frozen=True)
class Alarms:
    """Of so many streams, in how many an alarm was raised, and after how many queries in the median (None: in none)."""

    streams: int
    raised: int
    median: float | None


def alarms(
    kappa: Array,
    ood: Array | None,
    share: float,
    *,
    streams: int,
    length: int,
    false_alarm: float,
    seed: int,
) -> Alarms:
    """Half of the queries calibrate, the others come one after the other, a share of them replaced by OOD images."""
    rates = []
    for draw, generator in _draws(streams, seed):
        order = generator.permutation(len(kappa))
        first, second = np.split(order, [len(order) // 2])
        stream = kappa[generator.choice(second, min(length, len(second)), replace=False)].copy()
        if ood is not None:
            replaced = generator.random(len(stream)) < share
            stream[replaced] = generator.choice(ood, int(replaced.sum()))
        monitor = DriftMonitor(kappa[first], false_alarm=false_alarm, generator=np.random.default_rng(draw))
        rates.append(monitor.update(stream).alarm_at)
    times = [after for after in rates if after is not None]
    return Alarms(streams, len(times), float(np.median(times)) if times else None)


def _draws(count: int, seed: int) -> Iterator[tuple[int, np.random.Generator]]:
    for number in range(count):
        yield number, np.random.default_rng([seed, number])


def _mean(values: list[float]) -> float:
    return float(np.mean(values)) if values else math.nan
