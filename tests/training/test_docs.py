"""The page on training: its code runs."""

from __future__ import annotations

from pathlib import Path

from laplacian_metric.core.embedding import StochasticEmbedding
from tests.pages import run_page


def test_the_code_on_the_page_runs(root: Path) -> None:
    e = run_page(root / "docs" / "training.md")["e"]
    assert isinstance(e, StochasticEmbedding)
    assert bool(e.kappa.isfinite().all())
