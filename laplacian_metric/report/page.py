"""One self-contained HTML page: no script, no file beside it, nothing fetched.

The template escapes every text, so a label taken from a file name cannot become markup.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

from laplacian_metric.report.texts import plain


@dataclass(frozen=True)
class Paragraph:
    """Running text."""

    kind: ClassVar[str] = "paragraph"
    text: str


@dataclass(frozen=True)
class Table:
    """A table with a caption; the columns whose positions are in `numeric` are set flush right."""

    kind: ClassVar[str] = "table"
    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Picture:
    """A PNG with a caption, and a text that says what it shows to those who cannot see it."""

    kind: ClassVar[str] = "picture"
    png: bytes
    alt: str
    caption: str

    @property
    def uri(self) -> str:
        """The picture as a data URI."""
        return f"data:image/png;base64,{base64.b64encode(self.png).decode('ascii')}"


@dataclass(frozen=True)
class Neighbour:
    """A neighbour of an image: its label, whether it is a right answer, the cosine, and a thumbnail as a data URI."""

    label: str
    right: bool
    similarity: float
    image: str | None = None

    @property
    def angle(self) -> str:
        """The angle to it, which near 1 is easier to read than the cosine."""
        return f"{math.degrees(math.acos(min(1.0, max(-1.0, self.similarity)))):.1f}°"


@dataclass(frozen=True)
class Card:
    """An image with its label, further facts, and its neighbours, the nearest first.

    ``right`` is whether its answer is right; None where that cannot be said. ``verdict`` says it in words.
    """

    label: str
    verdict: str
    right: bool | None
    facts: Sequence[str] = ()
    image: str | None = None
    name: str | None = None
    neighbours: Sequence[Neighbour] = ()


@dataclass(frozen=True)
class Gallery:
    """Cards under a heading."""

    kind: ClassVar[str] = "gallery"
    title: str
    caption: str
    cards: Sequence[Card]


Block = Paragraph | Table | Picture | Gallery


@dataclass(frozen=True)
class Section:
    """A heading and the blocks under it."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Page:
    """A whole page.

    Example:
        >>> page = Page("1 < 2", [Section("All", [Paragraph("a & b")])])
        >>> "<h1>1 &lt; 2</h1>" in page.html()
        True
    """

    title: str
    sections: Sequence[Section]

    def html(self) -> str:
        """Return the page as HTML."""
        rendered: str = _template().render(page=self)
        return rendered


@cache
def _template() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("laplacian_metric.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["plain"] = plain
    return environment.get_template("page.html")
