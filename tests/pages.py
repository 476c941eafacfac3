"""The Markdown pages of the project, whose code is run by the tests."""

from __future__ import annotations

import re
from pathlib import Path


def code_blocks(page: Path, language: str = "python") -> list[str]:
    """The fenced blocks of one language, in order."""
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)


def run_page(page: Path) -> dict[str, object]:
    """Run all Python of a page, from top to bottom; returns the names that it defined."""
    names: dict[str, object] = {}
    blocks = code_blocks(page)
    assert blocks, f"{page.name} has no Python to run"
    for code in blocks:
        exec(compile(code, page.name, "exec"), names)
    return names
