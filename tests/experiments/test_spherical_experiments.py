"""The experiments on spherical methods: their parts on small data, and that finished work is kept and tabulated."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from experiments import cifar10h, cifar10h_figures, nonisotropy, vmf_losses
from experiments.published_nivmf import log_densities, log_density, log_masses
from laplacian_metric import vmf
from laplacian_metric.data import Dataset, Preparation
from laplacian_metric.training import TrainingOptions
from laplacian_metric.training.options import Optimizer, Sampling

FEW = TrainingOptions(epochs=1, batch_size=16, optimizer=Optimizer.ADAM)
BALANCED = TrainingOptions(
    epochs=1, batch_size=16, optimizer=Optimizer.ADAM, sampling=Sampling.BALANCED, images_per_class=4
)


def a_cache(folder: Path, **files: tuple[int, int]) -> Path:
    """Features of ``classes`` classes with ``count`` images each, by file name."""
    generator = np.random.default_rng(0)
    (folder / "lite0").mkdir()
    for name, (classes, count) in files.items():
        labels = np.repeat(np.arange(classes), count)
        h = generator.standard_normal((classes, 24))[labels] + generator.standard_normal((len(labels), 24))
        np.savez(folder / "lite0" / f"{name.replace('_', '-')}.npz", h=h.astype(np.float16), labels=labels)
    return folder


def test_losses_are_compared_once_and_tabulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = a_cache(tmp_path, quickdraw_train=(6, 8), quickdraw_validation=(4, 8))
    monkeypatch.setattr(vmf_losses, "DATA_SETS", ("quickdraw",))
    monkeypatch.setattr(vmf_losses, "OPTIONS", BALANCED)
    monkeypatch.setattr(vmf_losses, "DIM", 4)
    cells = [
        vmf_losses.Cell("quickdraw", loss, "others", scale, seed)
        for seed in range(3)
        for loss, scale in (("positivity", 16.0), ("elk", 1.0))
    ]
    monkeypatch.setattr(vmf_losses, "CELLS", cells)
    assert list(vmf_losses.run(tmp_path, cache, tmp_path)) == [cell.name for cell in cells]
    assert list(vmf_losses.run(tmp_path, cache, tmp_path)) == []


def test_distances_are_compared_once_and_tabulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = a_cache(tmp_path, grocery=(14, 6))
    for name, value in {
        "DATA_SETS": ("grocery",),
        "OPTIONS": {"grocery": FEW},
        "DIM": 4,
        "SEEDS": range(2),
        "SHARPNESS": (5.0, 20.0),
    }.items():
        monkeypatch.setattr(nonisotropy, name, value)
    finished = list(nonisotropy.run(tmp_path, cache, tmp_path))
    assert len(finished) == 2 * (len(nonisotropy.VARIANTS) + 1)
    assert list(nonisotropy.run(tmp_path, cache, tmp_path)) == []


def test_classes_for_training_choosing_and_testing_are_different(tmp_path: Path) -> None:
    cache = a_cache(tmp_path, grocery=(14, 6))
    rows = [
        {tuple(row) for row in part.inputs.tolist()}
        for part in nonisotropy.data_sets(tmp_path, cache, "grocery", 1)
    ]
    assert [len(part) for part in rows] == [36, 18, 30]
    assert not rows[0] & rows[1]
    assert not rows[0] & rows[2]
    assert not rows[1] & rows[2]


def test_the_published_density_of_many_classes_is_that_of_each() -> None:
    generator = torch.Generator().manual_seed(0)
    x, mean = (torch.nn.functional.normalize(torch.randn(5, 8, generator=generator)) for _ in range(2))
    log_scale = 3 + 0.3 * torch.randn(5, 8, generator=generator)
    together = log_densities(x, mean, log_scale)
    for c in range(5):
        torch.testing.assert_close(
            together[:, c], log_density(x, mean[c], log_scale[c]), rtol=1e-4, atol=1e-4
        )


def people_and_images() -> tuple[Dataset, dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(250) % 3
    counts = torch.distributions.Multinomial(50, logits=4.0 * torch.nn.functional.one_hot(labels, 3))
    torch.manual_seed(0)
    people = counts.sample().double() / 50
    pixels = torch.randint(0, 256, (250, 3, 16, 16), generator=generator, dtype=torch.uint8)
    images = Dataset(pixels, labels, class_names=("ant", "bee", "cat"), extras={"human_distribution": people})
    h = torch.randn(3, 24, generator=generator)[labels] + 2 * torch.randn(250, 24, generator=generator)
    crop_h = h + torch.randn(250, 24, generator=generator)
    side = torch.rand(250, generator=generator)
    return images, {"h": h.numpy(), "crop h": crop_h.numpy(), "side": side.numpy()}


def test_cifar10h_from_features_to_table_and_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, arrays = people_and_images()
    images = images.prepared(Preparation())
    monkeypatch.setattr(cifar10h, "OPTIONS", FEW)
    monkeypatch.setattr(cifar10h, "SMALL_OPTIONS", FEW)
    monkeypatch.setattr(cifar10h, "DIM", 3)
    names = ("positivity", "proxies", "small network, positivity", "small network, proxies")
    monkeypatch.setattr(cifar10h, "CELLS", {name: cifar10h.CELLS[name] for name in names})
    monkeypatch.setattr(cifar10h_figures, "CELLS", cifar10h.CELLS)
    replaced: dict[str, Callable[..., Any]] = {
        "image_set": lambda root: images,
        "all_features": lambda images, root, cache: arrays,
    }
    for name, function in replaced.items():
        monkeypatch.setattr(cifar10h, name, function)
    monkeypatch.setattr(cifar10h_figures, "image_set", lambda root: images)
    monkeypatch.setattr(
        cifar10h_figures, "fold_rows", lambda fold, num: cifar10h.fold_rows(fold, len(images))
    )
    assert len(list(cifar10h.run(tmp_path, tmp_path))) == 20
    assert list(cifar10h.run(tmp_path, tmp_path)) == []
    assert (
        "| proxies | Trust, match |"
        in cifar10h.table(tmp_path, tmp_path, tmp_path, resamples=20)[1].read_text()
    )
    assert all(path.exists() for path in cifar10h_figures.draw(tmp_path, tmp_path, tmp_path))


def test_folds_share_no_image() -> None:
    tested = torch.cat([cifar10h.fold_rows(fold, 50)["test"] for fold in range(5)])
    assert sorted(tested.tolist()) == list(range(50))
    for fold in range(5):
        rows = torch.cat(list(cifar10h.fold_rows(fold, 50).values()))
        assert sorted(rows.tolist()) == list(range(50))


def test_crops_are_squares_of_their_side() -> None:
    """An image that rises evenly to the right keeps its slope: a crop of side s spans s of it."""
    x = torch.linspace(0, 1, 32).expand(40, 3, 32, 32)
    crop, side = cifar10h.crops(x, seed=0)
    assert 0.25 <= float(side.min()) < float(side.max()) <= 1
    rise = crop[:, 0, 0, -1] - crop[:, 0, 0, 0]
    torch.testing.assert_close(rise, (32 * side - 1) / 31, atol=0.02, rtol=0)


@pytest.mark.parametrize(("dim", "kappa"), [(3, 5.0), (10, 5.0), (128, 60.0)])
def test_its_mass_is_a_power_of_the_concentration(dim: int, kappa: float) -> None:
    """With K = k I it is k^(D - 1) times the von Mises-Fisher density, whose mass is 1."""
    x = F.normalize(
        torch.randn(9, dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64), dim=1
    )
    log_scale = torch.full((dim,), math.log(kappa), dtype=torch.float64)
    excess = log_density(x, x[0], log_scale) - vmf.log_density(
        x, x[0], torch.tensor(kappa, dtype=torch.float64)
    )
    torch.testing.assert_close(excess, torch.full_like(excess, (dim - 1) * math.log(kappa)))


@pytest.mark.parametrize("sigma", [0.3, 1.0])
def test_only_the_exact_form_has_mass_one(sigma: float) -> None:
    published, exact = log_masses(3, 20.0, sigma, points=100_000)
    assert exact == pytest.approx(0, abs=0.05)
    assert published > 1
