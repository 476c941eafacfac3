"""The sections of a page that show an evaluation; the demo's page has some of them too."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from laplacian_metric.laplace.diagnostics import Diagnostics
from laplacian_metric.metrics import Evaluation, roc
from laplacian_metric.metrics.evaluation import OWN, Score
from laplacian_metric.metrics.sparsification import Refusal
from laplacian_metric.report import plots
from laplacian_metric.report.cards import ood_galleries
from laplacian_metric.report.evaluated import Evaluated, Measured
from laplacian_metric.report.page import (
    Block,
    Paragraph,
    Picture,
    Section,
    Table,
    interval,
    number,
    score_name,
    share,
)
from laplacian_metric.report.plots import tsne_plane

REFUSED = 20  # the share that summaries speak of, in percent
SHARES = (0, 10, 20, 30, 50)  # of refused queries in the table, in percent
# Rules of thumb, which the table of the posterior states.
CLAMPED = 0.5
PRIOR = 100.0
EFFECTIVE = 1.0
FINE, BAD, NONE = "✓ fine", "✗ look at this", "–"


def error_section(rows: Sequence[Refusal]) -> Section:
    """Return the error among the answers against the share that is answered, as a picture and a table."""
    if not rows:
        return Section("Error against share answered", [])
    ood = list(rows[0].ood)
    table = Table(
        "If the least certain queries are refused",
        ("Refused", "Wrong answers", "95 % interval", *(f"Refused of {name}" for name in ood)),
        [
            (
                share(row.share),
                share(row.error),
                " to ".join(map(share, row.interval)),
                *(share(row.ood[name]) for name in ood),
            )
            for row in (rows[percent] for percent in SHARES)
        ],
        numeric=frozenset(range(3 + len(ood))),
    )
    alt = ", ".join(
        f"{share(row.error)} at {share(1 - row.share)}" for row in (rows[0], rows[REFUSED], rows[50])
    )
    picture = Picture(
        plots.error_curve(rows),
        alt=f"Wrong answers over the share of answered queries: {alt}.",
        caption="The band is the 95 % interval. A threshold chosen here does worse on new images: choose it with a "
        "guarantee, on separate queries.",
    )
    return Section("Error against share answered", [picture, table])


def reliability_section(run: Evaluated, measured: Measured) -> Section:
    """Return whether the predicted probability that an answer is right agrees with the share of right answers."""
    if run.probability is None or measured.ranking is None:
        return Section("Is the probability right?", [])
    right = measured.ranking.hits[:, 0].cpu().numpy().astype(bool)
    return Section(
        "Is the probability right?",
        [reliability_picture(run.probability.cpu().double().numpy(), right, measured.evaluation)],
    )


def reliability_picture(
    probability: plots.Array, right: npt.NDArray[np.bool_], evaluation: Evaluation
) -> Picture:
    """Return the reliability diagram of a probability (N,), with whether each answer is right (N,)."""
    bins = plots.reliability_bins(probability, right)
    error, bounds = with_interval(evaluation, "probability_ece")
    return Picture(
        plots.reliability_plot(bins),
        alt="; ".join(f"probability {number(one.probability)}: {share(one.right)} right" for one in bins),
        caption=f"{len(bins)} groups of equally many answers with 95 % intervals. On the diagonal the probability is "
        f"right, below it too great. The mean gap (calibration error) is {error} (95 % interval: {bounds}).",
    )


def with_interval(evaluation: Evaluation, name: str) -> tuple[str, str]:
    """Return a number and its interval as texts."""
    bounds = evaluation.intervals.get(name)
    return number(evaluation[name]), "–" if bounds is None else interval(bounds.low, bounds.high)


def ood_section(run: Evaluated, measured: Measured) -> Section:
    """Return how OOD images are detected: by the novelty where there is one, else by the uncertainty."""
    if not run.ood:
        return Section("Out-of-distribution images", [])
    name = "novelty" if "novelty" in run.scores else OWN
    inside = run.queries.uncertainty if name == OWN else run.scores[name].queries
    curves = {}
    for label, images in run.ood.items():
        outside = images.uncertainty if name == OWN else run.scores[name].ood[label]
        area = measured.evaluation.scores[name].ood[label]["auroc"]
        curves[label] = (roc(inside, outside), area)
    said = ", ".join(f"{label} {number(area)}" for label, (_, area) in curves.items())
    picture = Picture(
        plots.roc_plot(curves),
        alt=f"Share of flagged OOD images over that of flagged known images. AUROC: {said}.",
        caption=f"How well the {'novelty' if name != OWN else 'uncertainty'} detects OOD images.",
    )
    return Section("Out-of-distribution images", [picture, *ood_galleries(run, measured)])


def scores_section(evaluation: Evaluation, ood: Sequence[str]) -> Section:
    """Return the uncertainty beside other scores, and which of them do better."""
    if len(evaluation.scores) < 2:
        return Section("Compared with other scores", [])
    rows = [
        (score_name(name), *map(number, _aurocs(score, ood).values()))
        for name, score in evaluation.scores.items()
    ]
    table = Table(
        "AUROC: 0.5 is chance, 1 is perfect",
        ("Score", "Detects wrong answers", *(f"Detects {name}" for name in ood)),
        rows,
        numeric=frozenset(range(1, 2 + len(ood))),
    )
    return Section("Compared with other scores", [Paragraph(better_scores(evaluation, ood)), table])


def _aurocs(score: Score, ood: Sequence[str]) -> dict[str, float]:
    """Return the AUROC of a score at every question."""
    return {"wrong answers": score.values.get("r_auroc", math.nan)} | {
        f"OOD images of {label}": score.ood.get(label, {}).get("auroc", math.nan) for label in ood
    }


def better_scores(evaluation: Evaluation, ood: Sequence[str]) -> str:
    """Return in words which scores do better than the uncertainty of the page, and at what."""
    own, better = _aurocs(evaluation.scores[OWN], ood), []
    for name, score in evaluation.scores.items():
        won = [what for what, area in _aurocs(score, ood).items() if area > own[what]]
        if won:
            better.append(f"{score_name(name)} ({', '.join(won)})")
    if not better:
        return "No other score does better here."
    return f"Better here, perhaps by chance: {'; '.join(better)}. If such a score is enough, use it."


def embedding_section(run: Evaluated, mapped: int, seed: int) -> Section:
    """Return the map of the embedding and the histograms of kappa."""
    parts = [*run.ood.items()]
    generator = torch.Generator().manual_seed(seed)

    def drawn(count: int, most: int) -> torch.Tensor:
        return torch.randperm(count, generator=generator)[:most].sort().values

    inside = mapped if not parts else 2 * mapped // 3
    rows = [drawn(len(run.labels), inside)]
    rows += [drawn(len(images.points), (mapped - inside) // len(parts)) for _, images in parts]
    every = [run.queries, *(images for _, images in parts)]
    chosen = [images.embedding.mean.detach()[some] for images, some in zip(every, rows, strict=True)]
    places = np.split(tsne_plane(torch.cat(chosen), seed), np.cumsum([len(some) for some in rows])[:-1])
    ordered = run.queries.uncertainty.sort().values
    ranks = [
        (torch.searchsorted(ordered, images.uncertainty[some]) / len(ordered)).numpy()
        for images, some in zip(every, rows, strict=True)
    ]
    labels = run.labels[rows[0]].numpy()
    clouds = [
        plots.Cloud(run.class_name(int(label)), places[0][labels == label], ranks[0][labels == label])
        for label in np.unique(labels)
    ]
    clouds += [
        plots.Cloud(f"{name} (OOD)", place, rank, ood=True)
        for (name, _), place, rank in zip(parts, places[1:], ranks[1:], strict=True)
    ]
    picture = Picture(
        plots.embedding_map(clouds),
        alt=f"Map of {sum(map(len, rows)):,} images by class"
        + (f", of which {sum(map(len, rows[1:])):,} are OOD images." if parts else "."),
        caption="t-SNE of the angles between directions; distances between far groups mean nothing. The larger and "
        "paler a point, the more uncertain; OOD images are black.",
    )
    return Section("The embedding", [picture, *_kappa(run)])


def _kappa(run: Evaluated) -> list[Block]:
    values = {
        "known images": run.queries,
        **{f"OOD images of {name}": images for name, images in run.ood.items()},
    }
    kappas = {name: images.embedding.kappa.detach().double().numpy() for name, images in values.items()}
    median = "; ".join(f"{name} {number(float(np.median(kappa)))}" for name, kappa in kappas.items())
    infinite = sum(int(np.isinf(kappa).sum()) for kappa in kappas.values())
    caption = f"The greater kappa, the more certain the direction. Median: {median}."
    if infinite:
        caption += f" {infinite:,} are infinite, and not drawn."
    png = plots.kappa_histograms(kappas)
    if png is None:
        return [Paragraph(f"No kappa is finite and above 0. {caption}")]
    return [Picture(png, alt=f"Histograms of kappa. Median: {median}.", caption=caption)]


def diagnostics_table(diagnostics: Diagnostics) -> Table:
    """Return every number of a posterior with its meaning, when it is bad, and whether it is.

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
                number(diagnostics.loss_value),
                "The loss of the trained network over the pairs of the curvature.",
                "It means something only beside that of another run.",
                NONE,
            ),
            (
                "Length of the gradient",
                number(diagnostics.gradient_norm),
                "How steep the loss still is at the trained weights; 0 at a minimum.",
                "It has no scale by itself; the next line gives it one.",
                NONE,
            ),
            (
                "Steps to the mode",
                f"{number(diagnostics.steps_to_mode)} (a typical draw: {number(diagnostics.expected_steps)})",
                "How far the trained weights are from the mode of the posterior, in its standard deviations.",
                "Further than a typical draw: the posterior is around the wrong weights. Train longer, or with the "
                "loss that is fitted.",
                FINE if diagnostics.is_mode else BAD,
            ),
            (
                "Clamped curvature",
                share(diagnostics.clamped),
                "The share of the curvature that was negative and was set to 0, since a precision cannot be negative.",
                f"Above {share(CLAMPED)}: the uncertainty of most weights comes from the prior alone.",
                BAD if diagnostics.clamped > CLAMPED else FINE,
            ),
            (
                "Prior over data",
                number(diagnostics.prior_to_data),
                "The precision of the prior over the mean precision that the data give a weight.",
                f"Above {PRIOR:g}: the uncertainties come from the prior.",
                FINE if diagnostics.prior_to_data <= PRIOR else BAD,
            ),
            (
                "Effective parameters",
                f"{number(diagnostics.effective_parameters)} of {diagnostics.parameters:,}",
                "How many weights the data determine rather than the prior.",
                f"Below {EFFECTIVE:g}: nothing was learnt about the weights.",
                FINE if diagnostics.effective_parameters >= EFFECTIVE else BAD,
            ),
        ],
        numeric=frozenset({1}),
    )
