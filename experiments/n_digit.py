"""The HIB paper's own experiment, N-digit MNIST: its Tables 1, 2 and 4, and pictures of what is learned.

    python -m experiments.n_digit --results figures/results --out figures

Makes the tables of `experiments/tables.yaml` whose names begin with n_digit (those of one N and D have what Tables 1
and 2 say of these, n_digit_kl_* is Table 4), and in OUT/plots, each with a JSON file that says where it comes from:

    n_digit_plane_*   images as ellipses in the plane, clean and corrupt, as in Figures 3, 4 and 7
    n_digit_bins      performance from the lowest to the highest uncertainty, as in Figure 5

What has not been run is left out, and the command says so. The cells are run by
`python -m experiments.run --cells "n_digit/*"`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.common import environment, origin, write_text
from experiments.figures import looks_of
from experiments.harness.results import OWN, Result, Space, read_results
from experiments.harness.tables.descriptions import TableDescription, read_published, read_tables
from experiments.harness.tables.plane import bin_curves, own_bins, plane_maps
from experiments.harness.tables.seeds import Cell, cells_record
from experiments.harness.tables.tables import cells_of
from experiments.tables import results_parser, write_table
from laplacian_metric.core.files import atomic_write

PREFIX = "n_digit_"
SETS = {"test": "clean", "corrupt": "corrupt"}
# Pictures, with the number of digits and the table whose rows they show.
PLANES = {
    "n_digit_plane_N2": (2, "n_digit_n2_d2"),
    "n_digit_plane_N2_hidden": (2, "n_digit_n2_d2_hidden"),
    "n_digit_plane_N3": (3, "n_digit_n3_d2"),
}
ROOMS = {f"N = {n}, D = {d}": f"n_digit_n{n}_d{d}" for n in (2, 3) for d in (2, 3)}


def cells_by_label(table: TableDescription, results: Sequence[Result]) -> dict[str, Cell]:
    """The cells of a table's own rows."""
    cells = cells_of(table, results)
    return {row.label: cells[row.cell] for row in table.rows if row.score == OWN}


def plane_picture(digits: int, cells: dict[str, Cell]) -> bytes | None:
    """The first seed of every cell in the plane; None where nothing is there."""
    rows = {label: spaces for label, cell in cells.items() if (spaces := _spaces(cell))}
    title = f"{digits}-digit MNIST in the plane, ellipses of three standard deviations"
    return plane_maps(rows, digits, title) if rows else None


def _spaces(cell: Cell) -> dict[str, Space]:
    """The sets of the first seed that has any; the centres of all are those of the first, of clean images."""
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


def bins_picture(
    tables: dict[str, TableDescription], results: Sequence[Result]
) -> tuple[bytes, list[Cell]] | None:
    """Of all tables that have any; the methods without an uncertainty of their own are left out."""
    groups = {}
    for title, name in ROOMS.items():
        cells = {
            label: cell
            for label, cell in cells_by_label(tables[name], results).items()
            if any(own_bins(one, "test", "knn") is not None for one in cell.done)
        }
        if cells:
            groups[title] = cells
    if not groups:
        return None
    looks = looks_of(list(tables.values()))
    picture = bin_curves(groups, SETS, looks, "Performance in bins of uncertainty, a line for each seed")
    return picture, [cell for cells in groups.values() for cell in cells.values()]


def write_picture(name: str, picture: bytes, cells: Iterable[Cell], out: Path) -> None:
    """The picture, and beside it where it comes from."""
    record = {
        "title": name,
        **origin("experiments"),
        "environment": environment(),
        "cells": cells_record(cells),
    }
    out.mkdir(parents=True, exist_ok=True)
    with atomic_write(out / f"{name}.png") as temporary:
        temporary.write_bytes(picture)
    write_text(out / f"{name}.json", json.dumps(record, indent=2, ensure_ascii=False) + "\n")


def make(results: Sequence[Result], out: Path, tables: Path, published: Path) -> dict[str, bool]:
    """Write everything; says of each table and picture whether there was anything to show."""
    wanted = {table.name: table for table in read_tables(tables) if table.name.startswith(PREFIX)}
    numbers = read_published(published)
    paths = {name: write_table(table, results, numbers, out / "tables") for name, table in wanted.items()}
    for name, (digits, table) in PLANES.items():
        cells = cells_by_label(wanted[table], results)
        picture = plane_picture(digits, cells)
        if picture is not None:
            write_picture(name, picture, cells.values(), out / "plots")
        paths[name] = picture is not None
    bins = bins_picture(wanted, results)
    if bins is not None:
        write_picture("n_digit_bins", *bins, out / "plots")
    paths["n_digit_bins"] = bins is not None
    return paths


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the tables and the pictures."""
    parser = results_parser("Make the tables and pictures of N-digit MNIST.", "for OUT/tables and OUT/plots")
    options = parser.parse_args(arguments)
    try:
        paths = make(read_results(options.results), options.out, options.tables, options.published)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for name, exists in paths.items():
        print(f"{name}: {'written' if exists else 'none of its cells has been made, left out'}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
