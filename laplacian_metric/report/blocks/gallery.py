"""Images as cards, each with its nearest neighbours, which are marked right or wrong."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import ClassVar

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
                "laplacian_metric.report.thumbnails makes them"
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
    return (
        f'<li class="{_CLASSES[one.right]}">{picture}{verdict}<br><span class="what">{escape(label)}<br>'
        f"{_angle(one.similarity)}</span></li>"
    )


def _angle(similarity: float) -> str:
    """How far a neighbour is; near 1 a cosine has too many nines to be read."""
    return f"{math.degrees(math.acos(min(1.0, max(-1.0, similarity)))):.1f}°"
