"""Ready-made backbones: the small ones of the LAM paper's appendix G.2, and ResNet-50 with generalised-mean pooling."""

from __future__ import annotations

from laplacian_metric.encoder.networks.layers import GeM, PixelScaling
from laplacian_metric.encoder.networks.resnet import original_v1, resnet50_gem, trunk
from laplacian_metric.encoder.networks.small import (
    FASHION_FEATURES,
    cifar_backbone,
    cifar_features,
    cifar_network,
    fashion_backbone,
    fashion_network,
)

__all__ = [
    "FASHION_FEATURES",
    "GeM",
    "PixelScaling",
    "cifar_backbone",
    "cifar_features",
    "cifar_network",
    "fashion_backbone",
    "fashion_network",
    "original_v1",
    "resnet50_gem",
    "trunk",
]
