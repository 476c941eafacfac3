"""One self-contained HTML page: no script, no file beside it, nothing fetched.

The template escapes every text, so a label taken from a file name cannot become markup.
"""

from __future__ import annotations

import base64
import math
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

# These turn the direction of the text around them: a name could make what stands beside it read backwards.
_DIRECTIONS = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_FOLDERS = re.compile(r"(?<![\w.:/])/(?:[\w.+~-]+/)+")

# What a score measures, by the name that an evaluation gives it.
SCORES = {
    "own": "this uncertainty",
    "novelty": "novelty of the query",
    "1/kappa": "spread of the embedding's distribution (1/kappa)",
    "gallery distance": "distance to the nearest item",
    "margin": "distance to the nearest class over that to the next",
    "feature distance": "distance to the nearest item, in the features",
    "kNN feature distance": "distance to the tenth nearest item, in the features",
    "LOF": "how isolated the features are among their neighbours (LOF)",
    "Mahalanobis": "Mahalanobis distance to the nearest class",
    "relative Mahalanobis": "Mahalanobis distance to the nearest class, less that to all items",
    "class mean": "distance to the mean of the answered class",
    "vote": "vote of the ten nearest items",
    "kernel vote": "weighted vote of the fifty nearest items",
    "feature norm": "length of the features",
    "embedding norm": "length of the embedding",
}


def plain(text: object) -> str:
    """Return a name in one line of printable characters; what cannot be shown is a replacement character.

    Example:
        >>> plain("a\\nb"), plain("x\\udcff"), plain(3)
        ('a b', 'x\ufffd', '3')
    """
    line = _DIRECTIONS.sub("", " ".join(str(text).split()))
    return "".join(
        "\ufffd" if unicodedata.category(character) in ("Cc", "Cs") else character for character in line
    )


def without_folders(text: object) -> str:
    """Return a text in which only the last part of every absolute path is left.

    Example:
        >>> without_folders("lam report m --data /pictures/somebody/photos")
        'lam report m --data photos'
    """
    return _FOLDERS.sub("", str(text))


def score_name(name: str) -> str:
    """Return what a score measures, in words.

    Example:
        >>> score_name("vote"), score_name("mine")
        ('vote of the ten nearest items', 'mine')
    """
    return SCORES.get(name, name)


def number(value: float) -> str:
    """Return a number with two significant digits.

    Example:
        >>> number(0.876), number(42.4), number(1234.5), number(float("inf")), number(float("nan"))
        ('0.88', '42', '1,234', '∞', 'not defined')
    """
    if math.isnan(value):
        return "not defined"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if 99.5 <= abs(value) < 1e6:
        return f"{value:,.0f}"
    return f"{value:#.2g}".rstrip(".")


def share(value: float) -> str:
    """Return a share in percent, with one decimal below 10 %.

    Example:
        >>> share(0.0661), share(0.143), share(1.0), share(float("nan"))
        ('6.6 %', '14 %', '100 %', 'not defined')
    """
    if math.isnan(value):
        return "not defined"
    percent = 100 * value
    return f"{percent:.{1 if 0 < percent < 9.95 else 0}f} %"


def interval(low: float, high: float) -> str:
    """Return an interval of numbers; a dash where it is not defined.

    Example:
        >>> interval(0.7124, 0.8), interval(float("nan"), 1.0)
        ('0.71 to 0.80', '–')
    """
    return "–" if math.isnan(low) or math.isnan(high) else f"{number(low)} to {number(high)}"


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
