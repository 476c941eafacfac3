"""Data sets. For now: the small real sample that is installed with the package."""

from __future__ import annotations

from laplacian_metric.data.embedded import ImageSet, embedded_sample

__all__ = ["ImageSet", "embedded_sample"]
