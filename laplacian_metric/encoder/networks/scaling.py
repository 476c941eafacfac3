"""From images in [0, 1] to what a published network was trained with."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class PixelScaling(nn.Module):
    """(N, 3, H, W), RGB in [0, 1] -> (x - mean) / std for each channel, the channels turned round if ``bgr``.

    ``mean`` and ``std`` are given in the order of the network's own channels. They move and change their dtype with the
    module, and are no part of its state dictionary.

    Example:
        >>> original = PixelScaling.of_original_resnet()
        >>> [round(x, 2) for x in original(torch.zeros(1, 3, 1, 1)).flatten().tolist()]
        [-103.94, -116.78, -123.68]
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float], *, bgr: bool = False) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).reshape(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).reshape(-1, 1, 1), persistent=False)
        self.bgr = bgr

    @classmethod
    def of_imagenet(cls) -> PixelScaling:
        """Mean and standard deviation of ImageNet, as torchvision's models want it."""
        return cls(IMAGENET_MEAN, IMAGENET_STD)

    @classmethod
    def of_original_resnet(cls) -> PixelScaling:
        """BGR from 0 to 255 minus ImageNet's mean, as the original ResNets want it."""
        mean = (103.939, 116.779, 123.68)
        return cls([m / 255 for m in mean], [1 / 255] * 3, bgr=True)

    def forward(self, images: Tensor) -> Tensor:
        channels = len(self.mean)
        if images.ndim != 4 or images.shape[1] != channels:
            remedy = ": for grey images, images.expand(-1, 3, -1, -1)" if channels == 3 else ""
            raise ValueError(
                f"images has shape {tuple(images.shape)}, (N, {channels}, height, width) is needed{remedy}"
            )
        return ((images.flip(1) if self.bgr else images) - self.mean) / self.std

    def extra_repr(self) -> str:
        return f"bgr={self.bgr}"
