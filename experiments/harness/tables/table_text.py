"""Tables as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """What stands in one place of a table."""

    text: str
    bold: bool = False


@dataclass(frozen=True)
class Line:
    """A row: its label and entries. One of a published table is set apart, and so is the heading of a group."""

    label: str
    entries: tuple[Entry, ...] = ()
    kind: str = "ours"  # or "published", "group"


@dataclass(frozen=True)
class ResultTable:
    """A table ready to be written; `notes` are sentences with code in backticks."""

    name: str
    title: str
    header: tuple[str, ...]
    lines: tuple[Line, ...]
    notes: tuple[str, ...]


def markdown(table: ResultTable) -> str:
    """Return a table as a Markdown page.

    Example:
        >>> print(markdown(ResultTable("t", "T", ("ECE",), (Line("a|b", (Entry("0.1", bold=True),)),), ("Note.",))))
        # T
        <BLANKLINE>
        | | ECE |
        |---|---|
        | a\\|b | **0.1** |
        <BLANKLINE>
        - Note.
        <BLANKLINE>
    """
    width = len(table.header)
    lines = [
        f"# {_escaped(table.title)}",
        "",
        "| | " + " | ".join(_escaped(name) for name in table.header) + " |",
        "|---" * (width + 1) + "|",
        *(_line(line, width) for line in table.lines),
        "",
        *(f"- {_sentence(note)}" for note in table.notes),
        "",
    ]
    return "\n".join(lines)


def plain_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table of texts as they are.

    Example:
        >>> plain_table(["a", "b"], [["1", "2"]]).splitlines()
        ['| a | b |', '|---|---|', '| 1 | 2 |']
    """
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


def _escaped(text: str) -> str:
    return re.sub(r"([\\`*\[\]<|]|\b_|_\b)", r"\\\1", " ".join(text.split()))


def _line(line: Line, width: int) -> str:
    if line.kind == "group":
        return f"| *{_escaped(line.label)}* |" + " |" * width
    texts = [f"**{_escaped(entry.text)}**" if entry.bold else _escaped(entry.text) for entry in line.entries]
    label = _escaped(line.label)
    if line.kind == "published":
        label, texts = f"*{label}*", [f"*{text}*" if text else "" for text in texts]
    return "| " + " | ".join([label, *texts]) + " |"


def _sentence(text: str) -> str:
    """Return a note whose parts in backticks stay as they are."""
    written = []
    for number, part in enumerate(re.split(r"`([^`]*)`", text)):
        if number % 2:
            written.append(f"`{part}`")
            continue
        # Spaces at the ends belong to the sentence.
        before, after = part[: len(part) - len(part.lstrip())], part[len(part.rstrip()) :]
        written.append(before + _escaped(part) + after if part.strip() else part)
    return "".join(written)
