"""The demo's page: how many errors refusing avoids first, then examples, then how it was done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laplacian_metric.laplace.diagnostics import Diagnostics
from laplacian_metric.metrics import Evaluation
from laplacian_metric.report import Card, Gallery, Neighbour, Page, Paragraph, Picture, Section, Table
from laplacian_metric.report.evaluated import encode
from laplacian_metric.report.page import number, share
from laplacian_metric.report.plots import share_bars
from laplacian_metric.report.sections import (
    diagnostics_table,
    error_section,
    reliability_picture,
    scores_section,
)

VERDICTS = ("accept", "no reliable match", "unlike anything seen")
# Accepted and right, accepted and wrong, no reliable match, unlike anything seen.
COLOURS = ("#1b7837", "#b4301f", "#8a5a00", "#5d6570")
EXAMPLES = 3  # images of each kind


@dataclass(frozen=True, eq=False)
class Queries:
    """Q queries of one kind and the answers to them.

    Attributes:
        name: of the kind, "clothes".
        images: (Q, h, w), uint8.
        labels: the name of each query's class.
        right: (Q,), whether the nearest item is of its class.
        probability, verdict, because: (Q,), of `Trust`.
        neighbours: (Q, k), rows of the nearest items.
        similarities: (Q, k), their cosines.
    """

    name: str
    images: Any
    labels: Sequence[str]
    right: NDArray[np.bool_]
    probability: NDArray[np.float64]
    verdict: NDArray[Any]
    because: NDArray[Any]
    neighbours: NDArray[np.int64]
    similarities: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Shown:
    """What the page shows.

    Attributes:
        intro: what was done, in a few sentences.
        items: (N, h, w), uint8, the images that are searched; ``item_labels`` are the names of their classes.
        known, ood: the queries.
        evaluation: of both.
        answered: shares of the queries that are answered, the most probable first.
        errors: name of a score -> the share of wrong answers for each of these, if it decided what is answered.
        promise: a threshold with a guarantee, in words.
        training: the run as pairs of name and value; ``about`` has versions and settings.
        diagnostics: of the Laplace posterior.
        credits: of the data sets.
    """

    intro: str
    items: Any
    item_labels: Sequence[str]
    known: Queries
    ood: Queries
    evaluation: Evaluation
    answered: Sequence[float]
    errors: Mapping[str, Sequence[float]]
    promise: str
    training: Sequence[tuple[str, str]]
    diagnostics: Diagnostics
    about: Sequence[tuple[str, str]]
    credits: Sequence[str]


def demo_page(shown: Shown) -> Page:
    """Return the whole page."""
    errors = error_section(shown.evaluation.refusals)
    known = shown.known
    reliability = reliability_picture(known.probability, known.right, shown.evaluation)
    training = Table("The run in numbers", ("What", "Value"), shown.training, numeric=frozenset({1}))
    about = Table("Versions and settings", ("What", "Value"), shown.about)
    return Page(
        "laplacian_metric: which answers can be trusted",
        [
            Section(errors.title, [Paragraph(shown.intro), *errors.blocks, _compared(shown)]),
            Section("A guaranteed threshold", [Paragraph(shown.promise)]),
            _verdicts(shown),
            _examples(shown),
            Section("Is the probability right?", [reliability]),
            scores_section(shown.evaluation, [shown.ood.name]),
            Section("How it was done", [training]),
            _posterior(shown),
            Section("About this run", [about, *map(Paragraph, shown.credits)]),
        ],
    )


def _compared(shown: Shown) -> Table:
    """Return the error among the answers where other scores decide what is answered."""
    header = ("Answered", *map(share, shown.answered))
    rows = [(name, *map(share, errors)) for name, errors in shown.errors.items()]
    return Table(
        "Wrong answers, by the score that decides what is answered",
        header,
        rows,
        frozenset(range(1, len(header))),
    )


def _verdicts(shown: Shown) -> Section:
    known, ood = shown.known, shown.ood
    rows = []
    for verdict in VERDICTS:
        here = known.verdict == verdict
        error = share(float(1 - known.right[here].mean())) if here.any() else "–"
        rows.append(
            (verdict, share(float(here.mean())), error, share(float((ood.verdict == verdict).mean())))
        )
    header = ("Verdict", known.name.capitalize(), f"Wrong among these {known.name}", ood.name.capitalize())
    return Section(
        "Verdicts",
        [
            Picture(
                share_bars({queries.name: _shares(queries) for queries in (known, ood)}, COLOURS),
                alt=f"For {known.name} and for {ood.name}, the shares of the queries with each verdict.",
                caption=f"Every answer to one of the {ood.name} is wrong.",
            ),
            Table("The verdicts of Trust", header, rows, numeric=frozenset({1, 2, 3})),
        ],
    )


def _shares(queries: Queries) -> dict[str, float]:
    """Return which shares of the queries are accepted, rightly or not, and which are refused, by verdict."""
    accepted = queries.verdict == VERDICTS[0]
    parts = {
        "accepted, and right": accepted & queries.right,
        "accepted, and wrong": accepted & ~queries.right,
        **{verdict: queries.verdict == verdict for verdict in VERDICTS[1:]},
    }
    return {name: float(part.mean()) for name, part in parts.items()}


def _examples(shown: Shown) -> Section:
    known, ood = shown.known, shown.ood
    accepted = known.verdict == VERDICTS[0]
    galleries = [
        ("Accepted and right", known, np.flatnonzero(accepted & known.right)),
        ("Accepted and wrong", known, np.flatnonzero(accepted & ~known.right)),
        ("No reliable match", known, np.flatnonzero(known.verdict == VERDICTS[1])),
        (f"Unlike anything seen: {ood.name}", ood, np.flatnonzero(ood.verdict == VERDICTS[2])),
    ]
    return Section(
        "Examples",
        [
            Gallery(
                title,
                "Each query with its nearest training images.",
                [_card(shown, queries, int(row)) for row in rows[:EXAMPLES]],
            )
            for title, queries, rows in galleries
            if len(rows)
        ],
    )


def _card(shown: Shown, queries: Queries, row: int) -> Card:
    neighbours = [
        Neighbour(
            shown.item_labels[item],
            queries is shown.known and shown.item_labels[item] == queries.labels[row],
            float(cosine),
            encode(shown.items[item]),
        )
        for item, cosine in zip(queries.neighbours[row], queries.similarities[row], strict=True)
    ]
    return Card(
        queries.labels[row],
        f"the nearest image is a {neighbours[0].label}",
        bool(queries.right[row]),
        (
            f"{queries.verdict[row]} ({queries.because[row]})",
            f"probability that the answer is right: {number(float(queries.probability[row]))}",
        ),
        encode(queries.images[row]),
        neighbours=neighbours,
    )


def _posterior(shown: Shown) -> Section:
    return Section(
        "The Laplace posterior",
        [
            Paragraph(
                "LAM makes every embedding a distribution, from the curvature of the loss over all pairs of training "
                "images: lam = LAM(encoder, loss).fit(loader); lam.optimize_prior_precision(); lam.embed(images).kappa "
                "is small where other weights that fit equally well would move the image. Trust does not need it; "
                "1/kappa is one of the scores above."
            ),
            diagnostics_table(shown.diagnostics),
        ],
    )
