"""Uncertainty for metric learning: whether a match can be trusted, and the exact posterior behind it.

Importing this package loads neither torch nor any other large library before one of its names is used, and `Trust`
needs numpy alone. The other names need the extra "lam".
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
    from laplacian_metric.core.embedding import StochasticEmbedding, combine
    from laplacian_metric.encoder import Encoder
    from laplacian_metric.laplace.network import NetworkLAM
    from laplacian_metric.laplace.online import OnlineLAM
    from laplacian_metric.laplace.posthoc import LAM
    from laplacian_metric.training import train
    from laplacian_metric.trust import Trust

# What the extra "lam" brings and modules import when they are loaded.
NEEDED = ("torch", "scipy", "safetensors", "typer", "rich", "PIL", "yaml")

_HOMES = {
    "LAM": "laplacian_metric.laplace.posthoc",
    "NetworkLAM": "laplacian_metric.laplace.network",
    "OnlineLAM": "laplacian_metric.laplace.online",
    "Encoder": "laplacian_metric.encoder",
    "StochasticEmbedding": "laplacian_metric.core.embedding",
    "Trust": "laplacian_metric.trust",
    "combine": "laplacian_metric.core.embedding",
    "train": "laplacian_metric.training",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    is_room = name in ("data", "methods", "metrics", "vmf")
    if not is_room and name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(f"{__name__}.{name}" if is_room else _HOMES[name])
    except ModuleNotFoundError as missing:
        if missing.name not in NEEDED:
            raise
        raise ImportError(
            f'{name} needs {missing.name}: pip install ".[lam]" in a clone of the repository'
        ) from None
    return module if is_room else getattr(module, name)


def __dir__() -> list[str]:
    return sorted(__all__)
