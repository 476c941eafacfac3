"""The plots. Each takes tensors and gives a PNG; none of them touches matplotlib's global state."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

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
# Of classes: hues far apart first; 10 colours and 7 shapes repeat together only after 70 classes.
CLASSES = (
    "#1f6fb4",
    "#b4301f",
    "#1b7837",
    "#8a5a00",
    "#7b3fa0",
    "#0b7285",
    "#b0186b",
    "#5d6570",
    "#6b4226",
    "#4a4fc4",
)
MARKERS = "os^DvPp"
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
