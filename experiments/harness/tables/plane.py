"""Pictures of planes with the images that lie in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.collections import EllipseCollection, LineCollection

from experiments.harness.results import Space
from experiments.harness.tables.panels import SMALL, panels
from laplacian_metric.report.plots import COLOURS, as_png

DEVIATIONS = 3.0  # an ellipse is as wide as so many standard deviations on each side
WRITTEN = 100  # classes, up to which the centres have their names
MARGIN = 0.06
POINT = 1e-9  # a variance below is that of a point


def plane_maps(rows: Mapping[str, Mapping[str, Space]], digits: int = 1, title: str = "") -> bytes:
    """A row of maps for each entry, a map for each of its sets, all of a row at one scale.

    Every image is an ellipse three standard deviations wide on each side, or a dot where it has none, in the colour of
    the first digit of its class; thin lines join the components of a mixture. The centres of the classes have their
    numbers, as long as these can be read.

    Args:
        rows: by title, the sets by title.
        digits: of the classes' numbers.
        title: of the figure.
    """
    if not rows or not all(rows.values()):
        raise ValueError("there is no plane to draw: none of the cells has a space of two dimensions")
    for name, sets in rows.items():
        for space in sets.values():
            if space.means.shape[2] != 2:
                raise ValueError(f"{name} has {space.means.shape[2]} dimensions: only planes can be drawn")
    columns = max(map(len, rows.values()))
    figure, every = panels(len(rows) * columns, 4.4, 4.4, columns)
    for row, (name, sets) in enumerate(rows.items()):
        corners = _corners(list(sets.values()))
        for column in range(columns):
            axes = every[row * columns + column]
            if column >= len(sets):
                axes.axis("off")
                continue
            where, space = list(sets.items())[column]
            draw_plane(axes, space, digits)
            axes.set_xlim(corners[0, 0], corners[1, 0])
            axes.set_ylim(corners[0, 1], corners[1, 1])
            axes.set_title(f"{name}, {where}", fontsize=SMALL + 1)
    if title:
        figure.suptitle(title, fontsize=SMALL + 2)
    return as_png(figure)


def draw_plane(axes: Axes, space: Space, digits: int = 1) -> None:
    """The images of one set and the centres of the classes."""
    first = 10 ** (digits - 1)
    colours = [COLOURS[label // first % 10] for label in space.labels]
    number, components, _ = space.means.shape
    means = space.means.reshape(-1, 2)
    widths = 2 * DEVIATIONS * np.sqrt(space.variances.reshape(-1, 2))
    owner = np.repeat(np.arange(number), components)
    is_point = (space.variances.reshape(-1, 2) < POINT).all(1)
    paints = [colours[image] for image in owner]
    axes.scatter(
        means[:, 0], means[:, 1], s=np.where(is_point, 9, 2), c=paints, linewidths=0, alpha=0.8, zorder=3
    )
    spread = np.flatnonzero(~is_point)
    if len(spread):
        for fill, alpha, width in (("face", 0.10, 0.0), ("edge", 0.55, 0.5)):
            some = [paints[place] for place in spread]
            axes.add_collection(
                EllipseCollection(
                    widths[spread, 0], widths[spread, 1], np.zeros(len(spread)), units="xy", offsets=means[spread],
                    offset_transform=axes.transData, facecolors=some if fill == "face" else "none",
                    edgecolors="none" if fill == "face" else some, alpha=alpha, linewidths=width, zorder=2,
                )
            )  # fmt: skip
    if components > 1:
        axes.add_collection(
            LineCollection(list(space.means), colors=colours, linewidths=0.4, alpha=0.6, zorder=1)
        )
    _centres(axes, space, digits)
    axes.set_aspect("equal", adjustable="box")
    axes.tick_params(labelsize=SMALL - 2)


def _centres(axes: Axes, space: Space, digits: int) -> None:
    if len(space.centres) > WRITTEN:
        axes.scatter(space.centres[:, 0], space.centres[:, 1], s=2, color="#222222", linewidths=0, zorder=4)
        return
    for (x, y), label in zip(space.centres, space.centre_labels, strict=True):
        axes.text(
            x, y, f"{label:0{digits}d}", fontsize=5.5, color="#222222", ha="center", va="center", zorder=4,
            clip_on=True,
        )  # fmt: skip


def _corners(spaces: Sequence[Space]) -> npt.NDArray[np.float64]:
    """The lower left and the upper right corner (2, 2) of what holds all means and centres."""
    points = np.concatenate([part for one in spaces for part in (one.means.reshape(-1, 2), one.centres)])
    low, high = points.min(0), points.max(0)
    reach = np.maximum(high - low, 1e-3) * MARGIN
    return np.stack([low - reach, high + reach])
