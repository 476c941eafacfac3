"""Blocks that work without a script, and that one script makes more of: a gallery, a map, a slider."""

from __future__ import annotations

from laplacian_metric.report.blocks.gallery import Card, Gallery, Image, Neighbour
from laplacian_metric.report.blocks.refusal import RefusalSlider
from laplacian_metric.report.blocks.scatter import Point, Scatter

__all__ = ["Card", "Gallery", "Image", "Neighbour", "Point", "RefusalSlider", "Scatter"]
