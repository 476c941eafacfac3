"""The picture of the explanation of uncertainty is drawn by the program that it names."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from experiments import explain


@pytest.mark.slow
def test_every_picture_is_drawn(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["explain", "--out", str(tmp_path)])
    explain.main()
    drawn = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    others = {"trust.png", "which_score.png"}  # drawn from results of full data sets
    assert drawn.keys() | others == {path.name for path in (root / "docs" / "pictures").iterdir()}
    for picture in drawn.values():
        assert picture.startswith(b"\x89PNG")
        assert len(picture) > 10_000
