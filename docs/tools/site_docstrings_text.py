"""Docstrings as the site's Markdown has to have them."""

from __future__ import annotations

import re


def with_examples(text: str) -> str:
    """A docstring whose ``Example:`` is a section that griffe knows, and whose other examples are fenced."""
    lines: list[str] = []
    section = False
    indent: str | None = None  # of the example that is being fenced
    for line in re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE).splitlines():
        section = line == "Examples:" or (section and (not line or line.startswith(" ")))
        if indent is not None and not line.strip():
            lines.append(f"{indent}```")
            indent = None
        elif indent is None and not section and line.lstrip().startswith(">>>"):
            indent = line[: len(line) - len(line.lstrip())]
            lines += ["", f"{indent}```pycon"]
        lines.append(line)
    if indent is not None:
        lines.append(f"{indent}```")
    return "\n".join(lines)
