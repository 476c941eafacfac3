"""The controlled experiment: its pairs are what they should be, and cells are run once, measured and tabulated."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from experiments import controlled
from experiments.controlled import KAPPA_POS, Cell, Images
from laplacian_metric import vmf


@pytest.mark.statistical
def test_positive_pairs_have_the_spread_of_three_draws() -> None:
    """E cos(mu, mu+) is E A(k) A(kpos) A(k+), within 4 standard errors."""
    images, generator = Images(Cell("elk")), torch.Generator().manual_seed(0)
    mean, kappa = images.draw(4000, generator)
    other, kappa2 = images.positives(mean, kappa, generator)
    cosine = (mean * other).sum(1)
    lengths = [vmf.mean_resultant_length(k, 10) for k in (kappa, kappa2, torch.tensor(KAPPA_POS))]
    difference = cosine - lengths[0] * lengths[1] * lengths[2]
    assert abs(float(difference.mean())) < 4 * float(difference.std()) / math.sqrt(4000)


@pytest.mark.parametrize("loss", get_args(controlled.Loss))
def test_a_cell_is_trained_measured_and_kept(
    loss: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = Cell(loss, steps=4, batch=8, samples=2)
    monkeypatch.setattr(controlled, "CELLS", [cell])
    monkeypatch.setattr(controlled, "TEST_IMAGES", 300)
    assert list(controlled.run(tmp_path, [cell], None)) == [cell.name]
    assert list(controlled.run(tmp_path, [cell], None)) == []
    ((_, result),) = controlled.load(tmp_path)
    assert -1 <= result["k rank"] <= 1
    assert all(0 <= share <= 1 for share in result["coverage"])
    assert all(path.exists() for path in controlled.table(tmp_path))
