"""Networks of the studies: importing this module makes them known to `Encoder.from_name`."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from laplacian_metric.encoder import ReadyMade, register
from laplacian_metric.encoder.ready_made import channels_innermost

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


@dataclass(frozen=True)
class NarrowResNet18(ReadyMade):
    """(N, C, H, W) -> (N, 8 width): ResNet-18 with a 3x3 stem, no max-pooling, and ``width`` in place of 64 channels.

    Attributes:
        width: of the first of four stages; 64 is ResNet-18's.
        channels: C.
        stride: of the stem; 1 is what CIFAR images usually get, 2 takes a quarter of the time.
    """

    default_dim = 128

    width: int = 32
    channels: int = 3
    stride: int = 2

    @property
    def num_features(self) -> int:
        return STAGES[-1] * self.width

    def backbone(self) -> nn.Module:
        widths = [self.width * factor for factor in STAGES]
        blocks = [
            BasicBlock(widths[max(stage - (block == 0), 0)], widths[stage], 2 if stage and not block else 1)
            for stage in range(len(STAGES))
            for block in range(2)
        ]
        stem = [
            nn.Conv2d(self.channels, self.width, 3, self.stride, 1, bias=False),
            nn.BatchNorm2d(self.width),
            nn.ReLU(inplace=True),
        ]
        return channels_innermost(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten())


register("narrow-resnet18", NarrowResNet18)
