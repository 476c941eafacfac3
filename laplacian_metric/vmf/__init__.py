"""The von Mises-Fisher distribution on the unit sphere, in any dimension and for any concentration.

Densities C_D(kappa) exp(kappa mean . x) for unit vectors x of D dimensions, with kappa from 0 (uniform) to anything
that a floating point number can tell from a point. docs/von_mises_fisher.md derives the forms that are used.

Names are imported when they are used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from laplacian_metric.vmf import nivmf
    from laplacian_metric.vmf.angle import cap_probability, cap_quantile
    from laplacian_metric.vmf.bessel import (
        length_and_variance,
        log_normalizer,
        mean_resultant_length,
        relative_log_normalizer,
    )
    from laplacian_metric.vmf.distribution import (
        bhattacharyya,
        entropy,
        kl,
        log_density,
        log_expected_likelihood,
    )
    from laplacian_metric.vmf.fitting import StreamedFit, concentration, fit
    from laplacian_metric.vmf.positivity import log_positivity, log_positivity_matched
    from laplacian_metric.vmf.projected import ProjectedNormal, projected_normal
    from laplacian_metric.vmf.sampling import sample

__all__ = [
    "ProjectedNormal",
    "StreamedFit",
    "bhattacharyya",
    "cap_probability",
    "cap_quantile",
    "concentration",
    "entropy",
    "fit",
    "kl",
    "length_and_variance",
    "log_density",
    "log_expected_likelihood",
    "log_normalizer",
    "log_positivity",
    "log_positivity_matched",
    "mean_resultant_length",
    "nivmf",
    "projected_normal",
    "relative_log_normalizer",
    "sample",
]

_HOMES = {
    "ProjectedNormal": "projected",
    "StreamedFit": "fitting",
    "bhattacharyya": "distribution",
    "cap_probability": "angle",
    "cap_quantile": "angle",
    "concentration": "fitting",
    "entropy": "distribution",
    "fit": "fitting",
    "kl": "distribution",
    "length_and_variance": "bessel",
    "log_density": "distribution",
    "log_expected_likelihood": "distribution",
    "log_normalizer": "bessel",
    "log_positivity": "positivity",
    "log_positivity_matched": "positivity",
    "mean_resultant_length": "bessel",
    "projected_normal": "projected",
    "relative_log_normalizer": "bessel",
    "sample": "sampling",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name == "nivmf":
        return importlib.import_module(f"{__name__}.nivmf")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
