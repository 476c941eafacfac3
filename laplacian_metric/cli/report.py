"""`lam report`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from laplacian_metric.cli import common, options

PAGE = "report.html"


def report(
    model: options.Model,
    data: Annotated[str, typer.Argument(help=f"Labelled images. {options.DATA}")],
    out: Annotated[Path, typer.Option(help=f"A new or empty folder; {PAGE} is written into it.")],
    strangers: options.Strangers = None,
    title: Annotated[str | None, typer.Option(help="Of the page.")] = None,
    images: Annotated[
        bool, typer.Option(help="Put small pictures of the images into the page: whoever gets it, gets them.")
    ] = True,
    samples: options.Samples = 100,
    resamples: options.Resamples = 1000,
    labels: options.Labels = None,
    divide: options.DivideBy = options.Divide.IMAGES,
    seed: options.Seed = 0,
    data_dir: options.DataDir = None,
    skip_broken: options.SkipBroken = False,
    batch_size: options.BatchSize = 100,
    workers: options.Workers = 0,
    device: options.Device = "cpu",
    force: options.Force = False,
    as_json: options.AsJson = False,
    config: options.Config = None,
) -> None:
    """Write one HTML page: which images cannot be trusted, and how much safer retrieval gets by refusing.

    Example: lam report model photos:test --strangers holiday --out photos-report
    """
    from laplacian_metric.report.folder import output_folder

    with output_folder(out, force) as folder:
        from laplacian_metric.cli.steps import devices, evaluating
        from laplacian_metric.cli.steps.sources import Opening, open_source
        from laplacian_metric.laplace.model_folder import ModelFolder
        from laplacian_metric.report.run_report import run_report

        loaded = ModelFolder.load(model, device=devices.device(device))
        how = Opening(loaded.preparation, data_dir, divide.value, skip_broken, batch_size, workers, labels)
        source = open_source(data, how, "test")
        elsewhere = replace(how, labels=None)
        others = [
            open_source(text, elsewhere, "test", every_image=":" not in text) for text in strangers or []
        ]
        run = evaluating.evaluated(
            loaded, source, others, title=title, thumbnails=images, samples=samples, seed=seed
        )
        page = run_report(run, resamples=resamples, seed=seed)
        (folder / PAGE).write_text(page.html(), encoding="utf-8")
    if as_json:
        common.print_json({"report": str(out / PAGE), "images": len(source)})
    else:
        common.show(f"report: {out / PAGE}")
