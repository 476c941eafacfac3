"""The pictures of a page, as PNGs; none of them touches matplotlib's global state."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from laplacian_metric.metrics.out_of_distribution import Roc
from laplacian_metric.metrics.sparsification import Refusal, wilson
from laplacian_metric.report.page import number, plain

Array = npt.NDArray[np.float64]

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
# Of classes: 10 hues and 7 shapes repeat together only after 70 classes.
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
OOD_MARKERS = "x+1234"
ACCENT, GREY = "#1f5f99", "#999999"
NAMED = 12  # classes that the legend of the map names
BINS = 10
LEAST_ANSWERED = 0.1  # with fewer answers the interval of the error says nothing


def as_png(figure: Figure) -> bytes:
    """Return a figure as a PNG; the same figure gives the same bytes with the same release of matplotlib."""
    stream = io.BytesIO()
    FigureCanvasAgg(figure).print_png(stream)
    return stream.getvalue()


def drawable(text: object) -> str:
    """Return a name as matplotlib draws it: no formula, and not left out of the legend for its first letter.

    Example:
        >>> drawable("_a $x$")
        ' _a \\\\$x\\\\$'
    """
    line = plain(text).replace("$", r"\$")
    return f" {line}" if line.startswith("_") else line


def _figure(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), dpi=130, layout="constrained")
    axes = figure.add_subplot()
    axes.grid(alpha=0.3)
    axes.set_axisbelow(True)
    return figure, axes


def error_curve(rows: Sequence[Refusal]) -> bytes:
    """Draw the error among the answers over the share of answered queries, with Wilson's 95 % intervals."""
    figure, axes = _figure(5.6, 3.4)
    first = rows[0]
    rows = [row for row in rows if row.answered >= LEAST_ANSWERED * row.total]
    answered = [100 * (1 - row.share) for row in rows]
    # Known errors are refused first.
    oracle = [max(0, first.wrong - first.total + row.answered) / row.answered for row in rows]
    low, high = (100 * np.array(bound) for bound in zip(*(row.interval for row in rows), strict=True))
    axes.fill_between(answered, low, high, color=ACCENT, alpha=0.16, linewidth=0)
    axes.plot(answered, [100 * row.error for row in rows], color=ACCENT, label="least certain refused first")
    axes.plot(answered, [100 * first.error] * len(rows), color=GREY, linestyle=":", label="refused at random")
    axes.plot(answered, 100 * np.array(oracle), color=GREY, linestyle="--", label="if the errors were known")
    axes.set_xlim(100, 100 * LEAST_ANSWERED)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("answered queries (%)")
    axes.set_ylabel("wrong answers (%)")
    axes.legend(frameon=False, fontsize=8)
    return as_png(figure)


@dataclass(frozen=True)
class ReliabilityBin:
    """Answers of similar probability: how many, their mean probability, the share of right ones and its interval."""

    count: int
    probability: float
    right: float
    low: float
    high: float


def reliability_bins(
    probability: Array, right: npt.NDArray[np.bool_], bins: int = BINS
) -> list[ReliabilityBin]:
    """Return bins of equal counts by rank of the probability (N,), with Wilson's 95 % intervals of the right answers.

    Example:
        >>> bins = reliability_bins(np.array([0.9, 0.2, 0.8, 0.3]), np.array([True, False, True, True]), bins=2)
        >>> [(one.count, round(one.probability, 2), one.right) for one in bins]
        [(2, 0.25, 0.5), (2, 0.85, 1.0)]
    """
    groups = np.array_split(np.argsort(probability, kind="stable"), min(bins, len(probability)))
    return [
        ReliabilityBin(
            len(rows),
            float(probability[rows].mean()),
            float(right[rows].mean()),
            *wilson(int(right[rows].sum()), len(rows)),
        )
        for rows in groups
    ]


def reliability_plot(bins: Sequence[ReliabilityBin]) -> bytes:
    """Draw the share of right answers over the mean probability of each bin, with error bars."""
    figure, axes = _figure(4.4, 4.0)
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=1)
    x, y = [one.probability for one in bins], [one.right for one in bins]
    bars = [[one.right - one.low for one in bins], [one.high - one.right for one in bins]]
    axes.errorbar(x, y, np.maximum(bars, 0), color=ACCENT, fmt="o-", markersize=4, linewidth=1.2, capsize=3)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.set_aspect("equal")
    axes.set_xlabel("probability")
    axes.set_ylabel("share of right answers")
    return as_png(figure)


def roc_plot(curves: Mapping[str, tuple[Roc, float]]) -> bytes:
    """Draw a ROC curve for each set of OOD images, with its AUROC in the legend."""
    figure, axes = _figure(4.4, 4.4)
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=1)
    for position, (name, (curve, area)) in enumerate(curves.items()):
        colour = COLOURS[position % len(COLOURS)]
        label = f"{drawable(name)}, {number(area)}"
        axes.plot(curve.false_positive_rate, curve.true_positive_rate, color=colour, label=label)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.set_aspect("equal")
    axes.set_xlabel("known images that are flagged")
    axes.set_ylabel("OOD images that are flagged")
    axes.legend(frameon=False, fontsize=8, title="AUROC", loc="lower right")
    return as_png(figure)


def kappa_histograms(values: Mapping[str, Array]) -> bytes | None:
    """Draw the finite kappas of each set of images on one logarithmic axis; None if none is finite and above 0."""
    finite = {drawable(name): kappa[np.isfinite(kappa)] for name, kappa in values.items()}
    every = np.concatenate(list(finite.values()))
    if not (every > 0).any():
        return None
    low, high = every[every > 0].min(), every.max()
    edges = np.geomspace(low, max(high, low * 1.01), 50)
    figure, axes = _figure(6.4, 2.6)
    for position, (name, kappa) in enumerate(finite.items()):
        colour = COLOURS[position % len(COLOURS)]
        axes.hist(kappa.clip(low, edges[-1]), bins=list(edges), color=colour, alpha=0.6, label=name)
    axes.set_xscale("log")
    axes.set_xlabel("kappa")
    axes.set_ylabel("images")
    axes.legend(frameon=False, fontsize=8)
    return as_png(figure)


@dataclass(frozen=True, eq=False)
class Cloud:
    """Points (n, 2) of one class, or of one set of OOD images, with their ranks of uncertainty (n,) from 0 to 1."""

    name: str
    points: Array
    uncertainty: Array
    ood: bool = False


def embedding_map(clouds: Sequence[Cloud]) -> bytes:
    """Draw points by class; the larger and paler, the more uncertain. OOD images are black."""
    figure, axes = _figure(6.4, 5.2)
    known = sum(not cloud.ood for cloud in clouds)
    for position, cloud in enumerate(clouds):
        colour, marker = CLASSES[position % len(CLASSES)], MARKERS[position % len(MARKERS)]
        alpha: Any = 0.85 - 0.75 * cloud.uncertainty
        if cloud.ood:
            colour, marker, alpha = "black", OOD_MARKERS[(position - known) % len(OOD_MARKERS)], 1.0
        axes.scatter(
            cloud.points[:, 0],
            cloud.points[:, 1],
            s=8 + 40 * cloud.uncertainty,
            color=colour,
            alpha=alpha,
            marker=marker,
            linewidths=0.6 if cloud.ood else 0,
            label=drawable(cloud.name) if cloud.ood or known <= NAMED else None,
        )
    axes.set_aspect("equal", adjustable="datalim")
    axes.set_xticks([])
    axes.set_yticks([])
    if axes.get_legend_handles_labels()[1]:
        figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    return as_png(figure)


def share_bars(shares: Mapping[str, Mapping[str, float]], colours: Sequence[str]) -> bytes:
    """Draw a bar for each group, of the shares of its parts, which the legend names."""
    figure = Figure(figsize=(5.2, 0.55 * len(shares) + 1.3), dpi=130, layout="constrained")
    axes = figure.add_subplot()
    left = np.zeros(len(shares))
    for name, colour in zip(next(iter(shares.values())), colours, strict=True):
        widths = np.array([100 * parts[name] for parts in shares.values()])
        bars = axes.barh(list(shares), widths, left=left, color=colour, label=name, edgecolor="white")
        texts = [f"{width:.0f}" if width >= 6 else "" for width in widths]
        axes.bar_label(bars, texts, label_type="center", color="white")
        left += widths
    axes.set_xlim(0, 100)
    axes.set_xlabel("% of the queries")
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return as_png(figure)


FEWEST = 5  # of fewer images there is no neighbourhood to keep
PERPLEXITY = 30.0


def principal_plane(directions: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The first two principal components (N, 2) of directions (N, Z), each with the sign that makes its largest
    entry positive; zero where there are fewer.

    Example:
        >>> principal_plane(np.array([[0.0, 3.0], [0.0, 0.0], [0.0, 0.0]])).round(6).tolist()
        [[2.0, 0.0], [-1.0, 0.0], [-1.0, 0.0]]
    """
    centred = directions - directions.mean(0)
    left, values, _ = np.linalg.svd(centred, full_matrices=False)
    plane = np.zeros((len(directions), 2))
    for column, value in enumerate(values[:2]):
        if value > 1e-12:
            component = left[:, column] * value
            plane[:, column] = component * np.sign(component[np.abs(component).argmax()])
    return plane


def angles(directions: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The angles (N, N) between unit vectors (N, Z), to about 1e-8.

    Example:
        >>> np.rad2deg(angles(np.eye(2))).round(6).tolist()
        [[0.0, 90.0], [90.0, 0.0]]
    """
    squared = np.clip(2 - 2 * directions @ directions.T, 0, 4)
    np.fill_diagonal(squared, 0)
    return np.asarray(2 * np.arcsin(np.sqrt(squared) / 2))


def tsne_plane(directions: torch.Tensor, seed: int = 0) -> npt.NDArray[np.float64]:
    """t-SNE by the angles between directions (N, Z): points (N, 2), the same for the same seed.

    Few images, and images that all lie in one place, are drawn by their principal components instead.

    Example:
        >>> tsne_plane(torch.eye(3)).shape
        (3, 2)
    """
    from sklearn.manifold import TSNE

    points = torch.nn.functional.normalize(directions.detach().cpu().double(), dim=1).numpy()
    start = principal_plane(points)
    spread = float(start[:, 0].std())
    if len(points) < FEWEST or spread < 1e-9:
        return start
    # Angles, since chords make of opposite directions nearer ones than they are.
    method = TSNE(
        metric="precomputed",
        init=(start / spread * 1e-4).astype(np.float32),
        perplexity=min(PERPLEXITY, (len(points) - 1) / 3),
        random_state=seed,
        n_jobs=1,
    )
    return np.asarray(method.fit_transform(angles(points).astype(np.float32)), dtype=np.float64)
