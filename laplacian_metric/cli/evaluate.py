"""`lam evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from laplacian_metric.cli import common, options

MEANINGS = {
    "recall@1": "the nearest neighbour is right",
    "recall@5": "",
    "recall@10": "",
    "map@5": "mean average precision of the first 5",
    "map@10": "",
    "map@r": "",
    "r_precision": "",
    "r_auroc": "wrong answers are less certain than right ones (0.5 is chance)",
    "ausc": "accuracy while the least certain are refused (1 is best)",
    "ausc_oracle": "... if the wrong answers were known",
    "ausc_random": "... if queries were refused at random",
    "retrieval_ece": "calibration error (0 is best)",
}


def evaluate(
    model: options.Model,
    data: Annotated[str, typer.Argument(help=f"Labelled images. {options.DATA}")],
    images: options.LabelledImages,
    evaluating: options.Evaluating,
    output: options.Output,
    out: Annotated[Path | None, typer.Option(help="A result file for compare, JSON.")] = None,
    name: Annotated[
        str | None, typer.Option(help="The result's name in compare; by default the data's name.")
    ] = None,
) -> None:
    """Measure how well a model retrieves, and whether its uncertainty detects errors and OOD images.

    The test split of a data set is taken unless another is named. Each image is searched for among the others.

    Example: lam evaluate model photos:test --ood holiday --out photos.json
    """
    if out is not None:
        common.check_new(out, output.force)
    from laplacian_metric.cli.steps.evaluating import evaluate as evaluate_source

    loaded = images.model(model)
    result = evaluate_source(
        loaded,
        images.open(data, loaded),
        evaluating.open_ood(images, loaded),
        name=name,
        samples=evaluating.samples,
        resamples=evaluating.resamples,
        seed=evaluating.seed,
    )
    if out is not None:
        common.write_json(out, result, output.force)
    if output.as_json:
        common.print_json(result)
        return
    rows = [
        (metric, *_with_interval(result, metric), MEANINGS[metric])
        for metric in result["values"]
        if metric in MEANINGS
    ]
    for label, detection in result["strangers"].items():
        interval = _with_interval(detection, "ood_auroc")
        rows.append((f"AUROC {label}", *interval, "OOD images are less certain (0.5 is chance)"))
    counts = result["counts"]
    common.show(
        f"{result['data']['name']}: {counts['answerable']} of {counts['queries']} images have another of their class",
        common.table(("metric", "value", "95 % interval", "meaning"), rows, numeric=slice(1, 3)),
        "\nIf the least certain queries are refused:",
        _refusing(result),
    )


def _refusing(result: dict[str, Any]) -> str:
    """Return the table of the errors that remain."""
    header = ["least certain refused", "wrong answers", "95 % interval"]
    rows = [
        (
            f"{row['refused']:.1%}",
            f"{row['error']:.1%}",
            f"{row['low']:.1%} to {row['high']:.1%}",
            *(f"{share:.1%}" for share in row["strangers"].values()),
        )
        for row in result["refusing"]
    ]
    return common.table([*header, *(f"of {label} refused" for label in result["strangers"])], rows)


def _with_interval(result: dict[str, Any], metric: str) -> tuple[str, str]:
    interval = result["intervals"].get(metric)
    text = "-"
    if interval is not None and None not in (interval["low"], interval["high"]):
        text = f"{common.number(interval['low'])} to {common.number(interval['high'])}"
    return common.number(result["values"][metric]), text
