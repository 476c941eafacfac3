"""The sections of a report, each of which can be left out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from experiments.harness.provenance import without_paths
from experiments.harness.results import Cloud, Latent, Result
from experiments.harness.tables.curves import calibration_axes, draw_bins, draw_sparsification, roc_curves
from experiments.harness.tables.latent import latent_maps
from experiments.harness.tables.seeds import Cell
from experiments.harness.tables.styles import Style, panels, shared_legend
from laplacian_metric import __version__
from laplacian_metric.core.embedding import StochasticEmbedding
from laplacian_metric.core.dataset import at_even_steps
from laplacian_metric.laplace.diagnostics import Diagnostics
from laplacian_metric.metrics import Calibration, Evaluation
from laplacian_metric.metrics.evaluation import OWN, ood_name
from laplacian_metric.report.blocks import RefusalSlider
from laplacian_metric.report.blocks.texts import ACCENT, number, plain, share
from laplacian_metric.report.evaluated import Evaluated, Measured
from laplacian_metric.report.page import Block, Paragraph, Picture, Section, Table
from laplacian_metric.report.plots import as_png, concentration_histograms
from laplacian_metric.report.run_pictures import Galleries, Map

OUTLINED = 300  # points on the maps of two or three dimensions
THIS = "this run"
LOOKS = {THIS: Style(ACCENT, "o", "-")}
NAMED = 30  # classes that a legend of such a map can name


def drawable(text: str) -> str:
    """A name as matplotlib draws it: no formula, and not left out of the legend for its first letter.

    Example:
        >>> drawable("_a $x$")
        ' _a \\\\$x\\\\$'
    """
    line = plain(text).replace("$", r"\$")
    return f" {line}" if line.startswith("_") else line


def _cell(evaluation: Evaluation) -> dict[str, Cell]:
    return {THIS: Cell(THIS, (Result.model_construct(cell=THIS, seed=0, **dict(evaluation)),))}


def sparsification_plot(evaluation: Evaluation) -> bytes:
    """Draw recall@1 of what is left, by uncertainty, by an oracle and in random order."""
    figure, (axes,) = panels(1, 5.2, 3.4)
    draw_sparsification(axes, _cell(evaluation), THIS, LOOKS)
    axes.set_title("")
    axes.set_xlabel("share left out")
    axes.set_ylabel("recall@1")
    lowest = min(np.asarray(line.get_ydata()).min() for line in axes.lines)
    axes.set_ylim(max(0.0, lowest - 0.03), 1.01)
    shared_legend(figure, [axes], columns=3)
    return as_png(figure)


def roc_plots(measured: Measured) -> list[tuple[list[str], bytes]]:
    """Draw how OOD images are detected at each share of false alarms, three sets to a picture, with their names."""
    names = list(measured.ood)
    cell = _cell(measured.evaluation)
    parts = [names[start : start + 3] for start in range(0, len(names), 3)]
    return [(part, roc_curves({drawable(name): (cell, name) for name in part}, LOOKS)) for part in parts]


def kappa_values(measured: Measured) -> dict[str, Tensor]:
    """kappa of the known images and of every set of OOD images."""
    ood = {f"OOD images: {name}": images.embedding.kappa for name, images in measured.ood.items()}
    return {"known images": measured.embedding.kappa, **ood}


def kappa_plot(values: Mapping[str, Tensor]) -> bytes | None:
    """Histograms of those that are finite; None if no value is finite and above 0."""
    finite = {drawable(name): kappa[kappa.isfinite()] for name, kappa in values.items()}
    finite = {name: kappa for name, kappa in finite.items() if len(kappa)}
    if not any(bool((kappa > 0).any()) for kappa in finite.values()):
        return None
    return concentration_histograms(finite)


def sphere_plot(
    evaluated: Evaluated, measured: Measured, rows: Tensor, ood_rows: Mapping[str, Tensor]
) -> bytes | None:
    """Draw the space itself, where it has two or three dimensions."""
    if measured.embedding.dim not in (2, 3):
        return None
    some = rows[at_even_steps(len(rows), OUTLINED)]
    labels = measured.labels[some]
    classes = sorted(set(measured.labels.tolist()))  # as in the legend of the map
    named = len(classes) <= NAMED
    numbers = torch.tensor([classes.index(label) if named else 0 for label in labels.tolist()])
    names = [drawable(evaluated.class_name(label)) for label in classes] if named else ["known images"]
    ood = {
        drawable(name): _cloud(measured.ood[name].embedding[shown[at_even_steps(len(shown), OUTLINED)]], None)
        for name, shown in ood_rows.items()
    }
    latent = Latent(test=_cloud(measured.embedding[some], numbers), ood=ood)
    return latent_maps({"embedding": latent}, names, columns=1)


def _cloud(e: StochasticEmbedding, labels: Tensor | None) -> Cloud:
    covariances = None if e.gaussians is None else e.gaussians.covariance.detach().double().numpy()
    return Cloud(
        e.point.detach().double().numpy(),
        covariances,
        e.kappa.detach().double().numpy(),
        None if labels is None else labels.numpy(),
    )


# Rules of thumb, which the table states.
CLAMPED = 0.5
PRIOR = 100.0
EFFECTIVE = 1.0

FINE, BAD, NONE = "✓ fine", "✗ look at this", "–"


def with_interval(evaluation: Evaluation, name: str) -> tuple[str, str]:
    """Return a number and its interval as texts."""
    value, interval = evaluation[name], evaluation.intervals.get(name)
    digits = "not defined" if math.isnan(value) else f"{value:.3f}"
    if interval is None or math.isnan(interval.low):
        return digits, "–"
    return digits, f"{interval.low:.3f} to {interval.high:.3f}"


def refusing(measured: Measured) -> Section:
    """The slider."""
    if not measured.evaluation.refusals:
        return Section("What refusing is worth", [Paragraph(f"This cannot be said: {measured.reason}.")])
    return Section(
        "What refusing is worth",
        [
            Paragraph(
                "A query whose uncertainty is above a threshold can be refused, and left to a person for example. The "
                "fewer queries are answered, the smaller the share of wrong answers should be."
            ),
            RefusalSlider("Refusing the most uncertain queries", measured.evaluation.refusals),
            Paragraph(
                "Each line shows the effect of a threshold on these images. A threshold that is chosen for its error "
                "here tends to do worse on new images. laplacian_metric.retrieval.abstention.choose_threshold finds a "
                "threshold with a guarantee, from separate calibration queries."
            ),
        ],
    )


def embedding_map(evaluated: Evaluated, measured: Measured, drawn: Map) -> Section:
    """The map, and the space itself where it can be drawn."""
    blocks: list[Block] = [
        Paragraph(
            f"{len(drawn.plot.points):,} images by t-SNE of the angles between their directions: points that "
            "are close were close before, but distances between far groups and sizes of groups mean nothing. The "
            "larger and paler a point, the more uncertain it is among the known images. Each class has a colour and a "
            "shape" + ("; OOD images are black lines." if measured.ood else ".")
        ),
        drawn.plot,
    ]
    png = sphere_plot(evaluated, measured, drawn.rows, drawn.ood)
    if png is not None:
        what = "circle" if measured.embedding.dim == 2 else "sphere"
        blocks.append(
            Picture(
                png,
                alt=f"The {what} of the embedding with some of the images by class"
                + (", and beside it the OOD images." if measured.ood else "."),
                caption=f"The whole {what}, with one standard deviation around some of the images.",
            )
        )
    return Section("The embedding", blocks)


def out_of_distribution(measured: Measured, galleries: Galleries) -> Section:
    """Return how out-of-distribution images are detected."""
    blocks: list[Block] = []
    if measured.ood:
        blocks.append(
            Table(
                "Detecting OOD images among known ones by uncertainty, with 95 % intervals over images",
                ("OOD images", "Number", "AUROC (0.5 is chance)", "95 %", "Average precision", "95 %"),
                [
                    (
                        name,
                        f"{len(one.uncertainty):,}",
                        *with_interval(measured.evaluation, ood_name("auroc", name)),
                        *with_interval(measured.evaluation, ood_name("average_precision", name)),
                    )
                    for name, one in measured.ood.items()
                ],
                numeric=frozenset(range(1, 6)),
            )
        )
    for names, png in roc_plots(measured):
        said = ", ".join(
            f"{name} {with_interval(measured.evaluation, ood_name('auroc', name))[0]}" for name in names
        )
        blocks.append(
            Picture(
                png,
                alt=f"How many OOD images are detected at each share of false alarms. AUROC: {said}.",
                caption="How many OOD images are detected (up) at each share of refused known images (across).",
            )
        )
    return Section("Out-of-distribution images", [*blocks, *galleries.ood.values()])


def concentration(measured: Measured) -> Section:
    """kappa inside and outside."""
    values = kappa_values(measured)
    median = "; ".join(f"{name} {number(float(kappa.median()))}" for name, kappa in values.items())
    infinite = sum(int(kappa.isinf().sum()) for kappa in values.values())
    png = kappa_plot(values)
    beyond = f" {infinite:,} are infinite, certain, and not drawn." if infinite else ""
    caption = f"The greater kappa, the more certain the direction. Median: {median}.{beyond}"
    if png is None:
        return Section("Concentration", [Paragraph(f"No kappa is finite and above 0. {caption}")])
    alt = f"Histograms of kappa on a logarithmic axis. Median: {median}."
    return Section("Concentration", [Picture(png, alt=alt, caption=caption)])


def errors_found(evaluated: Evaluated, measured: Measured) -> Section:
    """Return sparsification, and the other scores."""
    blocks: list[Block] = []
    evaluation, curves = measured.evaluation, measured.evaluation.curves
    if curves is not None and curves.sparsification:
        own, oracle = curves.sparsification[OWN], curves.sparsification["oracle"]
        recall = evaluation["ausc_random"]
        blocks.append(
            Picture(
                sparsification_plot(evaluation),
                alt=f"Recall at 1 of what is left when the most uncertain are left out: {recall:.3f} with all, "
                f"{own[50]:.3f} with half of them; an oracle reaches {oracle[50]:.3f}.",
                caption=f"The area is {evaluation['ausc']:.3f}; {evaluation['ausc_oracle']:.3f} if the wrong ones were "
                f"known, {recall:.3f} in random order.",
            )
        )
    names = list(measured.ood)
    if blocks or names:
        rows = [
            (
                THIS if name == OWN else plain(name),
                *(_number(score.values.get(key, math.nan)) for key in ("r_auroc", "ausc")),
                *(_number(score.ood.get(label, {}).get("auroc", math.nan)) for label in names),
            )
            for name, score in evaluation.scores.items()
        ]
        blocks.append(
            Table(
                "Scores beside each other: wrong neighbours (R-AUROC, AUSC) and OOD images (AUROC)",
                ("Score", "R-AUROC", "AUSC", *(f"AUROC, {name}" for name in names)),
                rows,
                numeric=frozenset(range(1, 3 + len(names))),
            )
        )
        if evaluated.scores:
            blocks.append(Paragraph(better_scores(evaluation, names)))
    return Section("Does the uncertainty find the errors?", blocks)


def better_scores(evaluation: Evaluation, names: Sequence[str]) -> str:
    """Return which scores do better than the uncertainty of the page, in words."""
    own, better = evaluation.scores[OWN], []
    for name, score in evaluation.scores.items():
        questions = {"wrong neighbours": (score.values, own.values, "r_auroc")}
        for ood in names:
            pair = (score.ood.get(ood, {}), own.ood[ood])
            questions[f"OOD images of {ood}"] = (*pair, "auroc")
            questions[f"both with {ood}"] = (*pair, "open_set_auroc")
        won = [
            what
            for what, (theirs, ours, key) in questions.items()
            if theirs.get(key, math.nan) > ours.get(key, math.nan)
        ]
        if won:
            better.append(f"{plain(name)} ({', '.join(map(plain, won))})")
    text = "A useful uncertainty is better than scores that need no method. "
    if not better:
        return text + "None of the other scores does better here."
    return f"{text}Better here, perhaps by chance: {'; '.join(better)}. If such a score is enough, take it."


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3f}"


def calibration(evaluation: Evaluation) -> Section:
    """Return whether the agreement of sampled networks is what it says."""
    agreed = evaluation.calibration
    if agreed is None:
        return Section("Calibration", [])
    text = (
        f"{agreed.samples:,} networks drawn from the posterior each name the class of a query's nearest neighbour. "
        "Their agreement, the share that names the most frequent class, is calibrated if 80 % are right of those "
        f"queries whose agreement is 0.8. The mean gap is {agreed.ece:.3f}."
    )
    return Section(
        "Calibration of the sampled networks",
        _calibrated(agreed, text, "retrieval", "agreement"),
    )


def reliability(evaluation: Evaluation) -> Section:
    """Return whether the predicted probability that an answer is right is what it says."""
    predicted = evaluation.reliability
    if predicted is None:
        return Section("Is the probability right?", [])
    error, spread = with_interval(evaluation, "probability_ece")
    text = (
        "The probability is calibrated if 80 % of the answers are right to those queries whose probability is 0.8. The "
        f"mean gap, the expected calibration error, is {error} (95 %: {spread}), the Brier score {predicted.brier:.3f}."
    )
    return Section("Is the probability right?", _calibrated(predicted, text, "answers", "probability"))


def _calibrated(agreed: Calibration, text: str, label: str, what: str) -> list[Block]:
    rows = [
        (f"{one.low:.1f} to {one.high:.1f}", f"{one.count:,}", _number(one.confidence), _number(one.accuracy))
        for one in agreed.bins
    ]
    figure, (axes,) = panels(1, 4.2, 4.6)
    calibration_axes(axes, what)
    draw_bins(axes, agreed.bins, LOOKS[THIS], THIS)
    axes.set_title(label, fontsize=10)
    shared_legend(figure, [axes], columns=3)
    return [
        Paragraph(text),
        Picture(
            as_png(figure),
            alt=f"Accuracy over {what} in ten bins; the calibration error is {agreed.ece:.3f}.",
            caption=f"On the diagonal the {what} is calibrated; below the diagonal it is too great.",
        ),
        Table(
            f"Queries by {what}",
            (what.capitalize(), "Queries", f"Mean {what}", "Accuracy"),
            rows,
            numeric=frozenset({1, 2, 3}),
        ),
    ]


def posterior(evaluated: Evaluated) -> Section:
    """The diagnostics in words."""
    if evaluated.diagnostics is None:
        return Section("Can the posterior be trusted?", [])
    return Section("Can the posterior be trusted?", [diagnostics_table(evaluated.diagnostics)])


def about(evaluated: Evaluated, measured: Measured, resamples: int, seed: int) -> Section:
    """Where the numbers come from."""
    rows = [(plain(what), without_paths(plain(which))) for what, which in evaluated.provenance]
    named = {what for what, _ in rows}
    own = [
        ("laplacian_metric", __version__),
        ("PyTorch", str(torch.__version__)),
        ("Posterior", measured.embedding.source),
        ("Draws of the bootstrap", f"{resamples:,}"),
        ("Seed of the report", str(seed)),
    ]
    rows += [(what, which) for what, which in own if which and what not in named]
    return Section("About this run", [Table("Versions and settings", ("What", "Value"), rows)])


def diagnostics_table(diagnostics: Diagnostics) -> Table:
    """Every number with its meaning, when it is bad, and whether it is.

    Example:
        >>> numbers = Diagnostics(0.1, 0.01, 0.5, 3.0, 0.2, 0.01, 9.0, 64)
        >>> [row[4] for row in diagnostics_table(numbers).rows]
        ['–', '–', '✓ fine', '✓ fine', '✓ fine', '✓ fine']
    """
    return Table(
        "The posterior of the weights",
        ("What", "Value", "What it means", "When it is bad", "Here"),
        [
            (
                "Loss",
                number(diagnostics.loss_value, 4),
                "The loss of the trained network over the pairs of the curvature.",
                "It only means something beside that of another run.",
                NONE,
            ),
            (
                "Length of the gradient",
                number(diagnostics.gradient_norm, 4),
                "How steep the loss still is at the trained weights; 0 at a minimum.",
                "By itself it has no scale; the next line gives it one.",
                NONE,
            ),
            (
                "Steps to the mode",
                f"{number(diagnostics.steps_to_mode)} (a typical draw: {number(diagnostics.expected_steps)})",
                "How far the trained weights are from the mode of the posterior, in its standard deviations.",
                "If it is further than a typical draw: the posterior is then around the wrong weights. Train longer, "
                "or with the loss that is fitted.",
                FINE if diagnostics.is_mode else BAD,
            ),
            (
                "Clamped curvature",
                share(diagnostics.clamped),
                "The share of the curvature that was negative and was set to 0, since a precision cannot be negative.",
                f"Above {share(CLAMPED)}: the uncertainty of most weights then comes from the prior alone.",
                BAD if diagnostics.clamped > CLAMPED else FINE,
            ),
            (
                "Prior over data",
                number(diagnostics.prior_to_data),
                "The precision of the prior over the mean precision that the data give a weight.",
                f"Above {PRIOR:g}: the data hardly count, and the uncertainties come from the prior.",
                FINE if diagnostics.prior_to_data <= PRIOR else BAD,
            ),
            (
                "Effective parameters",
                f"{number(diagnostics.effective_parameters, 4)} of {diagnostics.parameters:,}",
                "How many weights the data determine rather than the prior.",
                f"Below {EFFECTIVE:g}: nothing was learnt about the weights.",
                FINE if diagnostics.effective_parameters >= EFFECTIVE else BAD,
            ),
        ],
        numeric=frozenset({1}),
    )
