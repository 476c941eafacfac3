"""Retrieval among the training images with and without refusing, and what could be promised of it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from laplacian_metric.core.embedding import StochasticEmbedding
from laplacian_metric.demo.settings import ALPHA, DELTA, LEVEL
from laplacian_metric.laplace.features import Features
from laplacian_metric.laplace.posthoc import LAM
from laplacian_metric.retrieval import Index, Items, NoThresholdError, calibrate


@dataclass(frozen=True)
class Refusal:
    """Retrieval by one half of the test images, calibrated by the other.

    Attributes:
        items, calibration, queries: how many images there are of each.
        error: the share of wrong answers if every query is answered.
        reason: why no threshold could be promised; None where one could.
        answered: the share of queries that are answered; None without a threshold, as the next two.
        answered_error: the share of wrong answers among these.
        strangers_answered: the share of strangers that are answered.
        covered: the share of queries whose credible set has an item of their class.
        certain_classes, uncertain_classes: how many classes the sets of the most and the least certain quarter have,
            in the mean.
    """

    items: int
    calibration: int
    queries: int
    error: float
    reason: str | None
    answered: float | None
    answered_error: float | None
    strangers_answered: float | None
    covered: float
    certain_classes: float
    uncertain_classes: float


def refuse(
    lam: LAM,
    gallery: Features,
    test: Features,
    e: StochasticEmbedding,
    strangers: StochasticEmbedding,
    seed: int,
) -> Refusal:
    """Calibrate on half of the test images, and measure on the other half.

    Args:
        lam: the posterior that made both embeddings.
        gallery: features of the images that are searched.
        test: features of the queries.
        e: their embedding.
        strangers: the embedding of images that should be refused.
        seed: of the halves.
    """
    index = Index(Items.of(lam.embed_features(gallery), variance=False))
    order = torch.randperm(len(test), generator=torch.Generator().manual_seed(seed))
    first, second = order[: len(order) // 2], order[len(order) // 2 :]
    queries = [Items.of(e[rows], variance=False) for rows in (first, second)]
    classes = gallery.labels.numpy()
    labels = [test.labels[rows].numpy() for rows in (first, second)]
    reason = None
    try:
        ready = calibrate(index, queries[0], labels[0], classes, alpha=ALPHA, delta=DELTA, level=LEVEL)
    except NoThresholdError as error:
        reason = str(error)
        ready = calibrate(index, queries[0], labels[0], classes, alpha=None, level=LEVEL)
    wrong = classes[ready.query(queries[1], 1).rows[:, 0]] != labels[1]
    answered = None if ready.threshold is None else ready.threshold.answers(queries[1].uncertainty)
    unknown = None if ready.threshold is None else ready.threshold.answers(strangers.uncertainty.numpy())
    sets = ready.credible_sets(queries[1])
    inside = [set(classes[sets.rows[first:last]].tolist()) for first, last in pairwise(sets.offsets)]
    kinds = np.array([len(found) for found in inside])
    covered = [label in found for label, found in zip(labels[1].tolist(), inside, strict=True)]
    ranked, quarter = np.argsort(queries[1].uncertainty, kind="stable"), len(wrong) // 4
    return Refusal(
        items=len(index),
        calibration=len(first),
        queries=len(second),
        error=float(wrong.mean()),
        reason=reason,
        answered=None if answered is None else float(answered.mean()),
        answered_error=None if answered is None or not answered.any() else float(wrong[answered].mean()),
        strangers_answered=None if unknown is None else float(unknown.mean()),
        covered=float(np.mean(covered)),
        certain_classes=float(kinds[ranked[:quarter]].mean()),
        uncertain_classes=float(kinds[ranked[-quarter:]].mean()),
    )
