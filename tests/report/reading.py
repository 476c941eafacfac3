"""Reads pages as a browser would, for the tests."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "img", "br"}
HOSTILE = "</style></script><img src=x onerror=alert(1)>\"'&amp;{{ 7*7 }}"


class Reader(HTMLParser):
    """The tags of a page with their attributes, and its text; tags have to be closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.texts.append(data)

    @property
    def text(self) -> str:
        """All text that is shown."""
        return "".join(self.texts)

    def of(self, tag: str) -> list[dict[str, str | None]]:
        """The attributes of all such tags."""
        return [attributes for name, attributes in self.tags if name == tag]
