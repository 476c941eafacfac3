"""One look at all methods: metrics with error bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes

from experiments.harness.tables.descriptions import PublishedNumber
from experiments.harness.tables.seeds import Cell, spread
from experiments.harness.tables.styles import GRID, Style, panels, shared_legend, style_of
from experiments.harness.tables.table_columns import Column
from laplacian_metric.report.plots import as_png

Cells = Mapping[str, Cell]
Published = Mapping[tuple[str, str, str], PublishedNumber]


def draw_summary(
    axes: Axes,
    groups: Mapping[str, tuple[Cells, Column]],
    looks: Mapping[str, Style] | None = None,
    published: Published | None = None,
) -> None:
    """A metric of each cell, side by side within each group; the bar is one standard deviation over the seeds.

    `published` has numbers of others by (group, metric, label), drawn hollow beside ours. Cells without a number have
    a mark at the bottom that says why.
    """
    labels = list(dict.fromkeys(label for cells, _ in groups.values() for label in cells))
    step = 0.8 / max(1, len(labels))
    for place, (group, (cells, column)) in enumerate(groups.items()):
        for number, label in enumerate(labels):
            if label not in cells:
                continue
            x = place + (number - (len(labels) - 1) / 2) * step
            _draw_one(axes, x, label, cells[label], column, style_of(label, looks, labels))
            theirs = (published or {}).get((group, column.metric, label))
            if theirs is not None:
                style = style_of(label, looks, labels)
                axes.errorbar(
                    [x + step / 3],
                    [theirs.mean],
                    yerr=None if theirs.deviation is None else [theirs.deviation],
                    marker=style.marker,
                    markersize=_size(style, 4.0),
                    markerfacecolor="white",
                    color=style.colour,
                    alpha=0.55,
                    linewidth=0.8,
                    zorder=1,
                )
    axes.set_xticks(range(len(groups)), list(groups))
    axes.set_xlim(-0.5, len(groups) - 0.5)
    for edge in range(1, len(groups)):
        axes.axvline(edge - 0.5, color="#cccccc", linewidth=0.8)
    axes.grid(axis="y", alpha=GRID)
    axes.tick_params(axis="x", length=0)


def _size(style: Style, size: float) -> float:
    """Stars look smaller than other markers."""
    return 1.5 * size if style.marker == "*" else size


def _draw_one(axes: Axes, x: float, label: str, cell: Cell, column: Column, style: Style) -> None:
    numbers = spread(column.values(cell))
    if not numbers.number:
        reason = "" if cell.done else "failed" if cell.failed else "missing"
        if reason:
            axes.text(
                x, 0.02, f"{label}: {reason}", rotation=90, fontsize=6, color=style.colour, ha="center", va="bottom",
                transform=axes.get_xaxis_transform(),
            )  # fmt: skip
        return
    error = [numbers.deviation] if numbers.number > 1 else None
    axes.errorbar(
        [x], [numbers.mean], yerr=error, marker=style.marker, markersize=_size(style, 5.5), color=style.colour,
        linestyle="none", linewidth=1.4, capsize=2, label=label,
    )  # fmt: skip


def summary_figure(
    metrics: Mapping[str, Mapping[str, tuple[Cells, Column]]],
    looks: Mapping[str, Style] | None = None,
    published: Published | None = None,
    title: str = "",
) -> bytes:
    """A panel for each metric by its name, in which each group has its cells and the column that it is."""
    figure, every = panels(len(metrics), 4.6, 2.6, columns=2)
    for axes, (name, groups) in zip(every, metrics.items(), strict=True):
        draw_summary(axes, groups, looks, published)
        axes.set_ylabel(name, fontsize=9)
    if published:
        every[0].plot(
            [], [], marker="o", markerfacecolor="white", color="#888888", linestyle="none", label="paper"
        )
    if title:
        figure.suptitle(title, fontsize=10)
    shared_legend(figure, _with_entries(every))
    return as_png(figure)


def _with_entries(every: Sequence[Axes]) -> list[Axes]:
    named = [axes for axes in every if axes.get_legend_handles_labels()[1]]
    if not named:
        raise ValueError("there is nothing to draw: none of the cells has these metrics")
    return named
