"""The posterior made afterwards as a method: the same as a LAM by hand, in every option."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hessians import ContrastiveLoss
from laplacian_metric import LAM
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.method import FitData, Setup
from laplacian_metric.encoder import Encoder
from laplacian_metric.laplace.frozen_features import features_of, unlabelled_features
from laplacian_metric.methods.laplace.embedder import LAMEmbedder
from laplacian_metric.methods.laplace.laplace import Laplace
from tests.generators import seeded
from tests.manifests import version

float64 = torch.float64
LOSS = ContrastiveLoss(margin=0.7, negatives="active")
SETUP = Setup(LOSS, num_images=60, weight_decay=1e-3)


def an_encoder(bias: bool = True) -> Encoder:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Encoder(nn.Identity(), nn.Linear(5, 3, bias=bias, dtype=float64))


def clusters(count: int = 60, seed: int = 0, classes: int = 4) -> tuple[Tensor, Tensor]:
    labels = torch.arange(count) % classes
    noise = torch.randn(count, 5, generator=seeded(seed), dtype=float64)
    return torch.eye(5, dtype=float64)[labels] + 0.2 * noise, labels


def some_data(folder: Path | None = None) -> FitData:
    return FitData(Dataset(*clusters()), Dataset(*clusters(40, seed=1)), folder)


def an_embedder(method: Laplace, data: FitData | None = None, setup: Setup = SETUP) -> LAMEmbedder:
    return method.learner([an_encoder()], setup).embedder(some_data() if data is None else data)


def by_hand(norm: bool = True, **options: Any) -> LAM:
    loss = LOSS if norm else ContrastiveLoss(margin=0.7, distance="euclidean", normalize=False)
    lam = LAM(an_encoder(), loss, **{"weight_decay": 1e-3, **options})
    return lam.fit_features(*clusters(), generator=seeded(), check_mode=False)


# --- the method against a LAM ---


@pytest.mark.parametrize("structure", ["diag", "kron", "lowrank", "full"])
def test_the_default_is_a_lam_with_the_marginal_prior(structure: str) -> None:
    lam = by_hand(structure=structure, rank=50)
    lam.optimize_prior_precision("marginal")
    embedder = an_embedder(Laplace(structure=structure))  # type: ignore[arg-type]
    x = clusters(seed=3)[0]
    e, expected = embedder.embed(x), lam.embed_features(x)
    assert torch.equal(e.kappa, expected.kappa)
    assert torch.equal(e.uncertainty, expected.uncertainty)
    assert embedder.settings()["prior_precision"] == lam.prior_precision
    assert embedder.settings()["n_effective"] == 60
    assert embedder.settings()["diagnostics"] == lam.diagnostics().to_dict()


@pytest.mark.parametrize(
    ("prior", "expected"), [("decay", 60 / 0.1 * 1e-3), (7.0, 7.0), (3, 3.0), ("validation", None)]
)
def test_the_prior(prior: Any, expected: float | None) -> None:
    embedder = an_embedder(Laplace(prior=prior, temperature=0.1))
    if expected is None:
        lam = by_hand(temperature=0.1)
        expected = lam.optimize_prior_precision("validation", *clusters(40, seed=1), generator=seeded())
    assert embedder.lam.prior_precision == pytest.approx(expected, rel=1e-12)


def test_without_the_norm() -> None:
    lam = by_hand(norm=False, prior_precision=2.0, n_effective=30.0)
    x = clusters(seed=3)[0]
    embedded = an_embedder(Laplace(norm=False, prior=2.0, n_effective=30.0)).embed(x)
    assert torch.equal(embedded.kappa, lam.embed_features(x).kappa)
    assert not torch.equal(embedded.kappa, an_embedder(Laplace(prior=2.0, n_effective=30.0)).embed(x).kappa)


# --- features ---


class _Once:
    """A loader that can be read once."""

    def __init__(self, batches: list[tuple[Tensor, Tensor]]) -> None:
        self.batches = batches
        self.read = 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        self.read += 1
        return iter(self.batches)


def test_features_that_are_there_are_neither_read_nor_copied() -> None:
    encoder, data = an_encoder(), some_data()
    assert features_of(encoder, data.train) is data.train
    assert unlabelled_features(encoder, data.train) is data.train.inputs


def test_the_features_of_images_are_computed_once_into_the_folder(tmp_path: Path) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        backbone = nn.Sequential(nn.Linear(5, 5, dtype=float64), nn.Tanh())
        encoder = Encoder(backbone, nn.Linear(5, 3, dtype=float64))
    images, labels = clusters()
    train = _Once([(images[:30], labels[:30]), (images[30:], labels[30:])])
    data = FitData(train, _Once([clusters(40, seed=1)]), tmp_path)
    first = Laplace(prior="validation").learner([encoder], SETUP).embedder(data)
    second = Laplace(prior="validation").learner([encoder], SETUP).embedder(data)
    assert train.read == 2
    assert (version(tmp_path / "train") / "features.bin").stat().st_size == 60 * 5 * 8
    assert torch.equal(first.embed(images).kappa, second.embed(images).kappa)
    lam = LAM(encoder, LOSS, weight_decay=1e-3).fit(list(train), check_mode=False, progress=False)
    lam.optimize_prior_precision(
        "validation",
        encoder.features(clusters(40, seed=1)[0]).detach(),
        clusters(40, seed=1)[1],
        generator=seeded(),
    )
    torch.testing.assert_close(first.embed(images).kappa, lam.embed(images).kappa)


def test_nothing_is_trained() -> None:
    learner = Laplace().learner([an_encoder()], SETUP)
    assert learner.parameters() == []
    assert learner.state() == {}
    learner.module.train()
    learner.train_mode()
    assert not learner.module.training
    assert torch.equal(learner.points(clusters()[0]), an_encoder().raw(clusters()[0]))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_one_class() -> None:
    images, _ = clusters()
    one_class = FitData(Dataset(images, torch.zeros(60, dtype=torch.long)), [])
    assert bool(an_embedder(Laplace(), one_class).embed(images).kappa.isfinite().all())
