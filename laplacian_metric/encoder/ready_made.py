"""Networks by name: those of the LAM paper (appendix G.2), that of the HIB paper, four convolutions, and ResNet-50 with
generalised-mean pooling, in torchvision's form and in that of the original weights.

Two things make a step of the small ones take two thirds of the time, or half, and change nothing of what they compute:
weights whose channels are innermost in memory, which convolutions and poolings hand on, and a pooling that comes before
the ReLU. The largest of some numbers, cut off at 0, is the largest of the same numbers that were cut off one by one.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import nn

from laplacian_metric.core.arguments import at_least, one_of
from laplacian_metric.encoder.layers import PixelScaling, pooling_layer
from laplacian_metric.encoder.libraries import torchvision_model
from laplacian_metric.encoder.zoo import ReadyMade, Target


@dataclass(frozen=True)
class FashionMNIST(ReadyMade):
    """Two unpadded 3x3 convolutions and a pooling, (N, 1, 28, 28) -> (N, 9216): the LAM paper's for FashionMNIST.

    Example:
        >>> tuple(FashionMNIST().backbone()(torch.zeros(2, 1, 28, 28)).shape)
        (2, 9216)
    """

    default_dim = 3
    images = 28, 1
    num_features = 64 * 12 * 12

    def backbone(self) -> nn.Sequential:
        return channels_innermost(
            nn.Conv2d(1, 32, kernel_size=3),
            nn.ReLU(),
            nn.Conv2d(32, 64, kernel_size=3),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
        )


@dataclass(frozen=True)
class CIFAR10(ReadyMade):
    """Three unpadded 3x3 convolutions with one pooling, (N, 3, 32, 32) -> (N, 9216), or with two, -> (N, 1024).

    One pooling, after the second convolution, is what appendix G.2 prints, with three input channels where it says one:
    the sides are 32, 30, 28, 14 and 12, and 64 * 12 * 12 is the 9216 that it gives for the linear layer. With two,
    after the first and the second, they are 32, 30, 15, 13, 6 and 4: the 1024 of the code published with the paper.

    Attributes:
        poolings: 1 or 2.

    Example:
        >>> [tuple(CIFAR10(n).backbone()(torch.zeros(2, 3, 32, 32)).shape) for n in (1, 2)]
        [(2, 9216), (2, 1024)]
    """

    default_dim = 16
    images = 32, 3

    poolings: int = 1

    def __post_init__(self) -> None:
        one_of((1, 2), poolings=self.poolings)

    @property
    def num_features(self) -> int:
        return 64 * {1: 12, 2: 4}[self.poolings] ** 2

    def backbone(self) -> nn.Sequential:
        return channels_innermost(
            nn.Conv2d(3, 32, kernel_size=3),
            *([nn.MaxPool2d(2)] if self.poolings == 2 else []),
            nn.ReLU(),
            nn.Conv2d(32, 64, kernel_size=3),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(64, 64, kernel_size=3),
            nn.ReLU(),
            nn.Flatten(),
        )


@dataclass(frozen=True)
class NDigit(ReadyMade):
    """Two 5x5 convolutions, each with a pooling: (N, 1, 28, 28 digits) -> (N, 16 * 4 * (7 digits - 3)).

    As section 4.1 of the HIB paper (Oh et al., 2019) has it; that says neither the number of channels, nor the
    activation, nor whether there is a padding.

    Attributes:
        digits: how many stand side by side.
        channels: of both convolutions.
        padded: whether both convolutions keep the size of their input, for 16 * 49 digits features.
        hidden: units of a fully connected layer after them, which the paper does not speak of; 0 for none. Without it
            the embedding is a sum over places of the image, and hardly anything in it depends on two digits together.

    Example:
        >>> tuple(NDigit().backbone()(torch.zeros(2, 1, 28, 56)).shape), NDigit(padded=True).num_features
        ((2, 704), 1568)
    """

    default_dim = 2
    images = None, 1

    digits: int = 2
    channels: tuple[int, int] = (8, 16)
    padded: bool = False
    hidden: int = 0

    def __post_init__(self) -> None:
        at_least(1, digits=self.digits)
        at_least(0, hidden=self.hidden)
        if len(self.channels) != 2 or min(self.channels) < 1:
            raise ValueError(f"channels is {list(self.channels)}: two numbers from 1 on are needed")

    @property
    def flattened(self) -> int:
        """How many numbers the convolutions give."""
        return self.channels[1] * (49 * self.digits if self.padded else 4 * (7 * self.digits - 3))

    @property
    def num_features(self) -> int:
        return self.hidden or self.flattened

    def backbone(self) -> nn.Sequential:
        first, second = self.channels
        padding = 2 if self.padded else 0
        last = [nn.Linear(self.flattened, self.hidden), nn.ReLU()] if self.hidden else []
        return channels_innermost(
            nn.Conv2d(1, first, kernel_size=5, padding=padding),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(first, second, kernel_size=5, padding=padding),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
            *last,
        )


@dataclass(frozen=True)
class SmallCNN(ReadyMade):
    """(N, C, H, W) -> (N, 4 width): four 3x3 convolutions with batch normalisation, three of them with stride 2.

    Example:
        >>> tuple(SmallCNN(channels=1).backbone()(torch.rand(2, 1, 28, 28)).shape)
        (2, 128)
    """

    default_dim = 128

    width: int = 32
    channels: int = 3

    @property
    def num_features(self) -> int:
        return 4 * self.width

    def backbone(self) -> nn.Sequential:
        layers: list[nn.Module] = []
        previous, width = self.channels, self.width
        for outputs, stride in ((width, 1), (2 * width, 2), (2 * width, 2), (4 * width, 2)):
            layers += [nn.Conv2d(previous, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)]
            layers.append(nn.ReLU(inplace=True))
            previous = outputs
        return channels_innermost(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def channels_innermost(*layers: nn.Module) -> nn.Sequential:
    """Return the layers one after the other, with weights whose channels are innermost in memory."""
    return nn.Sequential(*layers).to(memory_format=torch.channels_last)


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
