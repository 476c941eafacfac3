"""Uncertainty for metric learning: every image becomes a distribution on the unit sphere.

Importing this package is light: it loads no data set, no model zoo and no plotting library, and not even torch before
one of its names is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = [
    "LAM",
    "Encoder",
    "NetworkLAM",
    "OnlineLAM",
    "StochasticEmbedding",
    "Trust",
    "__version__",
    "combine",
    "data",
    "methods",
    "metrics",
    "train",
    "vmf",
]

if TYPE_CHECKING:
    from laplacian_metric import data, methods, metrics, vmf
    from laplacian_metric.core.combined import combine
    from laplacian_metric.core.embedding import StochasticEmbedding
    from laplacian_metric.encoder import Encoder
    from laplacian_metric.laplace.network import NetworkLAM
    from laplacian_metric.laplace.online import OnlineLAM
    from laplacian_metric.laplace.posthoc import LAM
    from laplacian_metric.training import train
    from laplacian_metric.trust import Trust

_HOMES = {
    "LAM": "laplacian_metric.laplace.posthoc",
    "NetworkLAM": "laplacian_metric.laplace.network",
    "OnlineLAM": "laplacian_metric.laplace.online",
    "Encoder": "laplacian_metric.encoder",
    "StochasticEmbedding": "laplacian_metric.core.embedding",
    "Trust": "laplacian_metric.trust",
    "combine": "laplacian_metric.core.combined",
    "train": "laplacian_metric.training",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name in ("data", "methods", "metrics", "vmf"):
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
