"""Numbers that others have published, to stand beside ours."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from laplacian_metric.core.checked import read_yaml
from laplacian_metric.report.columns import Column


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
        found = re.fullmatch(r"(-?\d+\.?\d*)(?: ± (\d+\.?\d*))?", text)
        if found is None:
            raise ValueError(f"{text!r} is not a number like 0.78 or '0.78 ± 0.01'")
        deviation = None if found[2] is None else float(found[2])
        return cls(text, float(found[1]), deviation)


@dataclass(frozen=True)
class PublishedTable:
    """A table of a paper: for each row its numbers by metric."""

    source: str
    rows: Mapping[str, Mapping[str, PublishedNumber]]

    def number(self, row: str, column: Column) -> PublishedNumber | None:
        """The number for a column of ours, if there is one; about strangers only if they are the same set."""
        return self.rows[row].get(f"{column.metric}/{column.out}" if column.out else column.metric)


def read_published(path: Path) -> dict[str, PublishedTable]:
    """Published tables by name from a YAML file.

    Each has a `source` and `rows`, which hold for each metric a text such as "0.78 ± 0.01". The name of a metric about
    strangers is followed by theirs, as in AUROC/mnist.
    """
    tables = {}
    for name, content in read_yaml(path).items():
        if not isinstance(content, Mapping) or set(content) != {"source", "rows"}:
            raise ValueError(f"{path}: {name} needs 'source' and 'rows', and nothing else")
        rows = {}
        for row, entries in content["rows"].items():
            try:
                rows[row] = {metric: PublishedNumber.parse(str(text)) for metric, text in entries.items()}
            except (ValueError, AttributeError) as error:
                raise ValueError(f"{path}: {name}, {row}: {error}") from error
        tables[name] = PublishedTable(content["source"], rows)
    return tables
