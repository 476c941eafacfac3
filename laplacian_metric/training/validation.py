"""How good an epoch is: retrieval among validation images."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from laplacian_metric import metrics
from laplacian_metric.core.batch import Batch, device_of, map_batches
from laplacian_metric.core.method import Keep, Learner
from laplacian_metric.data.dataset import Dataset
from laplacian_metric.metrics.nearest import rank_by_distance

KS = (1, 5, 10)


def validate(learner: Learner, validation: Dataset) -> dict[str, float]:
    """recall@1 and mAP@k of the points of validation images, each with all others as its gallery.

    Points are compared by their direction, or by their distance where the learner says so.

    With the loss, averaged over their batches, where that decides which epoch is kept.
    """
    check_validation(validation)
    points = torch.cat(
        map_batches(
            lambda batch: learner.points(batch.inputs).cpu(), validation, learner.module, progress=False
        )
    )
    ks = [k for k in KS if k < len(points)]
    if learner.euclidean:
        ranking = rank_by_distance(points.float(), validation.labels, max(ks))
    else:
        ranking = metrics.rank(F.normalize(points.float()), validation.labels, k=max(ks))
    measured = {
        "recall@1": float(ranking.recall(1).mean()),
        **{f"map@{k}": float(ranking.average_precision(k).mean()) for k in ks},
    }
    if learner.keep is Keep.LOSS:
        measured["validation_loss"] = validation_loss(learner, validation)
    return measured


def validation_loss(learner: Learner, validation: Dataset) -> float:
    """The loss of validation images, the mean over their batches; what is drawn for it is not missed in training."""
    device = device_of(learner.module)
    before = learner.generator.get_state()

    def loss(batch: Batch) -> float:
        assert batch.labels is not None
        return float(learner.loss(batch.inputs, batch.labels.to(device))) * len(batch)

    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        total = sum(map_batches(loss, validation, learner.module, labelled=True, progress=False))
    learner.generator.set_state(before)
    return total / len(validation)


def check_validation(validation: Dataset) -> None:
    """Refuse images among which there is nothing to be retrieved."""
    if len(validation) < 2:
        raise ValueError(f"there are {len(validation)} validation images: retrieval needs at least 2")
    if int(torch.unique(validation.labels, return_counts=True)[1].max()) < 2:
        raise ValueError(
            "no validation image has another one of its class, so that no epoch can be chosen: take validation images "
            "with at least two of a class"
        )


def best_epoch(history: list[dict[str, Any]], keep: Keep = Keep.RETRIEVAL) -> int:
    """The epoch, counted from 1, that is kept: by the mean of mAP@1, 5 and 10, the first of equal ones.

    Example:
        >>> best_epoch([{"map@1": 0.5, "map@5": 0.4}, {"map@1": 0.7, "map@5": 0.6}, {"map@1": 0.6, "map@5": 0.7}])
        2
    """
    if keep is Keep.LAST:
        return len(history)
    if keep is Keep.LOSS:
        scores = [-entry["validation_loss"] for entry in history]
    else:
        scores = [sum(value for name, value in entry.items() if name.startswith("map@")) for entry in history]
    return scores.index(max(scores)) + 1 if scores else 0
