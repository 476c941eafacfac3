"""The sections of a report, each of which can be left out."""

from __future__ import annotations

import math

import torch

from laplacian_metric import __version__
from laplacian_metric.report.blocks import RefusalSlider
from laplacian_metric.report.blocks.texts import number, plain
from laplacian_metric.report.evaluated import Evaluated
from laplacian_metric.report.measured import Measured, Value
from laplacian_metric.report.page import Block, Paragraph, Picture, Section, Table
from laplacian_metric.report.run_pictures import Galleries, Map
from laplacian_metric.report.run_plots import (
    bins,
    calibration_plot,
    kappa_plot,
    kappa_values,
    roc_plots,
    sparsification_plot,
    sphere_plot,
)
from laplacian_metric.report.run_words import diagnostics_table
from laplacian_metric.runs.provenance import without_paths


def with_interval(value: Value) -> tuple[str, str]:
    """A number and its interval."""
    digits = "not defined" if math.isnan(value.value) else f"{value.value:.3f}"
    if value.interval is None or math.isnan(value.interval.low):
        return digits, "–"
    return digits, f"{value.interval.low:.3f} to {value.interval.high:.3f}"


def refusing(found: Measured) -> Section:
    """The slider."""
    if found.refusals is None:
        return Section("What refusing is worth", [Paragraph(f"This cannot be said: {found.reason}.")])
    return Section(
        "What refusing is worth",
        [
            Paragraph(
                "A query whose uncertainty is above a threshold can be refused: left to a person, say. The fewer are "
                "answered, the fewer of the answers should be wrong."
            ),
            RefusalSlider("Refusing the most uncertain queries", found.refusals),
            Paragraph(
                "Each line is what its threshold does on these images, and a threshold chosen for its error here looks "
                "better here than it will be. laplacian_metric.retrieval.abstention.choose_threshold finds one with a "
                "guarantee, from queries that nothing else was chosen with."
            ),
        ],
    )


def embedding_map(evaluated: Evaluated, found: Measured, drawn: Map) -> Section:
    """The map, and the space itself where it can be drawn."""
    blocks: list[Block] = [
        Paragraph(
            f"{len(drawn.plot.points):,} images by t-SNE of the angles between their directions: what is close here "
            "was close there, but neither distances between far groups nor the sizes of groups mean anything. The "
            "larger and paler a point, the more uncertain it is among the known images. Each class has a colour and a "
            "shape" + ("; strangers are black lines." if found.strangers else ".")
        ),
        drawn.plot,
    ]
    png = sphere_plot(evaluated, found, drawn.rows, drawn.strangers)
    if png is not None:
        what = "circle" if found.embedding.dim == 2 else "sphere"
        blocks.append(
            Picture(
                png,
                alt=f"The {what} of the embedding with some of the images by class"
                + (", and beside it the strangers." if found.strangers else "."),
                caption=f"The whole {what}, with one standard deviation around some of the images.",
            )
        )
    return Section("The embedding", blocks)


def strangers(found: Measured, galleries: Galleries) -> Section:
    """How strangers are told."""
    blocks: list[Block] = []
    if found.strangers:
        blocks.append(
            Table(
                "Telling strangers from known images by uncertainty, with 95 % intervals over images",
                ("Strangers", "Images", "AUROC (0.5 is chance)", "95 %", "Average precision", "95 %"),
                [
                    (
                        name,
                        f"{len(one.uncertainty):,}",
                        *with_interval(one.auroc),
                        *with_interval(one.average_precision),
                    )
                    for name, one in found.strangers.items()
                ],
                numeric=frozenset(range(1, 6)),
            )
        )
    for names, png in roc_plots(found):
        said = ", ".join(f"{name} {with_interval(found.strangers[name].auroc)[0]}" for name in names)
        blocks.append(
            Picture(
                png,
                alt=f"How many strangers are noticed at each share of false alarms. AUROC: {said}.",
                caption="How many strangers are noticed (up) at each share of known images that are refused (across).",
            )
        )
    return Section("Strangers", [*blocks, *galleries.strangers.values()])


def concentration(found: Measured) -> Section:
    """kappa inside and outside."""
    values = kappa_values(found)
    median = "; ".join(f"{name} {number(float(kappa.median()))}" for name, kappa in values.items())
    infinite = sum(int(kappa.isinf().sum()) for kappa in values.values())
    png = kappa_plot(values)
    beyond = f" {infinite:,} are infinite, certain, and not drawn." if infinite else ""
    caption = f"The greater kappa, the surer the direction. Median: {median}.{beyond}"
    if png is None:
        return Section("Concentration", [Paragraph(f"No kappa is finite and above 0. {caption}")])
    alt = f"Histograms of kappa on a logarithmic axis. Median: {median}."
    return Section("Concentration", [Picture(png, alt=alt, caption=caption)])


def errors_found(evaluated: Evaluated, found: Measured) -> Section:
    """Sparsification, and the other scores."""
    blocks: list[Block] = []
    if found.sparsification is not None:
        curve = found.sparsification
        blocks.append(
            Picture(
                sparsification_plot(curve),
                alt=f"Recall at 1 of what is left when the most uncertain are left out: {curve.random:.3f} with all, "
                f"{float(curve.curve[50]):.3f} with half of them; an oracle reaches "
                f"{float(curve.oracle_curve[50]):.3f}.",
                caption=f"The area is {curve.area:.3f}; {curve.oracle:.3f} if the wrong ones were known, "
                f"{curve.random:.3f} in random order.",
            )
        )
    strangers = list(found.strangers)
    if found.sparsification is not None or strangers:
        rows = [
            (
                plain(row.name),
                _number(row.r_auroc),
                _number(row.ausc),
                *(_number(row.strangers.get(name, math.nan)) for name in strangers),
            )
            for row in found.scores
        ]
        blocks.append(
            Table(
                "Scores beside each other: wrong neighbours (R-AUROC, AUSC) and strangers (AUROC)",
                ("Score", "R-AUROC", "AUSC", *(f"AUROC, {name}" for name in strangers)),
                rows,
                numeric=frozenset(range(1, 3 + len(strangers))),
            )
        )
        if evaluated.scores:
            blocks.append(
                Paragraph(
                    "An uncertainty that does not beat scores which need no method at all has shown nothing. It has to "
                    "do both: one that knows strangers may well misjudge what is known."
                )
            )
    return Section("Does the uncertainty find the errors?", blocks)


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3f}"


def calibration(evaluated: Evaluated) -> Section:
    """Whether confidence is what it says."""
    agreed = evaluated.consensus
    if agreed is None:
        return Section("Calibration", [])
    rows = [
        (
            f"{one.low:.1f} to {one.high:.1f}",
            f"{one.count:,}",
            _number(one.confidence),
            _number(one.accuracy),
        )
        for one in bins(agreed)
    ]
    return Section(
        "Calibration",
        [
            Paragraph(
                f"{agreed.num_samples:,} networks drawn from the posterior each name the class of a query's nearest "
                "neighbour. Their agreement is the confidence. It is calibrated if 80 % are right of those queries "
                f"whose confidence is 0.8. The mean gap is {agreed.error:.3f}."
            ),
            Picture(
                calibration_plot(agreed),
                alt=f"Accuracy over confidence in ten bins; the calibration error is {agreed.error:.3f}.",
                caption="On the diagonal confidence is what it says; below it is too great.",
            ),
            Table(
                "Queries by confidence",
                ("Confidence", "Queries", "Mean confidence", "Accuracy"),
                rows,
                numeric=frozenset({1, 2, 3}),
            ),
        ],
    )


def posterior(evaluated: Evaluated) -> Section:
    """The diagnostics in words."""
    if evaluated.diagnostics is None:
        return Section("Is the posterior to be trusted?", [])
    return Section("Is the posterior to be trusted?", [diagnostics_table(evaluated.diagnostics)])


def about(evaluated: Evaluated, found: Measured, resamples: int, seed: int) -> Section:
    """Where the numbers come from."""
    rows = [(plain(what), without_paths(plain(which))) for what, which in evaluated.provenance]
    known = {what for what, _ in rows}
    own = [
        ("laplacian_metric", __version__),
        ("PyTorch", str(torch.__version__)),
        ("Posterior", found.embedding.source),
        ("Draws of the bootstrap", f"{resamples:,}"),
        ("Seed of the report", str(seed)),
    ]
    rows += [(what, which) for what, which in own if which and what not in known]
    return Section("About this run", [Table("Versions and settings", ("What", "Value"), rows)])
