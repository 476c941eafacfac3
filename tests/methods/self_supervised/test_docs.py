"""The page on embeddings without labels: its code runs."""

from __future__ import annotations

from pathlib import Path

from tests.pages import run_page


def test_the_code_on_the_page_runs(root: Path) -> None:
    names = run_page(root / "docs" / "unlabelled.md")
    assert bool((names["e"].kappa > 0).all())
