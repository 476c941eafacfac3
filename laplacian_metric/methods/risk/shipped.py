"""Risk heads that are installed with the library, by name, and cards that say what a head is worth on which data."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from laplacian_metric.methods.risk.head import RiskHead

FOLDER = Path(__file__).resolve().parent / "heads"


def names() -> tuple[str, ...]:
    """Return the names of the installed heads.

    Example:
        >>> names()
        ('lite0-cifar10', 'lite0-quickdraw', 'minilm-wordnet')
    """
    return tuple(sorted(path.name for path in FOLDER.iterdir() if path.is_dir())) if FOLDER.is_dir() else ()


def load(name: str | os.PathLike[str]) -> RiskHead:
    """Return an installed head by its name, or the head of a folder.

    Example:
        >>> load("lite0-quickdraw").width
        1280
        >>> load("lite1-quickdraw")
        Traceback (most recent call last):
        ...
        FileNotFoundError: there is no folder lite1-quickdraw and no installed head of this name; those are: ...
    """
    if os.fspath(name) in names():
        return RiskHead.load(FOLDER / name)
    if not Path(name).exists():
        raise FileNotFoundError(
            f"there is no folder {name} and no installed head of this name; those are: {', '.join(names())}"
        )
    return RiskHead.load(name)


def card(head: RiskHead) -> str:
    """Return what is known about a head as text: its notes, and a table of what it was measured on.

    Example:
        >>> head = RiskHead(2, hidden=2)
        >>> head.card = {"trained on": "noise", "measured": [{"data": "noise", "R-AUROC": 0.4}]}
        >>> print(card(head))
        trained on: noise
        <BLANKLINE>
        | data | R-AUROC |
        | --- | --- |
        | noise | 0.400, below chance |
    """
    rows: list[dict[str, Any]] = head.card.get("measured", [])
    lines = [f"{name}: {value}" for name, value in head.card.items() if name != "measured"]
    if rows:
        lines += ["", "| " + " | ".join(rows[0]) + " |", "|" + " --- |" * len(rows[0])]
        lines += ["| " + " | ".join(_cell(name, value) for name, value in row.items()) + " |" for row in rows]
    return "\n".join(lines)


def _cell(name: str, value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.3f}" + (", below chance" if name == "R-AUROC" and value < 0.5 else "")
