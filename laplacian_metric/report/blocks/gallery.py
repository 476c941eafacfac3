"""Images as cards, each with its nearest neighbours, which are marked right or wrong."""

from __future__ import annotations

import base64
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from laplacian_metric.report.blocks.texts import attributes, plain
from laplacian_metric.report.page import INTERACTIVE, Enhancement

_IMAGE = re.compile(r"data:image/(?:png|jpeg);base64,[A-Za-z0-9+/]+={0,2}")
_SYMBOLS = {True: "✓", False: "✗", None: "–"}
_CLASSES = {True: "right", False: "wrong", None: "neither"}


@dataclass(frozen=True)
class Image:
    """An image as a data URI; `small` ones are enlarged without being smoothed."""

    uri: str
    small: bool = False

    def __post_init__(self) -> None:
        if not _IMAGE.fullmatch(self.uri):
            raise ValueError(
                f"an image starts with {self.uri[:30]!r}; a PNG or JPEG as a data URI in base64 is needed, as "
                "laplacian_metric.report.blocks.gallery makes them"
            )

    def html(self, alt: str) -> str:
        """The image with its alternative text."""
        return f"<img{attributes(src=self.uri, alt=alt, class_='small' if self.small else None)}>"


@dataclass(frozen=True)
class Neighbour:
    """A neighbour of an image: its label, whether it is a right answer, and the cosine similarity."""

    label: str
    right: bool
    similarity: float
    image: Image | None = None


@dataclass(frozen=True)
class Card:
    """An image with its label, what else is known of it, and its neighbours, the nearest first.

    `right` is whether retrieval answers it rightly; None where it cannot be said. `verdict` says it in words.
    """

    label: str
    verdict: str
    right: bool | None
    facts: Sequence[str] = ()
    image: Image | None = None
    name: str | None = None
    neighbours: Sequence[Neighbour] = ()


@dataclass(frozen=True)
class Gallery:
    """Cards under a heading; the page's script opens each in a larger view.

    Example:
        >>> gallery = Gallery("Doubtful", "The least certain.", [Card("<b>cat</b>", "the nearest is a dog", False)])
        >>> "&lt;b&gt;cat&lt;/b&gt;" in gallery.html(), "<b>" in gallery.html()
        (True, False)
    """

    title: str
    caption: str
    cards: Sequence[Card]
    enhancement: ClassVar[Enhancement] = INTERACTIVE

    def __post_init__(self) -> None:
        if not self.cards:
            raise ValueError(f"the gallery {self.title!r} has no cards; leave it out")

    def html(self) -> str:
        cards = "\n".join(_card(card) for card in self.cards)
        head = f"<h3>{escape(plain(self.title))}</h3>\n<p>{escape(plain(self.caption))}</p>"
        return (
            f"<div{attributes(class_='gallery', data_block='gallery', data_title=plain(self.title))}>\n"
            f'{head}\n<ul class="cards">\n{cards}\n</ul>\n</div>'
        )


def _marked(text: str, right: bool | None) -> str:
    """A verdict with its symbol, which says nothing that the words do not."""
    return f'<span aria-hidden="true">{_SYMBOLS[right]}</span> {escape(plain(text))}'


def _card(card: Card) -> str:
    label = plain(card.label)
    lines = [f'<p class="name">{escape(label)}</p>']
    lines += [f'<p class="verdict {_CLASSES[card.right]}">{_marked(card.verdict, card.right)}</p>']
    lines += [f"<p>{escape(plain(fact))}</p>" for fact in card.facts]
    if card.name is not None:
        lines.append(f'<p class="quiet"><bdi>{escape(plain(card.name))}</bdi></p>')
    picture = "" if card.image is None else card.image.html(f"Image labelled {label}")
    query = f'<div class="query">{picture}<div class="about">{"".join(lines)}</div></div>'
    neighbours = "".join(_neighbour(one) for one in card.neighbours)
    if neighbours:
        neighbours = (
            f'<ol class="neighbours" aria-label="Nearest neighbours, the nearest first">{neighbours}</ol>'
        )
    opening = attributes(type="button", class_="enlarge", aria_label=f"Larger view of {label}")
    return (
        f'<li class="card"><div class="body">{query}{neighbours}</div>'
        f"<button{opening} hidden>Larger view</button></li>"
    )


def _neighbour(one: Neighbour) -> str:
    label = plain(one.label)
    picture = "" if one.image is None else one.image.html(f"Neighbour labelled {label}")
    verdict = _marked("right" if one.right else "wrong", one.right)
    # How far it is as an angle: near 1 a cosine has too many nines to be read.
    degrees = math.degrees(math.acos(min(1.0, max(-1.0, one.similarity))))
    return (
        f'<li class="{_CLASSES[one.right]}">{picture}{verdict}<br><span class="what">{escape(label)}<br>'
        f"{degrees:.1f}°</span></li>"
    )


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
