"""Tables of results: methods by metrics, and pairs of cells with their differences.

A table keeps what it cannot show: cells that failed and seeds that are missing are said in its notes, and what has
no number says why it has none.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from experiments.harness import provenance
from experiments.harness.results import Result
from experiments.harness.tables.descriptions import (
    PairDescription,
    PublishedTable,
    RowDescription,
    TableDescription,
)
from experiments.harness.tables.precisions import Precisions
from experiments.harness.tables.seeds import (
    TRIVIAL,
    Cell,
    Spread,
    cells_record,
    cells_sentence,
    pick,
    seeds_in_words,
    spread,
)
from experiments.harness.tables.table_columns import Column
from experiments.harness.tables.table_text import Entry, Line, ResultTable, markdown
from experiments.harness.work import write_text
from laplacian_metric.metrics.resampling import compare_paired

FAILED, MISSING, NONE = "failed", "missing", "–"


def write_table(
    description: TableDescription,
    results: Sequence[Result],
    published: Mapping[str, PublishedTable],
    folder: Path,
) -> bool:
    """Write <name>.md and <name>.json, which has the origin of every cell; return False if no cell has been made."""
    cells = cells_of(description, results)
    # The cell that lends its trivial scores alone makes no table.
    own = {row.cell for row in description.rows if row.score not in TRIVIAL} or set(cells)
    if not any(cells[name].done or cells[name].failed for name in own):
        return False
    origin = {"command": provenance.command(), "commit": provenance.commit()}
    source = f"Made by `{origin['command']}` at commit {origin['commit']}. {cells_sentence(cells.values())}"
    table = build_table(description, results, published)
    table = replace(table, notes=(*table.notes, source))
    record = {
        "title": table.title,
        **origin,
        "environment": provenance.machine(),
        "header": table.header,
        "rows": [asdict(line) for line in table.lines],
        "notes": table.notes,
        "cells": cells_record(cells.values()),
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / f"{table.name}.md", markdown(table))
    write_text(folder / f"{table.name}.json", json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    return True


def build_table(
    description: TableDescription,
    results: Iterable[Result],
    published: Mapping[str, PublishedTable] | None = None,
    level: float = 0.95,
) -> ResultTable:
    """The table that a description asks for.

    `level` is that of the intervals that decide what is bold. Errors where the description names a published table or
    row that is not there.
    """
    every = list(results)
    cells, precisions = cells_of(description, every), Precisions(every)
    if description.pairs:
        return _pairs(description, cells, precisions, level)
    return _methods(description, cells, precisions, _published(description, published or {}), level)


def cells_of(description: TableDescription, results: Iterable[Result]) -> dict[str, Cell]:
    """The cells of a table by name, missing ones too."""
    every = list(results)
    wanted = description.cells()
    seeds = description.seeds
    if seeds is None:
        seeds = tuple(sorted({result.seed for result in every if result.cell in wanted}))
    return {name: pick(every, name, seeds) for name in wanted}


def _published(
    description: TableDescription, published: Mapping[str, PublishedTable]
) -> PublishedTable | None:
    if not description.published:
        return None
    if description.published not in published:
        names = ", ".join(published) or "none"
        raise ValueError(
            f"table {description.name}: no published table is called {description.published!r}; there are: {names}"
        )
    table = published[description.published]
    for row in description.rows:
        if row.published and row.published not in table.rows:
            raise ValueError(
                f"table {description.name}: {description.published} has no row {row.published!r}; "
                f"there are: {', '.join(table.rows)}"
            )
    return table


def _methods(
    description: TableDescription,
    cells: Mapping[str, Cell],
    precisions: Precisions,
    published: PublishedTable | None,
    level: float,
) -> ResultTable:
    rows = description.rows
    spreads = [
        [spread(column.values(cells[row.cell], row.score)) for column in description.columns] for row in rows
    ]
    bold = [
        _best(column, [line[number] for line in spreads], _sources(rows, column), level)
        for number, column in enumerate(description.columns)
    ]
    lines: list[Line] = []
    heading = ""
    for index, row in enumerate(rows):
        if row.group and row.group != heading:
            lines.append(Line(row.group, kind="group"))
            heading = row.group
        entries = [
            Entry(shown(spreads[index][number], column, cells[row.cell]), bold[number] == index)
            for number, column in enumerate(description.columns)
        ]
        lines.append(Line(row.label, (*entries, Entry(_seeds(cells[row.cell])))))
        if published is not None and row.published:
            lines.append(_published_line(published, row.published, description.columns))
    notes = [
        "Mean ± standard deviation over the seeds; – is where a method has no such number.",
        f"Bold: the best of a column, if its {level:.0%} t interval over the seeds leaves out those of all other rows "
        "(or the value, where another row has one seed only), but for rows that show the same measurement once more; "
        "nothing is bold where no row stands out like that.",
    ]
    if published is not None and any(row.published for row in rows):
        notes.append(f"paper: {published.source}; numbers as printed there.")
    gaps = _gaps(description, cells, spreads)
    header = (*(column.heading for column in description.columns), "seeds")
    notes += [*_unknown_ood(description, cells), *precisions.sentences(cells.values()), *gaps]
    return _finished(description, header, lines, notes)


def _sources(rows: Sequence[RowDescription], column: Column) -> list[tuple[str, str]]:
    """Where the numbers of each row come from; rows with one source have the same number, not a competing one."""
    return [(row.cell, row.score if column.about_uncertainty else "") for row in rows]


def _best(
    column: Column, spreads: Sequence[Spread], sources: Sequence[tuple[str, str]], level: float
) -> int | None:
    """The row whose interval is beyond those of all others."""
    sign = 1.0 if column.higher else -1.0
    with_numbers = [index for index, one in enumerate(spreads) if one.number]
    if len({sources[index] for index in with_numbers}) < 2:
        return None
    best = max(with_numbers, key=lambda index: sign * spreads[index].mean)
    interval = spreads[best].interval(level)
    if interval is None:
        return None
    worst = min(sign * end for end in interval)
    for index in with_numbers:
        if sources[index] == sources[best]:
            continue
        mean = spreads[index].mean
        if max(sign * end for end in spreads[index].interval(level) or (mean, mean)) >= worst:
            return None
    return best


def shown(over_seeds: Spread, column: Column, cell: Cell) -> str:
    """A spread as text, or why there is none.

    Example:
        >>> from experiments.harness.tables.table_columns import find
        >>> cell = Cell("a", done=(Result(cell="a", seed=0), Result(cell="a", seed=1)))
        >>> shown(spread([0.85, 0.86]), find("mAP@1"), cell)
        '0.855 ± 0.007'
    """
    if not cell.done:
        return FAILED if cell.failed else MISSING
    if not over_seeds.number:
        return NONE
    return over_seeds.text(column.digits)


def _seeds(cell: Cell) -> str:
    done = str(len(cell.done))
    return done if len(cell.done) == cell.expected else f"{done} of {cell.expected}"


def _published_line(published: PublishedTable, row: str, columns: Sequence[Column]) -> Line:
    numbers = [published.number(row, column) for column in columns]
    return Line(
        "paper",
        (*(Entry(number.text if number else NONE) for number in numbers), Entry("")),
        kind="published",
    )


def _gaps(
    description: TableDescription, cells: Mapping[str, Cell], spreads: Sequence[Sequence[Spread]]
) -> list[str]:
    """What is not there, in sentences."""
    notes = [f"`{name}`: {said}." for name, cell in cells.items() if (said := cell.said())]
    for row, line in zip(description.rows, spreads, strict=True):
        number = len(cells[row.cell].done)
        notes += [
            f"{row.label}: {column.title or column.metric} is defined for {one.number} of {number} seeds only."
            for column, one in zip(description.columns, line, strict=True)
            if 0 < one.number < number
        ]
    return notes


def _unknown_ood(description: TableDescription, cells: Mapping[str, Cell]) -> list[str]:
    """Columns about OOD images that no result has, which a misspelt name would be."""
    scores = [score for cell in cells.values() for result in cell.done for score in result.scores.values()]
    labels = sorted({name for score in scores for name in score.ood})
    return [
        f"{column.title or column.metric}: no cell has OOD images called `{column.out}`; there are: "
        f"{', '.join(labels)}."
        for column in description.columns
        if column.out and labels and column.out not in labels
    ]


def _pairs(
    description: TableDescription, cells: Mapping[str, Cell], precisions: Precisions, level: float
) -> ResultTable:
    lines: list[Line] = []
    notes = [
        "Mean ± standard deviation over the seeds; – is where a method has no such number.",
        f"Difference: the second less the first, seed by seed, with the {level:.0%} t interval over the seeds that "
        "both have; bold where it leaves 0 out. Of one seed there is no interval.",
    ]
    for pair in description.pairs:
        before, after = cells[pair.before], cells[pair.after]
        lines.append(Line(pair.label, kind="group"))
        for label, cell in ((description.before, before), (description.after, after)):
            entries = [
                Entry(shown(spread(column.values(cell, pair.score)), column, cell))
                for column in description.columns
            ]
            lines.append(Line(label, (*entries, Entry(_seeds(cell)))))
        differences = [_difference(column, before, after, pair, level) for column in description.columns]
        both = {result.seed for result in before.done} & {result.seed for result in after.done}
        lines.append(Line("difference", (*differences, Entry(str(len(both))))))
        for column in description.columns:
            number = len(_of_both(column, before, after, pair)[0])
            if 0 < number < len(both):
                notes.append(
                    f"{pair.label}: the difference in {column.title or column.metric} is of {number} of {len(both)} "
                    "seeds, since it is not defined for the others."
                )
        if unlike := precisions.unlike(before, after):
            notes.append(
                f"{pair.label}, {seeds_in_words(unlike)}: the two were trained in different precision, so the "
                "difference is not of the correction alone."
            )
    notes += [*_unknown_ood(description, cells), *precisions.sentences(cells.values())]
    notes += [f"`{name}`: {said}." for name, cell in cells.items() if (said := cell.said())]
    header = (*(column.heading for column in description.columns), "seeds")
    return _finished(description, header, lines, notes)


def _difference(column: Column, before: Cell, after: Cell, pair: PairDescription, level: float) -> Entry:
    first, second = _of_both(column, before, after, pair)
    if not first:
        return Entry(NONE)
    if len(first) == 1:
        return Entry(f"{second[0] - first[0]:+.{column.digits}f}")
    paired = compare_paired(second, first, level=level)
    low, high = (f"{end:+.{column.digits}f}" for end in (paired.low, paired.high))
    return Entry(f"{paired.difference:+.{column.digits}f} [{low}, {high}]", bold=paired.differs)


def _of_both(
    column: Column, before: Cell, after: Cell, pair: PairDescription
) -> tuple[list[float], list[float]]:
    """The numbers of both cells, seed by seed, where both have one."""
    first = {result.seed: column.value(result, pair.score) for result in before.done}
    second = {result.seed: column.value(result, pair.score) for result in after.done}
    both = [s for s in first if s in second and math.isfinite(first[s]) and math.isfinite(second[s])]
    return [first[s] for s in both], [second[s] for s in both]


def _finished(
    description: TableDescription, header: tuple[str, ...], lines: Sequence[Line], notes: Sequence[str]
) -> ResultTable:
    description_note = [" ".join(description.note.split())] if description.note else []
    return ResultTable(description.name, description.title, header, tuple(lines), (*description_note, *notes))
