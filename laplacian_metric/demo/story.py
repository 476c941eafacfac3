"""The page that the demo writes: what was done, and what it shows, in the reader's order."""

from __future__ import annotations

import platform

import torch

from laplacian_metric import __version__
from laplacian_metric.demo.compute import DemoResult
from laplacian_metric.demo.curvature import ALL_PAIRS, Curvature
from laplacian_metric.demo.settings import ALPHA, BATCH_SIZE, DELTA, LEARNING_RATE, LEVEL, MARGIN
from laplacian_metric.demo.uncertainty import STRANGERS
from laplacian_metric.report import Page, Paragraph, Picture, Section, Table
from laplacian_metric.report.plots import loss_curve, signed_histograms
from laplacian_metric.report.run_report import Evaluated, run_report


def tell(result: DemoResult) -> Page:
    """The whole page."""
    return Page(
        "laplacian_metric: what the demo found",
        [
            _beginning(result),
            *run_report(_evaluated(result), seed=result.seed).sections,
            _promises(result),
            _training(result),
            _curvature(result),
            _check(result),
            _credit(result),
        ],
    )


def _beginning(result: DemoResult) -> Section:
    worst = max(agreement.deviation for agreement in result.agreements)
    told = result.uncertainty
    rows = [
        ("Images trained on", f"{result.train_images:,}"),
        ("Epochs, and their time", f"{result.epochs}, {result.training.seconds:.1f} s"),
        ("Recall at 1, FashionMNIST test, three-dimensional embedding", f"{result.inside.recall:.3f}"),
        ("Recall at 1, FashionMNIST test, 784 raw pixels", f"{result.inside.pixel_recall:.3f}"),
        ("Posterior and confidence fitted in", f"{told.fit_seconds:.1f} s"),
        ("Largest relative deviation of the closed form from autograd", f"{worst:.1e}"),
        ("All computations", f"{result.seconds:.1f} s"),
    ]
    return Section(
        "What was done",
        [
            Paragraph(
                "A small network was trained to put images of the same kind of clothing close together on a sphere. "
                "Then a Laplace approximation turned the curvature of its loss into the uncertainty of the weights of "
                "its last layer, and so of every embedding: each image gets a direction and a concentration that "
                "says how sure the direction is. From these, and from images that were held out of the training, "
                "comes the confidence that a match can be trusted. Nothing was shown a digit before; the digits of "
                "MNIST are the strangers of this page."
            ),
            Table("The run in numbers", ("What", "Value"), rows, numeric=frozenset({1})),
        ],
    )


def _evaluated(result: DemoResult) -> Evaluated:
    told, inside, outside = result.uncertainty, result.inside.sample, result.outside.sample
    return Evaluated(
        title="FashionMNIST",
        embedding=told.inside,
        labels=inside.labels,
        class_names=inside.class_names,
        thumbnails=inside.images,
        strangers={STRANGERS: (told.outside, outside.images)},
        consensus=told.consensus,
        diagnostics=told.diagnostics,
        scores=told.scores,
        provenance=[
            ("laplacian_metric", __version__),
            ("PyTorch", str(torch.__version__)),
            ("Python", platform.python_version()),
            ("Threads", str(torch.get_num_threads())),
            ("Seed", str(result.seed)),
        ],
    )


def _promises(result: DemoResult) -> Section:
    found = result.refusal
    text = (
        f"The {found.items:,} training images are a gallery, and half of the test images, {found.queries:,}, its "
        f"queries. If each is answered, {found.error:.1%} of the nearest items are of another class. The other half "
        f"calibrated a threshold: with probability {1 - DELTA:g} over such halves, at most {ALPHA:.0%} of the answers "
        "are wrong where the uncertainty is below it. "
    )
    if found.answered is None:
        text += f"Here there is none: {found.reason}."
    else:
        error = "none" if found.answered_error is None else f"{found.answered_error:.1%}"
        text += (
            f"It answers {found.answered:.1%} of the queries, {error} of them wrongly, and "
            f"{found.strangers_answered:.1%} of the digits, none of which it was calibrated on, so that nothing is "
            "promised of them."
        )
    sets = (
        "Instead of refusing, a query can be answered with all items in its credible cap. Calibrated to hold an item "
        f"of the query's class for {LEVEL:.0%} of the queries, the caps and the nearest items do for "
        f"{found.covered:.1%}. These sets are of {found.certain_classes:.2f} classes in the mean for the most certain "
        f"quarter of the queries, and of {found.uncertain_classes:.2f} for the least certain one."
    )
    return Section("What can be promised", [Paragraph(text), Paragraph(sets)])


def _training(result: DemoResult) -> Section:
    losses = result.training.losses
    steps = result.training.steps_per_epoch
    first, last = sum(losses[:steps]) / steps, sum(losses[-steps:]) / steps
    return Section(
        "Training",
        [
            Paragraph(
                f"Contrastive loss with the margin {MARGIN} over all pairs of each batch of {BATCH_SIZE} images; the "
                "average over negative pairs takes only those inside the margin. "
                f"Adam with the learning rate {LEARNING_RATE:g}. The network has two unpadded 3x3 convolutions of "
                "32 and 64 channels, a 2x2 maximum pooling, and a linear layer from "
                f"{result.training.head.in_features:,} features to {result.training.head.out_features} dimensions."
            ),
            Picture(
                loss_curve(losses, steps),
                alt=f"Line plot of the training loss; its mean is {first:.3f} in the first epoch and {last:.3f} "
                "in the last.",
                caption=f"Loss of every step. Mean of the first epoch {first:.3f}, of the last {last:.3f}.",
            ),
        ],
    )


def _name(curvature: Curvature) -> str:
    return f"{curvature.distance}, {curvature.approximation}"


def _curvature_text(result: DemoResult) -> Paragraph:
    parameters = sum(parameter.numel() for parameter in result.training.head.parameters())
    return Paragraph(
        f"The diagonal of the generalised Gauss-Newton matrix for the {parameters:,} parameters of the last layer, in "
        "closed form. With the arccos distance the norm of the embedding is counted to the loss, with the euclidean "
        'distance to the network. "full" keeps all terms of all pairs; "fixed" holds the partner of each image still; '
        '"positive" drops the negative pairs; "clipped" projects the output Hessian of the batch onto the matrices '
        "without negative eigenvalues. A precision cannot be negative, so a posterior clamps negative entries at "
        "zero, once, after everything was added up: their share is in the table."
    )


def _curvature(result: DemoResult) -> Section:
    rows = [
        (
            found.distance,
            found.approximation,
            f"{found.images:,}",
            f"{found.pairs:,}",
            f"{found.seconds * 1e3:,.1f}",
            f"{found.trace:.4g}",
            f"{found.negative_share:.2%}",
        )
        for found in result.curvatures
    ]
    shown = {_name(found): found.weight for found in result.curvatures if found.distance == "arccos"}
    shares = "; ".join(
        f"{_name(found)} {found.negative_share:.2%}"
        for found in result.curvatures
        if found.distance == "arccos"
    )
    return Section(
        "Curvature of the last layer",
        [
            _curvature_text(result),
            Table(
                "Every variant, unclamped. "
                f"{' and '.join(ALL_PAIRS)} use all pairs of the training sample, the others all pairs of one batch; "
                "the time is the median of a few runs.",
                ("Distance", "Variant", "Images", "Pairs", "Time (ms)", "Trace", "Negative entries"),
                rows,
                numeric=frozenset({2, 3, 4, 5, 6}),
            ),
            Picture(
                signed_histograms(shown, "curvature of a weight"),
                alt=f"Four histograms of the curvature of the weights. Share of negative entries: {shares}.",
                caption="How the curvature is distributed over the weights, arccos. Its axis is logarithmic "
                "on both sides of zero; red is negative, grey is close to zero.",
            ),
        ],
    )


def _check(result: DemoResult) -> Section:
    rows = [
        (found.distance, found.approximation, str(found.images), f"{found.deviation:.1e}")
        for found in result.agreements
    ]
    return Section(
        "Compared with automatic differentiation",
        [
            Paragraph(
                "For a few images the same diagonal was computed in this run without any closed form: the Jacobian of "
                "the embeddings and the Hessian of the loss by automatic differentiation, multiplied out in double "
                "precision. The deviation is relative to the sum of the absolute contributions to each entry; for "
                '"clipped" to what the largest eigenvalue of that Hessian would contribute.'
            ),
            Table(
                "Largest relative deviation over all parameters",
                ("Distance", "Variant", "Images", "Deviation"),
                rows,
                numeric=frozenset({2, 3}),
            ),
        ],
    )


def _credit(result: DemoResult) -> Section:
    return Section(
        "The images",
        [
            Paragraph(f"{embedded.sample.citation}. Licence of the images: {embedded.sample.licence}.")
            for embedded in (result.inside, result.outside)
        ],
    )
