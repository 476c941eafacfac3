"""`lam index`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from laplacian_metric.cli import common, options

if TYPE_CHECKING:
    from laplacian_metric.retrieval import Index


def index(
    model: options.Model,
    data: Annotated[str, typer.Argument(help=f"What is searched. {options.DATA}")],
    out: Annotated[Path, typer.Option(help="The index's folder, which is made.")],
    calibrate: Annotated[
        str | None,
        typer.Option(
            help="Labelled images that are in neither the index nor the training: lets the index refuse."
        ),
    ] = None,
    alpha: Annotated[
        float, typer.Option(help="Promise: the share of wrong answers among those given.")
    ] = 0.05,
    delta: Annotated[float, typer.Option(help="The probability that the promise does not hold.")] = 0.1,
    level: Annotated[float, typer.Option(help="Promise: the share of answer sets with a right item.")] = 0.9,
    kind: Annotated[options.Kind, typer.Option(help="Exact, or faster for many items.")] = options.Kind.FLAT,
    clean: Annotated[float, typer.Option(help="Leave out this share of items, the least certain.")] = 0.0,
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
    """Make an index of images; calibrated, it refuses queries whose answers it would get wrong too often.

    Of a data set the training images are indexed, and of a folder all, unless a split is named.

    Example: lam index model photos:train --calibrate photos:test --alpha 0.1 --out photos.index
    """
    from laplacian_metric.cli.steps import devices, indexing
    from laplacian_metric.cli.steps.sources import Opening, open_source
    from laplacian_metric.laplace.model_folder import ModelFolder
    from laplacian_metric.retrieval import save
    from laplacian_metric.retrieval.storage import _check_target

    _check_target(out, force)
    loaded = ModelFolder.load(model, device=devices.device(device))
    how = Opening(loaded.preparation, data_dir, divide.value, skip_broken, batch_size, workers, labels)
    gallery = open_source(data, how, "train")
    queries = None if calibrate is None else open_source(calibrate, replace(how, labels=None), "validation")
    promise = indexing.Promise(alpha, delta, level, seed)
    made = indexing.build_index(loaded, gallery, queries, promise, kind=kind.value, clean=clean)
    save(made, out, overwrite=force)
    if as_json:
        common.print_json({"out": str(out), **indexing.described(made)})
    else:
        common.show(_shown(made, out))


def _shown(made: Index, out: Path) -> str:
    """The promise in words."""
    said = f"{out}: {len(made)} items in {made.dim} dimensions."
    threshold = made.threshold
    if threshold is None:
        return f"{said}\nIt answers every query: --calibrate lets it refuse."
    share = threshold.answered / threshold.tested
    wrong = threshold.wrong / threshold.answered if threshold.answered else 0.0
    return (
        f"{said}\nIt answers queries whose uncertainty is at most {threshold.value:.4g}: {share:.1%} of the calibration"
        f"\nqueries, {wrong:.1%} of them wrongly. Promised: at most {threshold.alpha:.1%} of its answers are wrong,"
        f"\nwith probability {1 - threshold.delta:.0%}, for queries like those."
    )
