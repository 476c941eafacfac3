"""What an uncertainty costs a ResNet-50: the benchmark's parts, on a few noisy images and random weights."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import posthoc_fit
from tests.examples import miniatures

IMAGES = 30


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """CIFAR-10's files with noise around a colour for each class."""
    folder = tmp_path / "data" / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    for name in [*(f"data_batch_{batch}" for batch in range(1, 6)), "test_batch"]:
        labels = np.tile(np.arange(10), 110)  # 5,000 in all are held out
        pixels = 25 * labels[:, None] + generator.integers(0, 30, size=(len(labels), 3072))
        records = np.concatenate([labels[:, None], pixels], axis=1).astype(np.uint8)
        (folder / f"{name}.bin").write_bytes(records.tobytes())
    return tmp_path / "data"


def test_the_table_has_every_part(tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(
        "torchvision", reason="torchvision is not installed, and the weights are of its network"
    )
    monkeypatch.setattr(posthoc_fit, "CASES", (("whitening", "diag"),))
    weights = miniatures.weights("resnet50", tmp_path)
    kept, out = tmp_path / "kept", tmp_path / "out"
    posthoc_fit.main(
        data_dir, out, weights=weights, images=IMAGES, size=32, repeats=1, threads=None, cache=kept
    )
    (row,) = json.loads((out / "benchmark_posthoc_fit.json").read_text())["rows"]
    assert (row["H, Z"], row["structure"]) == (f"2048, {IMAGES - 1}", "diag")
    parts = [row[f"{stage} s"] for stage in posthoc_fit.STAGES]
    assert min(parts) > 0
    share = 100 * row["backbone s"] / (row["backbone s"] + sum(parts))
    assert row["backbone's share %"] == pytest.approx(share, abs=0.01)
    # The backbone's time is that of all batches, whenever they were computed.
    (timings,) = (json.loads(path.read_text()) for path in kept.rglob("seconds.json"))
    assert row["backbone s"] == pytest.approx(sum(seconds for seconds, _ in timings.values()))
