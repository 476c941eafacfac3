"""`lam demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from laplacian_metric.cli import common, options


def demo(
    out: Annotated[Path, typer.Option(help="A new or empty folder; report.html is written into it.")],
    force: Annotated[
        bool,
        typer.Option("--force", help="Accept a folder that is not empty; only its report.html is replaced."),
    ] = False,
    seed: options.Seed = 0,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Passes over the training images; by default 25.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Train a small network on installed images and write a page about which of its answers can be trusted.

    Example: lam demo --out demo-report
    """
    from laplacian_metric.demo.compute import ANSWERED, EPOCHS, REPORT_NAME, run_demo
    from laplacian_metric.report.page import share

    figures = run_demo(
        out,
        force=force,
        seed=seed,
        epochs=epochs or EPOCHS,
        on_stage=lambda stage: common.note(f"{stage} ..."),
    ).figures
    if as_json:
        common.print_json({"report": str(out / REPORT_NAME), **figures})
        return
    error = figures["accepted_error"]
    rows = [
        ("wrong answers if every query is answered", share(figures["error"])),
        ("calibration error of the probability that an answer is right", f"{figures['probability_ece']:.3f}"),
        ("wrong answers are less probable than right ones (AUROC)", f"{figures['r_auroc']:.3f}"),
        ("digits are less like the training images than clothes (AUROC)", f"{figures['ood_auroc']:.3f}"),
        ("accepted answers", share(figures["accepted"])),
        ("wrong answers among the accepted", "-" if error is None else share(error)),
        ("accepted digits", share(figures["ood_accepted"])),
    ]
    compared = [(name, *map(share, errors.values())) for name, errors in figures["errors"].items()]
    header = ("wrong answers where this share is answered", *(share(float(part)) for part in ANSWERED))
    common.show(
        f"trained in {figures['training_seconds']:.1f} s, everything in {figures['seconds']:.1f} s",
        common.table(("", ""), rows),
        common.table(header, compared),
        f"report: {out / REPORT_NAME}",
    )
