"""The curves of errors among answered queries, and what match probabilities are worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from experiments.harness.tables.panels import band
from experiments.harness.tables.panels import GRID, panels, shared_legend
from experiments.refusal.measures import Matched
from laplacian_metric.report.plots import COLOURS, as_png

Array = NDArray[np.float64]


def refusal_picture(shares: Array, curves: Mapping[str, Mapping[str, Sequence[Array]]]) -> bytes:
    """A panel for each data set, a curve for each uncertainty, with its spread over seeds."""
    figure, every = panels(len(curves), 4.2, 3.6)
    labels = _labels(curves)
    for axes, (title, by_label) in zip(every, curves.items(), strict=True):
        for label, drawn in by_label.items():
            colour = COLOURS[labels.index(label) % len(COLOURS)]
            mean, deviation = band(drawn)
            axes.plot(100 * shares, mean, label=label, color=colour)
            axes.fill_between(
                100 * shares, mean - deviation, mean + deviation, color=colour, alpha=0.15, linewidth=0
            )
        axes.set(title=title, xlabel="refused queries (%)", ylabel="error rate among answered")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=GRID)
    shared_legend(figure, every, columns=4)
    return as_png(figure)


def reliability_picture(tables: Mapping[str, Mapping[str, Sequence[Matched]]]) -> bytes:
    """A panel for each data set: the share of pairs that match where a probability was told, seeds pooled."""
    figure, every = panels(len(tables), 4.2, 3.6)
    labels = _labels(tables)
    for axes, (title, by_label) in zip(every, tables.items(), strict=True):
        axes.plot([0, 1], [0, 1], color="#aaaaaa", linewidth=1)
        for label, matched in by_label.items():
            predicted, happened = _pooled(matched)
            colour = COLOURS[labels.index(label) % len(COLOURS)]
            axes.plot(predicted, happened, label=label, marker="o", markersize=4, color=colour)
        axes.set(title=title, xlabel="match probability", ylabel="share that match", xlim=(0, 1), ylim=(0, 1))
        axes.grid(alpha=GRID)
    shared_legend(figure, every, columns=4)
    return as_png(figure)


def _pooled(matched: Sequence[Matched]) -> tuple[Array, Array]:
    counts = np.array([one.table.count for one in matched], dtype=float)
    predicted, happened = (
        np.array([[value or 0.0 for value in getattr(one.table, name)] for one in matched])
        for name in ("probability", "matched")
    )
    total = counts.sum(0)
    some = total > 0
    weighted = [(counts * values).sum(0)[some] / total[some] for values in (predicted, happened)]
    return weighted[0], weighted[1]


def _labels(of: Mapping[str, Mapping[str, object]]) -> list[str]:
    return list(dict.fromkeys(label for by_label in of.values() for label in by_label))
