"""Labels are whole numbers or text, features tensors or arrays, wherever either is taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hessians import ContrastiveLoss, Pairs
from laplacian_metric import LAM, Encoder, OnlineLAM, metrics
from laplacian_metric.encoder import train_head

CLASSES = np.arange(60) % 3
FEATURES = (np.eye(6)[CLASSES] + 0.2 * np.random.default_rng(0).normal(size=(60, 6))).astype(np.float32)
NAMES = np.array(["cat", "dog", "eel"])[CLASSES]


def fitted(features: Any, labels: Any) -> LAM:
    torch.manual_seed(0)
    return LAM(Encoder(nn.Identity(), nn.Linear(6, 3)), ContrastiveLoss()).fit_features(
        features, labels, check_mode=False
    )


def online(labels: Any) -> float:
    torch.manual_seed(0)
    encoder = Encoder(nn.Identity(), nn.Linear(6, 3))
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(0)
    trained = OnlineLAM(encoder, optimizer, ContrastiveLoss(), num_images=60, generator=generator)
    return trained.step(torch.from_numpy(FEATURES), labels)


def head(labels: Any) -> float:
    generator = torch.Generator().manual_seed(0)
    trained = train_head(FEATURES, labels, ContrastiveLoss(), 2, steps=1, generator=generator)
    return float(trained.weight.detach().abs().sum())


USES: dict[str, Callable[[Any], float]] = {
    "pairs": lambda labels: float(Pairs.from_labels(labels).num_positives),
    "fit": lambda labels: fitted(FEATURES, labels).log_marginal_likelihood(),
    "embed": lambda labels: float(fitted(FEATURES, labels).embed_features(FEATURES).kappa.sum()),
    "online": online,
    "recall": lambda labels: metrics.recall_at_k(
        FEATURES / np.linalg.norm(FEATURES, axis=1, keepdims=True), labels
    ),
}


@pytest.mark.parametrize("use", USES)
def test_text_and_arrays_give_what_numbers_in_tensors_give(use: str) -> None:
    expected = USES[use](torch.from_numpy(CLASSES))
    for labels in (CLASSES, NAMES, NAMES.tolist()):
        assert USES[use](labels) == pytest.approx(expected)


def test_a_head_is_trained_with_text() -> None:
    assert head(CLASSES) > 0
    assert head(NAMES) == head(
        NAMES.tolist()
    )  # the order of the classes follows their numbers, not their names


def test_what_is_no_label_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="labels has dtype"):
        train_head(FEATURES, np.linspace(0, 1, 60), ContrastiveLoss(), 2)
