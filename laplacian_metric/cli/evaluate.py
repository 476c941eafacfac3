"""`lam evaluate`, `lam compare` and `lam report`."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from laplacian_metric.cli import common, options

if TYPE_CHECKING:
    from rich.table import Table

    from laplacian_metric.report.comparing import Difference, Group
    from laplacian_metric.report.model_evaluation import ModelEvaluation


PAGE = "report.html"
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
    from laplacian_metric.report.page import score_name

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
    from laplacian_metric.report.page import share

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


def compare(
    results: Annotated[list[Path], typer.Argument(help="Files of evaluate --out.")],
    name: Annotated[
        list[str] | None,
        typer.Option(help="A name for each file, in their order; files that share a name count as seeds."),
    ] = None,
    metric: Annotated[list[str] | None, typer.Option(help="Show this metric; may be repeated.")] = None,
    level: Annotated[float, typer.Option(help="Level of the intervals of differences.")] = 0.95,
    as_json: options.AsJson = False,
) -> None:
    """Compare evaluations: means and spreads over seeds, and differences from the first, with intervals.

    Differences are paired by seed. With a single seed the intervals come from a bootstrap over queries, which takes the
    same queries for both files if both were evaluated on the same images.

    Example: lam compare diag.json lowrank.json --metric r_auroc
    """
    from laplacian_metric.report import comparing

    groups = comparing.read_results(results, name or [])
    metrics = comparing.metrics_of(groups, metric or [])
    differences = comparing.differences(groups, metrics, level)
    if as_json:
        common.print_json(
            {
                "results": [
                    {
                        "name": group.name,
                        "seeds": group.seeds,
                        "values": {one: _spread(group, one) for one in metrics},
                    }
                    for group in groups
                ],
                "differences": [asdict(difference) for difference in differences],
            }
        )
        return
    rows = [(one, *(_cell(group, one) for group in groups)) for one in metrics]
    rows.append(("seeds", *(", ".join(map(str, group.seeds)) for group in groups)))
    common.show(common.table(("", *(group.name for group in groups)), rows))
    if differences:
        header = ("", "metric", "difference", f"{100 * level:g} % interval", "over")
        table = common.table(header, map(_row, differences), slice(2, 4))
        common.show(f"\nDifferences from {groups[0].name}", table)


def _spread(group: Group, metric: str) -> dict[str, float] | None:
    spread = group.spread(metric)
    return None if spread is None else {"mean": spread[0], "deviation": spread[1]}


def _cell(group: Group, metric: str) -> str:
    mean, deviation = group.spread(metric) or (None, math.nan)
    return common.number(mean) + ("" if math.isnan(deviation) else f" ± {deviation:.4f}")


def _row(difference: Difference) -> tuple[str, str, str, str, str]:
    bounds = difference.paired or difference.interval
    interval = "-" if bounds is None else f"{bounds.low:+.4f} to {bounds.high:+.4f}"
    over = f"{'seeds' if difference.paired else 'seed'} {', '.join(map(str, difference.seeds))}"
    if difference.interval is not None:
        over += ", the same queries" if difference.same_queries else ", queries drawn apart"
    return difference.name, difference.metric, f"{difference.difference:+.4f}", interval, over


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
