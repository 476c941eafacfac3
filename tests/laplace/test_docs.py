"""The pages about posteriors: their code runs, from top to bottom."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.pages import run_page


def test_deeper_layers(root: Path) -> None:
    names: dict[str, Any] = run_page(root / "docs" / "deeper_layers.md")
    assert names["z"].shape == (10, 10, 3)


def test_online(root: Path) -> None:
    names: dict[str, Any] = run_page(root / "docs" / "online.md")
    assert names["online"].steps > names["online"].warmup
    assert names["recall"] > 0.5


def test_posteriors(root: Path) -> None:
    names: dict[str, Any] = run_page(root / "docs" / "posterior.md")
    assert names["e"].kappa.shape == (60,)
