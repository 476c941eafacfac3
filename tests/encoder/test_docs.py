"""The page about encoders: its code runs, from top to bottom."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from laplacian_metric.encoder import Encoder, zoo
from tests.pages import code_blocks, run_page


def page(root: Path) -> str:
    return (root / "docs" / "encoders.md").read_text(encoding="utf-8")


def test_the_code_on_the_page_runs(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("safetensors")
    monkeypatch.setattr(tempfile, "mkdtemp", lambda: str(tmp_path))
    monkeypatch.setattr(zoo._ENCODERS, "_registered", {})  # what the page registers is forgotten afterwards
    source = root / "docs" / "encoders.md"
    assert all("assert " in block for block in code_blocks(source))
    names = run_page(source)
    assert isinstance(names["encoder"], Encoder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["encoder.safetensors", "training.pt"]


def test_the_page_knows_every_name_and_every_method(root: Path) -> None:
    text = page(root)
    for name in zoo._ENCODERS._places:
        assert f"| `{name}` |" in text
    for method in ("from_module", "from_name", "from_checkpoint", "with_head"):
        assert f"Encoder.{method}(" in text
