"""ResNet-50 without its classifier, in torchvision's form and in the form of the original weights."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from laplacian_metric.encoder.networks.layers import GeM, PixelScaling

RESNET50_FEATURES = 2048
TRUNK = ("conv1", "bn1", "relu", "maxpool", "layer1", "layer2", "layer3", "layer4")
ORIGINAL_EPS = 1.001e-5


def trunk(resnet: nn.Module) -> nn.Sequential:
    """Everything of a torchvision ResNet before the pooling, under the same names, with the same parameters."""
    return nn.Sequential(OrderedDict((name, resnet.get_submodule(name)) for name in TRUNK))


def original_v1(resnet: nn.Module) -> nn.Module:
    """Give torchvision's ResNet the form of the original weights, in place.

    The first block of a stage strides in its first 1x1 convolution, where torchvision's does so in the 3x3
    convolution, and batch normalisation adds 1.001e-5 to the variance.
    """
    for name in ("layer2", "layer3", "layer4"):
        block = resnet.get_submodule(f"{name}.0")
        first, second = block.get_submodule("conv1"), block.get_submodule("conv2")
        if not (isinstance(first, nn.Conv2d) and isinstance(second, nn.Conv2d)) or first.kernel_size != (
            1,
            1,
        ):
            raise ValueError(
                f"{name}.0 is no bottleneck: only ResNet-50 and deeper ones have the original form"
            )
        first.stride, second.stride = (2, 2), (1, 1)
    for module in resnet.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eps = ORIGINAL_EPS
    return resnet


def resnet50_gem(resnet: nn.Module, scaling: PixelScaling) -> nn.Sequential:
    """RGB images in [0, 1], (N, 3, H, W) -> scaling, trunk, generalised mean -> (N, 2048)."""
    return nn.Sequential(OrderedDict(scaling=scaling, trunk=trunk(resnet), pool=GeM()))
