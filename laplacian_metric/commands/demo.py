"""`lam demo`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from laplacian_metric.commands import common
from laplacian_metric.demo.settings import EPOCHS, REPORT_NAME

if TYPE_CHECKING:
    from laplacian_metric.demo.compute import DemoResult


def demo(
    out: Annotated[Path, typer.Option(help="A new or empty folder; report.html is written into it.")],
    force: Annotated[
        bool,
        typer.Option("--force", help="Accept a folder that is not empty; only its report.html is replaced."),
    ] = False,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Decides all random choices.")] = 0,
    epochs: Annotated[int, typer.Option(min=1, help="How often every training image is seen.")] = EPOCHS,
) -> None:
    """Train a small network on the embedded sample and write a page about its curvature.

    Example: lam demo --out demo-report
    """
    from laplacian_metric.demo.run import run_demo

    columns = (
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.3f}"),
        TimeElapsedColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("training", total=None, loss=float("nan"))

        def on_step(done: int, total: int, loss: float) -> None:
            progress.update(task, completed=done, total=total, loss=loss)

        result = run_demo(out, force=force, seed=seed, epochs=epochs, on_step=on_step)
    common.show(None, _summary(result))
    common.show(f"report: {out / REPORT_NAME}")


def _summary(result: DemoResult) -> Table:
    """The curvature of every variant, with what was measured on the way in the title."""
    worst = max(agreement.deviation for agreement in result.agreements)
    table = Table(
        title=f"recall@1 {result.inside.recall:.3f} on {len(result.inside.sample)} test images, "
        f"trained in {result.training.seconds:.1f} s",
        caption=f"largest relative deviation from autograd: {worst:.1e}",
    )
    table.add_column("distance")
    table.add_column("variant")
    for name in ("pairs", "ms", "trace", "negative"):
        table.add_column(name, justify="right")
    for found in result.curvatures:
        table.add_row(
            found.distance,
            found.approximation,
            f"{found.pairs:,}",
            f"{found.seconds * 1e3:.1f}",
            f"{found.trace:.3g}",
            f"{found.negative_share:.2%}",
        )
    return table
