"""The controlled experiment: its pairs are what they should be, and cells are run once, measured and tabulated."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from experiments import controlled, controlled_tables
from experiments.controlled_process import KAPPA_POS, Cell, Images, Loss, PublishedImages
from laplacian_metric import vmf


@pytest.mark.statistical
def test_positive_pairs_have_the_spread_of_three_draws() -> None:
    """E cos(mu, mu+) is E A(k) A(kpos) A(k+), within 4 standard errors."""
    images, generator = Images(Cell("elk")), torch.Generator().manual_seed(0)
    _, mean, kappa = images.draw(4000, generator)
    other, kappa2 = images.positives(mean, kappa, generator)
    cosine = (mean * other).sum(1)
    lengths = [vmf.mean_resultant_length(k, 10) for k in (kappa, kappa2, torch.tensor(KAPPA_POS))]
    difference = cosine - lengths[0] * lengths[1] * lengths[2]
    assert abs(float(difference.mean())) < 4 * float(difference.std()) / math.sqrt(4000)


@pytest.mark.parametrize("loss", get_args(Loss))
def test_a_cell_is_trained_measured_and_kept(
    loss: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = Cell(loss, steps=4, batch=8, samples=2)
    monkeypatch.setattr(controlled, "CELLS", [cell])
    monkeypatch.setattr(controlled, "TEST_IMAGES", 300)
    monkeypatch.setattr(controlled_tables, "DIMENSIONS", (2,))
    monkeypatch.setattr(controlled_tables, "CELLS", [cell])
    assert list(controlled.run(tmp_path, [cell])) == [cell.name]
    assert list(controlled.run(tmp_path, [cell])) == []
    ((_, result),) = controlled.load(tmp_path)
    assert -1 <= result["k rank"] <= 1
    assert all(0 <= share <= 1 for share in result["coverage"])
    if loss == "positivity":
        assert all(path.exists() for path in controlled_tables.table(tmp_path))


def test_an_interrupted_cell_goes_on_to_the_same_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = Cell("positivity", steps=6, batch=8, process="published")
    monkeypatch.setattr(controlled, "STEPS_BETWEEN", 2)
    whole, _, loss = controlled.train(cell)
    calls = 0
    contrast = controlled.contrast

    def interrupted(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise KeyboardInterrupt
        return contrast(*arguments)

    monkeypatch.setattr(controlled, "contrast", interrupted)
    with pytest.raises(KeyboardInterrupt):
        controlled.train(cell, tmp_path / "unfinished")
    network, _, again = controlled.train(cell, tmp_path / "unfinished")
    assert calls == 4 + 4  # three steps and the interrupted one, then those after the checkpoint of two
    assert again == loss
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, whole.state_dict()[name]), name
    assert not (tmp_path / "unfinished").exists()


@pytest.mark.statistical
def test_published_pairs_are_accepted_by_their_ratio() -> None:
    """Positives of one image have the mean cosine of all images, weighted by r/(r + 1), within 4 standard errors."""
    images, generator = PublishedImages(Cell("elk", process="published")), torch.Generator().manual_seed(0)
    mean, kappa = (values[:1].expand(20_000, *values.shape[1:]) for values in images.draw(1, generator)[1:])
    others = images.draw(20_000, generator)[1:]
    z, z2 = (images.around(*law, generator) for law in ((mean, kappa), others))
    level = vmf.relative_log_normalizer(torch.tensor(KAPPA_POS, dtype=torch.float64), 10).float()
    weight = torch.sigmoid(level + KAPPA_POS * (z * z2).sum(1))
    cosine = (mean * others[0]).sum(1)
    expected = (weight * cosine).sum() / weight.sum()
    expected_error = (weight * (cosine - expected)).square().sum().sqrt() / weight.sum()
    accepted = images.accepted(mean[:4000], kappa[:4000], generator)
    shown = (mean[:4000] * images._mean(accepted)).sum(1)
    error = math.hypot(float(expected_error), float(shown.std()) / math.sqrt(4000))
    assert abs(float(shown.mean() - expected)) < 4 * error
    assert float(expected - cosine.mean()) > 4 * error


def test_more_dimensions_leave_less_to_learn() -> None:
    nats = [
        controlled.information_at_the_truth(Cell("positivity", dim=dim, batch=64), 4) for dim in (2, 10, 40)
    ]
    assert nats[1] > nats[2] > 0
    assert nats[1] < math.log(64)
