"""Heads on features of a frozen encoder, trained in memory, for the experiments on spherical methods."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hessians import ContrastiveLoss
from laplacian_metric.core.embedding import StochasticEmbedding
from laplacian_metric.core.method import Embedder, FitData, Method, Setup
from laplacian_metric.data import Dataset
from laplacian_metric.encoder import Encoder
from laplacian_metric.encoder.heads import whitening_head
from laplacian_metric.training import TrainingOptions, load_best, train


def features(h: NDArray[Any] | Tensor, labels: Any, name: str, **extras: Tensor) -> Dataset:
    """Return features (N, H) and labels as a data set.

    Example:
        >>> features(torch.zeros(2, 3), ["a", "b"], "letters")
        Dataset('letters': 2 rows of features of 2 classes)
    """
    return Dataset(torch.as_tensor(h).float(), labels, name=name, extras=extras)


def turned_head(h: Tensor, dim: int, seed: int) -> nn.Linear:
    """Return whitened principal components (H -> dim) of features (N, H), turned so that none of them is an axis."""
    head = whitening_head(h, dim)
    with torch.no_grad():
        turn = torch.linalg.qr(torch.randn(dim, dim, generator=torch.Generator().manual_seed(seed)))[0]
        head.weight.copy_(turn @ head.weight)
        head.bias.copy_(turn @ head.bias)
    return head


def trained(
    method: Method,
    training: Dataset,
    validation: Dataset,
    *,
    dim: int,
    options: TrainingOptions,
    seed: int,
    encoder: Encoder | None = None,
) -> Embedder:
    """Return a method trained on features, with a `turned_head` to start from, or on images, with an encoder.

    The epoch that retrieves validation images best is kept.
    """
    if encoder is None:
        encoder = Encoder(nn.Identity(), turned_head(training.inputs, dim, seed))
    setup = Setup(
        ContrastiveLoss(), len(training), seed=seed, num_classes=int(training.known_labels().max()) + 1
    )
    learner = method.learner([encoder], setup)
    with tempfile.TemporaryDirectory() as folder:
        train(learner, training, validation, options, Path(folder), seed=seed, progress=False)
        load_best(learner, Path(folder))
    return learner.embedder(FitData(training, validation))


def embedded(embedder: Embedder, data: Dataset) -> StochasticEmbedding:
    """Return the distributions of a data set."""
    return embedder.embed(replace(data, batch_size=2000), progress=False)
