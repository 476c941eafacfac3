"""The pictures of the explanations are drawn by the program that they name."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from experiments import explain


def test_the_largest_threshold_that_went_well() -> None:
    doubt = np.array([0.4, 0.1, 0.3, 0.2, 0.5, 0.6, 0.7, 0.8])
    wrong = np.array([False, False, False, False, False, True, False, True])  # 0, 0, 0, 0, 0, 1/6, 1/7, 2/8
    assert explain._largest(doubt, wrong) == 0.7


def test_where_nothing_can_be_promised_nothing_is_answered() -> None:
    generator = np.random.default_rng(0)
    assert explain._tested(np.linspace(0, 1, 200), np.ones(200, dtype=bool), generator) == -np.inf


@pytest.mark.slow
def test_every_picture_is_drawn(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, long_form: bool
) -> None:
    if not long_form:
        monkeypatch.setattr(explain, "SPLITS", 5)
    monkeypatch.setattr(sys, "argv", ["explain", "--out", str(tmp_path)])
    explain.main()
    drawn = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    others = {"trust.png", "which_score.png"}  # drawn from results of full data sets
    assert drawn.keys() | others == {path.name for path in (root / "docs" / "pictures").iterdir()}
    for picture in drawn.values():
        assert picture.startswith(b"\x89PNG")
        assert len(picture) > 10_000
