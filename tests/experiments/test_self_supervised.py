"""The experiment on embeddings without labels: every number is measured, differences are paired, runs are resumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from experiments.harness.cell_fitting import Fitted
from experiments.harness.image_sets import OUT, TEST, TRAIN, VALIDATION
from experiments.self_supervised import __main__ as command
from experiments.self_supervised import measure, outliers, tables
from hessians import ContrastiveLoss
from laplacian_metric import methods
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.method import FitData, Setup
from laplacian_metric.data.views import ImageViews
from laplacian_metric.encoder import Encoder

ISIF, UMM = "self_supervised/isif", "self_supervised/umm"


def _images(number: int, seed: int) -> Dataset:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(number) % 3
    pixels = 0.5 * torch.rand(number, 3, 8, 8, generator=generator) + labels[:, None, None, None] % 3 / 6
    return Dataset(pixels, labels)


def _run(method: str) -> Fitted:
    sets: dict[str, Any] = {
        TRAIN: _images(90, 0),
        VALIDATION: _images(60, 1),
        TEST: _images(60, 2),
        **{OUT + label: _images(20, 3) for label in measure.OUTSIDE},
    }
    encoder = Encoder.from_name("small-cnn", dim=4, width=2, seed=0)
    learner = methods.make(method).learner([encoder], Setup(ContrastiveLoss(), 90))
    embedder = learner.embedder(FitData(sets[TRAIN], sets[VALIDATION]))
    return Fitted(embedder, encoder, sets, None, 0.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["isif", "umm"])
def test_every_number_is_measured_and_tabulated(method: str) -> None:
    record = json.loads(json.dumps(measure.evaluate(_run(method), ImageViews())))
    assert set(record["quality"]) == set(measure.QUALITY)
    assert (record["quality"]["trace"] is None) == (method == "isif")
    assert float(measure.unpacked(record["right"]).double().mean()) == pytest.approx(
        record["quality"]["knn@200"]
    )
    assert ("own" in record["scores"]) == (method == "umm")
    for name, numbers in record["scores"].items():
        assert set(numbers) == {"R-AUROC", *measure.CORRUPTIONS, *measure.OUTSIDE}
        assert all(0 <= value <= 1 for value in numbers.values())
        for rival, (gap, low, high) in record["paired"][name].items():
            assert low <= gap <= high
            assert gap == pytest.approx(numbers["R-AUROC"] - record["scores"][rival]["R-AUROC"], abs=1e-9)


def _record(right: float, seed: int, number: int = 2000) -> dict[str, Any]:
    draws = torch.rand(number, generator=torch.Generator().manual_seed(seed))
    correct = draws < right
    quality = {
        "knn@200": float(correct.double().mean()),
        "linear probe": 0.5,
        "recall@1": 0.4,
        "nmi": 0.1,
        "trace": None,
    }
    return {"quality": quality, "right": measure.packed(correct)}


def test_differences_from_the_baseline_are_paired_by_image_and_by_seed() -> None:
    base, better = {0: _record(0.5, 0)}, {0: _record(0.54, 0)}  # the same draws: only some images change
    assert tables.difference(better, base).startswith("**+.0")
    unpaired = {0: _record(0.505, 1)}
    assert not tables.difference(unpaired, base).startswith("**")
    seeds = {seed: _record(0.5, seed) for seed in range(3)}
    gains = {seed: _record(0.52, seed) for seed in range(3)}
    assert tables.difference(gains, seeds).endswith("3 seeds")
    assert tables.difference({7: _record(0.5, 7)}, seeds) == ""


def test_outliers_are_the_nearest_images_of_another_class() -> None:
    generator = torch.Generator().manual_seed(0)
    z = F.normalize(torch.randn(30, 4, generator=generator), dim=1)
    images = Dataset(torch.rand(30, 1, 8, 8, generator=generator), torch.arange(30) % 2)
    pairs = outliers.outliers_of(z, images, 5)
    similarity = z @ z.T - 3 * torch.eye(30)
    near = similarity.argmax(1)
    wrong = [i for i in range(30) if images.labels[near[i]] != images.labels[i]]
    expected = sorted(wrong, key=lambda i: -float(similarity[i, near[i]]))[:5]
    assert sorted(pairs.queries.tolist()) == sorted(expected)
    assert torch.equal(pairs.wrong, near[pairs.queries])


def test_the_command_computes_what_is_missing_and_writes_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluated: list[tuple[str, int]] = []

    def fitted(name: str, seed: int, **_: Any) -> Fitted:
        evaluated.append((name, seed))
        return _run("umm" if "umm" in name else "isif")

    trained = {("self_supervised/nt_xent", 0), (ISIF, 0), (UMM, 0)}
    monkeypatch.setattr(command, "fitted", fitted)
    monkeypatch.setattr(
        command.Work, "trained", lambda self, name, seed: {} if (name, seed) in trained else None
    )
    (tmp_path / "plots").mkdir()
    arguments = ["--work", str(tmp_path / "work"), "--out", str(tmp_path), "--pictures"]
    assert command.main(arguments) == 0
    page = (tmp_path / "self_supervised.md").read_text(encoding="utf-8")
    evaluated.clear()
    command.main(arguments[:-1])
    assert not evaluated
    assert (tmp_path / "self_supervised.md").read_text(encoding="utf-8") == page
