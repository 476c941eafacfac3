"""Images small enough to be put into a page."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from laplacian_metric.report.blocks import Image

Pixels = npt.NDArray[np.uint8]

SIDES = (256, 192, 128, 96, 64, 48, 32, 24)
SMALL = 64  # up to this side images are kept without loss, and enlarged without being smoothed
QUALITY = 80
_PROBED = 24


def as_pixels(name: str, images: Any, number: int) -> Pixels:
    """Thumbnails (N, h, w), (N, h, w, 1) or (N, h, w, 3), uint8, as an array (N, h, w) or (N, h, w, 3).

    Example:
        >>> as_pixels("thumbnails", np.zeros((2, 4, 4, 1), dtype=np.uint8), 2).shape
        (2, 4, 4)
    """
    array = np.asarray(images.detach().cpu() if hasattr(images, "detach") else images)
    fits = array.ndim == 3 or (array.ndim == 4 and array.shape[3] in (1, 3))
    if not fits or 0 in array.shape[1:]:
        hint = "; move the channels to the end" if array.ndim == 4 and array.shape[1] in (1, 3) else ""
        raise ValueError(f"{name} has shape {array.shape}, (N, h, w) or (N, h, w, 3) is needed{hint}")
    if array.dtype != np.uint8:
        raise TypeError(
            f"{name} has dtype {array.dtype}, uint8 from 0 to 255 is needed: scale and convert it"
        )
    if len(array) != number:
        raise ValueError(f"{name} has {len(array)} entries for {number} embeddings: one for each is needed")
    return array[..., 0] if array.ndim == 4 and array.shape[3] == 1 else array


def encode(pixels: Pixels, side: int) -> Image:
    """An image (h, w) or (h, w, 3) as a data URI, no larger than ``side`` on either side.

    Example:
        >>> encode(np.zeros((28, 28), dtype=np.uint8), 64).uri[:22]
        'data:image/png;base64,'
    """
    from PIL import Image as Pillow

    picture = Pillow.fromarray(np.ascontiguousarray(pixels))
    small = max(picture.size) <= SMALL
    if max(picture.size) > side:
        scale = side / max(picture.size)
        width, height = (max(1, round(length * scale)) for length in picture.size)
        picture = picture.resize((width, height), Pillow.Resampling.LANCZOS)
    stream = io.BytesIO()
    if small:
        picture.save(stream, format="PNG", optimize=True)
    else:
        picture.save(stream, format="JPEG", quality=QUALITY, optimize=True)
    kind = "png" if small else "jpeg"
    return Image(f"data:image/{kind};base64,{base64.b64encode(stream.getvalue()).decode('ascii')}", small)


def encode_within(
    pixels: Sequence[Pixels], budget: int, uses: Sequence[int] | None = None, sides: Sequence[int] = SIDES
) -> list[Image | None]:
    """All of the images, as large as they fit into ``budget`` characters of a page together.

    Each is in the page as often as ``uses`` says, by default once. Where they do not fit even at the smallest side, the
    first are there and the others are None.
    """
    times = [1] * len(pixels) if uses is None else list(uses)
    if len(times) != len(pixels):
        raise ValueError(f"uses has {len(times)} entries for {len(pixels)} images: one for each is needed")
    probed = range(0, len(pixels), max(1, len(pixels) // _PROBED))
    for side in sides:
        mean = sum(len(encode(pixels[place], side).uri) for place in probed) / max(1, len(probed))
        if mean * sum(times) > 1.1 * budget:
            continue
        encoded = [encode(one, side) for one in pixels]
        if sum(len(one.uri) * count for one, count in zip(encoded, times, strict=True)) <= budget:
            return list(encoded)
    kept: list[Image | None] = []
    used = 0
    for one, count in zip(pixels, times, strict=True):
        image = encode(one, sides[-1])
        used += len(image.uri) * count
        if used > budget:
            break
        kept.append(image)
    return [*kept, *[None] * (len(pixels) - len(kept))]
