"""`lam compare`."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from laplacian_metric.cli import common, options

if TYPE_CHECKING:
    from laplacian_metric.report.comparing import Difference, Group


def compare(
    results: Annotated[list[Path], typer.Argument(help="Files of evaluate --out.")],
    name: Annotated[
        list[str] | None,
        typer.Option(help="A name for each file, in their order; files that share a name count as seeds."),
    ] = None,
    metric: Annotated[list[str] | None, typer.Option(help="Show this metric; may be repeated.")] = None,
    level: Annotated[float, typer.Option(help="Level of the intervals of differences.")] = 0.95,
    as_json: options.AsJson = False,
) -> None:
    """Compare evaluations: means and spreads over seeds, and differences from the first, with intervals.

    Differences are paired by seed. With a single seed the intervals come from a bootstrap over queries, which takes the
    same queries for both files if both were evaluated on the same images.

    Example: lam compare diag.json lowrank.json --metric r_auroc
    """
    from laplacian_metric.report import comparing

    groups = comparing.read_results(results, name or [])
    metrics = comparing.metrics_of(groups, metric or [])
    differences = comparing.differences(groups, metrics, level)
    if as_json:
        common.print_json(
            {
                "results": [
                    {
                        "name": group.name,
                        "seeds": group.seeds,
                        "values": {one: _spread(group, one) for one in metrics},
                    }
                    for group in groups
                ],
                "differences": [asdict(difference) for difference in differences],
            }
        )
        return
    rows = [(one, *(_cell(group, one) for group in groups)) for one in metrics]
    rows.append(("seeds", *(", ".join(map(str, group.seeds)) for group in groups)))
    common.show(common.table(("", *(group.name for group in groups)), rows))
    if differences:
        header = ("", "metric", "difference", f"{100 * level:g} % interval", "over")
        table = common.table(header, map(_row, differences), slice(2, 4))
        common.show(f"\nDifferences from {groups[0].name}", table)


def _spread(group: Group, metric: str) -> dict[str, float] | None:
    spread = group.spread(metric)
    return None if spread is None else {"mean": spread[0], "deviation": spread[1]}


def _cell(group: Group, metric: str) -> str:
    mean, deviation = group.spread(metric) or (None, math.nan)
    return common.number(mean) + ("" if math.isnan(deviation) else f" ± {deviation:.4f}")


def _row(difference: Difference) -> tuple[str, str, str, str, str]:
    bounds = difference.paired or difference.interval
    interval = "-" if bounds is None else f"{bounds.low:+.4f} to {bounds.high:+.4f}"
    over = f"{'seeds' if difference.paired else 'seed'} {', '.join(map(str, difference.seeds))}"
    if difference.interval is not None:
        over += ", the same queries" if difference.same_queries else ", queries drawn apart"
    return difference.name, difference.metric, f"{difference.difference:+.4f}", interval, over
