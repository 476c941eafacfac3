"""What the pictures of results have in common: panels of one size, one legend, bands over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

GRID = 0.3  # opacity
SMALL = 8  # points
Array = npt.NDArray[np.float64]


def panels(number: int, width: float, height: float, columns: int = 3) -> tuple[Figure, list[Axes]]:
    """Return a figure with a number of axes, each of the given size in inches."""
    if number < 1:
        raise ValueError("there is no panel to draw: none of the cells has what the figure shows")
    columns = min(number, columns)
    rows = math.ceil(number / columns)
    figure = Figure(figsize=(width * columns, height * rows), dpi=130, layout="constrained")
    return figure, [figure.add_subplot(rows, columns, place + 1) for place in range(number)]


def shared_legend(figure: Figure, every: Sequence[Axes], columns: int = 5, marker_scale: float = 1.0) -> None:
    """Draw one legend for all panels, each label once."""
    entries: dict[str, Any] = {}
    for axes in every:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    figure.legend(
        list(entries.values()),
        list(entries),
        loc="outside lower center",
        ncols=min(columns, len(entries)),
        fontsize=SMALL,
        frameon=False,
        handlelength=2.4,
        markerscale=marker_scale,
    )


def band(curves: Sequence[Array]) -> tuple[Array, Array]:
    """Return the mean and the standard deviation (K,) of curves over one grid; the deviation of a single one is 0."""
    stacked = np.stack(curves)
    return stacked.mean(0), stacked.std(0, ddof=1) if len(curves) > 1 else np.zeros(stacked.shape[1])
