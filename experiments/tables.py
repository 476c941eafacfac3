"""The tables: from result files to Markdown, LaTeX and JSON.

    python -m experiments.tables --results figures/results --out figures

What goes into each is in `experiments/tables.yaml`, what others have published in `experiments/published_numbers.yaml`.
Every table becomes OUT/tables/<name>.md, .tex and .json; the last has the commit and the command of every cell in it.
A table none of whose cells has been made, trivial scores aside, is left out, and the command says so.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from benchmarks.common import environment, origin, write_text
from experiments.harness.tables.descriptions import PublishedTable, TableDescription, read_published, read_tables
from experiments.harness.tables.seeds import TRIVIAL, cells_record, cells_sentence
from experiments.harness.tables.table_text import latex, markdown
from experiments.harness.tables.tables import build_table, cells_of
from experiments.harness.results import Result, read_results

HERE = Path(__file__).resolve().parent


def write_table(
    description: TableDescription,
    results: Sequence[Result],
    published: dict[str, PublishedTable],
    out: Path,
) -> bool:
    """Write one table; False if none of its cells is there."""
    cells = cells_of(description, results)
    # The cell that lends its trivial scores alone makes no table.
    own = {row.cell for row in description.rows if row.score not in TRIVIAL} or set(cells)
    if not any(cells[name].done or cells[name].failed for name in own):
        return False
    provenance = origin("experiments")
    source = f"Made by `{provenance['command']}` at commit {provenance['commit']}. {cells_sentence(cells.values())}"
    table = build_table(description, results, published)
    table = replace(table, notes=(*table.notes, source))
    record = {
        "title": table.title,
        **provenance,
        "environment": environment(),
        "header": table.header,
        "rows": [asdict(line) for line in table.lines],
        "notes": table.notes,
        "cells": cells_record(cells.values()),
    }
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / f"{table.name}.md", markdown(table))
    write_text(out / f"{table.name}.tex", latex(table))
    write_text(out / f"{table.name}.json", json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    return True


def results_parser(description: str, out: str) -> argparse.ArgumentParser:
    """Return a parser that knows where results, descriptions and published numbers are, and where output goes."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--results", type=Path, default=Path("figures/results"), help="folder of result files"
    )
    parser.add_argument("--out", type=Path, default=Path("figures"), help=out)
    parser.add_argument("--tables", type=Path, default=HERE / "tables.yaml", help="what goes into each")
    parser.add_argument("--published", type=Path, default=HERE / "published_numbers.yaml")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Write all tables, or those asked for."""
    parser = results_parser("Make the tables from result files.", "tables go to OUT/tables")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="make only these tables")
    options = parser.parse_args(arguments)
    try:
        wanted = read_tables(options.tables, options.only or [])
        results = read_results(options.results)
        published = read_published(options.published)
        for description in wanted:
            exists = write_table(description, results, published, options.out / "tables")
            print(
                f"{description.name}: {'written' if exists else 'none of its cells has been made, left out'}"
            )
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
