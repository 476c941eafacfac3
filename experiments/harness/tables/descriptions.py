"""What goes into tables: the rows in their order, the columns, and what is published beside them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from experiments.harness.results import OWN
from experiments.harness.tables import table_columns
from experiments.harness.tables.seeds import TRIVIAL
from experiments.harness.tables.table_columns import Column
from laplacian_metric.core.checked import read_yaml, validated

Text = Annotated[str, Field(min_length=1)]


class Description(BaseModel):
    """What a YAML file says; it knows its keys, and no others."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class RowDescription(Description):
    """A cell in a table, by one of its scores; `published` is the row of the published table, if there is one."""

    label: Text
    cell: Text
    score: str = OWN
    published: str = ""
    group: str = ""


class PairDescription(Description):
    """Two cells that differ in one thing."""

    label: Text
    before: Text
    after: Text
    score: str = OWN


class ColumnDescription(Description):
    """A metric as a column of its own; see `table_columns.find`."""

    metric: Text
    out: str = ""
    title: str = ""


class TableDescription(Description):
    """A table of rows, or one of pairs.

    Columns are names of metrics, or {metric, out, title}; `out` of the table is that of columns that name none.
    `trivial` names a cell whose trivial scores become the last rows. `seeds` are those that each cell should have; None
    are those that any has.
    """

    name: str
    title: Text
    columns: Annotated[tuple[Column, ...], Field(min_length=1)]
    out: str = ""
    rows: tuple[RowDescription, ...] = ()
    pairs: tuple[PairDescription, ...] = ()
    before: str = "as published"
    after: str = "corrected"
    published: str = ""
    seeds: tuple[int, ...] | None = None
    note: str = ""

    @model_validator(mode="before")
    @classmethod
    def _written_out(cls, content: Any) -> Any:
        """Find the columns by their metrics, and write trivial scores out as rows."""
        if not isinstance(content, Mapping):
            return content
        content = dict(content)
        if isinstance(content.get("columns"), Sequence):
            content["columns"] = [_column(entry, content.get("out", "")) for entry in content["columns"]]
        if trivial := content.pop("trivial", None):
            content["rows"] = [
                *content.get("rows", ()),
                *(
                    {"label": label, "cell": trivial, "score": score, "group": "Without any posterior"}
                    for score, label in TRIVIAL.items()
                ),
            ]
        return content

    @model_validator(mode="after")
    def _whole(self) -> TableDescription:
        if bool(self.rows) == bool(self.pairs):
            raise ValueError("either 'rows' or 'pairs' are needed")
        described = [(row.label, row.group) for row in self.rows]
        twice = next(
            (label for at, (label, _) in enumerate(described) if described[at] in described[:at]), ""
        )
        if twice:
            raise ValueError(f"two rows are called {twice!r}: give them different labels or groups")
        return self

    def cells(self) -> tuple[str, ...]:
        """Return the names of all cells, each once."""
        pairs = [cell for pair in self.pairs for cell in (pair.before, pair.after)]
        return tuple(dict.fromkeys([*(row.cell for row in self.rows), *pairs]))


def _column(entry: object, out: str) -> Column:
    one = validated(ColumnDescription, {"metric": entry} if isinstance(entry, str) else entry, "a column")
    return table_columns.find(one.metric, one.out or out, one.title)


def parse_table(name: str, content: Any) -> TableDescription:
    """Return a table out of what its YAML says.

    Example:
        >>> row = {"label": "PFE", "cell": "mnist/pfe"}
        >>> table = parse_table("t", {"title": "T", "columns": ["AUROC"], "out": "svhn", "rows": [row]})
        >>> table.columns[0].out, table.rows[0].score
        ('svhn', 'own')
    """
    return validated(TableDescription, _named(name, content), f"table {name}")


def parse_tables(content: Mapping[str, Any]) -> list[TableDescription]:
    """Return all tables of a YAML mapping of their names."""
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


def _named(name: str, content: Any) -> Any:
    return {**content, "name": name} if isinstance(content, Mapping) else content


@dataclass(frozen=True)
class PublishedNumber:
    """A number as it was printed; the deviation is None where none was given.

    Example:
        >>> PublishedNumber.parse("0.78 ± 0.01")
        PublishedNumber(text='0.78 ± 0.01', mean=0.78, deviation=0.01)
    """

    text: str
    mean: float
    deviation: float | None

    @classmethod
    def parse(cls, text: str) -> PublishedNumber:
        """From "mean" or "mean ± deviation"."""
        match = re.fullmatch(r"(-?\d+\.?\d*)(?: ± (\d+\.?\d*))?", text)
        if match is None:
            raise ValueError(f"{text!r} is not a number like 0.78 or '0.78 ± 0.01'")
        deviation = None if match[2] is None else float(match[2])
        return cls(text, float(match[1]), deviation)


def _parsed(text: Any) -> Any:
    return text if isinstance(text, PublishedNumber) else PublishedNumber.parse(str(text))


class PublishedTable(Description):
    """A table of a paper: for each row its numbers by metric, such as "0.78 ± 0.01".

    The name of a metric of out-of-distribution images is followed by that of their set, as in AUROC/mnist.
    """

    source: str
    rows: dict[str, dict[str, Annotated[PublishedNumber, BeforeValidator(_parsed)]]]

    def number(self, row: str, column: Column) -> PublishedNumber | None:
        """Return the number for a column of ours, if there is one; of OOD images only if they are the same set."""
        return self.rows[row].get(f"{column.metric}/{column.out}" if column.out else column.metric)


def read_published(path: Path) -> dict[str, PublishedTable]:
    """Return published tables by name from a YAML file."""
    return {
        name: validated(PublishedTable, content, f"{path}: {name}")
        for name, content in read_yaml(path).items()
    }
