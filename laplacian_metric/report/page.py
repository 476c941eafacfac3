"""One self-contained HTML page: no file beside it, nothing fetched.

A page is made of paragraphs, tables, pictures and other blocks. All their text is escaped; there is no way to put
markup of one's own into a page, so a label taken from a file name cannot become markup either. Without blocks that
bring an enhancement along (`laplacian_metric.report.blocks`) there is no script in it.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Protocol

WIDE = 800  # pixels of a picture
_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


class Block(Protocol):
    """What a section is made of: anything that can say what its HTML is, with all text escaped."""

    def html(self) -> str: ...


@dataclass(frozen=True)
class Enhancement:
    """A style sheet and a script, as an attribute `enhancement` of the blocks that need them; a page has each once."""

    style: str
    script: str

    def __post_init__(self) -> None:
        for name, text in (("style", self.style), ("script", self.script)):
            if f"</{name}" in text.lower() or "<!--" in text or "\r" in text:
                raise ValueError(
                    f"the {name} has a closing tag, a comment or a carriage return in it: reword it"
                )


def asset(name: str) -> str:
    """Return the text of a style sheet or script that is installed with the package, after a line break.

    Example:
        >>> asset("page.css")[:7]
        '\\n:root '
    """
    return "\n" + (files("laplacian_metric.report") / "assets" / name).read_text(encoding="utf-8")


# The style and script of the interactive blocks. Every block is readable without the script.
INTERACTIVE = Enhancement(asset("blocks.css"), asset("blocks.js"))


@dataclass(frozen=True)
class Paragraph:
    """Running text."""

    text: str

    def html(self) -> str:
        return f"<p>{escape(self.text)}</p>"


@dataclass(frozen=True)
class Table:
    """A table with a caption; the columns whose positions are in `numeric` are set flush right."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        for position, row in enumerate(self.rows):
            if len(row) != len(self.header):
                raise ValueError(
                    f"row {position} of the table {self.caption!r} has {len(row)} cells "
                    f"for {len(self.header)} columns"
                )

    def _cells(self, tag: str, cells: Sequence[str]) -> str:
        parts = []
        for column, cell in enumerate(cells):
            mark = ' class="number"' if column in self.numeric else ""
            scope = ' scope="col"' if tag == "th" else ""
            parts.append(f"<{tag}{scope}{mark}>{escape(cell)}</{tag}>")
        return f"<tr>{''.join(parts)}</tr>"

    def html(self) -> str:
        head = self._cells("th", self.header)
        body = "\n".join(self._cells("td", row) for row in self.rows)
        return (
            f'<div class="scroll"><table>\n<caption>{escape(self.caption)}</caption>\n'
            f"<thead>{head}</thead>\n<tbody>\n{body}\n</tbody>\n</table></div>"
        )


@dataclass(frozen=True)
class Picture:
    """A PNG with a caption, and a text that says what it shows to those who cannot see it."""

    png: bytes
    alt: str
    caption: str

    def __post_init__(self) -> None:
        if not self.png.startswith(_PNG_SIGNATURE):
            raise ValueError(f"the picture {self.caption!r} is not a PNG: it starts with {self.png[:8]!r}")
        if not self.alt.strip():
            raise ValueError(f"the picture {self.caption!r} has no alt text; say what it shows")

    def html(self) -> str:
        data = base64.b64encode(self.png).decode("ascii")
        # What is wider than a telephone can show is scrolled there, so that its text can be read.
        wide = ' class="scroll wide"' if int.from_bytes(self.png[16:20], "big") > WIDE else ""
        return (
            f'<figure><div{wide}><img src="data:image/png;base64,{data}" alt="{escape(self.alt)}"></div>\n'
            f"<figcaption>{escape(self.caption)}</figcaption></figure>"
        )


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it."""

    title: str
    blocks: Sequence[Block]

    def html(self) -> str:
        inner = "\n".join(block.html() for block in self.blocks)
        return f"<section>\n<h2>{escape(self.title)}</h2>\n{inner}\n</section>"


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
        """The page as HTML. Its content security policy allows its own style sheet and script, and inlined pictures."""
        blocks = [block for section in self.sections for block in section.blocks]
        bring = [getattr(block, "enhancement", None) for block in blocks]
        enhancements = list(dict.fromkeys(one for one in bring if one is not None))
        style = asset("page.css") + "".join(one.style for one in enhancements)
        scripts = [one.script for one in enhancements]
        policy = f"default-src 'none'; img-src data:; style-src {_source(style)}; "
        if scripts:
            # With trusted types a browser refuses every way to turn text into markup, even by our own script.
            policy += f"script-src {' '.join(map(_source, scripts))}; require-trusted-types-for 'script'; "
        policy += "base-uri 'none'; form-action 'none'"
        inner = "\n".join(section.html() for section in self.sections)
        closing = "".join(f"<script>{script}</script>\n" for script in scripts)
        return (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{escape(policy, quote=True)}">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{escape(self.title)}</title>\n<style>{style}</style>\n</head>\n<body>\n<main>\n"
            f"<h1>{escape(self.title)}</h1>\n{inner}\n</main>\n{closing}</body>\n</html>\n"
        )


def _source(text: str) -> str:
    """How a policy allows an inlined style sheet or script: by its digest."""
    digest = base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
    return f"'sha256-{digest}'"
