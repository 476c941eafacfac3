"""The numbers of one network that was trained without labels: its embedding, and every uncertainty beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.corruptions import corrupt
from experiments.harness.cell_fitting import Fitted
from experiments.harness.image_sets import OUT, TEST, TRAIN, VALIDATION, spread
from hessians import ContrastiveLoss, InfoNCELoss
from laplacian_metric import LAM, Encoder, Trust, metrics
from laplacian_metric.core.batch import map_batches
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.embedding import StochasticEmbedding, unit_rows
from laplacian_metric.data.views import ImageViews
from laplacian_metric.laplace.features import collect_features
from laplacian_metric.methods.self_supervised.two_views import ViewLoader
from laplacian_metric.metrics import statistics
from laplacian_metric.metrics.classification import classified, clustering_nmi
from laplacian_metric.metrics.evaluation import Evaluation, Uncertainties, evaluate_ranking
from laplacian_metric.metrics.ranking import rank
from laplacian_metric.metrics.resampling import Statistic, bootstrap_all

QUERIES, GALLERY, OOD_IMAGES, CALIBRATION = 4000, 5000, 1000, 300
TEMPERATURE, BATCH = 0.1, 256
DARKNESS = 0.3
SHOWN = 8  # images in each half of a row of the picture
CORRUPTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "blur": lambda x: corrupt(x, "blur", 0.5),
    "occluded": lambda x: corrupt(x, "occlusion", 0.5),
    "dark": lambda x: DARKNESS * x,
    "noise": lambda x: corrupt(x, "noise", 0.5),
}
OUTSIDE = ("grocery", "fashion-mnist", "mnist", "quickdraw")
UNSEEN = ("recall@1", "recall@2", "recall@4", "nmi", "trace")
QUALITY = ("knn@200", "linear probe", "recall@1", "nmi", "trace")
VOTE = "knn@200"
OWN = "own"
FREE = (
    *("gallery distance", "feature distance", "kNN feature distance", "LOF", "Mahalanobis"),
    *("feature norm", "embedding norm"),
)
WITH_LABELS = ("margin", "vote", "kernel vote")  # of the gallery alone, unlike Trust
RIVALS = ("gallery distance", "embedding norm", "kernel vote")


def evaluate(run: Fitted, views: ImageViews) -> dict[str, Any]:
    """Return the numbers of one trained network."""
    encoder = run.encoder
    if encoder is None:
        raise ValueError("a network of several encoders has no features of its own")
    train, test = run.sets[TRAIN], run.sets[TEST]
    if set(train.classes).isdisjoint(test.classes):
        return unseen(run, test)
    h_train, h_test = (features(encoder, images) for images in (train, test))
    z_train, z_test = (unit_rows(encoder.head(h)).detach() for h in (h_train, h_test))
    gallery = {"database": z_train, "database_labels": train.labels}
    correct = classified(
        z_test, test.labels, z_train, train.labels, neighbours=200, features=h_test, database_features=h_train
    )
    ranking = rank(z_test, test.labels, **gallery)
    nmi = clustering_nmi(z_test, test.labels)
    whole = evaluate_ranking(ranking, correct=correct, nmi=nmi, ks=(1,), resamples=0)
    scores, ranked, wrong = uncertainties(run, encoder, views)
    trace = float(scores[OWN].queries.median()) if OWN in scores else None
    return {
        "quality": {**{name: whole[name] for name in QUALITY if name != "trace"}, "trace": trace},
        "right": packed(correct[VOTE]),
        "scores": plain(ranked),
        "paired": paired(scores, wrong),
        "extremes": extremes(scores, len(test)),
    }


def unseen(run: Fitted, test: Dataset) -> dict[str, Any]:
    """Return the numbers of classes of which no image was trained on, searched among the test images."""
    e = run.embedder.embed(test)
    ranking, nmi = rank(e.point, test.labels, 4), clustering_nmi(e.point, test.labels)
    evaluation = evaluate_ranking(ranking, nmi=nmi, ks=(1, 2, 4), resamples=0)
    numbers = {name: evaluation[name] for name in UNSEEN if name != "trace"}
    trace = None if certain(e) else float(e.uncertainty.median())
    return {"unseen": {**numbers, "trace": trace}, "right": packed(ranking.hits[:, 0])}


def certain(e: StochasticEmbedding) -> bool:
    """Return whether a method's embeddings have no uncertainty."""
    return bool((e.uncertainty == 0).all())


def packed(values: Tensor) -> str:
    """Return bool (N,) as hexadecimal digits, for `unpacked`.

    Example:
        >>> packed(torch.tensor([True, False, True, True]))
        '4:b0'
    """
    return f"{len(values)}:{np.packbits(values.cpu().numpy()).tobytes().hex()}"


def unpacked(text: str) -> Tensor:
    """Return bool (N,) from what `packed` returned.

    Example:
        >>> unpacked("4:b0")
        tensor([ True, False,  True,  True])
    """
    number, digits = text.split(":")
    bits = np.unpackbits(np.frombuffer(bytes.fromhex(digits), dtype=np.uint8))[: int(number)]
    return torch.from_numpy(bits.astype(bool))


def plain(evaluation: Evaluation) -> dict[str, dict[str, float]]:
    """Return R-AUROC and the AUROC of every set, of every score by name."""
    return {
        name: {
            "R-AUROC": score.values["r_auroc"],
            **{label: numbers["auroc"] for label, numbers in score.ood.items()},
        }
        for name, score in evaluation.scores.items()
    }


def paired(scores: Mapping[str, Uncertainties], wrong: Tensor) -> dict[str, dict[str, list[float]]]:
    """Return by score and rival [difference of R-AUROC, low, high], 95 % by bootstrap over the queries."""
    areas = {name: _kept(partial(statistics.auroc, score.queries, wrong)) for name, score in scores.items()}
    gaps = {
        f"{name}|{rival}": _gap(areas[name], areas[rival])
        for name in areas
        for rival in RIVALS
        if name != rival
    }
    intervals = bootstrap_all(gaps, len(wrong))
    every = torch.ones(1, len(wrong), dtype=torch.float64)
    results: dict[str, dict[str, list[float]]] = {}
    for both, difference in gaps.items():
        name, rival = both.split("|")
        interval = intervals[both]
        results.setdefault(name, {})[rival] = [float(difference(every)), interval.low, interval.high]
    return results


def _gap(first: Statistic, second: Statistic) -> Statistic:
    return lambda weights: first(weights) - second(weights)


def _kept(statistic: Statistic) -> Statistic:
    """Return a statistic that is computed once for all differences of the same draws."""
    last: list[Tensor] = []

    def value(weights: Tensor) -> Tensor:
        if not last or last[0] is not weights:
            last[:] = [weights, statistic(weights)]
        return last[1]

    return value


def extremes(scores: Mapping[str, Uncertainties], number: int) -> dict[str, dict[str, list[int]]]:
    """Return by score the rows of the least and of the most uncertain test images, of which there are ``number``."""
    chosen: dict[str, dict[str, list[int]]] = {}
    for name, score in scores.items():
        order = score.queries.argsort(stable=True)
        rows = torch.arange(len(order)) * number // len(order)  # of the queries among the test images
        chosen[name] = {
            "lowest": rows[order[:SHOWN]].tolist(),
            "highest": rows[order.flip(0)[:SHOWN]].tolist(),
        }
    return chosen


def uncertainties(
    run: Fitted, encoder: Encoder, views: ImageViews
) -> tuple[dict[str, Uncertainties], Evaluation, Tensor]:
    """Return every score of test, corrupted and OOD images, what they are worth, and which queries are wrong."""
    train, test = spread(run.sets[TRAIN], GALLERY), spread(run.sets[TEST], QUERIES)
    few = spread(run.sets[TEST], OOD_IMAGES)
    pixels = torch.cat([batch.inputs for batch in few.batches()])
    sets: dict[str, Dataset] = {TEST: test}
    sets |= {name: Dataset(change(pixels), few.labels) for name, change in CORRUPTIONS.items()}
    sets |= {label: spread(run.sets[OUT + label], OOD_IMAGES) for label in OUTSIDE}
    h = {name: features(encoder, images) for name, images in sets.items()}
    gallery_h = features(encoder, train)
    values = by_score(run, encoder, views, train, gallery_h, sets, h)
    scores = {
        name: Uncertainties(of_sets[TEST], {label: of_sets[label] for label in of_sets if label != TEST})
        for name, of_sets in values.items()
    }
    queries, gallery = (unit_rows(encoder.head(rows)).detach() for rows in (h[TEST], gallery_h))
    ranking = rank(queries, test.labels, database=gallery, database_labels=train.labels)
    evaluation = evaluate_ranking(ranking, scores=scores, ks=(1,), resamples=0)
    return scores, evaluation, 1 - ranking.first_is_right()


def by_score(
    run: Fitted,
    encoder: Encoder,
    views: ImageViews,
    train: Dataset,
    gallery_h: Tensor,
    sets: Mapping[str, Dataset],
    h: Mapping[str, Tensor],
) -> dict[str, dict[str, Tensor]]:
    """Return by score and set one number for each image, the greater the less certain."""
    values: dict[str, dict[str, Tensor]] = {}
    two_views = collect_features(encoder, ViewLoader(train, views), progress=False)
    lams = {
        "LAM, InfoNCE": posterior(encoder, InfoNCELoss(TEMPERATURE), two_views),
        "LAM, contrastive": posterior(encoder, ContrastiveLoss(margin=0.7), two_views),
    }
    validation = spread(run.sets[VALIDATION], CALIBRATION)
    trust = Trust.fit(
        (gallery_h, train.labels), (features(encoder, validation), validation.labels), encoder=encoder
    )
    for label, images in sets.items():
        e = run.embedder.embed(images)
        of_set = {} if certain(e) else {OWN: e.uncertainty}
        trivial = metrics.trivial_scores((gallery_h, train.labels), h[label], encoder=encoder)
        of_set |= {name: trivial[name] for name in FREE}
        for name, lam in lams.items():
            embedded = lam.embed_features(h[label])
            of_set[f"{name}: 1/kappa"] = embedded.uncertainty
            of_set[f"{name}: variance"] = embedded.variance.sum(1)
        of_set |= {name: trivial[name] for name in WITH_LABELS}
        of_set["Trust, 300 labels"] = 1 - torch.as_tensor(trust(h[label]).probability)
        for name, scored in of_set.items():
            values.setdefault(name, {})[label] = scored.detach().double()
    return values


def posterior(encoder: Encoder, loss: InfoNCELoss | ContrastiveLoss, two_views: Dataset) -> LAM:
    """Return the Laplace posterior that features of two views of unlabelled images give."""
    lam = LAM(encoder, loss, n_effective=len(two_views) // 2)
    generator = torch.Generator().manual_seed(0)
    lam.fit_features(two_views, batch_size=BATCH, generator=generator, check_mode=False, progress=False)
    lam.optimize_prior_precision()
    return lam


def features(encoder: Encoder, images: Dataset) -> Tensor:
    """Return the features (N, H) of all images."""
    return torch.cat(
        map_batches(lambda batch: encoder.features(batch.inputs), images, encoder, progress=False)
    )
