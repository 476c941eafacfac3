"""Images as tensors: files that are decoded when they are asked for, and how an image becomes a network's input."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import torch
from torch.nn import functional as F

LOGGER = logging.getLogger(__name__)

EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff")

# Mean and standard deviation of ImageNet's training images in [0, 1], by channel: red, green, blue.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_DEVIATION = (0.229, 0.224, 0.225)

# ITU-R BT.601, the weights that Pillow uses for its grey images.
_GREY = (0.299, 0.587, 0.114)


class UnreadableImageError(ValueError):
    """Image files that do not decode."""


def decode_image(path: Path | BinaryIO) -> torch.Tensor:
    """Decode an image file, or a stream of its bytes.

    The orientation that a camera noted is applied, and what is transparent is laid on white. Pillow's limit on the
    number of pixels stays on.

    Returns:
        (3, H, W), uint8, red first.

    Raises:
        UnreadableImageError: the file is missing, damaged, larger than the limit or not an image.
    """
    import numpy as np
    from PIL import Image, ImageOps

    if isinstance(path, Path) and path.exists() and not path.is_file():
        # Opening a pipe would wait for somebody to write into it.
        raise UnreadableImageError(f"the image {path} is no file but a folder, a pipe or a device: remove it")
    try:
        with Image.open(path) as image:
            upright = ImageOps.exif_transpose(image)
            if upright.has_transparency_data:
                # Dropping alpha would show whatever colour the file has below it, which for icons is black on black.
                LOGGER.info("%s is transparent: it is laid on white", path)
                layers = upright.convert("RGBA")
                upright = Image.alpha_composite(Image.new("RGBA", layers.size, "white"), layers)
            pixels = np.array(upright.convert("RGB"))
    except FileNotFoundError as error:
        raise UnreadableImageError(f"the image {path} does not exist") from error
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
        raise UnreadableImageError(f"the image {path} does not decode: {error}") from error
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


@dataclass(frozen=True)
class ImageFiles:
    """Image files below one folder, decoded when they are asked for.

    Attributes:
        root: the folder.
        names: the path of every image below it, with "/" between its parts.
    """

    root: Path
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> torch.Tensor:
        return decode_image(self.root / self.names[index])

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (self[index] for index in range(len(self)))

    def select(self, indices: torch.Tensor) -> ImageFiles:
        """Those at the given positions."""
        return ImageFiles(self.root, tuple(self.names[index] for index in indices.tolist()))

    def unreadable(self) -> list[int]:
        """The positions of all files that do not decode; reads every file."""
        broken = []
        for index in range(len(self)):
            try:
                self[index]
            except UnreadableImageError as error:
                LOGGER.warning("%s", error)
                broken.append(index)
        return broken


@dataclass(frozen=True)
class Preparation:
    """How an image becomes what a network takes.

    The steps are taken in this order: `augment`, the number of channels, the size, the scale of the values.

    Attributes:
        image_size: the shorter side is scaled to it and the middle square is cut out; None leaves the size alone.
        channels: 1 or 3; None leaves them as they are.
        preprocessing: "unit" for values in [0, 1], "imagenet" for these minus ImageNet's mean over its deviation.
        augment: applied to the uint8 image (C, H, W) of every item, and returns such an image.
    """

    image_size: int | None = None
    channels: int | None = None
    preprocessing: str = "unit"
    augment: Callable[[torch.Tensor], torch.Tensor] | None = None

    def __post_init__(self) -> None:
        if self.image_size is not None and self.image_size < 1:
            raise ValueError(f"image_size is {self.image_size}; it must be 1 or more, or None")
        if self.channels not in (None, 1, 3):
            raise ValueError(f"channels is {self.channels}; it must be 1, 3 or None")
        if self.preprocessing not in ("unit", "imagenet"):
            raise ValueError(f"preprocessing is {self.preprocessing!r}; it must be 'unit' or 'imagenet'")

    def item(self, image: torch.Tensor) -> torch.Tensor:
        """One image (C, H, W), uint8, with augmentation, as float32."""
        if self.augment is not None:
            image = self.augment(image)
            if image.dtype != torch.uint8 or image.ndim != 3:
                raise ValueError(
                    f"augment returned a {image.dtype} tensor of shape {tuple(image.shape)}; it must return a "
                    "uint8 image (C, H, W), which is scaled afterwards"
                )
        return self.batch(image)

    def batch(self, images: torch.Tensor) -> torch.Tensor:
        """Images (..., C, H, W), uint8, without augmentation, as float32."""
        images = fit_channels(images, self.channels)
        if self.image_size is not None:
            images = fit_square(images, self.image_size)
        return self.scaled(images.to(torch.float32) / 255.0)

    def scaled(self, floats: torch.Tensor) -> torch.Tensor:
        """Images (..., C, H, W) with values in [0, 1], with those that the preprocessing gives them.

        Example:
            >>> Preparation().scaled(torch.ones(1, 1, 2, 2)).sum().item()
            4.0
        """
        if self.preprocessing == "unit":
            return floats
        if floats.shape[-3] != 3:
            raise ValueError(
                f"preprocessing 'imagenet' is for 3 channels, these images have {floats.shape[-3]}; "
                "pass channels=3 too"
            )
        mean = floats.new_tensor(IMAGENET_MEAN)[:, None, None]
        deviation = floats.new_tensor(IMAGENET_DEVIATION)[:, None, None]
        return (floats - mean) / deviation


def fit_channels(images: torch.Tensor, channels: int | None) -> torch.Tensor:
    """Give uint8 images (..., C, H, W) 1 or 3 channels: grey is repeated, colour is weighed to grey."""
    present = images.shape[-3]
    if channels is None or channels == present:
        return images
    if present == 1:
        return images.expand(*images.shape[:-3], channels, *images.shape[-2:])
    weights = torch.tensor(_GREY, device=images.device)[:, None, None]
    return (images.to(torch.float32) * weights).sum(dim=-3, keepdim=True).round().to(torch.uint8)


def fit_square(images: torch.Tensor, size: int) -> torch.Tensor:
    """Scale the shorter side of uint8 images (..., C, H, W) to `size` and cut out the middle square.

    Scaling is bilinear, and smoothed where it makes an image smaller.
    """
    height, width = images.shape[-2:]
    scale = size / min(height, width)
    target = (max(size, round(height * scale)), max(size, round(width * scale)))
    if target != (height, width):
        flat = images.reshape(-1, *images.shape[-3:])
        scaled = F.interpolate(flat, size=target, mode="bilinear", antialias=True, align_corners=False)
        images = scaled.reshape(*images.shape[:-2], *target)
    top, left = (target[0] - size) // 2, (target[1] - size) // 2
    return images[..., top : top + size, left : left + size]
