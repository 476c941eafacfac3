"""What a LAM is fitted to, checked before anything is computed from it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hessians import Pairs
from hessians.checks import CurvatureWarning, check_matrix
from hessians.pair_loss import PairLoss
from hessians.pairs import LabelPairs
from laplacian_metric.core.arguments import positive as positive
from laplacian_metric.core.devices import exact_device
from laplacian_metric.core.labels import Labels, as_labels
from laplacian_metric.data.dataset import Dataset
from laplacian_metric.encoder import Encoder


def features_and_labels(
    features: Tensor | Dataset, labels: Labels | Pairs | None
) -> tuple[Tensor, Tensor | Pairs]:
    """Rows (N, H) and labels (N,) or pairs that fit them, on a device with float64."""
    if isinstance(features, Dataset):
        labels = features.labels if labels is None else labels
        features = features.features
    features = torch.as_tensor(features)
    check_matrix("features", features)
    features = features.to(exact_device(features.device))
    if labels is None:
        raise ValueError("labels are missing: they say which images are pairs")
    if isinstance(labels, Pairs):
        if labels.num_images != len(features):
            raise ValueError(f"the pairs are over {labels.num_images} images for {len(features)} features")
        return features, labels
    checked = LabelPairs(as_labels("labels", labels))
    _check_classes(checked, len(features))
    return features, checked.labels.to(features.device)


def check_model(encoder: Any, loss: Any) -> None:
    """Refuse a bare module, and a loss whose curvature is not known; a loss of None is not checked."""
    if not isinstance(encoder, Encoder):
        raise TypeError(
            f"the encoder is a {type(encoder).__name__}: make it one with Encoder.from_module(module), which finds the "
            "last linear layer, or Encoder(backbone, head)"
        )
    if loss is not None and not isinstance(loss, PairLoss):
        raise TypeError(
            f"the loss is a {type(loss).__name__}, whose curvature is not known: pass a hessians.ContrastiveLoss. It "
            "can be taken for a network that another loss has trained too: see 'Trained with another loss' in "
            "docs/existing_checkpoints.md"
        )


def check_columns(features: Tensor, num_features: int) -> None:
    """Refuse features of another backbone."""
    if features.shape[1] != num_features:
        raise ValueError(
            f"features has {features.shape[1]} columns, the encoder's head takes {num_features}: they are of another "
            "backbone"
        )


def checked_batches(batches: Sequence[Tensor] | None, features: Tensor) -> list[Tensor] | None:
    """Positions of the images of each batch, on the features' device."""
    if batches is None:
        return None
    row_batches = [torch.as_tensor(rows, device=features.device) for rows in batches]
    if not row_batches:
        raise ValueError("batches is empty: at least one batch is needed")
    for number, rows in enumerate(row_batches):
        if rows.ndim != 1 or rows.dtype not in (torch.int64, torch.int32) or not len(rows):
            raise ValueError(
                f"batch {number} has dtype {rows.dtype} and shape {tuple(rows.shape)}: the positions of its images are "
                "needed, integers of shape (n,)"
            )
        low, high = int(rows.min()), int(rows.max())
        if low < 0 or high >= len(features):
            raise ValueError(
                f"batch {number} has the position {low if low < 0 else high}, but there are {len(features)} images: 0 "
                f"to {len(features) - 1}"
            )
    return row_batches


def _check_classes(labels: LabelPairs, num_images: int) -> None:
    """Refuse too few images, and say what is lost where classes are few or small."""
    if labels.num_images != num_images:
        raise ValueError(f"labels has {labels.num_images} entries for {num_images} rows of features")
    if num_images < 2:
        raise ValueError(
            f"there is {num_images} image: a pair needs two, and a loss of pairs knows nothing of fewer"
        )
    sizes = labels.class_sizes
    single = int((sizes == 1).sum())
    if len(sizes) == 1:
        message = (
            "all images are of one class: there is no negative pair, and the curvature knows nothing of what separates "
            "classes"
        )
    elif single == len(sizes):
        message = (
            "no two images share a class: there is no positive pair, and the curvature is clamped to 0 wherever "
            "negatives push; little is left but the prior"
        )
    elif single:
        message = (
            f"{single} of {len(sizes)} classes have a single image: it has no positive pair, and counts as a negative "
            "only"
        )
    else:
        return
    warnings.warn(message, CurvatureWarning, stacklevel=4)
