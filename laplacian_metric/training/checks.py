"""What is refused before a training begins, rather than when its first epoch is over."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from laplacian_metric.core.method import Learner
from laplacian_metric.data.dataset import Dataset
from laplacian_metric.data.splits import Role, TestDataError
from laplacian_metric.training.validation import check_validation


def check_seed(seed: int) -> None:
    """Seeds that every generator takes."""
    if not 0 <= seed < 2**63:
        raise ValueError(f"seed is {seed}, a number from 0 on is needed, below 2^63")


def check_inputs(train: Dataset, validation: Dataset) -> None:
    """Refuse test data, and validation images that cannot choose an epoch."""
    for inputs, purpose, other in ((train, "train", "train"), (validation, "choose an epoch", "validation")):
        if not isinstance(inputs, Dataset):
            raise TypeError(
                f"the {other} images are a {type(inputs).__name__}: make a data.Dataset of a tensor and labels"
            )
        inputs.known_labels(by_class=False)
        if inputs.role is Role.EVALUATION and inputs.split is not None:
            raise TestDataError(
                f"the split {inputs.split.value!r} of {inputs.name} must not be used to {purpose}; take its split "
                f"{other!r}"
            )
    check_validation(validation)


def check_folder(folder: Path) -> None:
    """Make the folder of a run, and see that it can be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OSError(f"{folder} cannot hold checkpoints ({error}): choose another folder") from error


def check_parameters(learner: Learner) -> None:
    """Refuse parameters that a checkpoint would not hold."""
    known = {id(parameter) for parameter in learner.module.parameters()}
    if any(id(parameter) not in known for parameter in learner.parameters()):
        raise ValueError(
            f"{type(learner).__name__} trains parameters which are not in its module, so that checkpoints would not "
            "hold them: make them part of the module"
        )


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
