"""Residual networks: ResNet-50 with generalised-mean pooling, and a narrow one for small images."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

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


STAGES = (1, 2, 4, 8)  # widths, in units of the first


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with batch normalisation, added to what they start from."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        changes = stride != 1 or inputs != outputs
        self.shortcut = (
            nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
            if changes
            else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = self.convolutions(x) + self.shortcut(x)
        return total.relu_()


def narrow_resnet18(width: int = 32, channels: int = 3, stride: int = 2) -> nn.Sequential:
    """(N, C, H, W) -> (N, 8 width): ResNet-18 with a 3x3 stem, no max-pooling, and ``width`` in place of 64 channels.

    Args:
        width: of the first of four stages; 64 is ResNet-18's.
        channels: C.
        stride: of the stem; 1 is what CIFAR images usually get, 2 takes a quarter of the time.

    Example:
        >>> import torch
        >>> tuple(narrow_resnet18(width=4)(torch.rand(2, 3, 32, 32)).shape)
        (2, 32)
    """
    widths = [width * factor for factor in STAGES]
    blocks = [
        BasicBlock(widths[max(stage - (block == 0), 0)], widths[stage], 2 if stage and not block else 1)
        for stage in range(len(STAGES))
        for block in range(2)
    ]
    stem = [
        nn.Conv2d(channels, width, 3, stride, 1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
    ]
    return _pooled(*stem, *blocks)


def small_cnn(width: int = 32, channels: int = 3) -> nn.Sequential:
    """(N, C, H, W) -> (N, 4 width): four 3x3 convolutions with batch normalisation, three of them with stride 2.

    Example:
        >>> import torch
        >>> tuple(small_cnn(channels=1)(torch.rand(2, 1, 28, 28)).shape)
        (2, 128)
    """
    layers: list[nn.Module] = []
    previous = channels
    for outputs, stride in ((width, 1), (2 * width, 2), (2 * width, 2), (4 * width, 2)):
        layers += [nn.Conv2d(previous, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)]
        layers.append(nn.ReLU(inplace=True))
        previous = outputs
    return _pooled(*layers)


def _pooled(*layers: nn.Module) -> nn.Sequential:
    """The layers and an average over positions; weights whose channels are innermost make its steps faster."""
    network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return network.to(memory_format=torch.channels_last)
