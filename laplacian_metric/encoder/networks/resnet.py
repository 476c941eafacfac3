"""ResNet-50 with generalised-mean pooling, in torchvision's form and in that of the original weights."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from torch import nn

from laplacian_metric.encoder.architecture import ReadyMade, Target
from laplacian_metric.encoder.libraries import torchvision_model
from laplacian_metric.encoder.networks.layers import PixelScaling, pooling_layer

TRUNK = ("conv1", "bn1", "relu", "maxpool", "layer1", "layer2", "layer3", "layer4")
ORIGINAL_EPS = 1.001e-5


@dataclass(frozen=True)
class ResNet50GeMV1(ReadyMade):
    """RGB images in [0, 1], (N, 3, H, W) -> scaling, trunk, pooling -> (N, 2048), in the form of the original weights.

    Attributes:
        pooling: "gem" or "average".
    """

    default_dim = 2048
    num_features = 2048

    pooling: str = "gem"

    def backbone(self) -> nn.Module:
        resnet = original_v1(torchvision_model("resnet50", False, {}))
        return self._around(resnet, PixelScaling.of_original_resnet())

    def published(self, backbone: nn.Module) -> tuple[Target, ...]:
        return (Target(backbone.get_submodule("trunk"), "fc", complete=False),)

    def _around(self, resnet: nn.Module, scaling: PixelScaling) -> nn.Module:
        pool = pooling_layer(self.pooling)
        return nn.Sequential(OrderedDict(scaling=scaling, trunk=trunk(resnet), pool=pool))


@dataclass(frozen=True)
class ResNet50GeM(ResNet50GeMV1):
    """The same in torchvision's form.

    Attributes:
        pretrained: with torchvision's weights, which are downloaded.
    """

    pretrained: bool = False

    def backbone(self) -> nn.Module:
        return self._around(torchvision_model("resnet50", self.pretrained, {}), PixelScaling.of_imagenet())


def trunk(resnet: nn.Module) -> nn.Sequential:
    """Return everything of a torchvision ResNet before the pooling, with the same names and parameters."""
    return nn.Sequential(OrderedDict((name, resnet.get_submodule(name)) for name in TRUNK))


def original_v1(resnet: nn.Module) -> nn.Module:
    """Give torchvision's ResNet-50 the form of the original weights, in place, and return it.

    The first block of a stage strides in its first 1x1 convolution, where torchvision's does so in the 3x3
    convolution, and batch normalisation adds 1.001e-5 to the variance.
    """
    for name in ("layer2", "layer3", "layer4"):
        for layer, stride in (("conv1", (2, 2)), ("conv2", (1, 1))):
            setattr(resnet.get_submodule(f"{name}.0.{layer}"), "stride", stride)  # noqa: B010
    for module in resnet.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eps = ORIGINAL_EPS
    return resnet
