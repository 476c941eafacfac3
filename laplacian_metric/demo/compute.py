"""Everything that the demo shows: train, calibrate, answer, measure."""

from __future__ import annotations

import logging
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hessians import ContrastiveLoss, Pairs
from laplacian_metric import LAM, Encoder, Trust, __version__, data, metrics
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.files import output_folder
from laplacian_metric.demo.page import Queries, Shown, demo_page
from laplacian_metric.laplace.diagnostics import Diagnostics
from laplacian_metric.metrics import Evaluation, Uncertainties
from laplacian_metric.report.texts import share
from laplacian_metric.trust import Answer
from laplacian_metric.trust.guarantee import Guarantee, NoGuaranteeError

EPOCHS = 25
BATCH_SIZE = 128
LEARNING_RATE = 3e-3
WEIGHT_DECAY = 1e-4
MARGIN = 1.3
WIDTH, DIM = 16, 32  # channels of the first convolution, dimensions of the embedding

ERROR, CONFIDENCE = 0.1, 0.9  # of the guarantee
PROMISING = 200  # validation images that choose the threshold; the others calibrate the probability

NEIGHBOURS = 5
OOD = "digits"
RIVAL = "logistic of cosine, margin and vote"
COMPARED = {"own": "Trust: probability", RIVAL: RIVAL, "vote": "vote", "gallery distance": "distance"}
ANSWERED = (1.0, 0.9, 0.8, 0.7, 0.5)  # shares of the queries

REPORT_NAME = "report.html"
LOGGER = logging.getLogger(__name__)

OnStage = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Answered:
    """Images, their features (N, H), the answers of `Trust` to them, and whether these are right (N,)."""

    images: Dataset
    h: Tensor
    answer: Answer
    right: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class DemoResult:
    """All that the page and the closing table show.

    Attributes:
        seed, epochs: of the run.
        encoder: the network.
        gallery: the training images, which are searched.
        trust: calibrated on validation images.
        test, ood: the queries.
        pixel_recall: recall at 1 of the raw pixels.
        evaluation: of the test images, and of detecting the OOD images; the scores compare `Trust` with others.
        errors: name of a score -> the share of wrong answers where each share in ``ANSWERED`` is answered.
        guarantee: of the threshold; None where there is none, for the ``reason``.
        diagnostics: of the Laplace posterior.
        training_seconds, seconds: of the training, and of all computations.
    """

    seed: int
    epochs: int
    encoder: Encoder
    gallery: Dataset
    trust: Trust
    test: Answered
    ood: Answered
    pixel_recall: float
    evaluation: Evaluation
    errors: dict[str, list[float]]
    guarantee: Guarantee | None
    reason: str
    diagnostics: Diagnostics
    training_seconds: float
    seconds: float

    def share_answered(self, answered: Answered) -> float | None:
        """Return the share of queries above the threshold; None without one."""
        if self.guarantee is None:
            return None
        return float(self.guarantee.answers(answered.answer.probability).mean())

    @property
    def answered_error(self) -> float | None:
        """The share of wrong answers among those above the threshold; None where nothing is answered."""
        if self.guarantee is None:
            return None
        accepted = self.guarantee.answers(self.test.answer.probability)
        return float((~self.test.right[accepted]).mean()) if accepted.any() else None


def network(seed: int) -> Encoder:
    """Return a small convolutional network for 28 x 28 grey images, with a linear head."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers: list[nn.Module] = []
        for before, after in ((1, WIDTH), (WIDTH, 2 * WIDTH), (2 * WIDTH, 4 * WIDTH)):
            layers += [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after)]
            layers += [nn.ReLU(), nn.MaxPool2d(2)]
        return Encoder(nn.Sequential(*layers, nn.Flatten()), nn.Linear(4 * WIDTH * 9, DIM))


def trained_network(images: Dataset, loss: ContrastiveLoss, epochs: int, seed: int) -> Encoder:
    """Return the network after some epochs; nothing is chosen on other images."""
    encoder, x = network(seed).train(), images.floats()
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for _ in range(epochs):
        for batch in torch.randperm(len(x), generator=generator).split(BATCH_SIZE):
            optimizer.zero_grad()
            loss(encoder.raw(x[batch]), Pairs.from_labels(images.labels[batch])).backward()
            optimizer.step()
        schedule.step()
    return encoder.eval()


def compute(seed: int, epochs: int, on_stage: OnStage = LOGGER.info) -> DemoResult:
    """Return everything that the demo shows. A seed gives the same numbers on the same machine, times aside."""
    begin = time.perf_counter()
    gallery, validation, test = (
        data.load("sample-fashion-mnist", split) for split in ("train", "validation", "test")
    )
    digits = data.load("sample-mnist", "test")
    loss = ContrastiveLoss(margin=MARGIN, negatives="active")
    on_stage("training")
    encoder = trained_network(gallery, loss, epochs, seed)
    training_seconds = time.perf_counter() - begin

    on_stage("calibrating the probability that an answer is right")
    h, held_out, h_test, h_ood = (
        _features(encoder, images) for images in (gallery, validation, test, digits)
    )
    order = torch.randperm(len(validation), generator=torch.Generator().manual_seed(seed))
    promising, calibrating = order[:PROMISING], order[PROMISING:]
    queries = held_out[calibrating], validation.labels[calibrating]
    trust = Trust.fit((h, gallery.labels), queries, encoder=encoder)
    guarantee, reason = None, ""
    try:
        promised = held_out[promising], validation.labels[promising]
        guarantee = trust.guarantee(promised, error=ERROR, confidence=CONFIDENCE)
    except NoGuaranteeError as error:
        reason = str(error)

    on_stage("answering queries")
    known = _answered(trust, test, h_test)
    ood = _answered(trust, digits, h_ood, right=np.zeros(len(digits), dtype=bool))

    on_stage("fitting the Laplace posterior, and comparing")
    lam = LAM(encoder, loss).fit_features(h, gallery.labels, check_mode=False)
    lam.optimize_prior_precision()
    scores = _scores(lam, (h, gallery.labels), queries, known, ood)
    pixels = [nn.functional.normalize(images.floats().flatten(1), dim=1) for images in (gallery, test)]
    return DemoResult(
        seed=seed,
        epochs=epochs,
        encoder=encoder,
        gallery=gallery,
        trust=trust,
        test=known,
        ood=ood,
        pixel_recall=metrics.recall_at_k(
            pixels[1], test.labels, database=pixels[0], database_labels=gallery.labels
        ),
        evaluation=metrics.evaluate(
            lam.embed_features(h_test).point,
            test.labels,
            database=lam.embed_features(h).point,
            database_labels=gallery.labels,
            probability=torch.from_numpy(known.answer.probability),
            ood_uncertainty={OOD: scores["own"].ood[OOD]},
            scores={name: score for name, score in scores.items() if name != "own"},
            generator=torch.Generator().manual_seed(seed),
            drawn=("refusals",),
        ),
        errors={label: _errors(scores[name].queries, known.right) for name, label in COMPARED.items()},
        guarantee=guarantee,
        reason=reason,
        diagnostics=lam.diagnostics(),
        training_seconds=training_seconds,
        seconds=time.perf_counter() - begin,
    )


@torch.no_grad()
def _features(encoder: Encoder, images: Dataset) -> Tensor:
    return encoder.features(images.floats())


def _answered(trust: Trust, images: Dataset, h: Tensor, right: NDArray[np.bool_] | None = None) -> Answered:
    answer = trust(h)
    return Answered(images, h, answer, answer.labels == images.labels.numpy() if right is None else right)


def _scores(
    lam: LAM, gallery: tuple[Tensor, Tensor], queries: tuple[Tensor, Tensor], known: Answered, ood: Answered
) -> dict[str, Uncertainties]:
    """Return the uncertainty of `Trust` and of other scores for both kinds of queries, by name.

    One of them is a logistic regression on three of the others, fitted on the queries (h, labels) that calibrated
    `Trust`.
    """
    from sklearn.linear_model import LogisticRegression

    free, of_ood, fitted = (
        metrics.trivial_scores(gallery, h, encoder=lam.encoder) for h in (known.h, ood.h, queries[0])
    )
    inputs = [
        np.column_stack([scores[name] for name in ("gallery distance", "margin", "vote")])
        for scores in (fitted, free, of_ood)
    ]
    nearest = (lam.embed_features(queries[0]).point @ lam.embed_features(gallery[0]).point.T).argmax(dim=1)
    rival = LogisticRegression().fit(inputs[0], (gallery[1][nearest] != queries[1]).numpy())
    wrong = [torch.from_numpy(rival.predict_proba(rows)[:, 1]) for rows in inputs[1:]]
    own, novelty = (
        [torch.from_numpy(values) for values in some]
        for some in (
            (1 - known.answer.probability, 1 - ood.answer.probability),
            (known.answer.novelty, ood.answer.novelty),
        )
    )
    kappa = [lam.embed_features(images.h).kappa for images in (known, ood)]
    return {
        "own": Uncertainties(own[0], {OOD: own[1]}),
        "novelty": Uncertainties(novelty[0], {OOD: novelty[1]}),
        RIVAL: Uncertainties(wrong[0], {OOD: wrong[1]}),
        "1/kappa": Uncertainties(1 / kappa[0], {OOD: 1 / kappa[1]}),
        **{name: Uncertainties(free[name], {OOD: of_ood[name]}) for name in free},
    }


def _errors(uncertainty: Tensor, right: NDArray[np.bool_]) -> list[float]:
    """Return the share of wrong answers among the least uncertain ones, for each share in ``ANSWERED``."""
    ordered = ~right[np.argsort(uncertainty.numpy(), kind="stable")]
    return [float(ordered[: round(part * len(right))].mean()) for part in ANSWERED]


def shown(result: DemoResult) -> Shown:
    """Return what the page shows, in plain values."""
    parameters = sum(parameter.numel() for parameter in result.encoder.parameters())
    return Shown(
        intro=f"A small network learned to put images of the same kind of clothing close together, from "
        f"{len(result.gallery):,} images in {result.training_seconds:.0f} seconds. Each of {len(result.test.images):,} "
        "new images of clothes is a query: its answer is the nearest training image, right if both show the same "
        "kind of clothing. Trust gives each answer the probability that it is right.",
        items=result.gallery.images[:, 0].numpy(),
        item_labels=result.gallery.label_names.tolist(),
        known=_queries("clothes", result.test),
        ood=_queries(OOD, result.ood),
        evaluation=result.evaluation,
        answered=ANSWERED,
        errors=result.errors,
        promise=_promise(result),
        training=[
            ("Nearest pixels are right", share(result.pixel_recall)),
            (f"Nearest embeddings of {DIM} dimensions are right", share(result.evaluation["recall@1"])),
            ("Images, epochs", f"{len(result.gallery):,}, {result.epochs}"),
            ("Seconds of training, of everything", f"{result.training_seconds:.1f}, {result.seconds:.1f}"),
            ("Parameters of the network", f"{parameters:,}"),
            ("Calibration error of the probability", str(result.trust.calibration_error)),
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


def _queries(name: str, answered: Answered) -> Queries:
    answer = answered.answer
    assert answer.neighbours is not None
    nearest = answer.neighbours.first(NEIGHBOURS)
    return Queries(
        name=name,
        images=answered.images.images[:, 0].numpy(),
        labels=answered.images.label_names.tolist(),
        right=answered.right,
        probability=answer.probability,
        verdict=answer.verdict,
        because=answer.because,
        neighbours=nearest.ids,
        similarities=1 - nearest.distances,
    )


def _promise(result: DemoResult) -> str:
    text = (
        f"{PROMISING} further validation images choose the smallest probability above which at most {share(ERROR)} of "
        f"the answers are wrong; that holds with probability {share(CONFIDENCE)} over such images. "
    )
    answered, error = result.share_answered(result.test), result.answered_error
    if result.guarantee is None or answered is None:
        return f"{text}Here there is none: {result.reason}."
    return (
        f"{text}It is {result.guarantee.threshold:.2f}. Of the new images {share(answered)} are answered, "
        f"{'none' if error is None else share(error)} of the answers are wrong."
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
