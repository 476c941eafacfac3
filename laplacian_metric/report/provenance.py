"""Where the numbers of a table or a figure come from: the commits and commands of its cells."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from laplacian_metric.report.results import Cell, tidy

_NAMED = 3  # commands that a sentence names; the record beside the table has all


def cells_record(cells: Iterable[Cell]) -> list[dict[str, Any]]:
    """For each seed of each cell its commit and command, and why it failed; missing seeds too."""
    rows: list[dict[str, Any]] = []
    for cell in cells:
        for result in sorted((*cell.done, *cell.failed), key=lambda one: one.seed):
            row = {"cell": cell.name, "seed": result.seed, "status": "done" if result.done else "failed"}
            row |= {"commit": result.commit, "command": tidy(result.command, 1000)}
            rows.append(row if result.error is None else row | {"error": tidy(result.error)})
        rows += [{"cell": cell.name, "seed": seed, "status": "missing"} for seed in cell.missing]
    return rows


def cells_sentence(cells: Iterable[Cell]) -> str:
    """The commits that made the cells, and their commands if they are few.

    Example:
        >>> from laplacian_metric.report.results import Result
        >>> cell = Cell("a", (Result("a", 0, commit="abc", command="python -m x"),))
        >>> cells_sentence([cell])
        'Cells made at commit abc by `python -m x`.'
    """
    results = [result for cell in cells for result in (*cell.done, *cell.failed)]
    if not results:
        return "No cell has been made yet."
    commits = sorted({result.commit for result in results})
    commands = sorted({tidy(result.command, 1000) for result in results})
    plural = "s" if len(commits) > 1 else ""
    said = f"Cells made at commit{plural} {', '.join(commits)}"
    if len(commands) > _NAMED:
        return f"{said} by {len(commands)} commands, which are in the JSON file of the same name."
    return f"{said} by {', '.join(f'`{command}`' for command in commands)}."
