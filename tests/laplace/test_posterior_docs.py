"""The page on posteriors: its code runs."""

from __future__ import annotations

from pathlib import Path

from tests.pages import run_page


def test_the_code_on_the_page_runs(root: Path) -> None:
    assert run_page(root / "docs" / "posterior.md")["e"].kappa.shape == (60,)
