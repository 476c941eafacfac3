"""The figures: from result files to pictures, each with a JSON file that says where it comes from.

    python -m experiments.figures --results figures/results --out figures --data DATA

What is drawn is under `figures` in `experiments/tables.yaml`. Every figure becomes OUT/plots/<name>.png and .json; the
latter has the commit and the command of every cell in it. Only the pictures of images read DATA, the folder of the data
sets; without it they are left out. A figure none of whose cells has what it shows is left out, and the command says so.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import environment, origin, write_text
from experiments.harness.results import OWN, Result, read_results
from experiments.harness.tables.curves import (
    calibration_curves,
    roc_curves,
    sparsification_curves,
    training_curves,
)
from experiments.harness.tables.descriptions import (
    FigureDescription,
    PublishedNumber,
    PublishedTable,
    TableDescription,
    parse_figure,
    parse_tables,
    read_published,
)
from experiments.harness.tables.latent import latent_maps
from experiments.harness.tables.pictures import PictureRow, extreme_pictures
from experiments.harness.tables.seeds import Cell, cells_record
from experiments.harness.tables.styles import Style, styles
from experiments.harness.tables.summary import summary_figure
from experiments.harness.tables.table_columns import find
from experiments.harness.tables.tables import cells_of
from experiments.images import ImagesOfResults
from experiments.sets.lookup import MissingDataError
from experiments.tables import results_parser
from laplacian_metric.core.checked import read_yaml
from laplacian_metric.core.files import atomic_write

SHOWN = 8  # images in a row of each half


@dataclass(frozen=True)
class Panel:
    """The cells of one table by their label."""

    title: str
    table: TableDescription
    cells: Mapping[str, Cell]


@dataclass(frozen=True)
class Material:
    """What all figures are drawn from. Looks are by label, the same in all figures."""

    tables: Sequence[TableDescription]
    results: Sequence[Result]
    published: Mapping[str, PublishedTable]
    looks: Mapping[str, Style]
    images: ImagesOfResults | None

    def panels(self, figure: FigureDescription, has: Callable[[Result], bool]) -> list[Panel]:
        """The panels in which some result has what the figure shows.

        In them, a cell that is done and has nothing to show (a method without an uncertainty, say) is left out;
        failed and missing ones stay.
        """
        drawn_panels = []
        for name, title in figure.panels.items():
            table = next(table for table in self.tables if table.name == name)
            cells = cells_of(table, self.results)
            mine = {
                row.label: cells[row.cell]
                for row in table.rows
                if row.score == OWN
                and row.label in (figure.rows or [row.label])
                and (not cells[row.cell].done or any(map(has, cells[row.cell].done)))
            }
            if any(has(result) for cell in mine.values() for result in cell.done):
                drawn_panels.append(Panel(title, table, mine))
        return drawn_panels


def looks_of(tables: Sequence[TableDescription]) -> dict[str, Style]:
    """A style for every label in any table; rows of one method share the style that they name."""
    rows = [row for table in tables for row in table.rows if row.score == OWN]
    by_style = styles(row.style or row.label for row in rows)
    looks: dict[str, Style] = {}
    for row in rows:
        look = by_style[row.style or row.label]
        if looks.setdefault(row.label, look) != look:
            raise ValueError(f"the label {row.label!r} has two styles: give all of its rows the same 'style'")
    return looks


# --- one function for each kind; None where there is nothing to draw ---

Drawn = tuple[bytes, list[Panel]] | None


def draw_summary(figure: FigureDescription, material: Material) -> Drawn:
    shown = material.panels(figure, lambda result: True)
    if not shown:
        return None
    metrics = {
        name: {panel.title: (panel.cells, find(name, out=panel.table.out)) for panel in shown}
        for name in figure.columns
    }
    theirs: dict[tuple[str, str, str], PublishedNumber] = {}
    for panel in shown:
        if panel.table.published not in material.published:
            continue
        for row in panel.table.rows:
            for name in figure.columns if row.published else ():
                column = find(name, out=panel.table.out)
                number = material.published[panel.table.published].number(row.published, column)
                if number is not None:
                    theirs[panel.title, name, row.label] = number
    return summary_figure(metrics, material.looks, theirs, figure.title), shown


def draw_calibration(figure: FigureDescription, material: Material) -> Drawn:
    shown = material.panels(figure, lambda result: result.calibration is not None)
    return (calibration_curves(_cells(shown), material.looks), shown) if shown else None


def draw_roc(figure: FigureDescription, material: Material) -> Drawn:
    shown = material.panels(figure, lambda result: result.curves is not None and bool(result.curves.roc))
    groups = {panel.title: (panel.cells, panel.table.out) for panel in shown}
    return (roc_curves(groups, material.looks), shown) if shown else None


def draw_sparsification(figure: FigureDescription, material: Material) -> Drawn:
    shown = material.panels(
        figure, lambda result: result.curves is not None and OWN in result.curves.sparsification
    )
    return (sparsification_curves(_joined(shown), material.looks, figure.title), shown) if shown else None


def draw_training(figure: FigureDescription, material: Material) -> Drawn:
    shown = material.panels(figure, lambda result: result.training is not None)
    if not shown:
        return None
    return training_curves(_joined(shown), material.looks, figure.metric, figure.title), shown


def draw_latent(figure: FigureDescription, material: Material) -> Drawn:
    shown = material.panels(figure, lambda result: result.latent is not None)
    groups = {}
    names: Sequence[str] | None = None
    for panel in shown:
        for label, cell in panel.cells.items():
            result = _one(cell, figure.seed)
            if result is not None and result.latent is not None:
                groups[label if len(shown) == 1 else f"{panel.title}, {label}"] = result.latent
                if material.images is not None and names is None:
                    names = material.images.class_names(result)
    title = figure.title + _absent(shown)
    return (latent_maps(groups, names, title=title), shown) if groups else None


def draw_extremes(figure: FigureDescription, material: Material) -> Drawn:
    if material.images is None:
        return None
    shown = material.panels(figure, lambda result: bool(result.extremes))
    rows = []
    for panel in shown:
        for label, cell in panel.cells.items():
            result = _one(cell, figure.seed)
            if result is None:
                continue
            for name, image_rows in result.extremes.items():
                low, high = (
                    material.images.pictures(result, name, side[:SHOWN])
                    for side in (image_rows.lowest, image_rows.highest)
                )
                title = material.images.title(result, name)
                rows.append(PictureRow(title, low, high, f"{label}, seed {result.seed}"))
    title = f"{figure.title}: lowest uncertainty framed blue, highest red{_absent(shown)}"
    return (extreme_pictures(rows, title), shown) if rows else None


def _cells(shown: Sequence[Panel]) -> dict[str, Mapping[str, Cell]]:
    return {panel.title: panel.cells for panel in shown}


def _joined(shown: Sequence[Panel]) -> Mapping[str, Cell]:
    if len(shown) > 1:
        raise ValueError("a figure of this kind has one panel: make one for each table")
    return shown[0].cells


def _absent(shown: Sequence[Panel]) -> str:
    """What cannot be drawn, for figures without a legend that says it."""
    missing: dict[str, list[str]] = {}
    for panel in shown:
        for label, cell in panel.cells.items():
            if not cell.done:
                missing.setdefault("failed" if cell.failed else "missing", []).append(label)
    said = "; ".join(f"{reason}: {', '.join(labels)}" for reason, labels in missing.items())
    return "\n" + textwrap.fill(f"({said})", 90) if said else ""


def _one(cell: Cell, seed: int | None) -> Result | None:
    """The network with that seed, or the first that is done."""
    return next((result for result in cell.done if seed is None or result.seed == seed), None)


DRAW: dict[str, Callable[[FigureDescription, Material], Drawn]] = {
    "summary": draw_summary,
    "calibration": draw_calibration,
    "roc": draw_roc,
    "sparsification": draw_sparsification,
    "training": draw_training,
    "latent": draw_latent,
    "extremes": draw_extremes,
}


def write_figure(figure: FigureDescription, material: Material, out: Path) -> bool:
    """Draw and write one figure; False if there is nothing to draw."""
    drawn = DRAW[figure.kind](figure, material)
    if drawn is None:
        return False
    picture, shown = drawn
    cells = {cell.name: cell for panel in shown for cell in panel.cells.values()}
    record = {
        "title": figure.title,
        "kind": figure.kind,
        **origin("experiments"),
        "environment": environment(),
        "cells": cells_record(cells.values()),
    }
    out.mkdir(parents=True, exist_ok=True)
    with atomic_write(out / f"{figure.name}.png") as temporary:
        temporary.write_bytes(picture)
    write_text(out / f"{figure.name}.json", json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw all figures, or those asked for."""
    parser = results_parser("Draw the figures from result files.", "figures go to OUT/plots")
    parser.add_argument("--data", type=Path, help="folder of the data sets, for pictures of images")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="draw only these figures")
    options = parser.parse_args(arguments)
    try:
        content = read_yaml(options.tables)
        tables = parse_tables(content.get("tables", {}))
        wanted = [parse_figure(name, entry, tables) for name, entry in content.get("figures", {}).items()]
        names = [figure.name for figure in wanted]
        for name in options.only or []:
            if name not in names:
                raise ValueError(f"no figure is called {name!r}; there are: {', '.join(names)}")
        images = None if options.data is None else ImagesOfResults(options.data)
        results, published = read_results(options.results), read_published(options.published)
        material = Material(tables, results, published, looks_of(tables), images)
        for figure in wanted:
            if options.only and figure.name not in options.only:
                continue
            try:
                written = write_figure(figure, material, options.out / "plots")
            except MissingDataError as error:
                print(f"{figure.name}: left out, {error}")
                continue
            if written:
                print(f"{figure.name}: written")
            elif figure.kind == "extremes" and images is None:
                print(f"{figure.name}: needs --data, left out")
            else:
                print(f"{figure.name}: none of its cells has what it shows, left out")
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
