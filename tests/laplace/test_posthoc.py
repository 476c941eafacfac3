"""LAM from end to end: what is fitted, what its numbers mean, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from hessians import ContrastiveLoss
from laplacian_metric import LAM, NetworkLAM
from laplacian_metric.laplace.encoder_posterior import EncoderChangedError
from tests.generators import seeded
from tests.laplace.fit_reference import LOSSES, STRUCTURES, Layer, clamped, images_of, network

close = torch.testing.assert_close
float64 = torch.float64
DIM, WIDTH = 3, 5
every_structure = pytest.mark.parametrize("structure", STRUCTURES)
pytestmark = pytest.mark.filterwarnings("ignore:theta. is no mode")


LAYER = Layer.random(24, WIDTH, DIM, classes=4, seed=5)


def fitted(structure: str = "diag", approximation: str = "fixed", **options: Any) -> LAM:
    lam = LAM(network(LAYER), ContrastiveLoss(0.9), approximation, structure, **options)
    return lam.fit_features(LAYER.features, LAYER.labels, generator=seeded())


@pytest.mark.parametrize("approximation", ["fixed", "positive", "full", "clipped"])
def test_the_precision_is_data_and_prior(approximation: str) -> None:
    """n_effective diag(GGN)/temperature + prior, the number of images unless n_effective is given."""
    diagonal = LAYER.ggn(ContrastiveLoss(0.9), approximation).diagonal().clamp(min=0).view(DIM, WIDTH + 1)
    lam = fitted(approximation=approximation)
    assert (lam.n_effective, lam.temperature, lam.prior_precision) == (24, 1, 1)
    close(lam.posterior.marginal_variance(), 1 / (24 * diagonal + 1))
    for name, value in (("n_effective", 500.0), ("temperature", 7.0), ("prior_precision", 3.5)):
        setattr(lam, name, value)
        expected = lam.n_effective / lam.temperature * diagonal + lam.prior_precision
        close(lam.posterior.marginal_variance(), 1 / expected)
    fixed = fitted(approximation=approximation, n_effective=500, temperature=7.0, prior_precision=3.5)
    close(fixed.posterior.marginal_variance(), lam.posterior.marginal_variance())
    lam.n_effective = lam.prior_precision = None
    assert (lam.n_effective, lam.prior_precision) == (24, 1)
    decayed = fitted(approximation=approximation, weight_decay=1e-2, temperature=2.0)
    assert decayed.prior_precision == pytest.approx(24 / 2 * 1e-2)
    close(decayed.posterior.marginal_variance(), 1 / (12 * diagonal + 0.12))


def test_the_full_posterior_is_the_inverse_of_the_clamped_curvature() -> None:
    lam = fitted("full", "clipped", n_effective=300)
    matrix = clamped(LAYER.ggn(ContrastiveLoss(0.9), "clipped"))
    precision = 300 * matrix + torch.eye(len(matrix), dtype=float64)
    close(lam.posterior.marginal_variance().flatten(), torch.linalg.inv(precision).diagonal())
    assert lam.posterior.log_determinant() == pytest.approx(float(torch.linalg.slogdet(precision)[1]))


@every_structure
def test_images_loader_and_features_embed_alike(structure: str) -> None:
    lam = LAM(network(LAYER), ContrastiveLoss(0.9), structure=structure)
    images = images_of(LAYER, lam.encoder)
    loader = DataLoader(TensorDataset(images, LAYER.labels), batch_size=7)
    assert lam.fit(loader, generator=seeded()) is lam
    assert (lam.fitted.num_images, lam.fitted.num_batches) == (24, 1)
    features = lam.features(loader)
    inputs = [part for part, _ in loader]
    calls = (lam.embed, images), (lam.embed_features, features), (lam.embed, loader), (lam.embed, inputs)
    for option in ({}, {"samples": 6}):
        by_images, *others = (call(what, **option, generator=seeded(2)) for call, what in calls)
        for other in others:
            for name in ("point", "mean", "kappa", "variance", "uncertainty", *option):
                close(getattr(other, name), getattr(by_images, name))
            assert (other.samples is None) == (not option)
    streamed = torch.stack(list(lam.sample_embeddings(features, 6, generator=seeded(2))))
    close(streamed, by_images.samples)
    u = LAYER.features @ lam.encoder.head.weight.T + lam.encoder.head.bias
    close(by_images.point, F.normalize(u.detach(), dim=1))
    assert all(part.training for part in lam.encoder.modules())
    assert not by_images.kappa.requires_grad
    assert lam.sample_weights(3, generator=seeded())[0].shape == (3, DIM, WIDTH)


@pytest.mark.parametrize("approximation", ["fixed", "positive", "full", "clipped"])
def test_the_bias_without_a_norm(approximation: str) -> None:
    """Frozen where the data say nothing of it: no 1/prior in the variance."""
    lam = LAM(network(LAYER), LOSSES["no norm"], approximation, prior_precision=1e-6)
    lam.fit_features(LAYER.features, LAYER.labels)
    random_bias = approximation == "fixed"
    assert lam.head.bias_is_random is random_bias
    assert lam.posterior.shape == (DIM, WIDTH + random_bias)
    inputs = LAYER.inputs(random_bias)
    close(lam.embed_features(LAYER.features).variance, inputs.square() @ lam.posterior.marginal_variance().T)
    bias = lam.sample_weights(2, generator=seeded())[1]
    assert bool((bias == lam.encoder.head.bias).all()) is not random_bias


@pytest.mark.parametrize("features", [torch.float32, float64, torch.bfloat16])
@pytest.mark.parametrize("head", [torch.float32, float64])
@every_structure
def test_features_of_another_dtype(features: torch.dtype, head: torch.dtype, structure: str) -> None:
    lam = LAM(network(LAYER, head), ContrastiveLoss(0.9), structure=structure, weight_decay=1e-2)
    rows = LAYER.features.to(features)
    e = lam.fit_features(rows, LAYER.labels, generator=seeded()).embed_features(rows, samples=2)
    assert {e.kappa.dtype, lam.fitted.curvature.dtype, lam.fitted.gradient.dtype} == {head}
    lam.optimize_prior_precision()
    coarse = features is torch.bfloat16
    exact = fitted(structure, weight_decay=1e-2)
    close(
        lam.fitted.curvature.diagonal().double(),
        exact.fitted.curvature.diagonal(),
        rtol=0.3 if coarse else 1e-3,
        atol=1e-3,
    )  # type: ignore[union-attr]


def test_an_encoder_that_changed_is_refused() -> None:
    lam = fitted()
    with torch.no_grad():
        lam.encoder.head.bias.mul_(1.01)
    for call in (lambda: lam.embed_features(LAYER.features), lam.diagnostics, lambda: lam.sample_weights(1)):
        with pytest.raises(EncoderChangedError):
            call()
    lam.fit_features(LAYER.features, LAYER.labels).embed_features(LAYER.features)


# --- what an embedding depends on changes the fingerprint, and nothing else does ---


@every_structure
def test_embeddings_carry_it_and_a_file_keeps_it(structure: str, tmp_path: Path) -> None:
    lam = fitted(structure)
    before = lam.fingerprint()
    assert len(before) == 64
    assert lam.embed_features(LAYER.features).source == before
    images = images_of(LAYER, lam.encoder)
    assert lam.embed(images, samples=2).source == before
    assert lam.embed([images[:9], images[9:]]).source == before
    lam.save(tmp_path / "lam.safetensors")
    assert LAM.load(tmp_path / "lam.safetensors", lam.encoder).fingerprint() == before


def test_every_setting_changes_it() -> None:
    lam = fitted()
    fingerprints = {lam.fingerprint()}
    for name, value in (("n_effective", 500.0), ("temperature", 7.0), ("prior_precision", 3.5)):
        setattr(lam, name, value)
        fingerprints.add(lam.fingerprint())
    fingerprints.add(fitted("lowrank").fingerprint())
    assert len(fingerprints) == 5
    lam.n_effective = lam.prior_precision = None
    lam.temperature = 1.0
    assert lam.fingerprint() == fitted().fingerprint()


def test_a_whole_networks_changes_with_its_predictive_and_prior() -> None:
    encoder = network(LAYER)
    images = images_of(LAYER, encoder)
    lam = NetworkLAM(encoder, ContrastiveLoss(0.9), layers="all").fit([(images, LAYER.labels)])
    fingerprints = []
    for name, value in (("predictive", "sampled"), ("predictive", "linearised"), ("prior_precision", 9.0)):
        fingerprints.append(lam.fingerprint())
        assert lam.embed(images).source == fingerprints[-1]
        setattr(lam, name, value)
    assert fingerprints[0] == fingerprints[2]
    assert len({*fingerprints, lam.fingerprint()}) == 3
