"""`lam index`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from laplacian_metric.cli import common, options

if TYPE_CHECKING:
    from laplacian_metric.retrieval import Index


def index(
    model: options.Model,
    data: Annotated[str, typer.Argument(help=f"The images that are searched. {options.DATA}")],
    out: Annotated[Path, typer.Option(help="The index's folder, which is made.")],
    images: options.LabelledImages,
    output: options.Output,
    calibrate: Annotated[
        str | None,
        typer.Option(
            help="Labelled images that are in neither the index nor the training: lets the index refuse."
        ),
    ] = None,
    alpha: Annotated[
        float, typer.Option(help="Promise: the largest share of wrong answers among all answers.")
    ] = 0.05,
    delta: Annotated[float, typer.Option(help="The probability that the promise does not hold.")] = 0.1,
    level: Annotated[float, typer.Option(help="Promise: the share of answer sets with a right item.")] = 0.9,
    kind: Annotated[
        Literal["flat", "ivf", "hnsw"], typer.Option(help="Exact search, or faster ones for many items.")
    ] = "flat",
    clean: Annotated[float, typer.Option(help="Leave out this share of items, the least certain.")] = 0.0,
    seed: options.Seed = 0,
) -> None:
    """Build an index of images. Once calibrated, it rejects queries that it is likely to get wrong.

    The training images of a data set are indexed, and all images of a folder, unless a split is named.

    Example: lam index model photos:train --calibrate photos:test --alpha 0.1 --out photos.index
    """
    from laplacian_metric.cli.steps import indexing
    from laplacian_metric.retrieval.storage import _check_target, save

    _check_target(out, output.force)
    loaded = images.model(model)
    gallery = images.open(data, loaded, "train")
    queries = None if calibrate is None else images.open_other(calibrate, loaded, "validation")
    promise = indexing.Promise(alpha, delta, level, seed)
    built = indexing.build_index(loaded, gallery, queries, promise, kind=kind, clean=clean)
    save(built, out, overwrite=output.force)
    if output.as_json:
        common.print_json({"out": str(out), **indexing.described(built)})
    else:
        common.show(f"{out}: {len(built)} items in {built.dim} dimensions.", _promise(built))


def _promise(index: Index) -> str:
    """Return what the index promises, in words."""
    threshold = index.threshold
    if threshold is None:
        return "It answers every query: --calibrate lets it refuse."
    share = threshold.answered / threshold.tested
    wrong = threshold.wrong / threshold.answered if threshold.answered else 0.0
    return (
        f"It answers queries whose uncertainty is at most {threshold.value:.4g}: {share:.1%} of the calibration\n"
        f"queries, {wrong:.1%} of them wrongly. Promised: at most {threshold.alpha:.1%} of its answers are wrong,\n"
        f"with probability {1 - threshold.delta:.0%}, for queries like those."
    )
