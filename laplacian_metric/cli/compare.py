"""`lam compare`."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from laplacian_metric.cli import common, options

if TYPE_CHECKING:
    from laplacian_metric.cli.steps.comparing import Difference, Group


def compare(
    results: Annotated[list[Path], typer.Argument(help="Files of evaluate --out, or result files of runs.")],
    name: Annotated[
        list[str] | None,
        typer.Option(help="What a file is called, once for each; files of one name are its seeds."),
    ] = None,
    metric: Annotated[
        list[str] | None, typer.Option(help="Show this one; may be given several times.")
    ] = None,
    level: Annotated[float, typer.Option(help="Of the intervals of differences.")] = 0.95,
    as_json: options.AsJson = False,
) -> None:
    """Put results side by side: means and spreads over seeds, and differences from the first, seed by seed.

    Example: lam compare diag.json lowrank.json --metric r_auroc
    """
    from laplacian_metric.cli.steps import comparing

    groups = comparing.grouped([comparing.read_result(path) for path in results], name or [])
    shown = comparing.metrics_of(groups, metric or [])
    found = comparing.differences(groups, shown, level)
    if as_json:
        common.print_json(
            {
                "results": [
                    {
                        "name": group.name,
                        "seeds": group.seeds,
                        "values": {one: _spread(group, one) for one in shown},
                    }
                    for group in groups
                ],
                "differences": [asdict(one) for one in found],
            }
        )
        return
    rows = [(one, *(_cell(group, one) for group in groups)) for one in shown]
    rows.append(("seeds", *(", ".join(map(str, group.seeds)) for group in groups)))
    common.show(None, common.table(("", *(group.name for group in groups)), rows))
    if found:
        title = f"Differences from {groups[0].name}, over the seeds that both have"
        header = ("", "metric", "difference", f"{level:.0%} interval", "seeds")
        common.show(title, common.table(header, [_row(one) for one in found], numeric=2))


def _spread(group: Group, metric: str) -> dict[str, float | None] | None:
    found = group.spread(metric)
    return None if found is None else {"mean": found[0], "deviation": found[1]}


def _cell(group: Group, metric: str) -> str:
    found = group.spread(metric)
    if found is None:
        return "-"
    return f"{found[0]:.4f}" if math.isnan(found[1]) else f"{found[0]:.4f} ± {found[1]:.4f}"


def _row(one: Difference) -> tuple[str, str, str, str, str]:
    interval = "-"
    if one.paired is not None:
        interval = f"{one.paired.low:+.4f} to {one.paired.high:+.4f}"
    return one.name, one.metric, f"{one.difference:+.4f}", interval, ", ".join(map(str, one.seeds))
