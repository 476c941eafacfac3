"""The tables of `experiments.retrieval`: one function for each, which turns embeddings into rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.harness.tables.seeds import spread
from experiments.refusal.embedded import OWN, Embedded
from experiments.refusal.measures import (
    Matched,
    SplitSearch,
    alarms,
    coverage,
    error_at,
    matched,
    promise,
    rejection_curve,
    safe_errors,
)

DELTA = 0.1
DRAWS = 200
CALIBRATION = 2000
LEVEL = 0.9
SHARES = np.linspace(0, 0.95, 39)
SAFE_SHARE = 0.1
FALSE_ALARM = 0.01
STREAMS = 50
STREAM_LENGTH = 1000
DRIFTS = (0.0, 0.05, 0.2, 1.0)

Row = dict[str, Any]


@dataclass(frozen=True)
class Judge:
    """A row of the tables: one score of one cell, with the embeddings of each seed."""

    label: str
    score: str
    runs: Sequence[tuple[Embedded, SplitSearch]]

    @property
    def own(self) -> bool:
        """Whether the row is a method's, with concentrations of its own."""
        return self.score == OWN

    def each(self, measure: Callable[[Embedded, SplitSearch, NDArray[np.float64]], float]) -> str:
        """Mean and deviation over seeds of a number, given the score of the queries."""
        return mean_and_deviation(
            [measure(e, search, e.scores[self.score][search.queries]) for e, search in self.runs]
        )


def mean_and_deviation(values: Sequence[float]) -> str:
    """Mean and standard deviation over seeds."""
    summary = spread(values)
    if not summary.number:
        return "-"
    return f"{summary.mean:.3f}" if summary.number == 1 else f"{summary.mean:.3f} ± {summary.deviation:.3f}"


# --- the tables ---


def refusal_rows(title: str, judges: Sequence[Judge]) -> list[Row]:
    """Errors among what is answered."""
    rows = []
    for judge in judges:
        row: Row = {"data": title, "uncertainty": judge.label, "seeds": len(judge.runs)}
        for share in (0.0, 0.1, 0.2, 0.5):
            row[f"error, {share:.0%} refused"] = judge.each(
                lambda e, search, u, share=share: error_at(u, search.wrong, share)  # type: ignore[misc]
            )
        row["mean over all shares"] = judge.each(
            lambda e, search, u: float(rejection_curve(u, search.wrong, SHARES).mean())
        )
        rows.append(row)
    return rows


def safe_rows(title: str, judges: Sequence[Judge]) -> list[Row]:
    """Refusing a tenth of the queries, dropping a tenth of the items."""
    rows = []
    for judge in judges:
        for per_class in (False, True):
            every = [
                safe_errors(e, search, e.scores[judge.score], SAFE_SHARE, per_class=per_class)
                for e, search in judge.runs
            ]
            row: Row = {
                "data": title,
                "uncertainty": judge.label,
                "tenth": "of each class" if per_class else "of all",
            }
            rows.append(
                row | {name: mean_and_deviation([errors[name] for errors in every]) for name in every[0]}
            )
    return rows


def promise_rows(title: str, judges: Sequence[Judge], alphas: Sequence[float]) -> list[Row]:
    """Promised error rates over many calibration sets."""
    rows = []
    for judge in judges:
        for alpha in alphas:
            results = [
                promise(
                    e.scores[judge.score][search.queries],
                    search.wrong,
                    alpha=alpha,
                    delta=DELTA,
                    sets=DRAWS,
                    seed=number,
                    size=min(CALIBRATION, len(search.wrong)),
                )
                for number, (e, search) in enumerate(judge.runs)
            ]
            rows.append(
                {
                    "data": title,
                    "uncertainty": judge.label,
                    "promised": alpha,
                    "broken": f"{sum(one.broken for one in results)} of {sum(one.sets for one in results)}",
                    "no threshold": sum(one.none for one in results),
                    "answered": mean_and_deviation([one.answered for one in results]),
                    "error": mean_and_deviation([one.error for one in results]),
                }
            )
    return rows


def credible_rows(title: str, judges: Sequence[Judge]) -> list[Row]:
    """Coverage and size of credible sets; caps of one size for all are what concentrations have to beat."""
    rows = []
    first = next((judge for judge in judges if judge.own), None)
    every: list[tuple[str, list[tuple[Embedded, SplitSearch, NDArray[np.float64]]]]] = [
        (judge.label, [(e, search, e.kappa[search.queries]) for e, search in judge.runs])
        for judge in judges
        if judge.own
    ]
    if first is not None:
        equal = [
            (e, search, np.full(len(search.queries), float(e.mean.shape[1]))) for e, search in first.runs
        ]
        every.insert(0, (f"equal caps, means of {first.label}", equal))
    for label, runs in every:
        results = [
            coverage(e, search, kappa, level=LEVEL, splits=DRAWS, seed=number)
            for number, (e, search, kappa) in enumerate(runs)
        ]
        rows.append(
            {
                "data": title,
                "kappa": label,
                "promised": LEVEL,
                "coverage": mean_and_deviation([one.coverage for one in results]),
                "deviation over splits": mean_and_deviation([one.deviation for one in results]),
                "items in a set": mean_and_deviation([one.items for one in results]),
                "classes in a set": mean_and_deviation([one.classes for one in results]),
                "classes, most certain tenth": mean_and_deviation([one.certain for one in results]),
                "classes, least certain tenth": mean_and_deviation([one.uncertain for one in results]),
            }
        )
    return rows


def matching_rows(title: str, judges: Sequence[Judge]) -> tuple[list[Row], dict[str, list[Matched]]]:
    """Match probabilities by the expected likelihood, beside those by the cosine alone."""
    rows: list[Row] = []
    tables: dict[str, list[Matched]] = {}
    for judge in judges:
        if not judge.own:
            continue
        by_kappa = [matched(e, search, e.kappa) for e, search in judge.runs]
        by_cosine = [matched(e, search, None) for e, search in judge.runs]
        tables[judge.label] = by_kappa
        rows.append(
            {
                "data": title,
                "method": judge.label,
                "negative log-likelihood": mean_and_deviation([one.loss for one in by_kappa]),
                "the same by the cosine": mean_and_deviation([one.loss for one in by_cosine]),
                "calibration error": mean_and_deviation([one.error for one in by_kappa]),
                "the same by the cosine ": mean_and_deviation([one.error for one in by_cosine]),
            }
        )
    return rows, tables


def drift_rows(title: str, judges: Sequence[Judge], ood: str) -> list[Row]:
    """Alarms in streams of queries without and with OOD images."""
    rows = []
    for judge in judges:
        if not judge.own:
            continue
        row: Row = {"data": title, "method": judge.label}
        for share in DRIFTS:
            results = [
                alarms(
                    # What the monitor ranks; the uncertainty's inverse, so that a confidence counts where there is one.
                    1 / np.maximum(e.scores[OWN][search.queries], 1e-300),
                    1 / np.maximum(e.ood[ood][OWN], 1e-300) if share else None,
                    share,
                    streams=STREAMS,
                    length=STREAM_LENGTH,
                    false_alarm=FALSE_ALARM,
                    seed=number,
                )
                for number, (e, search) in enumerate(judge.runs)
            ]
            times = [one.median for one in results if one.median is not None]
            raised = f"{sum(one.raised for one in results)} of {sum(one.streams for one in results)}"
            row[f"{share:.0%} OOD images"] = raised + (f", after {np.median(times):.0f}" if times else "")
        rows.append(row)
    return rows


# --- what is said about them ---

HALVES = "Half of the test images are queries, the others the items; mean ± standard deviation over seeds."
TITLES = {
    "refusal": "Errors among answered queries",
    "safe": "Safe retrieval: refusing a tenth of the queries, dropping a tenth of the items",
    "promise": "Promised error rates",
    "credible": "Credible sets",
    "matching": "Match probabilities",
    "drift": "Drift",
}
NOTES = {
    "refusal": f"{HALVES} An answer is the nearest item, wrong where it is of another class.",
    "safe": f"{HALVES} Error rates. A tenth of each class takes known labels; a tenth of all takes none.",
    "promise": (
        f"{HALVES} {DRAWS} calibration sets of {CALIBRATION} queries for each seed, drawn with replacement from all "
        f"queries, each with a threshold that is promised with probability {1 - DELTA:g}: how many of them answer all "
        f"queries with a greater error rate than promised (at most {DELTA:.0%} may, in expectation), and how many "
        "calibration sets gave none."
    ),
    "credible": (
        f"{HALVES} {DRAWS} random splits of the queries into calibration and the rest. Equal caps are those of queries "
        "that all have one kappa: what there is to beat is their number of classes."
    ),
    "matching": (
        f"{HALVES} Pairs are queries with their ten nearest items, fitted on half of the queries and measured on the "
        "others: a logistic of the log expected likelihood of the two distributions, beside one of the cosine of their "
        "means."
    ),
    "drift": (
        f"{STREAMS} streams of {STREAM_LENGTH} queries for each seed, after a calibration on the other queries; each "
        f"query is an OOD image with the share's probability. False alarms may be raised in {FALSE_ALARM:.0%} of the "
        "streams without OOD images. Told is in how many streams an alarm was raised, and the median number of "
        "queries until then. Watched is 1/uncertainty."
    ),
}
