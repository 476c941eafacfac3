"""How good an epoch is: retrieval among validation images."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from laplacian_metric import metrics
from laplacian_metric.inputs import to_device
from laplacian_metric.labelled import LabelledInputs
from laplacian_metric.method import Learner
from laplacian_metric.modes import evaluating

KS = (1, 5, 10)


def validate(learner: Learner, validation: LabelledInputs) -> dict[str, float]:
    """recall@1 and mAP@k of the points of validation images, each with all others as its gallery."""
    check_validation(validation)
    with evaluating(learner.module):
        points = torch.cat(
            [learner.points(to_device(inputs, learner.module)).cpu() for inputs, _ in validation]
        )
    ks = [k for k in KS if k < len(points)]
    found = metrics.rank(F.normalize(points.float()), validation.labels, k=max(ks))
    return {
        "recall@1": float(found.recall(1).mean()),
        **{f"map@{k}": float(found.average_precision(k).mean()) for k in ks},
    }


def check_validation(validation: LabelledInputs) -> None:
    """Refuse images among which there is nothing to be retrieved."""
    if len(validation) < 2:
        raise ValueError(f"there are {len(validation)} validation images: retrieval needs at least 2")
    if int(torch.unique(validation.labels, return_counts=True)[1].max()) < 2:
        raise ValueError(
            "no validation image has another one of its class, so that no epoch can be chosen: take validation images "
            "with at least two of a class"
        )


def best_epoch(history: list[dict[str, Any]]) -> int:
    """The epoch, counted from 1, whose mean of mAP@1, 5 and 10 is best; the first of equal ones.

    Example:
        >>> best_epoch([{"map@1": 0.5, "map@5": 0.4}, {"map@1": 0.7, "map@5": 0.6}, {"map@1": 0.6, "map@5": 0.7}])
        2
    """
    scores = [sum(value for name, value in entry.items() if name.startswith("map@")) for entry in history]
    return scores.index(max(scores)) + 1 if scores else 0
