"""`lam demo`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from laplacian_metric.cli import common, options
from laplacian_metric.demo.settings import ALPHA, EPOCHS, REPORT_NAME

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
    as_json: options.AsJson = False,
) -> None:
    """Train a small network on installed images, make it Bayesian, and write a page about which images to trust.

    Example: lam demo --out demo-report
    """
    from laplacian_metric.demo.run import run_demo

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[loss]}"),
        TimeElapsedColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("training", total=None, loss="")

        def on_step(done: int, total: int, loss: float) -> None:
            progress.update(task, completed=done, total=total, loss=f"loss {loss:.3f}")

        def on_stage(what: str) -> None:
            nonlocal task
            progress.update(
                task, total=progress.tasks[-1].total or 1, completed=progress.tasks[-1].total or 1
            )
            task = progress.add_task(what, total=None, loss="")

        result = run_demo(out, force=force, seed=seed, epochs=epochs, on_step=on_step, on_stage=on_stage)
        progress.update(task, total=1, completed=1)
    found = _figures(result)
    if as_json:
        common.print_json({"report": str(out / REPORT_NAME), **found})
    else:
        title = (
            f"{result.train_images:,} images trained on in {found['training_seconds']:.1f} s, everything in "
            f"{found['seconds']:.1f} s"
        )
        common.show(title, _summary(found), f"report: {out / REPORT_NAME}")


def _figures(result: DemoResult) -> dict[str, float | None]:
    """What the page says at greater length; None where no threshold could be promised, or answers nothing."""
    from laplacian_metric import metrics

    told, promised = result.uncertainty, result.refusal
    return {
        "training_seconds": result.training.seconds,
        "seconds": result.seconds,
        "recall@1": result.inside.recall,
        "strangers_auroc": metrics.ood_auroc(told.inside.uncertainty, told.outside.uncertainty),
        "error": promised.error,
        "answered_error": promised.answered_error,
        "answered": promised.answered,
        "strangers_answered": promised.strangers_answered,
        "curvature_deviation": max(agreement.deviation for agreement in result.agreements),
    }


def _summary(figures: dict[str, float | None]) -> str:
    """Return the figures in words."""
    rows = [
        ("recall@1 on test images", f"{figures['recall@1']:.3f}"),
        ("digits are less certain than clothes (0.5 is chance)", f"{figures['strangers_auroc']:.3f}"),
        ("wrong answers if every query is answered", f"{figures['error']:.1%}"),
    ]
    if figures["answered"] is None:
        rows.append((f"a threshold for at most {ALPHA:.0%}", "none can be promised"))
    else:
        error = "none" if figures["answered_error"] is None else f"{figures['answered_error']:.1%}"
        rows += [
            (f"wrong answers below the threshold for at most {ALPHA:.0%}", error),
            ("queries that it answers", f"{figures['answered']:.1%}"),
            ("digits that it answers", f"{figures['strangers_answered']:.1%}"),
        ]
    deviation = f"{figures['curvature_deviation']:.1e}"
    rows.append(("largest relative deviation of the curvature from autograd", deviation))
    return common.table(("", ""), rows)
