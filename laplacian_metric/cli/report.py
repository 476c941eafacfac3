"""`lam report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from laplacian_metric.cli import common, options

PAGE = "report.html"


def report(
    model: options.Model,
    data: Annotated[str, typer.Argument(help=f"Labelled images. {options.DATA}")],
    out: Annotated[Path, typer.Option(help=f"A new or empty folder; {PAGE} is written into it.")],
    images: options.LabelledImages,
    evaluating: options.Evaluating,
    output: options.Output,
    gallery: options.Gallery = None,
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
    thumbnails: Annotated[
        bool, typer.Option("--images/--no-images", help="Include small pictures of the images in the page.")
    ] = True,
) -> None:
    """Write one HTML page: how many errors refusing avoids, and which images cannot be trusted.

    Example: lam report model photos:test --gallery photos:train --ood holiday --out photos-report
    """
    from laplacian_metric.core.files import output_folder

    with output_folder(out, output.force) as folder:
        from laplacian_metric.report.model_evaluation import evaluated
        from laplacian_metric.report.run_report import run_report

        loaded = images.model(model)
        source = images.open(data, loaded)
        run = evaluated(
            loaded,
            source,
            evaluating.open_ood(images, loaded),
            gallery=images.open_gallery(gallery, loaded),
            title=title,
            thumbnails=thumbnails,
            samples=evaluating.samples,
            seed=evaluating.seed,
        )
        page = run_report(run, resamples=evaluating.resamples, seed=evaluating.seed)
        (folder / PAGE).write_text(page.html(), encoding="utf-8")
    if output.as_json:
        common.print_json({"report": str(out / PAGE), "images": len(source)})
    else:
        common.show(f"report: {out / PAGE}")
