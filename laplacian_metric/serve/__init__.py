"""A small HTTP service over a saved index or a collection in an engine: neighbours with trust, reason and refusal.

It needs the extra "serve". Torch is loaded only where images or texts are to be embedded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from laplacian_metric.serve.app import create_app
    from laplacian_metric.serve.service import Limits, Service

__all__ = ["Limits", "Service", "create_app"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(
        importlib.import_module(f"{__name__}.{'app' if name == 'create_app' else 'service'}"), name
    )


def __dir__() -> list[str]:
    return sorted(__all__)
