"""The features of a method's images: taken as they are where they are inputs already, computed once where not."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hessians.checks import check_finite
from laplacian_metric.core.batch import map_batches
from laplacian_metric.encoder import Encoder
from laplacian_metric.laplace.features import Features, collect_features

CHECKED_ROWS = 1 << 16


def held_inputs(encoder: Encoder, loader: Any) -> Tensor | None:
    """What a loader holds as ``inputs`` (N, H), if the encoder's backbone is an identity; nothing is copied.

    Example:
        >>> encoder = Encoder(nn.Identity(), nn.Linear(4, 2))
        >>> dataset = torch.utils.data.TensorDataset(torch.zeros(6, 4))
        >>> held_inputs(encoder, dataset) is None  # it does not say which tensor its inputs are
        True
        >>> dataset.inputs = dataset.tensors[0]
        >>> held_inputs(encoder, dataset) is dataset.tensors[0]
        True
    """
    inputs = getattr(loader, "inputs", None)
    if type(encoder.backbone) is not nn.Identity or not isinstance(inputs, Tensor) or inputs.ndim != 2:
        return None
    return inputs


def features_of(encoder: Encoder, loader: Iterable[Any], folder: Path | None = None) -> Features:
    """Features (N, H) and labels (N,) of a loader's images.

    A loader that holds all features as its attributes ``inputs`` and ``labels``, which may be mapped from a file, is
    not iterated. Any other one is, and the features are kept in the folder, if there is one.
    """
    rows, labels = held_inputs(encoder, loader), getattr(loader, "labels", None)
    if rows is None or not isinstance(labels, Tensor):
        return collect_features(encoder, loader, folder=folder)
    if len(labels) != len(rows):
        raise ValueError(f"labels has {len(labels)} entries for {len(rows)} rows of inputs")
    for start in range(0, len(rows), CHECKED_ROWS):
        check_finite("inputs", rows[start : start + CHECKED_ROWS], first_row=start)
    return Features(rows, labels)


def unlabelled_features(encoder: Encoder, inputs: Any) -> Tensor:
    """Features (N, H) of images, or of a loader's, which needs no labels."""
    held = held_inputs(encoder, inputs)
    if held is not None:
        return held
    parts = map_batches(lambda batch: encoder.features(batch.inputs), inputs, encoder, title="features")
    return parts[0] if len(parts) == 1 else torch.cat(parts)
