"""Corruptions of graded strength, to test whether an uncertainty notices them.

Each takes images (N, C, H, W) with values in [0, 1] and returns such images. What is random about an image depends on
the seed, the kind of corruption and the image's index and on nothing else: not on the batch it is in, and not on the
strength, so that a stronger corruption of an image is more of the same. Strength 0 leaves an image as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import torch
from torch.nn import functional as F

from laplacian_metric.core.splits import uniforms

# What strength 1 means.
SMALLEST_CROP = 0.25  # of the side
WIDEST_BLUR = 0.125  # standard deviation, of the shorter side
LARGEST_OCCLUSION = 0.75  # of the area
STRONGEST_NOISE = 0.5  # standard deviation

# In pixels; the nearest pixel's weight would be less than 1e-20.
_NO_BLUR = 0.1

_Corruption = Callable[[torch.Tensor, float, tuple[int, int]], torch.Tensor]


def _crop(image: torch.Tensor, strength: float, seed: tuple[int, int]) -> torch.Tensor:
    height, width = image.shape[-2:]
    share = 1 - (1 - SMALLEST_CROP) * strength
    rows, columns = max(1, round(height * share)), max(1, round(width * share))
    top, left = _place(height - rows, width - columns, (*seed, 0))
    window = image[None, :, top : top + rows, left : left + columns]
    return F.interpolate(window, size=(height, width), mode="bilinear", align_corners=False)[0]


def _blur(image: torch.Tensor, strength: float, seed: tuple[int, int]) -> torch.Tensor:
    del seed  # nothing about it is random
    height, width = image.shape[-2:]
    deviation = WIDEST_BLUR * strength * min(height, width)
    down, across = _filter(height, deviation).to(image), _filter(width, deviation).to(image).T
    # Channel by channel: products of small matrices one at a time are several times faster than a batch of them.
    return torch.stack([down @ channel @ across for channel in image])


@lru_cache(maxsize=8)
def _filter(size: int, deviation: float) -> torch.Tensor:
    """A Gaussian filter of a line as a matrix (size, size); beyond the ends of the line its last value goes on."""
    if deviation < _NO_BLUR:
        return torch.eye(size, dtype=torch.float64)
    reach = math.ceil(3 * deviation)
    steps = torch.arange(-reach, reach + 1)
    weights = torch.exp(-0.5 * (steps.to(torch.float64) / deviation) ** 2)
    read = (torch.arange(size)[:, None] + steps).clamp(0, size - 1)
    matrix = torch.zeros(size, size, dtype=torch.float64)
    return matrix.scatter_add(1, read, (weights / weights.sum()).expand(size, -1))


def _occlusion(image: torch.Tensor, strength: float, seed: tuple[int, int]) -> torch.Tensor:
    height, width = image.shape[-2:]
    share = math.sqrt(LARGEST_OCCLUSION * strength)
    rows, columns = max(1, round(height * share)), max(1, round(width * share))
    top, left = _place(height - rows, width - columns, (*seed, 2))
    covered = image.clone()
    covered[:, top : top + rows, left : left + columns] = 0
    return covered


def _noise(image: torch.Tensor, strength: float, seed: tuple[int, int]) -> torch.Tensor:
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence((*seed, 3))))
    draws = torch.from_numpy(generator.standard_normal(tuple(image.shape)))
    return image + STRONGEST_NOISE * strength * draws.to(image)


def _place(rows: int, columns: int, seed: tuple[int, ...]) -> tuple[int, int]:
    """Where a window goes that can be moved by so many rows and columns."""
    down, right = uniforms(seed, (2,))
    return math.floor(down * (rows + 1)), math.floor(right * (columns + 1))


_KINDS: dict[str, _Corruption] = {"crop": _crop, "blur": _blur, "occlusion": _occlusion, "noise": _noise}
KINDS = tuple(_KINDS)
HIDING = ("blur", "occlusion", "noise")
"""Those that leave an image where it is, and hide some of it."""


def corrupt(
    images: torch.Tensor,
    kind: str,
    strength: float,
    *,
    indices: torch.Tensor | Sequence[int] | None = None,
    seed: int = 0,
) -> torch.Tensor:
    """Corrupt images.

    Args:
        images: (N, C, H, W), floating point, in [0, 1].
        kind: "crop" (a window scaled back to the image's size), "blur" (Gaussian), "occlusion" (a black rectangle) or
            "noise" (Gaussian, clipped to [0, 1]).
        strength: from 0 (unchanged) to 1: a window of a quarter of the side; a blur of an eighth of the shorter side;
            three quarters of the area covered; noise of standard deviation 0.5. In between it is linear in that.
        indices: (N,), what each image is known by; by default its position in `images`. Pass a data set's `indices`
            where only a part or a batch of it is corrupted at a time.
        seed: another seed gives other windows, rectangles and noise.

    Returns:
        (N, C, H, W), of the type and on the device of `images`.

    Example:
        >>> from laplacian_metric.data import load
        >>> sample = load("sample-fashion-mnist", "test")
        >>> clean = sample.floats()[:8]
        >>> whole = corrupt(clean, "noise", 0.5, indices=sample.indices[:8])
        >>> part = corrupt(clean[5:], "noise", 0.5, indices=sample.indices[5:8])
        >>> bool((whole[5:] == part).all())
        True
    """
    if kind not in _KINDS:
        raise ValueError(f"no corruption is called {kind!r}; there are: {', '.join(KINDS)}")
    if not 0 <= strength <= 1:
        raise ValueError(f"strength is {strength}; it must be from 0 to 1")
    if images.ndim != 4 or not images.is_floating_point():
        raise ValueError(
            f"images must be floating point of shape (N, C, H, W), not {images.dtype} of shape {tuple(images.shape)}"
        )
    if images.numel() and not (float(images.min()) >= 0 and float(images.max()) <= 1):
        raise ValueError(
            f"images go from {float(images.min()):g} to {float(images.max()):g}; corrupt them in [0, 1], before "
            "a mean is subtracted"
        )
    numbers = list(range(len(images))) if indices is None else [int(index) for index in indices]
    if len(numbers) != len(images):
        raise ValueError(f"indices has {len(numbers)} entries for {len(images)} images")
    if seed < 0 or any(index < 0 for index in numbers):
        raise ValueError("seed and indices must be 0 or more")
    if strength == 0 or not numbers:
        return images.clone()
    # One image at a time: in a batch, the last digit could depend on the batch's size.
    apply = _KINDS[kind]
    work = images if images.dtype in (torch.float32, torch.float64) else images.to(torch.float32)
    corrupted = [apply(image, strength, (seed, index)) for image, index in zip(work, numbers, strict=True)]
    return torch.stack(corrupted).clamp(0, 1).to(images.dtype)


def corrupt_some(
    images: torch.Tensor,
    share: float,
    *,
    kinds: Sequence[str] = HIDING,
    indices: torch.Tensor | Sequence[int] | None = None,
    seed: int = 0,
) -> torch.Tensor:
    """Corrupt a share of images, each by one kind and to a strength from 0 to 1, all of which are drawn by its index.

    What a method sees of corruption while it is trained: a variance that is learned knows only what it has seen.

    Args:
        images: as `corrupt` takes them.
        share: the probability that an image is corrupted, from 0 to 1.
        kinds: one of which is taken.
        indices, seed: as `corrupt` takes them.

    Example:
        >>> from laplacian_metric.data import load
        >>> sample = load("sample-fashion-mnist", "train+validation")
        >>> clean = sample.floats()[:100]
        >>> changed = (corrupt_some(clean, 0.2) != clean).flatten(1).any(1)
        >>> int(changed.sum())
        21
    """
    if not 0 <= share <= 1:
        raise ValueError(f"share is {share}; it must be from 0 to 1")
    if not kinds:
        raise ValueError(f"kinds is empty: give at least one of {', '.join(KINDS)}")
    numbers = list(range(len(images))) if indices is None else [int(index) for index in indices]
    if len(numbers) != len(images):
        raise ValueError(f"indices has {len(numbers)} entries for {len(images)} images")
    copy = images.clone()
    for place, index in enumerate(numbers):
        whether, which, strength = uniforms((seed, index, 4), (3,))
        if whether < share:
            kind = kinds[math.floor(which * len(kinds))]
            copy[place] = corrupt(
                images[place : place + 1], kind, float(strength), indices=[index], seed=seed
            )[0]
    return copy
