"""The classes of the data that a saved model is applied to, and whether it has seen them."""

from __future__ import annotations

import logging

from laplacian_metric.core.dataset import Dataset, shared
from laplacian_metric.laplace.model_folder import ModelFolder

LOGGER = logging.getLogger(__name__)
ROLES = {"train": "was fitted to", "validation": "was calibrated by"}


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
