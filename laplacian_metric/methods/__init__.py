"""The methods by name, in families: files of one family may import each other, and no other family."""

from __future__ import annotations

import difflib
import importlib
from dataclasses import fields
from typing import Any

from laplacian_metric.core.method import Method

# The module of every method, below this package, and its class; imported when it is used.
_METHODS = {
    "deterministic": ("pairs.deterministic", "Deterministic"),
    "ensemble": ("sampling.ensemble", "Ensemble"),
    "mc-dropout": ("sampling.mc_dropout", "MCDropout"),
    "pfe": ("gaussian.pfe", "PFE"),
    "soft-contrastive": ("gaussian.soft_contrastive", "SoftContrastive"),
    "hib": ("gaussian.hib", "HIB"),
    "swag": ("sampling.swag", "SWAG"),
    "vmf": ("spherical.vmf_head", "VMFHead"),
    "laplace": ("laplace.laplace", "Laplace"),
    "online-laplace": ("laplace.online", "OnlineLaplace"),
    "triplet": ("pairs.triplet", "Triplet"),
    "triplet-regression": ("pairs.triplet_regression", "TripletRegression"),
    "btl": ("pairs.btl", "BTL"),
}


def names() -> tuple[str, ...]:
    """The names of all methods.

    Example:
        >>> "pfe" in names()
        True
    """
    return tuple(_METHODS)


def find(name: str) -> type[Method]:
    """The class of a method.

    Example:
        >>> find("deterministic").name
        'deterministic'
        >>> find("emsemble")
        Traceback (most recent call last):
        ...
        ValueError: no method is called 'emsemble'; did you mean 'ensemble'? there are: deterministic, ...
    """
    if name not in _METHODS:
        near = difflib.get_close_matches(str(name).lower().replace("_", "-"), _METHODS, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"no method is called {name!r}; {hint}there are: {', '.join(_METHODS)}")
    module, attribute = _METHODS[name]
    found: type[Method] = getattr(importlib.import_module(f"laplacian_metric.methods.{module}"), attribute)
    return found


def make(name: str, **options: Any) -> Method:
    """A method with its options.

    Example:
        >>> make("deterministic")
        Deterministic()
    """
    found = find(name)
    known = [field.name for field in fields(found)]  # type: ignore[arg-type]
    for option in options:
        if option not in known:
            near = difflib.get_close_matches(option, known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}? " if near else ""
            has = f"it has: {', '.join(known)}" if known else "it has none"
            raise ValueError(f"{name} has no option {option!r}; {hint}{has}")
    return found(**options)
