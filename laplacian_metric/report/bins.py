"""Performance over uncertainty: what is measured in bins of equal size, from the lowest uncertainty to the highest."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from laplacian_metric.metrics.json_types import Array
from laplacian_metric.report.plots import as_png
from laplacian_metric.report.seeds import Cell
from laplacian_metric.report.styles import (
    GRID,
    SMALL,
    Style,
    named,
    panels,
    say_absent,
    shared_legend,
    style_of,
)
from laplacian_metric.runs.results import OWN, Result

PERFORMANCES = {"average_precision": "average precision of pairs", "knn": "accuracy of the vote"}


def bin_curves(
    groups: Mapping[str, Mapping[str, Cell]],
    sets: Mapping[str, str],
    looks: Mapping[str, Style] | None = None,
    title: str = "",
) -> bytes:
    """For each group a row of panels, one for each set and performance, with a line for each seed of each cell.

    Args:
        groups: cells by their label, by the group's title.
        sets: what the test sets are called, by their name.
        looks: styles by label.
        title: of the figure.
    """
    if not groups or not sets:
        raise ValueError("there are no bins to draw: none of the cells has any")
    across = len(sets) * len(PERFORMANCES)
    figure, every = panels(len(groups) * across, 3.0, 2.5, across)
    places = iter(every)
    for group, cells in groups.items():
        for key, called in PERFORMANCES.items():
            for name, shown in sets.items():
                axes = next(places)
                for label, cell in cells.items():
                    lines = [bins for one in cell.done if (bins := own_bins(one, name, key)) is not None]
                    if say_absent(axes, label, cell, lines):
                        continue
                    style = style_of(label, looks, cells)
                    for number, line in enumerate(lines):
                        axes.plot(
                            np.arange(1, len(line) + 1), line, **style.line(1.2), alpha=0.9,
                            label=named(label, cell, len(lines)) if number == 0 else None,
                        )  # fmt: skip
                axes.set_title(f"{group}, {shown}", fontsize=SMALL + 1)
                axes.set_xlabel("bin, the highest uncertainty last", fontsize=SMALL)
                axes.set_ylabel(called, fontsize=SMALL)
                axes.set_ylim(0, 1.02)
                axes.tick_params(labelsize=SMALL - 1)
                axes.grid(alpha=GRID)
    if title:
        figure.suptitle(title, fontsize=SMALL + 2)
    shared_legend(figure, every)
    return as_png(figure)


def own_bins(result: Result, name: str, key: str) -> Array | None:
    """What a result has of one test set by the method's own uncertainty; None where there is nothing."""
    found = result.verification.get(name)
    return None if found is None else found.bins.get(OWN, {}).get(key)
