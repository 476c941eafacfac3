"""Pictures of N-digit MNIST in the plane, as in Figures 3, 4 and 7 of the HIB paper.

    python -m experiments.n_digit --results figures/results --out figures

writes OUT/plots/n_digit_plane_*, images as ellipses, clean and corrupt, each with a JSON file that says where it comes
from. Pictures whose cells have not been run are left out, and the command says so. The tables are those of
`python -m experiments.harness tables` whose names begin with n_digit. The cells are run by
`python -m experiments.harness run --cells "n_digit/*"`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.collections import EllipseCollection, LineCollection

from benchmarks.common import environment, origin, write_text
from experiments.arguments import parser, result_folders
from experiments.harness.results import OWN, Result, Space, read_results
from experiments.harness.tables.descriptions import TableDescription, read_tables
from experiments.harness.tables.seeds import Cell, cells_record
from experiments.harness.tables.tables import cells_of
from experiments.pictures import SMALL, panels
from laplacian_metric.core.files import atomic_write
from laplacian_metric.report.plots import COLOURS, as_png

SETS = {"test": "clean", "corrupt": "corrupt"}
# Pictures, with the number of digits and the table whose rows they show.
PLANES = {
    "n_digit_plane_N2": (2, "n_digit_n2_d2"),
    "n_digit_plane_N2_hidden": (2, "n_digit_n2_d2_hidden"),
}
DEVIATIONS = 3.0  # an ellipse is as wide as so many standard deviations on each side
WRITTEN = 100  # classes, up to which the centres have their names
MARGIN = 0.06
POINT = 1e-9  # a variance below is that of a point


def cells_by_label(table: TableDescription, results: Sequence[Result]) -> dict[str, Cell]:
    """Return the cells of a table's own rows."""
    cells = cells_of(table, results)
    return {row.label: cells[row.cell] for row in table.rows if row.score == OWN}


def plane_picture(digits: int, cells: dict[str, Cell]) -> bytes | None:
    """Return the first seed of every cell in the plane; None where there is none."""
    rows = {label: spaces for label, cell in cells.items() if (spaces := _spaces(cell))}
    title = f"{digits}-digit MNIST in the plane, ellipses of three standard deviations"
    return plane_maps(rows, digits, title) if rows else None


def _spaces(cell: Cell) -> dict[str, Space]:
    """Return the sets of the first seed that has any; the centres of all are those of the first, of clean images."""
    for one in cell.done:
        spaces = {
            shown: space
            for name, shown in SETS.items()
            if name in one.verification and (space := one.verification[name].space) is not None
        }
        if spaces:
            first = next(iter(spaces.values()))
            return {
                shown: replace(space, centres=first.centres, centre_labels=first.centre_labels)
                for shown, space in spaces.items()
            }
    return {}


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


def draw(results: Sequence[Result], tables: Sequence[TableDescription], folder: Path) -> dict[str, bool]:
    """Write every picture; return whether there was anything to show, by its name."""
    by_name = {table.name: table for table in tables}
    written = {}
    for name, (digits, table) in PLANES.items():
        cells = cells_by_label(by_name[table], results)
        picture = plane_picture(digits, cells)
        written[name] = picture is not None
        if picture is None:
            continue
        record: dict[str, Any] = {"title": name, **origin(), "environment": environment()}
        record["cells"] = cells_record(cells.values())
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(folder / f"{name}.png") as temporary:
            temporary.write_bytes(picture)
        write_text(folder / f"{name}.json", json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    return written


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw the pictures."""
    command = parser(__doc__)
    result_folders(command)
    options = command.parse_args(arguments)
    written = draw(read_results(options.results), read_tables(options.tables), options.out / "plots")
    for name, exists in written.items():
        print(f"{name}: {'written' if exists else 'none of its cells has been made, left out'}")


if __name__ == "__main__":
    main()
