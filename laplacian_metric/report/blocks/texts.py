"""Text and data from anywhere on their way into a page: nothing in them can become markup or break the page."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from html import escape
from typing import Any

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


def attributes(**given: str | int | float | None) -> str:
    """Attributes of a tag, escaped, with a space before each; None is left out, `_` becomes `-`.

    Example:
        >>> attributes(alt='"x"', aria_label="a < b", title=None)
        ' alt="&quot;x&quot;" aria-label="a &lt; b"'
    """
    parts = [
        f' {name.strip("_").replace("_", "-")}="{escape(str(value))}"'
        for name, value in given.items()
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
