"""A posterior over several layers of an encoder, or over all of its parameters."""

from __future__ import annotations

from laplacian_metric.laplace.network.posthoc import NetworkLAM
from laplacian_metric.laplace.options import Predictive

__all__ = ["NetworkLAM", "Predictive"]
