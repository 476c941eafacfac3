"""Gaussians over the weights of one linear layer, in four structures."""

from __future__ import annotations

from laplacian_metric.laplace.layer.base import DiagonalCurvature, LayerCurvature, LayerPosterior, Structure
from laplacian_metric.laplace.layer.full import FullCurvature
from laplacian_metric.laplace.layer.kronecker import KroneckerCurvature
from laplacian_metric.laplace.layer.low_rank import LowRankCurvature

CURVATURES: dict[Structure, type[LayerCurvature]] = {
    Structure.DIAGONAL: DiagonalCurvature,
    Structure.KRONECKER: KroneckerCurvature,
    Structure.LOW_RANK: LowRankCurvature,
    Structure.FULL: FullCurvature,
}

__all__ = [
    "CURVATURES",
    "DiagonalCurvature",
    "FullCurvature",
    "KroneckerCurvature",
    "LayerCurvature",
    "LayerPosterior",
    "LowRankCurvature",
    "Structure",
]
