"""The von Mises-Fisher distribution on the unit sphere, in any dimension and for any concentration.

Densities C_D(kappa) exp(kappa mean . x) for unit vectors x of D dimensions, with kappa from 0 (uniform) to anything
that a floating point number can tell from a point. docs/von_mises_fisher.md derives the forms that are used.
"""

from __future__ import annotations

from laplacian_metric.vmf.bessel import (
    length_and_variance,
    log_normalizer,
    mean_resultant_length,
    relative_log_normalizer,
)
from laplacian_metric.vmf.cap import cap_probability, cap_quantile
from laplacian_metric.vmf.distribution import (
    bhattacharyya,
    entropy,
    kl,
    log_density,
    log_expected_likelihood,
)
from laplacian_metric.vmf.fitting import concentration, fit
from laplacian_metric.vmf.projected import ProjectedNormal, projected_normal
from laplacian_metric.vmf.sampling import sample
from laplacian_metric.vmf.streaming import StreamedFit

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
    "mean_resultant_length",
    "projected_normal",
    "relative_log_normalizer",
    "sample",
]
