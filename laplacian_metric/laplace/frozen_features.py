"""The features of a method's images: taken as they are where they are inputs already, computed once where not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hessians.checks import check_finite
from laplacian_metric.core.batch import Loader, map_batches
from laplacian_metric.data.dataset import Dataset
from laplacian_metric.encoder import Encoder
from laplacian_metric.laplace.features import Features, collect_features

CHECKED_ROWS = 1 << 16


def held_inputs(encoder: Encoder, data: Any) -> Tensor | None:
    """Return the features (N, H) that a data set holds, if the encoder takes features; nothing is copied.

    Example:
        >>> encoder = Encoder(torch.nn.Identity(), torch.nn.Linear(4, 2))
        >>> rows = torch.zeros(6, 4)
        >>> held_inputs(encoder, Dataset(rows)) is rows, held_inputs(encoder, [rows]) is None
        (True, True)
    """
    if not encoder.takes_features or not isinstance(data, Dataset) or not data.holds_features:
        return None
    features: Tensor = data.inputs
    return features


def features_of(encoder: Encoder, data: Loader, folder: Path | None = None) -> Features:
    """Return features (N, H) and labels (N,) of a loader's or a data set's images.

    A data set of features, which may be mapped from a file, is taken as it is where the encoder takes features. Of
    anything else they are computed, and kept in the folder, if there is one.
    """
    rows = held_inputs(encoder, data)
    if rows is None or not isinstance(data, Dataset):
        return collect_features(encoder, data, folder=folder)
    for start in range(0, len(rows), CHECKED_ROWS):
        check_finite("inputs", rows[start : start + CHECKED_ROWS], first_row=start)
    return Features(rows, data.known_labels(by_class=False))


def unlabelled_features(encoder: Encoder, inputs: Any) -> Tensor:
    """Features (N, H) of images, or of a loader's, which needs no labels."""
    inputs_of_head = held_inputs(encoder, inputs)
    if inputs_of_head is not None:
        return inputs_of_head
    parts = map_batches(lambda batch: encoder.features(batch.inputs), inputs, encoder, title="features")
    return parts[0] if len(parts) == 1 else torch.cat(parts)
