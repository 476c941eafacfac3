"""Everything that the demo shows: train, calibrate, answer, measure."""

from __future__ import annotations

import logging
import platform
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import jacrev

from hessians import ContrastiveLoss, Pairs, last_layer_ggn_diagonal
from laplacian_metric import LAM, Encoder, Trust, __version__, data, methods, metrics
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.files import output_folder
from laplacian_metric.core.method import Setup
from laplacian_metric.demo.page import VERDICTS, Queries, Shown, demo_page
from laplacian_metric.metrics import Evaluation, Uncertainties
from laplacian_metric.report.texts import number, share
from laplacian_metric.training import Trained, TrainingOptions, train

APPROXIMATIONS = ("fixed", "positive")


@dataclass(frozen=True, eq=False)
class Curvature:
    """The diagonal of one approximation over all pairs, unclamped.

    Attributes:
        approximation: "fixed" or "positive".
        diagonal: weight and bias of the last layer in one row.
        seconds: of its computation.
        deviation: the largest deviation from automatic differentiation for a few images, relative to the largest entry.
    """

    approximation: str
    diagonal: Tensor
    seconds: float
    deviation: float


def curvatures(
    features: Tensor, labels: Tensor, head: nn.Linear, loss: ContrastiveLoss, num: int
) -> list[Curvature]:
    """Return the curvature of every approximation.

    Args:
        features: (N, H).
        labels: (N,).
        head: the trained last layer.
        loss: the loss that it was trained with; the curvature is that of all pairs.
        num: how many images are compared with automatic differentiation.
    """
    loss = ContrastiveLoss(margin=loss.margin)  # an average over all negative pairs
    few = torch.linspace(0, len(labels) - 1, num).long()
    results = []
    for approximation in APPROXIMATIONS:
        begin = time.perf_counter()
        diagonal = _diagonal(features, labels, head, loss, approximation)
        seconds = time.perf_counter() - begin
        head64 = nn.Linear(head.in_features, head.out_features).double()
        head64.load_state_dict(head.state_dict())
        rows, classes = features[few].double(), labels[few]
        expected = by_autograd(rows, classes, head64, loss, approximation)
        gap = (_diagonal(rows, classes, head64, loss, approximation) - expected).abs().max()
        results.append(Curvature(approximation, diagonal, seconds, float(gap / expected.abs().max())))
    return results


def _diagonal(
    features: Tensor, labels: Tensor, head: nn.Linear, loss: ContrastiveLoss, approximation: str
) -> Tensor:
    weight, bias = last_layer_ggn_diagonal(
        features,
        head.weight.detach(),
        head.bias.detach(),
        Pairs.from_labels(labels),
        loss,
        approximation=approximation,
    )
    assert bias is not None
    return torch.cat([weight, bias[:, None]], dim=1).flatten()


def by_autograd(
    features: Tensor, labels: Tensor, head: nn.Linear, loss: ContrastiveLoss, approximation: str
) -> Tensor:
    """Return the diagonal of J^T M J, M the Hessian of the loss in the raw embeddings by automatic differentiation.

    "fixed" keeps the blocks of M in which both images are the same; "positive" is the Hessian of the loss of the
    positive pairs alone.
    """
    pairs = Pairs.from_labels(labels)
    if approximation == "positive":
        first, second = torch.triu_indices(len(labels), len(labels), offset=1)
        same = labels[first] == labels[second]
        none = torch.zeros(0, dtype=torch.int64)
        pairs = Pairs.from_indices((first[same], second[same], none, none), len(labels))
    u = head(features).detach()
    middle = jacrev(jacrev(lambda raw: loss(raw, pairs)))(u)  # (N, Z, N, Z)
    if approximation == "fixed":
        middle = middle * torch.eye(len(labels), dtype=u.dtype)[:, None, :, None]
    inputs = torch.cat(
        [features, torch.ones(len(features), 1, dtype=u.dtype)], dim=1
    )  # the bias is a weight of 1
    return torch.einsum("nk,nzmz,mk->zk", inputs, middle, inputs).flatten()


EPOCHS = 25
BATCH_SIZE = 128
LEARNING_RATE = 3e-3
WEIGHT_DECAY = 1e-4
MARGIN = 1.3
WIDTH, DIM = 16, 32  # channels of the first convolution, dimensions of the embedding

ERROR, CONFIDENCE = 0.1, 0.9  # at most this share of the accepted answers is wrong, with this probability
GUARANTEEING = 200  # validation images that choose the threshold; the others calibrate the probability
COMPARED_IMAGES = 24
NEIGHBOURS = 5
REPORT_NAME = "report.html"
OOD = "digits"
INTRO = (
    "A small network learned to put images of the same kind of clothing close together, from {:,} images in {:.0f} "
    "seconds. Each of {:,} new images of clothes is a query: its answer is the nearest training image, right if both "
    "show the same kind of clothing. {:,} handwritten digits are queries too; every answer to a digit is wrong. Trust "
    "gives each answer the probability that it is right."
)

LOGGER = logging.getLogger(__name__)
OnStage = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class DemoResult:
    """What the demo computed.

    Attributes:
        encoder: the network.
        trust: what answers the queries.
        gallery, test, ood: the images; ``features`` has those of the backbone for each.
        shown: what the page shows.
        figures: the numbers of the closing table, None where there is none.
    """

    encoder: Encoder
    trust: Trust
    gallery: Dataset
    test: Dataset
    ood: Dataset
    shown: Shown
    figures: dict[str, Any]


def network(seed: int) -> Encoder:
    """Return a small convolutional network for 28 x 28 grey images, with a linear head."""
    width = WIDTH
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers: list[nn.Module] = []
        for before, after in ((1, width), (width, 2 * width), (2 * width, 4 * width)):
            layers += [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after)]
            layers += [nn.ReLU(), nn.MaxPool2d(2)]
        return Encoder(nn.Sequential(*layers, nn.Flatten()), nn.Linear(4 * width * 9, DIM))


def trained_network(
    images: Dataset, validation: Dataset, loss: ContrastiveLoss, epochs: int, seed: int
) -> tuple[Encoder, Trained]:
    """Train the network; the last epoch is kept, so that nothing is chosen on validation images."""
    encoder = network(seed)
    options = TrainingOptions(
        epochs=epochs,
        batch_size=BATCH_SIZE,
        optimizer="adamw",  # type: ignore[arg-type]
        learning_rate=LEARNING_RATE,
        weight_decay=WEIGHT_DECAY,
        schedule="cosine",  # type: ignore[arg-type]
    )
    learner = methods.make("deterministic").learner([encoder], Setup(loss, num_images=len(images)))
    with tempfile.TemporaryDirectory() as folder:
        trained = train(
            learner,
            images.in_memory(),
            validation.in_memory(),
            options,
            Path(folder),
            seed=seed,
        )
    return encoder.eval(), trained


def compute(seed: int, epochs: int, on_stage: OnStage = LOGGER.info) -> DemoResult:
    """Return everything that the demo shows. A seed gives the same numbers on the same machine, times aside."""
    begin = time.perf_counter()
    gallery, validation, test = (
        data.load("sample-fashion-mnist", split) for split in ("train", "validation", "test")
    )
    digits = data.load("sample-mnist", "test")
    loss = ContrastiveLoss(margin=MARGIN, negatives="active")
    on_stage("training")
    encoder, trained = trained_network(gallery, validation, loss, epochs, seed)

    on_stage("calibrating which answers can be trusted")
    lam = LAM(encoder, loss)
    h, held_out, h_test, h_ood = (
        lam.features(images.in_memory(), progress=False) for images in (gallery, validation, test, digits)
    )
    order = torch.randperm(len(validation), generator=torch.Generator().manual_seed(seed))
    calibrating = held_out.select(order[GUARANTEEING:])
    trust = Trust.fit((h.features, h.labels), (calibrating.features, calibrating.labels), encoder=encoder)
    trust, promise = _guaranteed(trust, held_out.select(order[:GUARANTEEING]))

    on_stage("answering queries")
    known = _queries("clothes", encoder, trust, h, h_test, test)
    ood = _queries(OOD, encoder, trust, h, h_ood, digits)

    on_stage("fitting the Laplace posterior, and comparing")
    lam.fit_features(h, check_mode=False).optimize_prior_precision()
    evaluation = _evaluate(lam, encoder, trust, h, h_test, h_ood, seed)
    compared = curvatures(h.features, h.labels, encoder.head, loss, COMPARED_IMAGES)
    times = (trained.seconds, time.perf_counter() - begin)
    shown = Shown(
        intro=INTRO.format(len(gallery), trained.seconds, len(test), len(digits)),
        items=gallery.thumbnails(),
        item_labels=gallery.label_names.tolist(),
        known=known,
        ood=ood,
        evaluation=evaluation,
        promise=promise,
        training=[
            ("Nearest pixels are right", share(_pixel_recall(gallery, test))),
            (f"Nearest embeddings of {DIM} dimensions are right", share(evaluation["recall@1"])),
            ("Images, epochs", f"{len(gallery):,}, {epochs}"),
            ("Seconds of training, of everything", "{:.1f}, {:.1f}".format(*times)),
            ("Validation images that calibrated the probability", f"{len(calibrating):,}"),
        ],
        curvature=[
            (one.approximation, 1000 * one.seconds, float((one.diagonal < 0).double().mean()), one.deviation)
            for one in compared
        ],
        diagnostics=lam.diagnostics(),
        about=[
            ("laplacian_metric", __version__),
            ("PyTorch", str(torch.__version__)),
            ("Python", platform.python_version()),
            ("Threads", str(torch.get_num_threads())),
            ("Seed", str(seed)),
        ],
        credits=[f"{images.citation} Licence of the images: {images.licence}." for images in (test, digits)],
    )
    return DemoResult(encoder, trust, gallery, test, digits, shown, _figures(shown, trust, times))


def _guaranteed(trust: Trust, queries: Dataset) -> tuple[Trust, str]:
    """Return a Trust that accepts answers above a threshold with a guarantee, if there is one, and the guarantee."""
    try:
        guarantee = trust.guarantee((queries.features, queries.labels), error=ERROR, confidence=CONFIDENCE)
    except ValueError as error:
        return (
            trust,
            f"No threshold can be guaranteed ({error}): answers from {trust.threshold} on are accepted.",
        )
    return trust.accepting(guarantee), (
        f"{GUARANTEEING} further validation images chose the probability from which answers are accepted, "
        f"{number(guarantee.threshold)}: with probability {share(CONFIDENCE)} over such images, at most "
        f"{share(ERROR)} of the accepted answers to clothes are wrong."
    )


def _figures(shown: Shown, trust: Trust, times: tuple[float, float]) -> dict[str, Any]:
    evaluation, accepted = shown.evaluation, shown.known.verdict == VERDICTS[0]
    return {
        "training_seconds": times[0],
        "seconds": times[1],
        "error": 1 - evaluation["recall@1"],
        "probability_ece": evaluation["probability_ece"],
        "r_auroc": evaluation["r_auroc"],
        "ood_auroc": evaluation.scores["novelty"].ood[OOD]["auroc"],
        "threshold": trust.threshold,
        "accepted": float(accepted.mean()),
        "accepted_error": float(1 - shown.known.right[accepted].mean()) if accepted.any() else None,
        "ood_accepted": float((shown.ood.verdict == VERDICTS[0]).mean()),
        "curvature_deviation": max(deviation for *_, deviation in shown.curvature),
    }


def _pixel_recall(gallery: Dataset, test: Dataset) -> float:
    items, queries = (
        nn.functional.normalize(images.floats().flatten(1), dim=1) for images in (gallery, test)
    )
    return metrics.recall_at_k(queries, test.labels, database=items, database_labels=gallery.labels)


@torch.no_grad()
def _embed(encoder: Encoder, features: Tensor) -> Tensor:
    return nn.functional.normalize(encoder.head(features), dim=1)


def _queries(
    name: str, encoder: Encoder, trust: Trust, items: Dataset, features: Dataset, images: Dataset
) -> Queries:
    """Return queries with their answers."""
    answer = trust(features.features)
    near = (_embed(encoder, features.features) @ _embed(encoder, items.features).T).topk(NEIGHBOURS)
    right = np.asarray(answer.labels) == images.labels.numpy()
    return Queries(
        name=name,
        images=images.thumbnails(),
        labels=images.label_names.tolist(),
        right=right & (name != OOD),
        probability=answer.probability,
        verdict=answer.verdict,
        because=answer.because,
        neighbours=near.indices.numpy(),
        similarities=near.values.numpy(),
    )


def _evaluate(
    lam: LAM, encoder: Encoder, trust: Trust, items: Dataset, test: Dataset, ood: Dataset, seed: int
) -> Evaluation:
    """Return the numbers of `Trust`, and of scores to compare it with."""
    answers = [trust(queries.features) for queries in (test, ood)]
    trivial = [
        metrics.trivial_scores((items.features, items.labels), queries.features, encoder=encoder)
        for queries in (test, ood)
    ]
    kappa = [lam.embed_features(queries.features).kappa.detach() for queries in (test, ood)]

    def score(inside: Any, outside: Any) -> Uncertainties:
        return Uncertainties(torch.as_tensor(inside), {OOD: torch.as_tensor(outside)})

    return metrics.evaluate(
        _embed(encoder, test.features),
        test.labels,
        database=_embed(encoder, items.features),
        database_labels=items.labels,
        probability=torch.from_numpy(answers[0].probability),
        ood_uncertainty={OOD: 1 - torch.from_numpy(answers[1].probability)},
        scores={
            "novelty": score(*(answer.novelty for answer in answers)),
            "1/kappa": score(*(1 / values for values in kappa)),
            **{name: score(*(scores[name] for scores in trivial)) for name in trivial[0]},
        },
        generator=torch.Generator().manual_seed(seed),
        drawn=("refusals",),
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
    """
    with output_folder(out, force) as folder:
        result = compute(seed, epochs, on_stage)
        on_stage("writing the report")
        (folder / REPORT_NAME).write_text(demo_page(result.shown).html(), encoding="utf-8")
    return result
