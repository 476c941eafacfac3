"""Everything that the demo shows: train, calibrate, answer, measure."""

from __future__ import annotations

import logging
import platform
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import jacrev

from hessians import ContrastiveLoss, Pairs, last_layer_ggn_diagonal
from laplacian_metric import LAM, Encoder, Trust, __version__, data, methods, metrics
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.files import output_folder
from laplacian_metric.core.method import Setup
from laplacian_metric.demo.page import Queries, Shown, demo_page
from laplacian_metric.laplace.diagnostics import Diagnostics
from laplacian_metric.metrics import Evaluation, Uncertainties
from laplacian_metric.report.texts import share
from laplacian_metric.retrieval import NoThresholdError, Threshold, choose_threshold
from laplacian_metric.training import Trained, TrainingOptions, train
from laplacian_metric.trust import Answer

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

ALPHA, DELTA = 0.1, 0.1  # at most this share of the answers is wrong, but for this probability
PROMISING = 200  # validation images that choose the threshold; the others calibrate the probability

COMPARED_IMAGES = 24
NEIGHBOURS = 5

REPORT_NAME = "report.html"


LOGGER = logging.getLogger(__name__)
OOD = "digits"

OnStage = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Answered:
    """Images with their features and what `Trust` answers about them.

    Attributes:
        images: the images.
        features: of the encoder's backbone.
        answer: for each image, searched for in the gallery.
        neighbours: (N, k), rows of the nearest gallery images.
        similarities: (N, k), their cosines.
    """

    images: Dataset
    features: Dataset
    answer: Answer
    neighbours: Tensor
    similarities: Tensor

    @property
    def uncertainty(self) -> Tensor:
        """1 - probability, (N,)."""
        return 1 - torch.from_numpy(self.answer.probability)


@dataclass(frozen=True, eq=False)
class DemoResult:
    """All that the page and the closing table show.

    Attributes:
        seed, epochs: of the run.
        trained: the training.
        encoder: the network.
        gallery: the training images, which are searched.
        calibrating: how many validation images calibrated the probability.
        test, ood: the queries.
        pixel_recall: recall at 1 of the raw pixels.
        evaluation: of the test images, and of detecting the OOD images; the scores compare `Trust` with others.
        threshold: the smallest probability with a promise; None where none can be promised, for the ``reason``.
        diagnostics: of the Laplace posterior.
        curvatures: of the last layer.
        seconds: of all computations.
    """

    seed: int
    epochs: int
    trained: Trained
    encoder: Encoder
    trust: Trust
    gallery: Dataset
    calibrating: int
    test: Answered
    ood: Answered
    pixel_recall: float
    evaluation: Evaluation
    threshold: Threshold | None
    reason: str
    diagnostics: Diagnostics
    curvatures: list[Curvature]
    seconds: float

    def share_answered(self, answered: Answered) -> float | None:
        """Return the share of queries above the threshold; None without one."""
        return None if self.threshold is None else float(self._accepted(answered).mean())

    @property
    def answered_error(self) -> float | None:
        """The share of wrong answers among those above the threshold; None where nothing is answered."""
        if self.threshold is None or not (accepted := self._accepted(self.test)).any():
            return None
        return float((~right(self.test)[accepted]).mean())

    def _accepted(self, answered: Answered) -> NDArray[np.bool_]:
        assert self.threshold is not None
        return self.threshold.answers(answered.uncertainty.numpy())


def right(answered: Answered) -> NDArray[np.bool_]:
    """Return whether the nearest gallery image is of the query's class, (N,)."""
    assert answered.answer.labels is not None
    return np.asarray(np.array(answered.answer.labels) == answered.images.labels.numpy())


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
    promising, calibrating = order[:PROMISING], order[PROMISING:]
    trust = Trust.fit(
        (h.features, h.labels),
        (held_out.features[calibrating], held_out.labels[calibrating]),
        encoder=encoder,
    )
    threshold, reason = _promised(trust, held_out.select(promising))

    on_stage("answering queries")
    point = _embed(encoder, h.features)
    answered = []
    for images, x in ((test, h_test), (digits, h_ood)):
        similarities, neighbours = (_embed(encoder, x.features) @ point.T).topk(NEIGHBOURS)
        answered.append(Answered(images, x, trust(x.features), neighbours, similarities))
    on_stage("fitting the Laplace posterior, and comparing")
    lam.fit_features(h, check_mode=False).optimize_prior_precision()
    pixels = [nn.functional.normalize(images.floats().flatten(1), dim=1) for images in (gallery, test)]
    return DemoResult(
        seed=seed,
        epochs=epochs,
        trained=trained,
        encoder=encoder,
        trust=trust,
        gallery=gallery,
        calibrating=len(calibrating),
        test=answered[0],
        ood=answered[1],
        pixel_recall=metrics.recall_at_k(
            pixels[1], test.labels, database=pixels[0], database_labels=gallery.labels
        ),
        evaluation=_evaluate(lam, encoder, point, h, answered[0], answered[1], seed),
        threshold=threshold,
        reason=reason,
        diagnostics=lam.diagnostics(),
        curvatures=curvatures(h.features, h.labels, encoder.head, loss, COMPARED_IMAGES),
        seconds=time.perf_counter() - begin,
    )


@torch.no_grad()
def _embed(encoder: Encoder, features: Tensor) -> Tensor:
    return nn.functional.normalize(encoder.head(features), dim=1)


def _promised(trust: Trust, queries: Dataset) -> tuple[Threshold | None, str]:
    """Return the smallest probability with a promise about the errors among the answers, or why there is none."""
    answer = trust(queries.features)
    assert answer.labels is not None
    wrong = np.array(answer.labels) != queries.labels.numpy()
    try:
        return choose_threshold(1 - answer.probability, wrong, alpha=ALPHA, delta=DELTA), ""
    except NoThresholdError as error:
        return None, str(error)


def _evaluate(
    lam: LAM, encoder: Encoder, gallery: Tensor, known: Dataset, test: Answered, ood: Answered, seed: int
) -> Evaluation:
    """Return the numbers of `Trust`, and of scores to compare it with."""

    def score(of: Callable[[Answered], Tensor]) -> Uncertainties:
        return Uncertainties(of(test), {OOD: of(ood)})

    trivial = [
        metrics.trivial_scores((known.features, known.labels), images.features.features, encoder=encoder)
        for images in (test, ood)
    ]
    scores = {
        "novelty": score(lambda images: torch.from_numpy(images.answer.novelty)),
        "1/kappa of the Laplace posterior": score(
            lambda images: 1 / lam.embed_features(images.features).kappa.detach()
        ),
        **{name: Uncertainties(trivial[0][name], {OOD: trivial[1][name]}) for name in trivial[0]},
    }
    return metrics.evaluate(
        _embed(encoder, test.features.features),
        test.images.labels,
        database=gallery,
        database_labels=known.labels,
        probability=torch.from_numpy(test.answer.probability),
        ood_uncertainty={OOD: ood.uncertainty},
        scores=scores,
        generator=torch.Generator().manual_seed(seed),
        drawn=("refusals",),
    )


def shown(result: DemoResult) -> Shown:
    """Return what the page shows, in plain values."""
    parameters = sum(parameter.numel() for parameter in result.encoder.parameters())
    return Shown(
        intro=f"A small network learned to put images of the same kind of clothing close together, from "
        f"{len(result.gallery):,} images in {result.trained.seconds:.0f} seconds. Each of {len(result.test.images):,} "
        "new images of clothes is a query: its answer is the nearest training image, right if both show the same "
        f"kind of clothing. {len(result.ood.images):,} handwritten digits are queries too; every answer to a digit is "
        "wrong. Trust gives each answer the probability that it is right.",
        items=result.gallery.images[:, 0].numpy(),
        item_labels=result.gallery.label_names.tolist(),
        known=_queries("clothes", result.test, right(result.test)),
        ood=_queries(OOD, result.ood, np.zeros(len(result.ood.images), dtype=bool)),
        evaluation=result.evaluation,
        promise=_promise(result),
        training=[
            ("Nearest pixels are right", share(result.pixel_recall)),
            (f"Nearest embeddings of {DIM} dimensions are right", share(result.evaluation["recall@1"])),
            ("Images, epochs", f"{len(result.gallery):,}, {result.epochs}"),
            ("Seconds of training, of everything", f"{result.trained.seconds:.1f}, {result.seconds:.1f}"),
            ("Parameters of the network", f"{parameters:,}"),
            ("Validation images that calibrated the probability", f"{result.calibrating:,}"),
        ],
        curvature=[
            (
                one.approximation,
                1000 * one.seconds,
                float((one.diagonal < 0).double().mean()),
                one.deviation,
            )
            for one in result.curvatures
        ],
        diagnostics=result.diagnostics,
        about=[
            ("laplacian_metric", __version__),
            ("PyTorch", str(torch.__version__)),
            ("Python", platform.python_version()),
            ("Threads", str(torch.get_num_threads())),
            ("Seed", str(result.seed)),
        ],
        credits=[
            f"{images.citation} Licence of the images: {images.licence}."
            for images in (result.test.images, result.ood.images)
        ],
    )


def _queries(name: str, answered: Answered, correct: NDArray[np.bool_]) -> Queries:
    answer = answered.answer
    return Queries(
        name=name,
        images=answered.images.images[:, 0].numpy(),
        labels=answered.images.label_names.tolist(),
        right=correct,
        probability=answer.probability,
        verdict=np.where(answer.reason == "trusted", "accept", answer.reason),
        because=answer.because,
        neighbours=answered.neighbours.numpy(),
        similarities=answered.similarities.numpy(),
    )


def _promise(result: DemoResult) -> str:
    text = (
        f"{PROMISING} validation images choose the smallest probability at which at most {share(ALPHA)} of the answers "
        f"are wrong, with probability {share(1 - DELTA)} over such images. "
    )
    accepted = result.share_answered(result.test)
    if result.threshold is None or accepted is None:
        return f"{text}Here none can be guaranteed: {result.reason}."
    error = "none" if result.answered_error is None else share(result.answered_error)
    return (
        f"{text}It is {1 - result.threshold.value:.2f}: {share(accepted)} of the clothes are answered, {error} of the "
        f"answers are wrong, and {share(result.share_answered(result.ood) or 0.0)} of the digits are answered. The "
        "guarantee is about clothes."
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
        (folder / REPORT_NAME).write_text(demo_page(shown(result)).html(), encoding="utf-8")
    return result
