"""The growth benchmark: its rows from a small file of features, what is kept, and what is projected."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks import growth


def images(data_dir: Path | None) -> tuple[Tensor, Tensor]:
    """40 noisy images of each of 8 classes."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(320) % 8
    base = torch.randint(0, 200, (8, 28, 28), generator=generator)
    noise = torch.randint(0, 120, (320, 28, 28), generator=generator)
    return (base[labels] + noise).clamp(max=255).byte(), labels


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "images_and_labels", images)
    monkeypatch.setattr(growth, "HEAD_ROWS", 300)
    monkeypatch.setattr(growth, "FITTED", 300)
    monkeypatch.setattr(growth, "LINEAR", 400)
    options = {"sizes": "400,800", "draws": 2, "draw_images": 1000, "served": 800, "threads": 1}
    growth.main(tmp_path, tmp_path / "out", tmp_path / "kept", **options)
    rows = json.loads((tmp_path / "out" / "benchmark_growth.json").read_text())["rows"]
    assert [row["images"] for row in rows] == [400, 800]
    assert all(set(row) == set(growth.COLUMNS) and row["fit s"] > 0 for row in rows)
    assert (tmp_path / "kept" / "fit-800.json").is_file()
    draws = json.loads((tmp_path / "out" / "benchmark_pair_estimate.json").read_text())["rows"]
    assert len(draws) == 2
    assert draws[0]["precision error %"] < 1
    projected = json.loads((tmp_path / "out" / "benchmark_growth_projected.json").read_text())["rows"]
    assert [row["images"] for row in projected] == ["1e+06", "1e+08", "1e+10"]

    def refused(*_: object) -> None:
        raise AssertionError("what is kept is measured again")

    monkeypatch.setattr(growth, "fit_row", refused)
    monkeypatch.setattr(growth, "serving_row", refused)
    monkeypatch.setattr(growth, "draw_of", refused)
    growth.main(tmp_path, tmp_path / "out", tmp_path / "kept", **options)


def test_what_is_projected() -> None:
    """A cost that grows as the square goes on so, and memory by equal steps."""
    rows = [
        {**dict.fromkeys(growth.COLUMNS), "images": n, "fit s": n**2 / 1e10, "fit MiB": 100 + n / 1000}
        for n in (20_000, 80_000, 160_000)
    ]
    projected = growth.extrapolated(rows, 1_600_000)
    assert projected["fit h"] == pytest.approx(1_600_000**2 / 1e10 / 3600)
    assert projected["fit exponent"] == pytest.approx(2)
    assert projected["fit GiB"] == pytest.approx(1700 / 1024)
    assert growth.exponent(rows, "fit s", 20_000, 160_000) == pytest.approx(2)
