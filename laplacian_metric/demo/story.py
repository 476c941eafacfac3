"""The page that the demo writes: what was done, and what it shows, in the reader's order."""

from __future__ import annotations

import platform

import torch

from laplacian_metric import __version__
from laplacian_metric.demo.compute import DemoResult
from laplacian_metric.demo.curvature import ALL_PAIRS, Curvature
from laplacian_metric.demo.settings import BATCH_SIZE, LEARNING_RATE, MARGIN, RANK
from laplacian_metric.report import Page, Paragraph, Picture, Section, Table
from laplacian_metric.report.plots import (
    concentration_histograms,
    loss_curve,
    signed_histograms,
    sphere_maps,
)


def tell(result: DemoResult) -> Page:
    """The whole page."""
    return Page(
        "laplacian_metric: what the demo found",
        [
            _summary(result),
            _training(result),
            _embeddings(result),
            _uncertainty(result),
            _curvature(result),
            _check(result),
            _about(result),
        ],
    )


def _summary(result: DemoResult) -> Section:
    worst = max(agreement.deviation for agreement in result.agreements)
    rows = [
        ("Images trained on", f"{result.train_images:,}"),
        ("Epochs, and their time", f"{result.epochs}, {result.training.seconds:.1f} s"),
        ("Recall at 1, FashionMNIST test, three-dimensional embedding", f"{result.inside.recall:.3f}"),
        ("Recall at 1, FashionMNIST test, 784 raw pixels", f"{result.inside.pixel_recall:.3f}"),
        (
            "A digit is more uncertain than a piece of clothing (by 1/kappa; 0.5 is chance)",
            f"{result.uncertainty.scores[0].strangers:.1%} of pairs",
        ),
        ("Largest relative deviation of the closed form from autograd", f"{worst:.1e}"),
        ("All computations", f"{result.seconds:.1f} s"),
    ]
    return Section(
        "In short",
        [
            Paragraph(
                "A small network was trained to put images of the same kind of clothing close together on a sphere. "
                "Then the curvature of its loss was computed for every weight of its last layer: how sharply the "
                "loss bends when that weight moves. A Laplace approximation turns this curvature into the "
                "uncertainty of the weights, and so of every embedding: each image gets a direction and a "
                "concentration kappa that says how sure the direction is."
            ),
            Table("The run in numbers", ("What", "Value"), rows, numeric=frozenset({1})),
        ],
    )


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


def _embeddings(result: DemoResult) -> Section:
    inside, outside = result.inside, result.outside
    panels = {
        "FashionMNIST, test images": (inside.directions, inside.sample.labels, inside.sample.class_names),
        "MNIST, never trained on": (outside.directions, outside.sample.labels, outside.sample.class_names),
    }
    return Section(
        "Embeddings",
        [
            Paragraph(
                "Each point is the direction of one image's embedding. The network puts digits on the same sphere as "
                "clothes, though it has never seen one, and a point on the sphere carries no uncertainty of its own: "
                "from its position alone nobody can tell how far it is to be trusted."
            ),
            Picture(
                sphere_maps(panels),
                alt=f"Two maps of the sphere. On the left {len(inside.sample)} test images of FashionMNIST, coloured "
                f"by class, on the right {len(outside.sample)} images of MNIST, coloured by digit.",
                caption="Equal-area maps of the whole unit sphere, both with the same orientation. "
                f"Recall at 1 is {inside.recall:.3f} on the left; among the digits themselves {outside.recall:.3f}.",
            ),
        ],
    )


def _uncertainty(result: DemoResult) -> Section:
    found = result.uncertainty
    medians = [float(kappa.median()) for kappa in (found.inside, found.outside)]
    told = found.diagnostics
    rows = [(score.name, f"{score.strangers:.3f}", f"{score.errors:.3f}") for score in found.scores]
    return Section(
        "Which embeddings to trust",
        [
            Paragraph(
                f"The posterior over the {told.parameters:,} weights of the last layer has the {RANK} largest "
                "eigenvectors of the curvature and the diagonal of the rest; the precision of its prior, "
                f"{found.prior_precision:.3g}, is the one with the greatest marginal likelihood. It took "
                f"{found.fit_seconds:.1f} s to fit. Embedding {len(found.inside) + len(found.outside):,} images with "
                f"direction and concentration, from their features, took {found.embed_seconds:.2f} s. No sampling is "
                "involved, and no digit was shown to anything before."
            ),
            Picture(
                concentration_histograms(
                    {"FashionMNIST, test images": found.inside, "MNIST, never trained on": found.outside}
                ),
                alt=f"Two histograms of kappa on a logarithmic axis; the median is {medians[0]:.3g} for "
                f"FashionMNIST and {medians[1]:.3g} for MNIST.",
                caption=f"Concentrations of the directions: median {medians[0]:.3g} for clothes, {medians[1]:.3g} for "
                "digits. The greater kappa, the surer the direction.",
            ),
            Table(
                "How often a score is higher where it should be (0.5 is chance): for digits than for clothes, and "
                "for clothes whose nearest neighbour is of another class than for the others",
                ("Score", "Digits", "Wrong neighbours"),
                rows,
                numeric=frozenset({1, 2}),
            ),
            Paragraph(
                "A score has to do both: one that is high for strangers may well misjudge what is known. With "
                "validation images at hand, LAM.fit_confidence calibrates a probability that a match can be trusted."
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


def _about(result: DemoResult) -> Section:
    rows = [
        ("laplacian_metric", __version__),
        ("PyTorch", str(torch.__version__)),
        ("Python", platform.python_version()),
        ("Threads", str(torch.get_num_threads())),
        ("Seed", str(result.seed)),
    ]
    credit = [
        Paragraph(f"{embedded.sample.citation}. Licence of the images: {embedded.sample.licence}.")
        for embedded in (result.inside, result.outside)
    ]
    return Section("About this run", [Table("Versions and settings", ("What", "Value"), rows), *credit])
