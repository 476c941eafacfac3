"""Features and embeddings of the data that a saved model is applied to."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch
from torch import nn

from laplacian_metric.core.embedding import StochasticEmbedding
from laplacian_metric.data.named_inputs import Source, shared
from laplacian_metric.encoder import Encoder
from laplacian_metric.laplace.features import Features, collect_features
from laplacian_metric.laplace.model_folder import ModelFolder

LOGGER = logging.getLogger(__name__)
ROLES = {"train": "was fitted to", "validation": "was calibrated by"}


def features_of(
    encoder: Encoder, source: Source, cache: Path | None = None, progress: bool | None = None
) -> Features:
    """Return what goes into the head: given features, or those of images."""
    labels = torch.zeros(len(source), dtype=torch.int64) if source.labels is None else source.labels
    if source.features is not None:
        if source.features.shape[1] != encoder.num_features:
            raise ValueError(
                f"{source.title} has {source.features.shape[1]} features for each image, and the model takes "
                f"{encoder.num_features}: they do not come from the same backbone"
            )
        if source.features.dtype != encoder.head.weight.dtype:
            return Features(source.features.to(encoder.head.weight), labels)
        return Features(source.features.to(encoder.head.weight.device), labels)
    if isinstance(encoder.backbone, nn.Identity):
        raise ValueError(f"{source.title} has images, but this model takes features")
    folder = None if cache is None else cache / source.title.replace(":", "-")
    return collect_features(encoder, _Counted(source), folder=folder, progress=progress)


class _Counted:
    """Batches with a known number, so that a progress bar has an end."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def __len__(self) -> int:
        return self.source.num_batches

    def __iter__(self) -> Any:
        return iter(self.source)


def class_labels(source: Source) -> list[str]:
    """Return the name of every image's class, by which the classes of several data sets are compared."""
    return [source.class_names[label] for label in source.known_labels().tolist()]


def embed_source(model: ModelFolder, source: Source, *, progress: bool | None = None) -> StochasticEmbedding:
    """Return the embeddings of a source's images on the CPU."""
    return model.lam.embed_features(features_of(model.encoder, source, progress=progress)).to("cpu")


def warn_if_seen(model: ModelFolder, source: Source, consequence: str) -> dict[str, int]:
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
