"""An index as a collection in an engine."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import numpy as np

from laplacian_metric.core.labelled_gallery import LabelledGallery
from laplacian_metric.retrieval.engines.addresses import COLLECTION, create
from laplacian_metric.retrieval.engines.collection import Collection
from laplacian_metric.retrieval.gallery import Kind
from laplacian_metric.retrieval.index import Index

LOGGER = logging.getLogger(__name__)


def from_index(
    index: Index,
    address: str,
    *,
    collection: str = COLLECTION,
    kind: str | Kind | None = None,
    overwrite: bool = False,
    **options: Any,
) -> Collection:
    """Write the items of an index into a new collection, with their features, labels and what was calibrated.

    What was calibrated by exact search holds for engines that search exactly; for others calibrate the collection
    itself, by `Collection.fit_trust` and `Collection.calibrate`, so that what the engine misses counts.

    Args:
        index: whose `Trust`, where it has one, has the features and the labels.
        address, collection, kind, overwrite, options: as `create` takes them.

    Example:
        >>> from laplacian_metric.retrieval import Items
        >>> items = Items(np.eye(3), kappa=[10, 20, 30], uncertainty=[0.1, 0.05, 0.03], variance=None, source="a4f0")
        >>> len(from_index(Index(items), "exact:"))
        3
    """
    gallery = None if index.trust is None else index.trust.gallery
    features = labels = None
    if isinstance(gallery, LabelledGallery):
        if index.trust is not None and index.trust.head is not None:
            features = gallery.features.rows
        if gallery.names is not None and gallery.codes is not None:
            labels = np.array(gallery.labels_of(gallery.codes))
    converted = create(
        address,
        index.items,
        index.ids,
        features=features,
        labels=labels,
        collection=collection,
        kind=kind,
        overwrite=overwrite,
        **options,
    )
    if index.trust is not None:
        converted.trust = replace(index.trust, gallery=converted.gallery)
    converted.calibrations = index.calibrations
    if not converted.engine.exact and (index.trust is not None or index.threshold is not None):
        LOGGER.warning(
            "%s searches approximately: calibrate the collection itself, so that what it misses counts",
            converted.engine.address,
        )
    return converted
