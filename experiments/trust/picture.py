"""The picture of the page on trust: risk against the share answered, calibration, and novelty of one setting."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from experiments.trust.measure import NOVELTY, RIVAL, TRUST, Scored
from laplacian_metric.core.files import atomic_write
from laplacian_metric.report.plots import COLOURS, as_png

BINS = 20
SHOWN = {TRUST: "Trust", RIVAL: "logistic of 3 numbers", "vote": "vote", "gallery distance": "distance"}


def draw(scored_queries: Scored, title: str, path: Path) -> None:
    """Write the picture."""
    figure = Figure(figsize=(10, 3.2), dpi=110, layout="constrained")
    risk, calibration, novelty = figure.subplots(1, 3)
    wrong, test = ~scored_queries.right, scored_queries.scores["test"]
    share = np.arange(1, len(wrong) + 1) / len(wrong)
    for (name, label), colour in zip(SHOWN.items(), COLOURS, strict=False):
        order = np.argsort(test[name], kind="stable")
        risk.plot(share, np.cumsum(wrong[order]) / np.arange(1, len(wrong) + 1), label=label, color=colour)
    risk.set(xlabel="share of queries answered", ylabel="share of wrong answers", title=title)
    risk.legend(fontsize=7, frameon=False)
    p = scored_queries.probability[TRUST]
    for rows in np.array_split(np.argsort(p), 10):
        mean, rate = p[rows].mean(), scored_queries.right[rows].mean()
        error = 1.96 * np.sqrt(rate * (1 - rate) / len(rows))
        calibration.errorbar(mean, rate, error, fmt="o", color=COLOURS[0], capsize=2)
    calibration.plot([0, 1], [0, 1], color="#9aa5b1", lw=1)
    calibration.set(xlabel="probability", ylabel="share that is right", title="ten bins of equal count")
    groups = {"known": test[NOVELTY]}
    for kind in ("near", "far"):
        if parts := scored_queries.ood(kind):
            groups[f"{kind} OOD"] = np.concatenate([scored_queries.scores[part][NOVELTY] for part in parts])
    farthest = float(np.quantile(np.concatenate(list(groups.values())), 0.95))
    for (label, values), colour in zip(groups.items(), COLOURS, strict=False):
        weights = np.full(len(values), 1 / len(values))
        bins = np.linspace(0, farthest, BINS + 1)
        novelty.hist(
            np.minimum(values, farthest), bins, weights=weights, histtype="step", color=colour, label=label
        )
    novelty.set(xlabel="novelty", ylabel="share of the queries", title="known and OOD queries")
    novelty.legend(fontsize=7, frameon=False)
    with atomic_write(path) as temporary:
        temporary.write_bytes(as_png(figure))
