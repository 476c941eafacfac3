"""What the pictures of studies have in common: panels of one size, one legend, bands over seeds, rows of images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from torch import Tensor

from laplacian_metric.report.plots import as_png

GRID = 0.3  # opacity
SMALL = 8  # points
Array = npt.NDArray[np.float64]
GAP = 0.35  # between the two halves, in images
LOW, HIGH = "#2f6f9f", "#c1272d"


@dataclass(frozen=True, eq=False)
class PictureRow:
    """Images (C, H, W) with values in [0, 1]: the least uncertain first, and the most uncertain first.

    `group` says whose uncertainty it is; rows that follow each other with the same one stand together.
    """

    label: str
    lowest: Sequence[Tensor]
    highest: Sequence[Tensor]
    group: str = ""


def as_pixels(image: Tensor) -> npt.NDArray[np.float64]:
    """An image (C, H, W) of one or three channels as matplotlib takes it, (H, W, 3).

    Example:
        >>> as_pixels(torch.zeros(1, 2, 4)).shape
        (2, 4, 3)
    """
    if image.ndim != 3 or image.shape[0] not in (1, 3):
        raise ValueError(f"an image has the shape {tuple(image.shape)}; (1, H, W) or (3, H, W) is needed")
    pixels = image.detach().to("cpu", torch.float64).clamp(0, 1).expand(3, -1, -1).permute(1, 2, 0).numpy()
    return np.asarray(pixels)


def draw_extremes(figure: Figure, rows: Sequence[PictureRow], title: str = "") -> None:
    """Fill a figure: a line of images for each row, the lowest uncertainty to the left and the highest to the right."""
    left = max(len(row.lowest) for row in rows)
    right = max(len(row.highest) for row in rows)
    widths = [1.0] * left + [GAP] + [1.0] * right
    # A heading above every group takes a line that is lower than one of images.
    heads = [bool(row.group) and (n == 0 or rows[n - 1].group != row.group) for n, row in enumerate(rows)]
    heights = [height for head in heads for height in ([0.35, 1.0] if head else [1.0])]
    grid = figure.add_gridspec(len(heights), len(widths), width_ratios=widths, height_ratios=heights)
    line = 0
    for row, head in zip(rows, heads, strict=True):
        if head:
            axes = figure.add_subplot(grid[line, :])
            axes.axis("off")
            axes.text(0.0, 0.0, row.group, fontsize=9, fontweight="bold", transform=axes.transAxes)
            line += 1
        for start, images, colour in ((0, row.lowest, LOW), (left + 1, row.highest, HIGH)):
            for place, image in enumerate(images):
                axes = figure.add_subplot(grid[line, start + place])
                axes.imshow(as_pixels(image), interpolation="nearest")
                axes.set_xticks([])
                axes.set_yticks([])
                for side in axes.spines.values():
                    side.set(color=colour, linewidth=1.2)
                if place == 0 and start == 0:
                    axes.set_ylabel(row.label, rotation=0, ha="right", va="center", fontsize=8, labelpad=6)
        line += 1
    if title:
        figure.suptitle(title, fontsize=10)


def extreme_pictures(rows: Sequence[PictureRow], title: str = "") -> bytes:
    """Images in rows: framed blue where the uncertainty is lowest, red where it is highest."""
    if not rows or not any(len(row.lowest) or len(row.highest) for row in rows):
        raise ValueError("rows has no images; there is nothing to draw")
    count = max(len(row.lowest) for row in rows) + max(len(row.highest) for row in rows) + GAP
    groups = len({row.group for row in rows if row.group})
    size = 0.62
    figure = Figure(
        figsize=(size * count + 1.6, size * (len(rows) + 0.4 * groups) + 0.5),
        dpi=130,
        layout=ConstrainedLayoutEngine(w_pad=0.01, h_pad=0.01, wspace=0.02, hspace=0.02),
    )
    draw_extremes(figure, rows, title)
    return as_png(figure)


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
