"""Indexes in folders, and a small HTTP service over them: the nearest item, its probability and a verdict.

The service needs the extra "serve". Torch is loaded only where images or texts are to be embedded.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from laplacian_metric.serve.app import create_app
    from laplacian_metric.serve.index import Index
    from laplacian_metric.serve.service import Limits, Service

__all__ = ["Index", "Limits", "Service", "create_app"]
_MODULES = {"Index": "index", "Limits": "service", "Service": "service", "create_app": "app"}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
