"""Data sets: folders of images, arrays, and the small real sample installed with the package.

`arrays` reads the sample with numpy alone; every other name loads torch when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__all__ = [
    "DataSetInfo",
    "Dataset",
    "ImageFiles",
    "Preparation",
    "Request",
    "Role",
    "Split",
    "TestDataError",
    "UnreadableImageError",
    "arrays",
    "folder",
    "from_arrays",
    "info",
    "load",
    "names",
    "register",
    "require_selectable",
]

if TYPE_CHECKING:
    from laplacian_metric.core.dataset import Dataset
    from laplacian_metric.core.images import ImageFiles, Preparation, UnreadableImageError
    from laplacian_metric.core.splits import Role, Split, TestDataError, require_selectable
    from laplacian_metric.data.folders import folder
    from laplacian_metric.data.registry import (
        DataSetInfo,
        Request,
        from_arrays,
        info,
        load,
        names,
        register,
    )
    from laplacian_metric.data.sample import arrays

_HOMES = {
    "Dataset": "core.dataset",
    "ImageFiles": "core.images",
    "Preparation": "core.images",
    "UnreadableImageError": "core.images",
    "Role": "core.splits",
    "Split": "core.splits",
    "TestDataError": "core.splits",
    "arrays": "data.sample",
    "folder": "data.folders",
    "require_selectable": "core.splits",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"laplacian_metric.{_HOMES.get(name, 'data.registry')}"), name)
