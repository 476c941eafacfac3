"""What goes into the head: taken as it is where data hold features, computed by the frozen backbone where not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hessians.checks import check_finite
from laplacian_metric.core.batch import Loader, map_batches
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.encoder import Encoder
from laplacian_metric.laplace.features import collect_features

CHECKED_ROWS = 1 << 16


def features_of(
    encoder: Encoder, data: Loader, folder: Path | None = None, progress: bool | None = None
) -> Dataset:
    """Return the features (N, H) of a data set, which may have no labels, or of a loader of (inputs, labels).

    A data set of features, which may be mapped from a file, is returned as it is where the encoder takes features. Of
    anything else they are computed, and kept in the folder, if there is one.

    Example:
        >>> encoder = Encoder(torch.nn.Identity(), torch.nn.Linear(4, 2))
        >>> rows = Dataset(torch.zeros(6, 4))
        >>> features_of(encoder, rows) is rows
        True
    """
    if not isinstance(data, Dataset):
        return collect_features(encoder, data, folder=folder, progress=progress)
    if encoder.takes_features:
        if not data.holds_features:
            raise ValueError(f"{data.title} has images, but this model takes features")
        if data.features.shape[1] != encoder.num_features:
            raise ValueError(
                f"{data.title} has {data.features.shape[1]} features for each image, and the model takes "
                f"{encoder.num_features}: they do not come from the same backbone"
            )
        for start in range(0, len(data), CHECKED_ROWS):
            check_finite("inputs", data.features[start : start + CHECKED_ROWS], first_row=start)
        return data
    labelled = data
    if data.labels is None:
        labelled = replace(data, labels=torch.zeros(len(data), dtype=torch.int64))
    collected = collect_features(encoder, labelled, folder=folder, progress=progress)
    return data.with_inputs(collected.features, collected.folder)


def unlabelled_features(encoder: Encoder, inputs: Any) -> Tensor:
    """Return the features (N, H) of images, a data set or a loader, which need no labels."""
    if encoder.takes_features and isinstance(inputs, Dataset) and inputs.holds_features:
        return inputs.features
    parts = map_batches(lambda batch: encoder.features(batch.inputs), inputs, encoder, title="features")
    return parts[0] if len(parts) == 1 else torch.cat(parts)
