"""The plots. Each takes tensors and gives a PNG; none of them touches matplotlib's global state."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from torch import Tensor

COLOURS = (
    "#4477aa",
    "#ee6677",
    "#228833",
    "#ccbb44",
    "#66ccee",
    "#aa3377",
    "#bbbbbb",
    "#994f00",
    "#000000",
    "#ff8c1a",
)
_BELOW, _AROUND, _ABOVE = "#c1272d", "#9aa5b1", "#2f6f9f"


def as_png(figure: Figure) -> bytes:
    """Draw a figure; the same figure gives the same bytes with the same release of matplotlib."""
    stream = io.BytesIO()
    FigureCanvasAgg(figure).print_png(stream)
    return stream.getvalue()


def loss_curve(losses: Sequence[float], steps_per_epoch: int) -> bytes:
    """The training loss of every step over the epochs."""
    if not losses:
        raise ValueError("losses is empty; there is nothing to draw")
    if steps_per_epoch < 1:
        raise ValueError(f"steps_per_epoch is {steps_per_epoch}; it must be at least 1")
    figure = Figure(figsize=(8.0, 2.8), dpi=110, layout="constrained")
    axes = figure.add_subplot()
    axes.plot(np.arange(1, len(losses) + 1) / steps_per_epoch, losses, color=_ABOVE, linewidth=1.2)
    axes.set_xlabel("epoch")
    axes.set_ylabel("loss of the batch")
    axes.set_ylim(bottom=0.0)
    axes.grid(alpha=0.3)
    return as_png(figure)


def share_bars(shares: Mapping[str, Mapping[str, float]], colours: Sequence[str]) -> bytes:
    """A bar for each group, of the shares of its parts, which the legend names; small enough for a telephone."""
    figure = Figure(figsize=(5.2, 0.55 * len(shares) + 1.3), dpi=130, layout="constrained")
    axes = figure.add_subplot()
    names = list(next(iter(shares.values())))
    left = np.zeros(len(shares))
    for name, colour in zip(names, colours, strict=True):
        widths = np.array([100 * parts[name] for parts in shares.values()])
        bars = axes.barh(list(shares), widths, left=left, color=colour, label=name, edgecolor="white")
        axes.bar_label(
            bars, [f"{w:.0f}" if w >= 6 else "" for w in widths], label_type="center", color="white"
        )
        left += widths
    axes.set_xlim(0, 100)
    axes.set_xlabel("% of the queries")
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return as_png(figure)


def concentration_histograms(values: Mapping[str, torch.Tensor], label: str = "kappa") -> bytes:
    """Histograms of positive numbers on one logarithmic axis; numbers of 0 are counted in the lowest bin.

    Args:
        values: for each title its numbers (N,).
        label: of the axis.
    """
    if not values:
        raise ValueError("values is empty; there is nothing to draw")
    every = torch.cat([entries.detach().double().flatten() for entries in values.values()])
    positive = every[every > 0]
    if positive.numel() == 0:
        raise ValueError("values has no positive entry; a logarithmic axis needs one")
    low, high = float(positive.min()), float(positive.max())
    edges = np.geomspace(low, max(high, low * 1.01), 50)
    figure = Figure(figsize=(8.0, 2.8), dpi=110, layout="constrained")
    axes = figure.add_subplot()
    for (title, entries), colour in zip(values.items(), COLOURS, strict=False):
        shown = entries.detach().double().flatten().clamp(low, float(edges[-1])).numpy()
        axes.hist(shown, bins=list(edges), color=colour, alpha=0.6, label=title)
    axes.set_xscale("log")
    axes.set_xlabel(label)
    axes.set_ylabel("images")
    axes.legend(frameon=False)
    return as_png(figure)


def signed_histograms(values: Mapping[str, torch.Tensor], label: str, decades: int = 5) -> bytes:
    """A histogram for each entry of `values`, logarithmic on both sides of zero; what is negative is red.

    Entries more than `decades` powers of ten below the largest of their panel are in the grey bin around zero.
    """
    if not values:
        raise ValueError("values is empty; there is nothing to draw")
    columns = 2
    rows = (len(values) + columns - 1) // columns
    figure = Figure(figsize=(9.0, 2.5 * rows), dpi=110, layout="constrained")
    for position, (title, entries) in enumerate(values.items()):
        if entries.numel() == 0:
            raise ValueError(f"values[{title!r}] is empty; there is nothing to draw")
        flat = entries.detach().double().flatten()
        # Bins that are logarithmic on both sides of zero, down to `decades` below the largest size.
        largest = float(flat.abs().max())
        top = np.ceil(np.log10(largest)) if largest > 0 else 0.0
        positive = np.logspace(top - decades, top, 6 * decades + 1)
        edges = np.concatenate([-positive[::-1], positive])
        counts, _ = np.histogram(flat.numpy(), bins=edges)
        axes = figure.add_subplot(rows, columns, position + 1)
        half = len(counts) // 2
        colours = [_BELOW] * half + [_AROUND] + [_ABOVE] * half
        axes.bar(edges[:-1], counts, width=np.diff(edges), align="edge", color=colours)
        axes.set_xscale("symlog", linthresh=float(edges[len(edges) // 2]), linscale=0.4)
        size = edges[-1] / 100.0 ** np.arange((decades + 1) // 2)
        axes.set_xticks([*-size, 0.0, *size[::-1]])
        axes.set_title(title, fontsize=10)
        axes.set_xlabel(label)
        axes.set_ylabel("entries")
        axes.locator_params(axis="y", nbins=4)
        axes.tick_params(axis="x", labelsize=8)
    return as_png(figure)


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
