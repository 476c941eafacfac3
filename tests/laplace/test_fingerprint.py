"""What an embedding depends on changes the fingerprint of its posterior, and nothing else does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hessians import ContrastiveLoss
from laplacian_metric import LAM, NetworkLAM
from tests.laplace.fit_reference import STRUCTURES, Layer, images_of, network

LAYER = Layer.random(24, 5, 3, classes=4, seed=5)
pytestmark = pytest.mark.filterwarnings("ignore:theta. is no mode")


def fitted(structure: str = "diag") -> LAM:
    lam = LAM(network(LAYER), ContrastiveLoss(0.9), "fixed", structure)
    return lam.fit_features(LAYER.features, LAYER.labels, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("structure", STRUCTURES)
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


def test_a_whole_networks() -> None:
    encoder = network(LAYER)
    images = images_of(LAYER, encoder)
    lam = NetworkLAM(encoder, ContrastiveLoss(0.9), layers="all").fit([(images, LAYER.labels)])
    before = lam.fingerprint()
    assert lam.embed(images).source == before
    lam.predictive = "sampled"
    other = lam.fingerprint()
    assert other != before
    assert lam.embed(images).source == other
    lam.predictive = "linearised"
    assert lam.fingerprint() == before
    lam.prior_precision = 9.0
    assert lam.fingerprint() != before
