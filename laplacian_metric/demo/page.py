"""The demo from end to end, and its page: which answers can be trusted first, then how that was done."""

from __future__ import annotations

import logging
import platform
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from laplacian_metric import __version__
from laplacian_metric.core.files import output_folder
from laplacian_metric.demo.compute import (
    ALPHA,
    BATCH_SIZE,
    COMPARED_IMAGES,
    DELTA,
    DIM,
    EPOCHS,
    EXAMPLES,
    LEARNING_RATE,
    MARGIN,
    OOD,
    PROMISING,
    REPORT_NAME,
    Answered,
    DemoResult,
    OnStage,
    compute,
    right,
)
from laplacian_metric.metrics.evaluation import ood_name
from laplacian_metric.report import Block, Page, Paragraph, Picture, Section, Table
from laplacian_metric.report.blocks import Card, Gallery, Neighbour, RefusalSlider
from laplacian_metric.report.blocks.gallery import encode
from laplacian_metric.report.blocks.texts import share
from laplacian_metric.report.plots import loss_curve, share_bars, signed_histograms
from laplacian_metric.report.run_sections import better_scores, diagnostics_table, reliability

LOGGER = logging.getLogger(__name__)

REASONS = ("trusted", "no reliable match", "unlike anything seen")
PART_COLOURS = (
    "#1b7837",
    "#b4301f",
    "#8a5a00",
    "#5d6570",
)  # trusted and right, and wrong; no match; unlike anything
SIDE = 64
SCORES = {"own": "Trust: 1 - probability", "novelty": "Trust: novelty, which ranks OOD images"}


def demo_page(result: DemoResult) -> Page:
    """Return the whole page."""
    return Page(
        "laplacian_metric: which answers can be trusted",
        [
            _trusted(result),
            _examples(result),
            _refusing(result),
            reliability(result.evaluation),
            _comparison(result),
            _training(result),
            _posterior(result),
            _about(result),
        ],
    )


def _trusted(result: DemoResult) -> Section:
    test, ood, wrong = result.test, result.ood, ~right(result.test)
    rows = []
    for reason in REASONS:
        here = test.answer.reason == reason
        error = share(float(wrong[here].mean())) if here.any() else "–"
        rows.append(
            (reason, share(float(here.mean())), error, share(float((ood.answer.reason == reason).mean())))
        )
    rows.append(("all", share(1.0), share(float(wrong.mean())), share(1.0)))
    return Section(
        "Which answers can be trusted",
        [
            Paragraph(
                f"A small network learned to put images of the same kind of clothing close together, from "
                f"{len(result.gallery):,} images in {result.trained.seconds:.0f} seconds. Each of {len(test.images):,} "
                "new images of clothes is a query: its answer is the nearest training image, and the answer is right "
                f"if both show the same kind of clothing. {len(ood.images):,} handwritten digits are queries too. "
                "Nothing here has ever seen a digit, so every answer to a digit is wrong. Trust says for each query "
                "how probable it is that its answer is right, and why not."
            ),
            Picture(
                share_bars({"clothes": _shares(test, ~wrong), "digits": _shares(ood, None)}, PART_COLOURS),
                alt="For clothes and for digits, the shares of the queries that Trust trusts and rejects.",
                caption="The decision for each kind of query. Every answer to a digit is wrong.",
            ),
            Table(
                "What Trust says about clothes and digits",
                ("Reason", "Clothes", "Wrong among these clothes", "Digits"),
                rows,
                numeric=frozenset({1, 2, 3}),
            ),
        ],
    )


def _shares(queries: Answered, correct: NDArray[np.bool_] | None) -> dict[str, float]:
    """Return which shares of the queries are trusted, rightly or not, and which are not, by reason."""
    reason = queries.answer.reason
    trusted = reason == REASONS[0]
    well = np.zeros_like(trusted) if correct is None else correct
    parts = {
        "trusted, and right": trusted & well,
        "trusted, and wrong": trusted & ~well,
        **{name: reason == name for name in REASONS[1:]},
    }
    return {name: float(part.mean()) for name, part in parts.items()}


def _examples(result: DemoResult) -> Section:
    clothes, digits, correct = result.test, result.ood, right(result.test)
    reason, probability = clothes.answer.reason, clothes.answer.probability
    galleries = [
        ("Unlike anything seen: digits", digits, _first(digits.answer.reason == REASONS[2])),
        ("No reliable match: clothes", clothes, _first(reason == REASONS[1])),
        ("Trusted and right", clothes, _first((reason == REASONS[0]) & correct)),
        (
            "Trusted and wrong, the most probable first",
            clothes,
            _first((reason == REASONS[0]) & ~correct, order=-probability),
        ),
    ]
    blocks: list[Block] = [
        Gallery(title, "Each query with its nearest training images.", _cards(result, queries, rows))
        for title, queries, rows in galleries
        if len(rows)
    ]
    return Section("Examples", blocks)


def _first(chosen: NDArray[np.bool_], order: NDArray[np.float64] | None = None) -> list[int]:
    rows = np.flatnonzero(chosen)
    if order is not None:
        rows = rows[np.argsort(order[rows], kind="stable")]
    return [int(row) for row in rows[:EXAMPLES]]


def _cards(result: DemoResult, queries: Answered, rows: list[int]) -> list[Card]:
    names, is_known = result.gallery.class_names, queries is result.test
    answer, cards = queries.answer, []
    for row in rows:
        label = int(queries.images.labels[row])
        neighbours = []
        for item, cosine in zip(
            queries.neighbours[row].tolist(), queries.similarities[row].tolist(), strict=True
        ):
            other = int(result.gallery.labels[item])
            same = is_known and other == label
            picture = encode(result.gallery.images[item][0].numpy(), SIDE)
            neighbours.append(Neighbour(names[other], same, min(cosine, 1.0), picture))
        cards.append(
            Card(
                queries.images.class_names[label]
                if is_known
                else f"the digit {queries.images.class_names[label]}",
                f"the nearest image is a {names[int(result.gallery.labels[queries.neighbours[row, 0]])]}",
                neighbours[0].right,
                (
                    f"{answer.reason[row]} ({answer.because[row]})",
                    f"probability that the answer is right: {answer.probability[row]:.2f}",
                ),
                encode(queries.images.images[row][0].numpy(), SIDE),
                neighbours=neighbours,
            )
        )
    return cards


def _refusing(result: DemoResult) -> Section:
    promise = (
        f"{PROMISING} validation images choose the smallest probability at which at most {ALPHA:.0%} of the answers "
        f"are wrong, with probability {1 - DELTA:.0%} over such images. "
    )
    accepted = result.share_answered(result.test)
    if result.threshold is None or accepted is None:
        promise += f"Here none can be promised: {result.reason}."
    else:
        error = "none" if result.answered_error is None else share(result.answered_error)
        promise += (
            f"It is {1 - result.threshold.value:.2f}: {share(accepted)} of the clothes are answered, {error} of the "
            f"answers are wrong, and {share(result.share_answered(result.ood) or 0.0)} of the digits are answered. The "
            "promise is about clothes; digits play no part in it."
        )
    return Section(
        "Refusing",
        [
            Paragraph(promise),
            RefusalSlider("Refusing the least probable answers", result.evaluation.refusals),
        ],
    )


def _comparison(result: DemoResult) -> Section:
    rows = []
    for name, score in result.evaluation.scores.items():
        detection = score.ood[OOD]
        values = (score.values["r_auroc"], detection["auroc"], detection["open_set_auroc"])
        rows.append((SCORES.get(name, name), *(f"{value:.3f}" for value in values)))
    return Section(
        "Compared with scores that cost nothing",
        [
            Paragraph(
                "Three questions, each an AUROC (0.5 is chance, 1 is perfect). Wrong answers: are the wrong answers to "
                "clothes less certain than the right ones? OOD: are digits less certain than clothes? Both: are right "
                "answers more certain than everything else, clothes and digits in equal weight?"
            ),
            Paragraph(better_scores(result.evaluation, [OOD])),
            Table(
                "Higher is better",
                ("Score", "Wrong answers", "OOD", "Both"),
                rows,
                numeric=frozenset({1, 2, 3}),
            ),
        ],
    )


def _training(result: DemoResult) -> Section:
    history = result.trained.history
    losses = [epoch["loss"] for epoch in history]
    parameters = sum(parameter.numel() for parameter in result.encoder.parameters())
    rows = [
        ("Recall at 1, pixels", f"{result.pixel_recall:.3f}"),
        (f"Recall at 1, embedding of {DIM} dimensions", f"{result.evaluation['recall@1']:.3f}"),
        (
            "Images, epochs, seconds",
            f"{len(result.gallery):,}, {result.epochs}, {result.trained.seconds:.1f}",
        ),
        ("Validation images that calibrated the probability", f"{result.calibrating:,}"),
        ("Its expected calibration error", str(result.trust.calibration_error)),
        ("All computations", f"{result.seconds:.1f} s"),
    ]
    return Section(
        "How it was done",
        [
            Table("The run in numbers", ("What", "Value"), rows, numeric=frozenset({1})),
            Picture(
                loss_curve(losses, 1),
                alt=f"The mean training loss falls from {losses[0]:.3f} to {losses[-1]:.3f}.",
                caption=f"Mean loss of every epoch: contrastive, margin {MARGIN}, all pairs of batches of {BATCH_SIZE} "
                f"images, AdamW from the learning rate {LEARNING_RATE:g}. Three convolutions and a linear layer, "
                f"{parameters:,} parameters. Nothing was chosen on the test images or the digits.",
            ),
        ],
    )


def _posterior(result: DemoResult) -> Section:
    rows = [
        (
            one.approximation,
            f"{one.seconds * 1e3:,.0f}",
            share(float((one.diagonal < 0).double().mean())),
            f"{one.deviation:.1e}",
        )
        for one in result.curvatures
    ]
    pairs = len(result.gallery) * (len(result.gallery) - 1) // 2
    return Section(
        "The Laplace posterior",
        [
            Paragraph(
                "The library also computes the exact Laplace posterior of the last layer, from the curvature of the "
                "loss over all pairs of training images. It makes every embedding a distribution; Trust does not need "
                f"it. The curvature is a closed form. For {COMPARED_IMAGES} images it is compared with automatic "
                "differentiation in double precision."
            ),
            Table(
                f"The curvature over {pairs:,} pairs",
                (
                    "Approximation",
                    "Time (ms)",
                    "Negative entries",
                    "Largest relative deviation from autograd",
                ),
                rows,
                numeric=frozenset({1, 2, 3}),
            ),
            Picture(
                signed_histograms(
                    {one.approximation: one.diagonal for one in result.curvatures}, "curvature"
                ),
                alt="Histograms of the curvature of the weights for each approximation.",
                caption="How the curvature is distributed over the weights; its axis is logarithmic on both sides of "
                "zero. Red is negative; a posterior sets negative entries to zero.",
            ),
            diagnostics_table(result.diagnostics),
        ],
    )


def _about(result: DemoResult) -> Section:
    interval = result.evaluation.intervals[ood_name("open_set_auroc", OOD)]
    rows = [
        ("laplacian_metric", __version__),
        ("PyTorch", str(torch.__version__)),
        ("Python", platform.python_version()),
        ("Threads", str(torch.get_num_threads())),
        ("Seed", str(result.seed)),
        (
            "AUROC of the probability, 95 % interval",
            f"{interval.low:.3f} to {interval.high:.3f} (clothes and digits)",
        ),
    ]
    return Section(
        "About this run",
        [
            Table("Versions and settings", ("What", "Value"), rows),
            *(
                Paragraph(f"{images.citation} Licence of the images: {images.licence}.")
                for images in (result.test.images, result.ood.images)
            ),
        ],
    )


def run_demo(
    out: Path, force: bool = False, seed: int = 0, epochs: int = EPOCHS, on_stage: OnStage = LOGGER.info
) -> DemoResult:
    """Run the demo and write `out`/report.html; nothing is left in `out` unless all of it succeeded.

    Args:
        out: a folder that is new or empty.
        force: accept a folder that is not empty; only its report.html is replaced.
        seed: of the initial weights, the order of the images and the split of the validation images.
        epochs: passes over the training images.
        on_stage: called with the name of every stage when it begins.

    Raises:
        OutputFolderError: `out` cannot be written to.
    """
    with output_folder(out, force) as folder:
        result = compute(seed, epochs, on_stage)
        on_stage("writing the report")
        (folder / REPORT_NAME).write_text(demo_page(result).html(), encoding="utf-8")
    return result
