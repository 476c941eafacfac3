"""Small images in a page, as data URIs."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]

SIDE = 96  # pixels of the longer side
LOSSLESS = 64  # up to this side images are kept without loss
QUALITY = 80


def as_pixels(name: str, images: Any, number: int) -> Pixels:
    """Return thumbnails (N, h, w), (N, h, w, 1) or (N, h, w, 3), uint8, as an array (N, h, w) or (N, h, w, 3).

    Example:
        >>> as_pixels("thumbnails", np.zeros((2, 4, 4, 1), dtype=np.uint8), 2).shape
        (2, 4, 4)
    """
    array = np.asarray(images.detach().cpu() if hasattr(images, "detach") else images)
    fits = array.ndim == 3 or (array.ndim == 4 and array.shape[3] in (1, 3))
    if not fits or 0 in array.shape[1:] or len(array) != number or array.dtype != np.uint8:
        raise ValueError(
            f"{name} has shape {array.shape} and dtype {array.dtype}; uint8 of shape ({number}, h, w) or "
            f"({number}, h, w, 3) is needed"
        )
    return array[..., 0] if array.ndim == 4 and array.shape[3] == 1 else array


def encode(pixels: Pixels, side: int = SIDE) -> str:
    """Return an image (h, w) or (h, w, 3) as a data URI, no larger than ``side`` on either side.

    Example:
        >>> encode(np.zeros((28, 28), dtype=np.uint8))[:22]
        'data:image/png;base64,'
    """
    from PIL import Image

    picture = Image.fromarray(np.ascontiguousarray(pixels))
    kind = "png" if max(picture.size) <= LOSSLESS else "jpeg"
    picture.thumbnail((side, side), Image.Resampling.LANCZOS)
    stream = io.BytesIO()
    picture.save(stream, format=kind, optimize=True, **({"quality": QUALITY} if kind == "jpeg" else {}))
    return f"data:image/{kind};base64,{base64.b64encode(stream.getvalue()).decode('ascii')}"
