"""What goes into tables and figures: the rows in their order, the columns, and what is published beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from laplacian_metric.core.checked import read_yaml
from laplacian_metric.report import columns
from laplacian_metric.report.columns import Column
from laplacian_metric.report.seeds import TRIVIAL
from laplacian_metric.runs.results import OWN


@dataclass(frozen=True)
class RowDescription:
    """A cell in a table, by one of its scores; `published` is the row of the published table, if it is there.

    `style` is what decides its colour in figures: the method's name, or by default the label.
    """

    label: str
    cell: str
    score: str = OWN
    published: str = ""
    group: str = ""
    style: str = ""


@dataclass(frozen=True)
class PairDescription:
    """Two cells that differ in one thing."""

    label: str
    before: str
    after: str
    score: str = OWN


@dataclass(frozen=True)
class TableDescription:
    """A table of rows, or one of pairs. `seeds` are those that each cell should have; None: those that any has."""

    name: str
    title: str
    columns: tuple[Column, ...]
    out: str = ""
    rows: tuple[RowDescription, ...] = ()
    pairs: tuple[PairDescription, ...] = ()
    before: str = "as published"
    after: str = "corrected"
    published: str = ""
    seeds: tuple[int, ...] | None = None
    note: str = ""

    def cells(self) -> tuple[str, ...]:
        """The names of all cells, each once."""
        pairs = [cell for pair in self.pairs for cell in (pair.before, pair.after)]
        return tuple(dict.fromkeys([*(row.cell for row in self.rows), *pairs]))


@dataclass(frozen=True)
class FigureDescription:
    """A figure of the cells of some tables, by the title of their panel.

    `metric` is the validation metric of training curves, `seed` picks the network where only one is shown, `rows` picks
    rows by their labels, all if it is empty.
    """

    name: str
    kind: str
    title: str
    panels: Mapping[str, str]
    columns: tuple[str, ...] = ()
    metric: str = "map@5"
    seed: int | None = None
    rows: tuple[str, ...] = ()


KINDS = ("summary", "calibration", "roc", "sparsification", "training", "latent", "extremes")
_FIGURE_KEYS = ("kind", "title", "panels", "columns", "metric", "seed", "rows")
_TABLE_KEYS = (
    "title",
    "columns",
    "out",
    "rows",
    "pairs",
    "before",
    "after",
    "trivial",
    "published",
    "seeds",
    "note",
)
_ROW_KEYS = ("label", "cell", "score", "published", "group", "style")
_PAIR_KEYS = ("label", "before", "after", "score")


def parse_table(name: str, content: Mapping[str, Any]) -> TableDescription:
    """A table out of what its YAML says.

    Columns are names of metrics, or {metric, out, title}; `out` of the table is that of columns that name none.
    `trivial` names a cell whose trivial scores become the last rows.

    Example:
        >>> row = {"label": "PFE", "cell": "mnist/pfe"}
        >>> table = parse_table("t", {"title": "T", "columns": ["AUROC"], "out": "svhn", "rows": [row]})
        >>> table.columns[0].out, table.rows[0].score
        ('svhn', 'own')
    """
    entries = _checked(content, _TABLE_KEYS, ("title", "columns"), f"table {name}")
    found = [_column(entry, entries.get("out", ""), name) for entry in entries["columns"]]
    rows = [
        RowDescription(**_checked(row, _ROW_KEYS, ("label", "cell"), f"table {name}, row {number + 1}"))
        for number, row in enumerate(entries.get("rows", []))
    ]
    pairs = [
        PairDescription(**_checked(pair, _PAIR_KEYS, _PAIR_KEYS[:3], f"table {name}, pair {number + 1}"))
        for number, pair in enumerate(entries.get("pairs", []))
    ]
    if bool(rows) == bool(pairs):
        raise ValueError(f"table {name} needs either 'rows' or 'pairs'")
    if "trivial" in entries:
        rows += [
            RowDescription(score, entries["trivial"], score, group="Without any posterior")
            for score in TRIVIAL
        ]
    described = [(row.label, row.group) for row in rows]
    twice = next(
        (label for number, (label, group) in enumerate(described) if (label, group) in described[:number]), ""
    )
    if twice:
        raise ValueError(f"table {name} has two rows {twice!r}: give them different labels or groups")
    kept = {
        key: entries[key]
        for key in ("title", "out", "before", "after", "published", "note")
        if key in entries
    }
    seeds = None if entries.get("seeds") is None else tuple(entries["seeds"])
    return TableDescription(
        name, columns=tuple(found), rows=tuple(rows), pairs=tuple(pairs), seeds=seeds, **kept
    )


def parse_tables(content: Mapping[str, Any]) -> list[TableDescription]:
    """All tables of a YAML mapping of their names."""
    return [parse_table(name, entry) for name, entry in content.items()]


def read_tables(path: Path, only: Sequence[str] = ()) -> list[TableDescription]:
    """Return the tables that a YAML file describes, or those of them that ``only`` names."""
    try:
        tables = parse_tables(read_yaml(path).get("tables", {}))
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from error
    names = [table.name for table in tables]
    for name in only:
        if name not in names:
            raise ValueError(f"no table is called {name!r}; there are: {', '.join(names)}")
    return [table for table in tables if not only or table.name in only]


def parse_figure(
    name: str, content: Mapping[str, Any], tables: Sequence[TableDescription]
) -> FigureDescription:
    """A figure out of what its YAML says; its panels are names of tables with rows.

    Example:
        >>> row = {"label": "PFE", "cell": "mnist/pfe"}
        >>> table = parse_table("t", {"title": "T", "columns": ["ECE"], "rows": [row]})
        >>> parse_figure("f", {"kind": "calibration", "title": "F", "panels": {"t": "MNIST"}}, [table]).panels
        {'t': 'MNIST'}
    """
    entries = _checked(content, _FIGURE_KEYS, _FIGURE_KEYS[:3], f"figure {name}")
    if entries["kind"] not in KINDS:
        raise ValueError(f"figure {name} is of the kind {entries['kind']!r}; there are: {', '.join(KINDS)}")
    rooms = {table.name: table for table in tables if table.rows}
    for panel in entries["panels"]:
        if panel not in rooms:
            raise ValueError(
                f"figure {name}: no table with rows is called {panel!r}; there are: {', '.join(rooms)}"
            )
        if entries["kind"] in ("roc", "summary") and not rooms[panel].out:
            raise ValueError(
                f"figure {name}: table {panel} does not say which set is out of the distribution: give 'out'"
            )
    if entries["kind"] == "summary" and not entries.get("columns"):
        raise ValueError(f"figure {name} lacks 'columns'")
    for column in entries.get("columns", ()):
        try:
            columns.find(column, out="any")
        except ValueError as error:
            raise ValueError(f"figure {name}: {error}") from error
    # Figures may share one list, of which each takes what its tables have.
    known = {row.label for table in tables for row in table.rows}
    for label in entries.get("rows", ()):
        if label not in known:
            raise ValueError(f"figure {name}: no table has a row {label!r}")
    lists = {key: tuple(entries.get(key, ())) for key in ("columns", "rows")}
    return FigureDescription(name, **{**entries, **lists})


def _column(entry: object, out: str, table: str) -> Column:
    chosen = {"metric": entry} if isinstance(entry, str) else entry
    known = _checked(chosen, ("metric", "out", "title"), ("metric",), f"a column of table {table}")
    try:
        return columns.find(known["metric"], known.get("out", out), known.get("title", ""))
    except ValueError as error:
        raise ValueError(f"table {table}: {error}") from error


def _checked(content: object, known: Sequence[str], needed: Sequence[str], where: str) -> dict[str, Any]:
    if not isinstance(content, Mapping):
        raise ValueError(f"{where} is {content!r}, it must say {', '.join(needed)}")
    for key in content:
        if key not in known:
            raise ValueError(f"{where} has {key!r}, which is not known; there are: {', '.join(known)}")
    for key in needed:
        if not content.get(key):
            raise ValueError(f"{where} lacks {key!r}")
    return dict(content)
