"""Retrieval that can refuse: an index of distributions, match probabilities, and promises that are calibrated.

Nothing here imports torch, except for the calibration of credible caps and for building shards in several processes: a
saved index answers soon after Python starts. Names are imported when they are first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from laplacian_metric.retrieval.abstention import NoThresholdError, Threshold, choose_threshold
    from laplacian_metric.retrieval.answers import Answers, CredibleSets
    from laplacian_metric.retrieval.calibrating import calibrate
    from laplacian_metric.retrieval.calibrations import Calibrations, NotCalibratedError
    from laplacian_metric.retrieval.credible import CredibleCaps
    from laplacian_metric.retrieval.drift import DriftMonitor, DriftReport, compare
    from laplacian_metric.retrieval.gallery import HNSW, IVF, Flat
    from laplacian_metric.retrieval.index import Index
    from laplacian_metric.retrieval.items import Items
    from laplacian_metric.retrieval.matching import MatchProbability, Reliability
    from laplacian_metric.retrieval.parquet import export
    from laplacian_metric.retrieval.shards import build_shard, open_shards
    from laplacian_metric.retrieval.storage import DamagedIndexError, load, save

_HOMES = {
    "abstention": ("NoThresholdError", "Threshold", "choose_threshold"),
    "answers": ("Answers", "CredibleSets"),
    "calibrating": ("calibrate",),
    "calibrations": ("Calibrations", "NotCalibratedError"),
    "credible": ("CredibleCaps",),
    "drift": ("DriftMonitor", "DriftReport", "compare"),
    "gallery": ("HNSW", "IVF", "Flat"),
    "index": ("Index",),
    "items": ("Items",),
    "matching": ("MatchProbability", "Reliability"),
    "parquet": ("export",),
    "shards": ("build_shard", "open_shards"),
    "storage": ("DamagedIndexError", "load", "save"),
}
_MODULES = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "HNSW",
    "IVF",
    "Answers",
    "Calibrations",
    "CredibleCaps",
    "CredibleSets",
    "DamagedIndexError",
    "DriftMonitor",
    "DriftReport",
    "Flat",
    "Index",
    "Items",
    "MatchProbability",
    "NoThresholdError",
    "NotCalibratedError",
    "Reliability",
    "Threshold",
    "build_shard",
    "calibrate",
    "choose_threshold",
    "compare",
    "export",
    "load",
    "open_shards",
    "save",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
