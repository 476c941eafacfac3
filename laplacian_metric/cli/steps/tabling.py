"""Tables from result files and a description of what goes into them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from laplacian_metric.report.descriptions import parse_tables
from laplacian_metric.report.published import read_published
from laplacian_metric.report.read_yaml import read_yaml
from laplacian_metric.report.result_files import read_results
from laplacian_metric.report.table_text import latex, markdown
from laplacian_metric.report.tables import ResultTable, build_table


@dataclass(frozen=True)
class Made:
    """A table, and its text."""

    table: ResultTable

    @property
    def name(self) -> str:
        return self.table.name

    @property
    def markdown(self) -> str:
        return markdown(self.table)

    @property
    def latex(self) -> str:
        return latex(self.table)

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self.table)


def make_tables(
    results: Path, description: Path, published: Path | None = None, only: Sequence[str] = ()
) -> list[Made]:
    """The tables that a description asks for, from the result files below a folder.

    Args:
        results: the folder.
        description: YAML, see `laplacian_metric.report.descriptions`.
        published: YAML of what others have published; without it tables are of our numbers alone.
        only: the names of those that are made; all if it is empty.
    """
    for path in (description, *(() if published is None else (published,))):
        if not path.is_file():
            raise FileNotFoundError(f"there is no file {path}")
    try:
        wanted = parse_tables(read_yaml(description).get("tables", {}))
    except ValueError as error:
        raise ValueError(f"{description.name}: {error}") from error
    names = [one.name for one in wanted]
    for name in only:
        if name not in names:
            raise ValueError(f"no table is called {name!r}; there are: {', '.join(names)}")
    chosen = [one for one in wanted if not only or one.name in only]
    found = read_results(results)
    others = {} if published is None else read_published(published)
    return [Made(build_table(one, found, others)) for one in chosen]
