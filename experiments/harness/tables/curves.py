"""Curves of results, with their spread over seeds: calibration, detection of OOD images, sparsification, training.

All take the cells of each panel by the label that the legend gives them. A cell without results is in the legend with
what happened to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.harness.results import Training
from experiments.harness.tables.seeds import Cell, spread
from experiments.harness.tables.styles import (
    GRID,
    SMALL,
    Style,
    named,
    panels,
    say_absent,
    shared_legend,
    style_of,
)
from experiments.harness.tables.table_columns import find
from laplacian_metric.metrics.calibration import Bin
from laplacian_metric.metrics.out_of_distribution import Roc
from laplacian_metric.report.plots import as_png

Array = npt.NDArray[np.float64]
Cells = Mapping[str, Cell]
Looks = Mapping[str, Style] | None


def band(curves: Sequence[Array]) -> tuple[Array, Array]:
    """Mean and standard deviation (K,) of curves over one grid; the deviation of a single one is 0."""
    stacked = np.stack(curves)
    return stacked.mean(0), stacked.std(0, ddof=1) if len(curves) > 1 else np.zeros(stacked.shape[1])


def _draw_band(axes: Axes, x: Array, curves: Sequence[Array], style: Style, label: str) -> None:
    mean, deviation = band(curves)
    axes.plot(x, mean, label=label, **style.line())
    if len(curves) > 1:
        low, high = np.clip(mean - deviation, 0, 1), np.clip(mean + deviation, 0, 1)
        axes.fill_between(x, low, high, color=style.colour, alpha=0.18, linewidth=0)


# --- calibration ---


def pooled_bins(tables: Sequence[Sequence[Bin]]) -> list[Bin]:
    """The bins of several seeds as one: counts are added, confidence and accuracy are means over all queries.

    Example:
        >>> pooled_bins([[Bin(0, 1, 1, 0.5, 0.0)], [Bin(0, 1, 3, 0.75, 1.0)]])
        [Bin(low=0, high=1, count=4, confidence=0.6875, accuracy=0.75)]
    """
    pooled = []
    for bins in zip(*tables, strict=True):
        count = sum(one.count for one in bins)
        filled = [one for one in bins if one.count]
        means = [
            sum(one.count * getattr(one, name) for one in filled) / count if count else float("nan")
            for name in ("confidence", "accuracy")
        ]
        pooled.append(Bin(bins[0].low, bins[0].high, count, *means))
    return pooled


def calibration_axes(axes: Axes, axis: str) -> None:
    """Axes for accuracy over what was predicted, with the diagonal."""
    axes.plot([0, 1], [0, 1], color="#999999", linewidth=1, label="perfect")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.set_aspect("equal")
    axes.set_xlabel(axis)
    axes.set_ylabel("accuracy")
    axes.grid(alpha=GRID)


def draw_bins(axes: Axes, bins: Sequence[Bin], style: Style, label: str) -> None:
    """Accuracy over confidence; the area of a point is its bin's share of the queries."""
    filled = [interval for interval in bins if interval.count]
    total = sum(interval.count for interval in filled)
    x, y = [interval.confidence for interval in filled], [interval.accuracy for interval in filled]
    axes.plot(x, y, label=label, marker=style.marker, markersize=4, **style.line(1.2))
    area = [220 * interval.count / total for interval in filled]
    axes.scatter(x, y, s=area, color=style.colour, alpha=0.2, linewidths=0)


def draw_calibration(axes: Axes, cells: Cells, looks: Looks = None, axis: str = "confidence") -> None:
    """The calibration of each cell, its seeds pooled."""
    calibration_axes(axes, axis)
    for label, cell in cells.items():
        tables = [one.calibration.bins for one in cell.done if one.calibration and one.calibration.bins]
        if not say_absent(axes, label, cell, tables):
            title = named(label, cell, len(tables))
            draw_bins(axes, pooled_bins(tables), style_of(label, looks, cells), title)


def calibration_curves(groups: Mapping[str, Cells], looks: Looks = None, axis: str = "confidence") -> bytes:
    """A calibration curve for each cell, its seeds pooled; a panel for each group."""
    figure, every = panels(len(groups), 4.2, 4.6)
    for axes, (title, cells) in zip(every, groups.items(), strict=True):
        draw_calibration(axes, cells, looks, axis)
        axes.set_title(title, fontsize=10)
    shared_legend(figure, every, columns=3 * len(every))
    return as_png(figure)


# --- out-of-distribution images ---


def on_one_grid(curves: Sequence[Roc], points: int = 201) -> tuple[Array, list[Array]]:
    """False positive rates (K,), and the true positive rates of each curve there: their own grid, if it is the same."""
    first = curves[0].false_positive_rate
    if all(np.array_equal(curve.false_positive_rate, first) for curve in curves):
        return first, [curve.true_positive_rate for curve in curves]
    grid = np.linspace(0, 1, points)
    return grid, [np.interp(grid, curve.false_positive_rate, curve.true_positive_rate) for curve in curves]


def draw_roc(axes: Axes, cells: Cells, out: str, looks: Looks = None) -> None:
    """How many OOD images are detected at each share of false alarms; mean and one standard deviation over seeds."""
    axes.plot([0, 1], [0, 1], color="#999999", linewidth=1, label="chance, 0.5")
    column = find("AUROC", out=out)
    for label, cell in cells.items():
        curves = [one.curves.roc[out] for one in cell.done if one.curves and out in one.curves.roc]
        if say_absent(axes, label, cell, curves):
            continue
        x, rates = on_one_grid(curves)
        area = spread(column.values(cell)).mean
        title = named(label, cell, len(curves)) + (f", {area:.2f}" if np.isfinite(area) else "")
        _draw_band(axes, x, rates, style_of(label, looks, cells), title)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.set_aspect("equal")
    axes.set_xlabel("false positive rate")
    axes.set_ylabel("true positive rate")
    axes.grid(alpha=GRID)


def roc_curves(groups: Mapping[str, tuple[Cells, str]], looks: Looks = None) -> bytes:
    """A panel for each group of cells and its set of OOD images; the legend has the mean AUROC."""
    if not groups:
        panels(0, 0, 0)
    # A legend has a place of its own below each panel, since the areas in it differ.
    lines = max(len(cells) for cells, _ in groups.values()) // 2 + 1
    figure = Figure(figsize=(4.4 * len(groups), 4.6 + 0.2 * lines), dpi=130, layout="constrained")
    grid = figure.add_gridspec(2, len(groups), height_ratios=[4.6, 0.2 * lines])
    for column, (title, (cells, out)) in enumerate(groups.items()):
        axes, below = figure.add_subplot(grid[0, column]), figure.add_subplot(grid[1, column])
        draw_roc(axes, cells, out, looks)
        axes.set_title(title, fontsize=10)
        below.axis("off")
        below.legend(
            *axes.get_legend_handles_labels(),
            loc="center",
            ncols=2,
            fontsize=SMALL,
            frameon=False,
            handlelength=2.4,
        )
    return as_png(figure)


# --- sparsification ---


def draw_sparsification(axes: Axes, cells: Cells, chosen: str, looks: Looks = None) -> None:
    """The curve of one cell between those of the oracle and of a random order; the others' in grey behind it."""
    others = "other methods"
    for label, cell in cells.items():
        curves = _sparsifications(cell, "own")
        if curves and label != chosen:
            mean = band(curves)[0]
            axes.plot(_shares(mean), mean, color="#cccccc", linewidth=0.8, zorder=1, label=others)
            others = "_"
    cell, style = cells[chosen], style_of(chosen, looks, cells)
    by = {name: _sparsifications(cell, name) for name in ("oracle", "random", "own")}
    # One legend for all panels: these two look the same in each.
    for name, dashes in (("oracle", (0, (4, 2))), ("random", (0, (1, 1.5)))):
        if by[name]:
            mean = band(by[name])[0]
            axes.plot(_shares(mean), mean, color="#444444", linestyle=dashes, linewidth=1, label=name)
    if by["own"]:
        solid = Style(style.colour, style.marker, "-")
        _draw_band(axes, _shares(by["own"][0]), by["own"], solid, "by uncertainty")
    else:
        reason = "has no curve" if cell.done else "failed" if cell.failed else "missing"
        axes.text(0.5, 0.5, reason, transform=axes.transAxes, ha="center")
    axes.set_title(named(chosen, cell, len(cell.done)), fontsize=9, color=style.colour)
    axes.set_xlim(0, 1)
    axes.grid(alpha=GRID)
    axes.tick_params(labelsize=SMALL)


def _sparsifications(cell: Cell, name: str) -> list[Array]:
    curves = [one.curves.sparsification for one in cell.done if one.curves]
    return [curve[name] for curve in curves if name in curve]


def _shares(curve: Array) -> Array:
    return np.arange(len(curve)) / len(curve)


def sparsification_curves(cells: Cells, looks: Looks = None, title: str = "") -> bytes:
    """A panel for each cell: recall@1 of the queries that are left when the most uncertain are left out."""
    columns = 3
    figure, every = panels(len(cells), 2.7, 2.3, columns)
    for place, (axes, label) in enumerate(zip(every, cells, strict=True)):
        draw_sparsification(axes, cells, label, looks)
        if place % columns == 0:
            axes.set_ylabel("recall@1", fontsize=SMALL + 1)
        if place + columns >= len(cells):
            axes.set_xlabel("share left out", fontsize=SMALL + 1)
    heights = [np.asarray(line.get_ydata()) for axes in every for line in axes.lines]
    lowest = min((float(values.min()) for values in heights if len(values)), default=0.0)
    for axes in every:
        axes.set_ylim(max(0.0, lowest - 0.03), 1.01)
    if title:
        figure.suptitle(title, fontsize=10)
    entries = [axes for axes in every if axes.get_legend_handles_labels()[1]]
    if not entries:
        raise ValueError("there is nothing to draw: none of the cells has a sparsification curve")
    # The colours differ from panel to panel, their meaning does not.
    shared_legend(figure, entries[:1])
    return as_png(figure)


# --- training ---


def _by_epoch(trainings: Sequence[Training], metric: str | None) -> tuple[Array, list[Array]]:
    """Epochs that all seeds have, and each seed's numbers there."""
    length = min(len(training.history) for training in trainings)
    epochs = np.array([one.epoch for one in trainings[0].history[:length]], dtype=np.float64)
    rows = [
        np.array(
            [
                one.loss if metric is None else one.validation.get(metric, np.nan)
                for one in training.history[:length]
            ]
        )
        for training in trainings
    ]
    return epochs, rows


def draw_training(axes: Axes, cells: Cells, metric: str | None, looks: Looks = None) -> None:
    """The loss (`metric` None) or a metric of the validation images over the epochs: every seed thin, their mean thick.

    The mean is over the epochs that all seeds have. A star is on the epoch that was kept, of each seed.
    """
    for label, cell in cells.items():
        trainings = [one.training for one in cell.done if one.training and one.training.history]
        if say_absent(axes, label, cell, trainings):
            continue
        style = style_of(label, looks, cells)
        epochs, rows = _by_epoch(trainings, metric)
        axes.plot(epochs, np.mean(rows, axis=0), label=named(label, cell, len(trainings)), **style.line())
        for training in trainings:
            x, (y,) = _by_epoch([training], metric)
            if len(trainings) > 1:
                axes.plot(x, y, color=style.colour, linewidth=0.6, alpha=0.45)
            kept = x == training.best_epoch
            if metric is not None and kept.any():
                axes.plot(x[kept], y[kept], linestyle="none", marker="*", markersize=8, color=style.colour)
    axes.set_xlabel("epoch")
    axes.set_ylabel("loss" if metric is None else f"{metric.replace('map', 'mAP')}, validation")
    axes.grid(alpha=GRID)
    axes.locator_params(axis="x", integer=True)


def training_curves(cells: Cells, looks: Looks = None, metric: str = "map@5", title: str = "") -> bytes:
    """Loss and validation metric of each cell over the epochs; losses of different methods have different scales."""
    figure, every = panels(2, 4.4, 3.9)
    draw_training(every[0], cells, None, looks)
    draw_training(every[1], cells, metric, looks)
    if all(value > 0 for line in every[0].lines for value in np.asarray(line.get_ydata())):
        every[0].set_yscale("log")
    if title:
        figure.suptitle(title, fontsize=10)
    shared_legend(figure, every, columns=4)
    return as_png(figure)
