"""`lam evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from laplacian_metric.cli import common, options

if TYPE_CHECKING:
    from rich.table import Table

    from laplacian_metric.report.model_evaluation import ModelEvaluation

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
    "probability_ece": "calibration error of the probability that the nearest is right (0 is best)",
    "brier": "mean squared error of that probability (0 is best)",
    "retrieval_ece": "calibration error of joint samples (0 is best)",
}
OOD_MEANINGS = {  # of each set of OOD images
    "auroc": ("AUROC", "OOD images are less certain (0.5 is chance)"),
    "open_set_auroc": ("open-set AUROC", "right answers are more certain than wrong ones and OOD images"),
}


def evaluate(
    model: options.Model,
    data: Annotated[str, typer.Argument(help=f"Labelled images. {options.DATA}")],
    images: options.LabelledImages,
    evaluating: options.Evaluating,
    output: options.Output,
    gallery: options.Gallery = None,
    out: Annotated[Path | None, typer.Option(help="A result file for compare, JSON.")] = None,
    name: Annotated[
        str | None, typer.Option(help="The result's name in compare; by default the data's name.")
    ] = None,
) -> None:
    """Measure how well a model retrieves, and whether its uncertainty detects errors and OOD images.

    The test split of a data set is taken unless another is named. Each image is searched for among the others, or in
    --gallery.

    Example: lam evaluate model photos:test --gallery photos:train

    Example: lam evaluate model photos:test --ood holiday --out photos.json
    """
    if out is not None:
        common.check_new(out, output.force)
    from laplacian_metric.report import model_evaluation

    loaded = images.model(model)
    result = model_evaluation.evaluate(
        loaded,
        images.open(data, loaded),
        evaluating.open_ood(images, loaded),
        gallery=images.open_gallery(gallery, loaded),
        name=name,
        samples=evaluating.samples,
        resamples=evaluating.resamples,
        seed=evaluating.seed,
    )
    record = result.to_dict()
    if out is not None:
        common.write_json(out, record, output.force)
    if output.as_json:  # what was measured of each query is for files
        common.print_json({**record, "queries": None})
        return
    counts = result.counts
    where = "" if gallery is None else f" among the {result.data['items']} of {result.data['gallery']}"
    common.show(
        f"{result.data['name']}: {counts.answerable} of {counts.queries} images have another of their class{where}",
        _metrics(result),
        "\nBeside scores that need no method (AUROC of wrong answers and of OOD images):",
        _scores(result),
        "\nIf the least certain queries are refused:",
        _refusals(result),
    )


def _metrics(result: ModelEvaluation) -> Table:
    """Return a row for each metric: its name, value, interval and meaning."""
    from laplacian_metric.metrics.evaluation import OWN, ood_name

    named = [(name, name, MEANINGS[name]) for name in result.values if name in MEANINGS]
    for kind, (label, meaning) in OOD_MEANINGS.items():
        if kind == "auroc" or "probability_ece" in result.values:
            named += [(f"{label} {ood}", ood_name(kind, ood), meaning) for ood in result.scores[OWN].ood]
    rows = [
        (label, common.number(result[name]), _interval(result, name), meaning)
        for label, name, meaning in named
    ]
    return common.table(("metric", "value", "95 % interval", "meaning"), rows, numeric=slice(1, 3))


def _interval(result: ModelEvaluation, name: str) -> str:
    bounds = result.intervals.get(name)
    return "-" if bounds is None else f"{common.number(bounds.low)} to {common.number(bounds.high)}"


def _scores(result: ModelEvaluation) -> Table:
    """Return how the model's uncertainty and other scores detect wrong answers and OOD images."""
    from laplacian_metric.metrics.evaluation import OWN
    from laplacian_metric.report.texts import score_name

    ood = list(result.scores[OWN].ood)
    rows = [
        (
            score_name(name),
            common.number(score.values.get("r_auroc")),
            *(common.number(score.ood[label].get("auroc")) for label in ood),
        )
        for name, score in result.scores.items()
    ]
    return common.table(("score", "wrong answers", *ood), rows)


def _refusals(result: ModelEvaluation) -> Table:
    """Return the share of wrong answers, and of refused OOD images, where a share of the queries is refused."""
    from laplacian_metric.metrics.evaluation import OWN
    from laplacian_metric.report.texts import share

    ood = list(result.scores[OWN].ood)
    rows = [
        (
            share(row.share),
            share(row.error),
            " to ".join(map(share, row.interval)),
            *(share(row.ood[o]) for o in ood),
        )
        for row in result.refusals
    ]
    header = ("refused", "wrong answers", "95 % interval", *(f"refused of {label}" for label in ood))
    return common.table(header, rows)
