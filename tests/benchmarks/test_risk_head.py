"""The benchmark of risk heads runs, in memory and from a file, and says what it measured."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.risk_head import features, measure


@pytest.mark.parametrize("mapped", [False, True])
def test_a_row_of_the_table(tmp_path: Path, mapped: bool) -> None:
    row = measure(600, 8, tmp_path if mapped else None)
    assert row["features"] == ("mapped" if mapped else "in memory")
    assert row["rows a second"] > 0


def test_mapped_features_are_those_in_memory(tmp_path: Path) -> None:
    assert torch.equal(features(300, tmp_path / "x.npy"), features(300, None))
