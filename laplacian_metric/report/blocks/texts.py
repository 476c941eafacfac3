"""Text, data and colours of a page: nothing from anywhere can become markup or break the page."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from html import escape
from typing import Any

from laplacian_metric.report.plots import CLASSES

ACCENT = "#1f5f99"  # as in page.css
OOD = "#111111"

# Shapes of about the same area around the origin, for a radius of 1.
SHAPES = (
    "M1 0A1 1 0 1 1 -1 0A1 1 0 1 1 1 0Z",  # circle
    "M-.88 -.88H.88V.88H-.88Z",  # square
    "M0 -1.3L1.13 .75H-1.13Z",  # triangle
    "M0 -1.25L1.25 0L0 1.25L-1.25 0Z",  # diamond
    "M0 1.3L1.13 -.75H-1.13Z",  # triangle, pointing down
    "M-.4 -1.1H.4V-.4H1.1V.4H.4V1.1H-.4V.4H-1.1V-.4H-.4Z",  # plus
    "M0 -1.2L1.14 -.37L.71 .97H-.71L-1.14 -.37Z",  # pentagon
)
# OOD images are lines without a face, so that they are no class even in black and white.
CROSSES = (
    "M-1 -1L1 1M-1 1L1 -1",  # x
    "M0 -1.2V1.2M-1.2 0H1.2",  # plus
    "M-1 -1L1 1M-1 1L1 -1M0 -1.2V1.2",  # asterisk
    "M-1.1 .7L0 -.9L1.1 .7",  # roof
    "M-1.2 0H1.2",  # dash
)


def class_look(position: int) -> tuple[str, str]:
    """Colour and shape of the class at a position.

    Example:
        >>> class_look(0) == class_look(70), len({class_look(k) for k in range(70)})
        (True, 70)
    """
    return CLASSES[position % len(CLASSES)], SHAPES[position % len(SHAPES)]


def ood_look(position: int) -> tuple[str, str]:
    """Colour and shape of the set of OOD images at a position."""
    return OOD, CROSSES[position % len(CROSSES)]


# What these turn around is not only themselves: a name could make what stands beside it read backwards.
_DIRECTIONS = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_UNSAFE = {character: f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


def plain(text: object) -> str:
    """A label or a name in one line of printable characters; what cannot be shown is a replacement character.

    Example:
        >>> plain("a\\nb"), plain("x\\udcff"), plain(3)
        ('a b', 'x\ufffd', '3')
    """
    line = _DIRECTIONS.sub("", " ".join(str(text).split()))
    return "".join(
        "\ufffd" if unicodedata.category(character) in ("Cc", "Cs") else character for character in line
    )


def attributes(**values: str | int | float | None) -> str:
    """Attributes of a tag, escaped, with a space before each; None is left out, `_` becomes `-`.

    Example:
        >>> attributes(alt='"x"', aria_label="a < b", title=None)
        ' alt="&quot;x&quot;" aria-label="a &lt; b"'
    """
    parts = [
        f' {name.strip("_").replace("_", "-")}="{escape(str(value))}"'
        for name, value in values.items()
        if value is not None
    ]
    return "".join(parts)


def data_script(data: Any) -> str:
    """Data for the page's script, in an element that no text in them can close.

    Example:
        >>> data_script({"label": "</script>"})
        '<script type="application/json">{"label":"\\\\u003c/script\\\\u003e"}</script>'
    """
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character, written in _UNSAFE.items():
        text = text.replace(character, written)
    return f'<script type="application/json">{text}</script>'


def number(value: float, digits: int = 3) -> str:
    """A number for people.

    Example:
        >>> number(0.123456), number(1234567.0), number(float("inf")), number(float("nan")), number(3)
        ('0.123', '1.23e+06', '∞', 'not defined', '3')
    """
    value = float(value)
    if math.isnan(value):
        return "not defined"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    return f"{value:.{digits}g}"


def share(value: float) -> str:
    """A share as a percentage, in words where it is not defined.

    Example:
        >>> share(0.125), share(float("nan"))
        ('12.5 %', 'not defined')
    """
    return "not defined" if math.isnan(value) else f"{100 * value:.1f} %"
