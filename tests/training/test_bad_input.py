"""What a training refuses: the error names the option or the argument."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from laplacian_metric.training import TrainingOptions, load_best, pair_choice, train
from laplacian_metric.training.pair_streams import (
    balanced_pairs,
    differing_pairs,
    epoch_batches,
    matching_pairs,
    random_pairs,
)
from tests.training.cases import Case, Plain, clusters, plain

PAIRS = {"sampling": "pairs", "batch_size": 6, "steps_per_epoch": 7}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"optimizer": "adamm"}, "optimizer"),
        ({"schedule": "cosin"}, "schedule"),
        ({"sampling": "random"}, "sampling"),
        ({"precision": "float16"}, "precision"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"learning_rate": math.nan}, "learning_rate"),
        ({"clip_norm": -1.0}, "clip_norm"),
        ({"weight_decay": -0.1}, "weight_decay"),
        ({"momentum": math.inf}, "momentum"),
        ({"epochs": -1}, "epochs"),
        ({"batch_size": 1}, "batch_size"),
        ({"warmup_epochs": -1}, "warmup_epochs"),
        ({"patience": 0}, "patience"),
        ({"checkpoint_every": 0}, "checkpoint_every"),
        ({"images_per_class": 1}, "images_per_class"),
        ({"sampling": "balanced", "batch_size": 10}, "batch_size"),
        ({**PAIRS, "batch_size": 7}, "batch_size"),
        ({**PAIRS, "miner": "BatchHardMiner"}, "miner"),
        ({**PAIRS, "steps_per_epoch": 0}, "steps_per_epoch"),
        ({**PAIRS, "sampling": "shuffled"}, "steps_per_epoch"),
        ({"miner": "MultiSimilarityMinr"}, "'MultiSimilarityMiner'"),
        ({"miner": "BaseMiner"}, "'BaseMiner'"),
        ({"miner": "MultiSimilarityMiner", "miner_options": (("margin", 0.2),)}, "margin"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        pair_choice(TrainingOptions(**options))


def batches(images: int, processes: int = 1, **options: Any) -> object:
    chosen = TrainingOptions(**{"batch_size": 8, **options})
    return epoch_batches(torch.arange(images) % 5, chosen, 0, 0, 0, processes)


def dealt(images: int) -> object:
    choose = pair_choice(TrainingOptions(**PAIRS))  # type: ignore[arg-type]
    return choose(torch.randn(images, 3), torch.zeros(images))


TWO_CLASSES = torch.tensor([0, 0, 1])


@pytest.mark.parametrize(
    ("use", "named"),
    [
        (lambda: batches(1), "batch_size"),
        (lambda: batches(9, 2), "batch_size"),
        (lambda: batches(0), "batch_size"),
        (lambda: batches(40, batch_size=16, sampling="balanced", images_per_class=2), "batch_size"),
        (lambda: balanced_pairs(TWO_CLASSES, 3, (0,)), "3 pairs"),
        (lambda: balanced_pairs(TWO_CLASSES, 0, (0,)), "0 pairs"),
        (lambda: matching_pairs(torch.arange(4), 1, (0,)), "one class"),
        (lambda: differing_pairs(torch.zeros(4), 1, (0,)), "one class"),
        (lambda: random_pairs(1, 1, (0,)), "1 images"),
        (lambda: matching_pairs(torch.zeros(0), 1, (0,)), "labels"),
        (lambda: dealt(3), "3 images"),
    ],
)
def test_what_cannot_be_drawn_is_refused(use: Callable[[], object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        use()


class Outside(Plain):
    """It has a parameter that its module does not have."""

    def parameters(self) -> list[nn.Parameter]:
        return [*super().parameters(), nn.Parameter(torch.ones(1))]


def frozen() -> Plain:
    learner = plain()
    learner.module.requires_grad_(False)
    return learner


def trained(learner: Plain, folder: Path, seed: int = 0) -> object:
    return train(learner, clusters(), clusters(20), Case().training_options(), folder, seed=seed)


@pytest.mark.parametrize(
    ("use", "error", "named"),
    [
        (lambda folder: trained(plain(), folder, -1), ValueError, "seed"),
        (lambda folder: trained(plain(), folder, 2**63), ValueError, "seed"),
        (lambda folder: trained(frozen(), folder), ValueError, "gradient"),
        (lambda folder: trained(Outside(plain().module), folder), ValueError, "Outside"),
        (lambda folder: load_best(Case().learner(), folder), FileNotFoundError, r"best\.safetensors"),
    ],
)
def test_trainings_that_cannot_be(
    use: Callable[[Path], object], error: type[Exception], named: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=named):
        use(tmp_path)
