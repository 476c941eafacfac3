"""Everything that the demo shows: train, calibrate, answer, measure."""

from __future__ import annotations

import logging
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hessians import ContrastiveLoss, Pairs
from laplacian_metric import LAM, Encoder, Trust, __version__, data, metrics
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.files import output_folder
from laplacian_metric.demo.page import VERDICTS, Queries, Shown, demo_page
from laplacian_metric.metrics import Evaluation, Uncertainties
from laplacian_metric.report.page import number, share
from laplacian_metric.trust import Answer
from laplacian_metric.trust.guarantee import NoGuaranteeError

EPOCHS = 25
BATCH_SIZE = 128
LEARNING_RATE = 3e-3
WEIGHT_DECAY = 1e-4
MARGIN = 1.3
WIDTH, DIM = 16, 32  # channels of the first convolution, dimensions of the embedding

ERROR, CONFIDENCE = 0.1, 0.9  # at most this share of the accepted answers is wrong, with this probability
GUARANTEEING = 200  # validation images that choose the threshold; the others calibrate the probability
NEIGHBOURS = 5
REPORT_NAME = "report.html"
OOD = "digits"
RIVAL = "logistic of cosine, margin and vote"
RIVAL_INPUTS = ("gallery distance", "margin", "vote")
COMPARED = {"own": "Trust: probability", RIVAL: RIVAL, "vote": "vote", "gallery distance": "distance"}
ANSWERED = (1.0, 0.9, 0.8, 0.7, 0.5)  # shares of the queries that are answered
INTRO = (
    "A small network learned to put images of the same kind of clothing close together, from {:,} images in {:.0f} "
    "seconds. Each of {:,} new images of clothes is a query: its answer is the nearest training image, right if both "
    "show the same kind of clothing. Trust gives each answer the probability that it is right."
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
    trained = time.perf_counter() - begin

    on_stage("calibrating the probability that an answer is right")
    h, held_out, h_test, h_ood = (
        _features(encoder, images) for images in (gallery, validation, test, digits)
    )
    order = torch.randperm(len(validation), generator=torch.Generator().manual_seed(seed))
    guaranteeing, calibrating = (
        (held_out[rows], validation.labels[rows]) for rows in (order[:GUARANTEEING], order[GUARANTEEING:])
    )
    trust = Trust.fit((h, gallery.labels), calibrating, encoder=encoder)
    trust, promise = _guaranteed(trust, guaranteeing)

    on_stage("answering queries")
    answers = [trust(h_test), trust(h_ood)]
    known, ood = _queries("clothes", answers[0], test), _queries(OOD, answers[1], digits)

    on_stage("fitting the Laplace posterior, and comparing")
    lam = LAM(encoder, loss).fit_features(h, gallery.labels, check_mode=False)
    lam.optimize_prior_precision()
    scores = _scores(lam, (h, gallery.labels), calibrating, (h_test, h_ood), answers)
    evaluation = _evaluate(lam, (h, gallery.labels), (h_test, test.labels), scores, known, seed)
    times = (trained, time.perf_counter() - begin)
    shown = Shown(
        intro=INTRO.format(len(gallery), trained, len(test)),
        items=gallery.thumbnails(),
        item_labels=gallery.label_names.tolist(),
        known=known,
        ood=ood,
        evaluation=evaluation,
        answered=ANSWERED,
        errors={label: _errors(scores[name].queries, known.right) for name, label in COMPARED.items()},
        promise=promise,
        training=[
            ("Nearest pixels are right", share(_pixel_recall(gallery, test))),
            (f"Nearest embeddings of {DIM} dimensions are right", share(evaluation["recall@1"])),
            ("Images, epochs", f"{len(gallery):,}, {epochs}"),
            ("Seconds of training, of everything", "{:.1f}, {:.1f}".format(*times)),
            ("Validation images that calibrated the probability", f"{len(calibrating[0]):,}"),
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


@torch.no_grad()
def _features(encoder: Encoder, images: Dataset) -> Tensor:
    return encoder.features(images.floats())


def _guaranteed(trust: Trust, queries: tuple[Tensor, Tensor]) -> tuple[Trust, str]:
    """Return a Trust that accepts answers above a threshold with a guarantee, if there is one, and the guarantee."""
    try:
        guarantee = trust.guarantee(queries, error=ERROR, confidence=CONFIDENCE)
    except NoGuaranteeError as error:
        return (
            trust,
            f"No threshold can be guaranteed ({error}): answers from {trust.threshold} on are accepted.",
        )
    return trust.accepting(guarantee), (
        f"{GUARANTEEING} further validation images chose the probability from which answers are accepted, "
        f"{number(guarantee.threshold)}: with probability {share(CONFIDENCE)} over such images, at most "
        f"{share(ERROR)} of the accepted answers to clothes are wrong. "
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
        "errors": {
            name: dict(zip(map(str, ANSWERED), row, strict=True)) for name, row in shown.errors.items()
        },
    }


def _pixel_recall(gallery: Dataset, test: Dataset) -> float:
    items, queries = (
        nn.functional.normalize(images.floats().flatten(1), dim=1) for images in (gallery, test)
    )
    return metrics.recall_at_k(queries, test.labels, database=items, database_labels=gallery.labels)


def _queries(name: str, answer: Answer, images: Dataset) -> Queries:
    """Return queries with their answers, of which those to OOD images are wrong."""
    assert answer.neighbours is not None
    near = answer.neighbours.first(NEIGHBOURS)
    return Queries(
        name=name,
        images=images.thumbnails(),
        labels=images.label_names.tolist(),
        right=(np.asarray(answer.labels) == images.labels.numpy()) & (name != OOD),
        probability=answer.probability,
        verdict=answer.verdict,
        because=answer.because,
        neighbours=near.ids,
        similarities=1 - near.distances,
    )


def _scores(
    lam: LAM,
    gallery: tuple[Tensor, Tensor],
    calibrating: tuple[Tensor, Tensor],
    queries: tuple[Tensor, Tensor],
    answers: list[Answer],
) -> dict[str, Uncertainties]:
    """Return the uncertainty of `Trust` and of other scores by name, of both kinds of queries.

    One of them is a logistic regression on three of the others, fitted on the images that calibrated `Trust`.
    """
    from sklearn.linear_model import LogisticRegression

    free = [metrics.trivial_scores(gallery, h, encoder=lam.encoder) for h in (calibrating[0], *queries)]
    inputs = [np.column_stack([scores[name] for name in RIVAL_INPUTS]) for scores in free]
    points, items = (lam.embed_features(h).point for h in (calibrating[0], gallery[0]))
    wrong = gallery[1][(points @ items.T).argmax(dim=1)] != calibrating[1]
    rival = LogisticRegression().fit(inputs[0], wrong.numpy())

    def score(*both: Any) -> Uncertainties:
        return Uncertainties(torch.as_tensor(both[0]), {OOD: torch.as_tensor(both[1])})

    return {
        "own": score(*(1 - answer.probability for answer in answers)),
        "novelty": score(*(answer.novelty for answer in answers)),
        RIVAL: score(*(rival.predict_proba(rows)[:, 1] for rows in inputs[1:])),
        "1/kappa": score(*(1 / lam.embed_features(h).kappa for h in queries)),
        **{name: score(*(scores[name] for scores in free[1:])) for name in free[0]},
    }


def _errors(uncertainty: Tensor, right: NDArray[np.bool_]) -> list[float]:
    """Return the share of wrong answers among the least uncertain ones, for each share in ``ANSWERED``."""
    wrong = ~right[np.argsort(uncertainty.numpy(), kind="stable")]
    return [float(wrong[: round(part * len(right))].mean()) for part in ANSWERED]


def _evaluate(
    lam: LAM,
    gallery: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    scores: dict[str, Uncertainties],
    known: Queries,
    seed: int,
) -> Evaluation:
    """Return the numbers of `Trust`, and of scores to compare it with."""
    own = scores["own"]
    return metrics.evaluate(
        lam.embed_features(test[0]).point,
        test[1],
        database=lam.embed_features(gallery[0]).point,
        database_labels=gallery[1],
        probability=torch.from_numpy(known.probability),
        ood_uncertainty=own.ood,
        scores={name: score for name, score in scores.items() if score is not own},
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
