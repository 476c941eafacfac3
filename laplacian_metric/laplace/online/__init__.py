"""The posterior kept up during training."""

from __future__ import annotations

from laplacian_metric.laplace.online.trainer import OnlineLAM

__all__ = ["OnlineLAM"]
