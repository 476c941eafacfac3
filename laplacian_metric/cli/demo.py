"""`lam demo`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from laplacian_metric.cli import common, options

if TYPE_CHECKING:
    from laplacian_metric.demo.compute import DemoResult


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
    from laplacian_metric.demo.compute import EPOCHS, REPORT_NAME, run_demo

    result = run_demo(
        out,
        force=force,
        seed=seed,
        epochs=epochs or EPOCHS,
        on_stage=lambda stage: common.note(f"{stage} ..."),
    )
    figures = _figures(result)
    if as_json:
        common.print_json({"report": str(out / REPORT_NAME), **figures})
        return
    common.show(
        f"{len(result.gallery):,} images trained on in {result.trained.seconds:.1f} s, everything in "
        f"{result.seconds:.1f} s",
        common.table(("", ""), _rows(figures)),
        f"report: {out / REPORT_NAME}",
    )


def _figures(result: DemoResult) -> dict[str, Any]:
    """Return the numbers of the page; None where no threshold could be promised, or nothing is answered."""
    from laplacian_metric.demo.compute import OOD

    evaluation = result.evaluation
    return {
        "training_seconds": result.trained.seconds,
        "seconds": result.seconds,
        "error": 1 - evaluation["recall@1"],
        "probability_ece": evaluation["probability_ece"],
        "r_auroc": evaluation["r_auroc"],
        "ood_auroc": evaluation.scores["novelty"].ood[OOD]["auroc"],
        "ood_unlike_anything_seen": float((result.ood.answer.reason == "unlike anything seen").mean()),
        "answered": result.share_answered(result.test),
        "answered_error": result.answered_error,
        "ood_answered": result.share_answered(result.ood),
        "curvature_deviation": max(curvature.deviation for curvature in result.curvatures),
    }


def _rows(figures: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the figures in words."""
    from laplacian_metric.demo.compute import ALPHA

    rows = [
        ("wrong answers if every query is answered", f"{figures['error']:.1%}"),
        ("calibration error of the probability that an answer is right", f"{figures['probability_ece']:.3f}"),
        ("wrong answers are less probable than right ones (AUROC)", f"{figures['r_auroc']:.3f}"),
        ("digits are less like the training images than clothes (AUROC)", f"{figures['ood_auroc']:.3f}"),
        ("digits that are unlike anything seen", f"{figures['ood_unlike_anything_seen']:.1%}"),
    ]
    if figures["answered"] is None:
        rows.append((f"a threshold for at most {ALPHA:.0%} wrong answers", "none can be promised"))
    else:
        error = "none" if figures["answered_error"] is None else f"{figures['answered_error']:.1%}"
        rows += [
            (f"wrong answers below the threshold that promises at most {ALPHA:.0%}", error),
            ("queries that it answers", f"{figures['answered']:.1%}"),
            ("digits that it answers", f"{figures['ood_answered']:.1%}"),
        ]
    deviation = f"{figures['curvature_deviation']:.1e}"
    return [*rows, ("largest relative deviation of the curvature from autograd", deviation)]
