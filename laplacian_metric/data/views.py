"""Random views of images, a batch at a time: what methods that learn without labels take in place of classes.

All draws of a batch come from one generator, so that the same generator gives the same views. Windows, mirror images
and the resampling are one `grid_sample`; brightness, contrast, saturation and hue are one 3 x 3 matrix and one shift
for each image, in the YIQ space of colours, in which a change of hue is a rotation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from laplacian_metric.core.batch import Batch

# Luminance and two differences of colours (NTSC) from red, green and blue.
_YIQ = ((0.299, 0.587, 0.114), (0.5959, -0.2746, -0.3213), (0.2115, -0.5227, 0.3112))
_DRAWS = 13  # uniform numbers for each image

Augmentation = Callable[[Tensor, torch.Generator | None], Tensor]
"""(inputs (N, ...), generator) -> other inputs of the same shape, one random view of each."""


class ViewError(ValueError):
    """These inputs have no views of this kind."""


@dataclass(frozen=True)
class ImageViews:
    """One random view of every image: a window scaled back, mirrored, with other colours, grey, blurred.

    Attributes:
        area: the least and the greatest share of the image that the window has.
        ratio: the least and the greatest ratio of its width to its height, beside the image's own.
        flip: the probability of a mirror image.
        brightness, contrast, saturation: each is multiplied by a factor from 1 - x to 1 + x.
        hue: colours are turned by at most this share of a full turn.
        jitter: the probability that an image's brightness, contrast, saturation and hue are changed at all.
        grey: the probability that a colour image becomes grey.
        blur: the probability of a Gaussian blur.
        deviation: the least and the greatest standard deviation of the blur, in shares of the shorter side.

    Example:
        >>> images = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
        >>> views = ImageViews()
        >>> one, other = (views(images, torch.Generator().manual_seed(1)) for _ in range(2))
        >>> one.shape, torch.equal(one, other), torch.equal(one, images)
        (torch.Size([4, 3, 8, 8]), True, False)
    """

    area: tuple[float, float] = (0.2, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.4
    hue: float = 0.1
    jitter: float = 0.8
    grey: float = 0.2
    blur: float = 0.0
    deviation: tuple[float, float] = (0.005, 0.05)

    def __post_init__(self) -> None:
        for name in ("flip", "jitter", "grey", "blur", "brightness", "contrast", "saturation"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)}, a number from 0 to 1 is needed")
        if not 0 <= self.hue <= 0.5:
            raise ValueError(f"hue is {self.hue}, a number from 0 to 0.5 is needed")
        for name, largest in (("area", 1.0), ("ratio", math.inf), ("deviation", 1.0)):
            low, high = getattr(self, name)
            if not 0 < low <= high <= largest or math.isinf(high):
                raise ValueError(
                    f"{name} is ({low}, {high}): two positive numbers in order, up to {largest:g}"
                )

    def __call__(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return one view of each image (N, C, H, W), floats in [0, 1], grey (C = 1) or in colour (C = 3)."""
        _check_images(images)
        if not len(images):
            return images.clone()
        draws = torch.rand(_DRAWS, len(images), generator=generator, device=images.device)
        pixels = images if images.dtype in (torch.float32, torch.float64) else images.float()
        viewed = self._recolour(self._window(pixels, draws[:5]), draws[5:11])
        if self.blur:
            viewed = self._blurred(viewed, draws[11:])
        return viewed.to(images.dtype)

    def _window(self, images: Tensor, draws: Tensor) -> Tensor:
        """A window of each image at the image's size, every one mirrored with the probability of a flip."""
        size, shape, across, down, mirror = draws.to(images)
        area = self.area[0] + (self.area[1] - self.area[0]) * size
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        root = (0.5 * (low + (high - low) * shape)).exp()
        # A window that is wider or higher than the image is cut to it.
        width, height = (area.sqrt() * root).clamp(max=1), (area.sqrt() / root).clamp(max=1)
        # Along each axis the window's pixels; affine_grid, which knows rotations too, takes longer than the sampling.
        grid = images.new_empty(len(images), *images.shape[2:], 2)
        signed = torch.where(mirror < self.flip, -width, width)
        for axis, scale, share, place in ((0, signed, width, across), (1, height, height, down)):
            size = images.shape[3 - axis]
            line = (2 * torch.arange(size, device=images.device).to(images) + 1) / size - 1
            window = scale[:, None] * line + ((1 - share) * (2 * place - 1))[:, None]
            grid[..., axis] = window[:, None, :] if axis == 0 else window[:, :, None]
        return F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)

    def _recolour(self, images: Tensor, draws: Tensor) -> Tensor:
        """Contrast about the mean grey, brightness, and for colours saturation and hue: one affine map of each."""
        light, contrast, colour, turn, chance, grey = draws.to(images)
        changed = (chance < self.jitter).to(images)
        light, contrast = (
            1 + changed * strength * (2 * draw - 1)
            for draw, strength in ((light, self.brightness), (contrast, self.contrast))
        )
        if images.shape[1] == 1:
            mean = images.mean((1, 2, 3))
            shift = (light * (1 - contrast) * mean)[:, None, None, None]
            return torch.addcmul(shift, images, (light * contrast)[:, None, None, None]).clamp_(0, 1)
        saturation = (grey >= self.grey) * (1 + changed * self.saturation * (2 * colour - 1))
        angle = changed * (2 * math.pi * self.hue) * (2 * turn - 1)
        to_yiq = images.new_tensor(_YIQ)
        change = images.new_zeros(len(images), 3, 3)
        change[:, 0, 0] = 1
        change[:, 1, 1] = change[:, 2, 2] = saturation * angle.cos()
        change[:, 2, 1] = saturation * angle.sin()
        change[:, 1, 2] = -change[:, 2, 1]
        matrix = torch.linalg.inv(to_yiq) @ change @ to_yiq * (light * contrast)[:, None, None]
        mean = images.mean((2, 3)) @ to_yiq[0]
        shift = (light * (1 - contrast) * mean)[:, None, None]
        return torch.baddbmm(shift, matrix, images.flatten(2)).clamp_(0, 1).view_as(images)

    def _blurred(self, images: Tensor, draws: Tensor) -> Tensor:
        """Some images convolved with a Gaussian; beyond the edges their last pixels go on."""
        chance, width = draws.to(images)
        rows = (chance < self.blur).nonzero()[:, 0]
        if not len(rows):
            return images
        low, high = (min(images.shape[-2:]) * deviation for deviation in self.deviation)
        reach = max(1, math.ceil(3 * high))
        steps = torch.arange(-reach, reach + 1, device=images.device).to(images)
        weights = (-0.5 * (steps / (low + (high - low) * width[rows, None])).square()).softmax(1)
        blurred = images[rows]
        for dim, padding in ((2, (0, 0, reach, reach)), (3, (reach, reach, 0, 0))):
            padded, size = F.pad(blurred, padding, mode="replicate"), blurred.shape[dim]
            blurred = torch.zeros_like(blurred)
            for step, weight in enumerate(weights.T):
                blurred.addcmul_(padded.narrow(dim, step, size), weight[:, None, None, None])
        return images.index_copy(0, rows, blurred)


def views_of(
    inputs: Tensor,
    augmentation: Augmentation | None = None,
    *,
    count: int = 2,
    generator: torch.Generator | None = None,
) -> Batch:
    """Return a batch of the first random view of each input, with the other views beside it.

    Args:
        inputs: (N, ...); images, unless the augmentation is another.
        augmentation: makes one view of each input; `ImageViews` with its defaults without it.
        count: how many views there are of each.
        generator: of the draws.

    Example:
        >>> batch = views_of(torch.rand(4, 1, 8, 8), generator=torch.Generator().manual_seed(0))
        >>> batch.inputs.shape, len(batch.views)
        (torch.Size([4, 1, 8, 8]), 1)
    """
    if not isinstance(inputs, Tensor):
        raise ViewError(
            f"the inputs are a {type(inputs).__name__}, of which views are not known: pass a tensor (N, ...)"
        )
    if count < 2:
        raise ValueError(f"count is {count}, at least 2 views are needed")
    augment = ImageViews() if augmentation is None else augmentation
    first, *others = (augment(inputs, generator) for _ in range(count))
    for view in others:
        if view.shape != first.shape:
            raise ViewError(
                f"the views of a batch have shapes {tuple(first.shape)} and {tuple(view.shape)}: an augmentation has "
                "to return all its views in one size"
            )
    if len(first) != len(inputs):
        raise ViewError(
            f"the augmentation returned {len(first)} views of {len(inputs)} inputs: one of each is needed"
        )
    return Batch(first, views=tuple(others))


def _check_images(images: Tensor) -> None:
    if images.ndim != 4 or images.shape[1] not in (1, 3) or not images.is_floating_point():
        raise ViewError(
            f"the images are {images.dtype} of shape {tuple(images.shape)}: floats (N, 1, H, W) or (N, 3, H, W) are "
            "needed; for other inputs pass an augmentation of your own"
        )
    if not images.numel():
        return
    low, high = (float(bound) for bound in images.aminmax())
    if not (low >= 0 and high <= 1):  # NaN is neither
        raise ViewError(
            f"the images go from {low:g} to {high:g}, numbers from 0 to 1 are needed: scale them, and normalise inside "
            "the network"
        )
