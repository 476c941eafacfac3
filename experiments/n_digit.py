"""Pictures of N-digit MNIST in the plane, as in Figures 3, 4 and 7 of the HIB paper.

    python -m experiments.n_digit --results figures/results --out figures

writes OUT/plots/n_digit_plane_*, images as ellipses, clean and corrupt, each with a JSON file that says where it comes
from. Pictures whose cells have not been run are left out, and the command says so. The tables are those of
`python -m experiments.harness tables` whose names begin with n_digit. The cells are run by
`python -m experiments.harness run --cells "n_digit/*"`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.common import environment, origin, write_text
from experiments.arguments import parser, result_folders
from experiments.harness.results import OWN, Result, Space, read_results
from experiments.harness.tables.descriptions import TableDescription, read_tables
from experiments.harness.tables.plane import plane_maps
from experiments.harness.tables.seeds import Cell, cells_record
from experiments.harness.tables.tables import cells_of
from laplacian_metric.core.files import atomic_write

SETS = {"test": "clean", "corrupt": "corrupt"}
# Pictures, with the number of digits and the table whose rows they show.
PLANES = {
    "n_digit_plane_N2": (2, "n_digit_n2_d2"),
    "n_digit_plane_N2_hidden": (2, "n_digit_n2_d2_hidden"),
}


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
