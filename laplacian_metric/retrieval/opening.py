"""Whatever was saved to answer queries: an index, or a collection in an engine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from laplacian_metric.core import artifact
from laplacian_metric.core.manifest import ForeignArtifactError, MissingArtifactError, NotAFolderError
from laplacian_metric.retrieval import storage
from laplacian_metric.retrieval.engines import storage as engines_storage
from laplacian_metric.retrieval.index import Index

if TYPE_CHECKING:
    from laplacian_metric.retrieval.engines.collection import Collection


def open_saved(folder: str | os.PathLike[str]) -> Index | Collection:
    """Load an index, or a collection whose items are in an engine.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from laplacian_metric.retrieval import Items, save
        >>> items = Items(np.eye(2), kappa=[10, 20], uncertainty=[0.1, 0.05], variance=None, source="a4f0")
        >>> with tempfile.TemporaryDirectory() as place:
        ...     save(Index(items), place + "/index")
        ...     len(open_saved(place + "/index"))
        2
    """
    return engines_storage.load(folder) if holds_collection(folder) else storage.load(folder)


def holds_collection(folder: str | os.PathLike[str]) -> bool:
    """Return whether a folder is of a collection, by its manifest."""
    try:
        artifact.read_manifest(folder, engines_storage.CollectionManifest)
    except (ForeignArtifactError, MissingArtifactError, NotAFolderError):
        return False  # an index then, or nothing
    return True
