"""What is done to training images on their way, by name."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F


def crop_flip(image: Tensor) -> Tensor:
    """A random window of the image, which is padded by an eighth of its side, and every other one mirrored.

    The image is (C, H, W), uint8, and so is the window; torch's global generator decides.

    Example:
        >>> crop_flip(torch.zeros(3, 32, 24, dtype=torch.uint8)).shape
        torch.Size([3, 32, 24])
    """
    height, width = image.shape[-2:]
    down, across = height // 8, width // 8
    padded = F.pad(image, (across, across, down, down))
    top = int(torch.randint(2 * down + 1, ()))
    left = int(torch.randint(2 * across + 1, ()))
    window = padded[..., top : top + height, left : left + width]
    return window.flip(-1) if bool(torch.rand(()) < 0.5) else window


AUGMENTATIONS: dict[str, Callable[[Tensor], Tensor]] = {"crop-flip": crop_flip}
