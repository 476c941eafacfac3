"""Data sets: by name, as folders of images, as arrays; and the small real sample installed with the package."""

from __future__ import annotations

from laplacian_metric.data.dataset import Dataset
from experiments.sets.download import DownloadError, UnsafeArchiveError
from experiments.sets.drawn_labels import DrawnLabels
from laplacian_metric.data.embedded import embedded_sample
from laplacian_metric.data.images import ImageFiles, Preparation, UnreadableImageError
from experiments.sets.lookup import MissingDataError, cache_folder, data_folders
from experiments.sets.readers import CorruptFileError
from laplacian_metric.data.registry import from_arrays, info, load, names
from laplacian_metric.data.source import DataSetInfo
from laplacian_metric.data.splits import Role, Split, TestDataError, require_selectable

__all__ = [
    "CorruptFileError",
    "DataSetInfo",
    "Dataset",
    "DownloadError",
    "DrawnLabels",
    "ImageFiles",
    "MissingDataError",
    "Preparation",
    "Role",
    "Split",
    "TestDataError",
    "UnreadableImageError",
    "UnsafeArchiveError",
    "cache_folder",
    "data_folders",
    "embedded_sample",
    "from_arrays",
    "info",
    "load",
    "names",
    "require_selectable",
]
