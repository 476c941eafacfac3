"""What is refused before a training begins, and how a validation set is measured after an epoch."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from laplacian_metric import metrics
from laplacian_metric.core.batch import Batch, device_of, map_batches
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.method import Keep, Learner
from laplacian_metric.core.splits import Role, TestDataError
from laplacian_metric.metrics.ranking import rank_by_distance
from laplacian_metric.training.options import Sampling, TrainingOptions

KS = (1, 5, 10)


def validate(learner: Learner, validation: Dataset | None) -> dict[str, float]:
    """Return recall@1 and mAP@k of the points of validation images, each with all others as its gallery.

    Points are compared by their direction, or by their distance where the learner says so. Images without labels, or
    none, have no such numbers.

    With the loss, averaged over their batches, where that decides which epoch is kept.
    """
    if validation is None or validation.labels is None:
        return {}
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


def check_inputs(
    train: Dataset, validation: Dataset | None, options: TrainingOptions, learner: Learner
) -> None:
    """Refuse test data, missing labels, and validation images that cannot choose an epoch."""
    keeps_last = learner.keep is Keep.LAST
    if validation is None and not keeps_last:
        raise ValueError(
            f"there are no validation images: pass some, by which the epoch of {type(learner).__name__} is chosen"
        )
    if not learner.needs_labels and options.sampling is not Sampling.SHUFFLED:
        raise ValueError(
            f"sampling is {options.sampling.value!r}, which goes by labels, and {type(learner).__name__} learns "
            "without them: take sampling 'shuffled'"
        )
    for inputs, purpose, other in ((train, "train", "train"), (validation, "choose an epoch", "validation")):
        if inputs is None and other == "validation":
            continue
        if not isinstance(inputs, Dataset):
            raise TypeError(
                f"the {other} images are a {type(inputs).__name__}: make a data.Dataset of a tensor and labels"
            )
        if learner.needs_labels or (other == "validation" and not keeps_last):
            inputs.known_labels(by_class=False)
        if inputs.role is Role.EVALUATION and inputs.split is not None:
            raise TestDataError(
                f"the split {inputs.split.value!r} of {inputs.name} must not be used to {purpose}; take its split "
                f"{other!r}"
            )
    if validation is not None and validation.labels is not None:
        check_validation(validation)


def check_run(learner: Learner, folder: Path, seed: int) -> None:
    """Refuse a seed that no generator takes, parameters that a checkpoint would not hold, and a folder that cannot."""
    if not 0 <= seed < 2**63:
        raise ValueError(f"seed is {seed}, a number from 0 on is needed, below 2^63")
    of_module = {id(parameter) for parameter in learner.module.parameters()}
    if any(id(parameter) not in of_module for parameter in learner.parameters()):
        raise ValueError(
            f"{type(learner).__name__} trains parameters which are not in its module, so that checkpoints would not "
            "hold them: make them part of the module"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OSError(f"{folder} cannot hold checkpoints ({error}): choose another folder") from error


def check_finite(parameters: list[nn.Parameter], step: int, epoch: int) -> None:
    """Refuse to keep weights that are not finite: the loss was, but its gradient was not."""
    if not all(bool(torch.isfinite(parameter).all()) for parameter in parameters):
        raise FloatingPointError(
            f"after step {step} of epoch {epoch} there are weights which are not finite, though the loss was: lower "
            "the learning rate, or give clip_norm"
        )


def plain(identity: Mapping[str, Any]) -> dict[str, Any]:
    """As it comes back from a checkpoint, so that it is equal to what comes back.

    Example:
        >>> plain({"sizes": (1, 2)})
        {'sizes': [1, 2]}
    """
    try:
        values: dict[str, Any] = json.loads(json.dumps(dict(identity)))
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"identity must be of numbers, words, lists and dictionaries of them: {error}"
        ) from error
    return values


@contextmanager
def modes_kept(module: nn.Module) -> Iterator[None]:
    """Every submodule's mode is afterwards what it was before."""
    modes = [(part, part.training) for part in module.modules()]
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training
