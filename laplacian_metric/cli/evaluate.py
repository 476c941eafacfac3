"""`lam evaluate`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from laplacian_metric.cli import common, options

NAMES = {
    "recall@1": "the nearest neighbour is right",
    "recall@5": "",
    "recall@10": "",
    "map@5": "mean average precision of the first 5",
    "map@10": "",
    "map@r": "",
    "r_precision": "",
    "r_auroc": "wrong answers are less certain than right ones (0.5 is chance)",
    "ausc": "accuracy while the least certain are refused (1 is best)",
    "ausc_oracle": "... if it were known which answers are wrong",
    "ausc_random": "... if queries were refused at random",
    "retrieval_ece": "calibration error (0 is best)",
}


def evaluate(
    model: options.Model,
    data: Annotated[str, typer.Argument(help=f"Labelled images. {options.DATA}")],
    strangers: options.Strangers = None,
    out: Annotated[Path | None, typer.Option(help="A result file for compare, JSON.")] = None,
    name: Annotated[
        str | None, typer.Option(help="What compare calls this; by default the data's name.")
    ] = None,
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
    """Measure how well a model retrieves, and whether its uncertainty finds its errors and strangers.

    Of a data set the test images are taken, unless a split is named. Each image is looked for among the others.

    Example: lam evaluate model photos:test --strangers holiday --out photos.json
    """
    if out is not None:
        common.check_new(out, force)
    from laplacian_metric.cli.steps import devices, evaluating
    from laplacian_metric.cli.steps.sources import Opening, open_source
    from laplacian_metric.laplace.model_folder import ModelFolder

    loaded = ModelFolder.load(model, device=devices.device(device))
    how = Opening(loaded.preparation, data_dir, divide.value, skip_broken, batch_size, workers, labels)
    source = open_source(data, how, "test")
    elsewhere = replace(how, labels=None)
    others = [open_source(text, elsewhere, "test", every_image=":" not in text) for text in strangers or []]
    found = evaluating.evaluate(
        loaded, source, others, name=name, samples=samples, resamples=resamples, seed=seed
    )
    if out is not None:
        common.write_json(out, found, force)
    if as_json:
        common.print_json(found)
        return
    rows = [
        (metric, *_with_interval(found, metric), NAMES.get(metric, ""))
        for metric in found["values"]
        if metric in NAMES
    ]
    for label, one in found["strangers"].items():
        row = _with_interval(one, "ood_auroc")
        rows.append((f"AUROC {label}", *row, "strangers are less certain (0.5 is chance)"))
    counts = found["counts"]
    title = f"{found['data']['name']}: {counts['answerable']} of {counts['queries']} images have another of their class"
    made = common.table(("metric", "value", "95 % interval", "what it says"), rows)
    made.columns[3].justify = "left"
    common.show(title, made)
    _show_refusing(found)


def _show_refusing(found: dict[str, Any]) -> None:
    """How much safer answers get."""
    rows = [
        (
            f"{one['refused']:.1%}",
            f"{one['error']:.1%}",
            f"{one['low']:.1%} to {one['high']:.1%}",
            *(f"{one['strangers'][label]:.1%}" for label in found["strangers"]),
        )
        for one in found["refusing"]
    ]
    strangers = tuple(f"of {label} refused" for label in found["strangers"])
    header = ("least certain refused", "wrong answers", "95 % interval", *strangers)
    common.show("If the least certain queries are refused:", common.table(header, rows, numeric=0))


def _with_interval(found: dict[str, Any], metric: str) -> tuple[str, str]:
    interval = found["intervals"].get(metric)
    shown = "-"
    if interval is not None and None not in (interval["low"], interval["high"]):
        shown = f"{common.number(interval['low'])} to {common.number(interval['high'])}"
    return common.number(found["values"][metric]), shown
