"""The page about deeper layers: its code runs, from top to bottom."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.pages import run_page


def test_the_code_on_the_page_runs(root: Path) -> None:
    names = run_page(root / "docs" / "deeper_layers.md")
    z = names["z"]
    assert isinstance(z, torch.Tensor)
    assert z.shape == (10, 10, 3)
