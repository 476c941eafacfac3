"""Features and embeddings of the data that a saved model is applied to."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import torch

from laplacian_metric.data.dataset import Dataset, shared
from laplacian_metric.encoder import Encoder
from laplacian_metric.laplace.features import Features, collect_features
from laplacian_metric.laplace.model_folder import ModelFolder

LOGGER = logging.getLogger(__name__)
ROLES = {"train": "was fitted to", "validation": "was calibrated by"}


def features_of(
    encoder: Encoder, source: Dataset, cache: Path | None = None, progress: bool | None = None
) -> Features:
    """Return what goes into the head: given features, or those of images."""
    if source.labels is None:
        source = replace(source, labels=torch.zeros(len(source), dtype=torch.int64))
    if source.holds_features:
        if source.inputs.shape[1] != encoder.num_features:
            raise ValueError(
                f"{source.title} has {source.inputs.shape[1]} features for each image, and the model takes "
                f"{encoder.num_features}: they do not come from the same backbone"
            )
        return Features(source.inputs.to(encoder.head.weight), source.labels)
    if encoder.takes_features:
        raise ValueError(f"{source.title} has images, but this model takes features")
    folder = None if cache is None else cache / source.title.replace(":", "-")
    return collect_features(encoder, source, folder=folder, progress=progress)


def class_labels(source: Dataset) -> list[str]:
    """Return the name of every image's class, by which the classes of several data sets are compared."""
    source.known_labels()
    names: list[str] = source.label_names.tolist()
    return names


def warn_if_seen(model: ModelFolder, source: Dataset, consequence: str) -> dict[str, int]:
    """Warn if a model was fitted to, or calibrated by, some of the images; return how many by role."""
    if not model.seen:
        return {}
    digests = source.digests()
    counts = {role: shared(digests, seen) for role, seen in model.seen.items()}
    for role, count in counts.items():
        if count:
            verb = ROLES.get(role, "has seen")
            LOGGER.warning(
                "the model %s %d of the %d images of %s: %s",
                verb,
                count,
                len(source),
                source.title,
                consequence,
            )
    return counts
