"""Reads pages as a browser would, for the tests."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any

VOID = {"meta", "img", "input", "br"}
HOSTILE = "</script><img src=x onerror=alert(1)>\"'&amp;"


class Reader(HTMLParser):
    """The tags of a page with their attributes, its text, and what its scripts, data and styles hold.

    Tags have to be closed in order.
    """

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.elements: list[tuple[str, str]] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"{tag} has an attribute twice"
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("script", "style"):
            kind = self.open[-1]
            self.elements.append(
                ("data" if kind == "script" and self.tags[-1][1].get("type") else kind, data)
            )
        else:
            self.texts.append(data)

    @property
    def text(self) -> str:
        """All text that is shown."""
        return "".join(self.texts)

    def of(self, tag: str) -> list[dict[str, str | None]]:
        """The attributes of all such tags."""
        return [attributes for name, attributes in self.tags if name == tag]

    def holding(self, kind: str) -> list[str]:
        """The contents of all scripts, styles, or elements with data."""
        return [text for tag, text in self.elements if tag == kind]

    def data(self) -> list[Any]:
        """What the elements with data hold."""
        return [json.loads(text) for text in self.holding("data")]

    @property
    def policy(self) -> str:
        """The content security policy."""
        policies = [a["content"] for a in self.of("meta") if a.get("http-equiv") == "Content-Security-Policy"]
        assert len(policies) == 1
        assert policies[0] is not None
        return policies[0]
