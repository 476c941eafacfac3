"""Classifiers over embeddings: scores and temperature by definition, dropout, ensembles, noise of HET-XL, training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import experiments.methods  # noqa: F401 (registers it)
from experiments.methods.softmax.base import SoftmaxLearner
from experiments.methods.softmax.het_xl import HetXLNetwork, log_determinant
from experiments.methods.softmax.probabilities import fit_temperature, kappa_of, log_mean_softmax, scores
from hessians import ContrastiveLoss
from laplacian_metric import metrics
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.method import Embedder, FitData, Setup
from laplacian_metric.encoder import Encoder
from laplacian_metric.methods import make
from laplacian_metric.training import TrainingOptions, load_best, train

float64 = torch.float64


def overlapping(count: int, seed: int, classes: int = 4) -> Dataset:
    g = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % classes
    centres = 2 * torch.eye(classes, 6)[labels]
    return Dataset(centres + 0.8 * torch.randn(count, 6, generator=g), labels)


def a_learner(name: str, num_classes: int = 4, *, features: bool = False, **options: Any) -> SoftmaxLearner:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        backbone = nn.Identity() if features else nn.Sequential(nn.Linear(6, 32), nn.ReLU())
        encoder = Encoder(backbone, nn.Linear(6 if features else 32, 5))
    setup = Setup(ContrastiveLoss(), num_images=400, num_classes=num_classes)
    learner = make(name, **options).learner([encoder], setup)
    return learner


def trained(learner: SoftmaxLearner, folder: Path, epochs: int = 6) -> Embedder:
    options = TrainingOptions(epochs=epochs, learning_rate=1e-2, batch_size=50)
    train(learner, overlapping(400, 0), overlapping(200, 1), options, folder)
    load_best(learner, folder)
    return learner.embedder(FitData(overlapping(400, 0), overlapping(200, 1)))


def random_logits(members: int = 3) -> Tensor:
    return 3 * torch.randn(members, 7, 4, generator=torch.Generator().manual_seed(0), dtype=float64)


def test_scores_are_their_definitions() -> None:
    logits = random_logits()
    p = logits.softmax(2).mean(0)
    assert torch.allclose(log_mean_softmax(logits), p.log())
    value = scores(logits)
    assert torch.allclose(value["entropy"], -(p * p.log()).sum(1))
    assert torch.allclose(value["maximum"], 1 - p.max(1).values)
    assert torch.allclose(value["energy"], -logits.exp().sum(2).log().mean(0))
    divergence = (logits.softmax(2) * (logits.log_softmax(2) - p.log())).sum(2).mean(0)
    assert torch.allclose(value["disagreement"], divergence)
    assert "disagreement" not in scores(logits[:1])
    assert bool(((kappa_of(value["energy"]).argsort() - value["energy"].argsort(descending=True)) == 0).all())


@pytest.mark.parametrize("members", [1, 3])
def test_the_temperature_maximises_the_likelihood(members: int) -> None:
    logits = random_logits(members)
    labels = torch.distributions.Categorical(logits=log_mean_softmax(logits / 2.5)).sample((40,)).T.flatten()
    many = logits.repeat_interleave(40, dim=1)

    def loss(t: float) -> float:
        return float(F.nll_loss(log_mean_softmax(many / t), labels))

    t = fit_temperature(many, labels)
    assert loss(t) <= min(loss(t * factor) for factor in (0.5, 0.9, 0.99, 1.01, 1.1, 2)) + 1e-9


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("softmax", {}),
        ("softmax", {"heads": 4, "score": "disagreement"}),
        ("softmax", {"dropout": 0.2}),
        ("softmax-ensemble", {"members": 2}),
        ("het-xl", {"rank": 2}),
        ("het-xl", {"score": "log-det"}),
        ("sngp", {"features": 64}),
        ("sngp", {"features": 64, "momentum": 0.9}),
    ],
)
def test_each_solves_overlapping_classes_and_embeds_images_alike_in_any_batch(
    name: str, options: dict[str, Any], tmp_path: Path
) -> None:
    embedder = trained(a_learner(name, **options), tmp_path)
    test = overlapping(300, 2)
    e = embedder.embed(test)
    assert metrics.recall_at_k(e.point, test.labels) > 0.7
    every = embedder.scores(test)
    assert metrics.r_auroc(e.point, test.labels, every["entropy"]) > 0.6
    few = embedder.embed(test.inputs[3:9])
    assert torch.allclose(few.uncertainty, e.uncertainty[3:9], atol=1e-4)
    assert torch.allclose(few.point, e.point[3:9], atol=1e-5)
    assert bool((e.kappa[:-1].sub(e.kappa[1:]) * e.uncertainty[:-1].sub(e.uncertainty[1:]) <= 0).all())


def test_the_temperature_of_validation_images_counts_those_of_training_classes_only(tmp_path: Path) -> None:
    learner = a_learner("softmax")
    train(
        learner,
        overlapping(400, 0),
        overlapping(200, 1),
        TrainingOptions(epochs=3, learning_rate=1e-2),
        tmp_path,
    )
    seen, more = overlapping(200, 1), overlapping(200, 3)
    both = Dataset(torch.cat([seen.inputs, more.inputs]), torch.cat([seen.labels, more.labels + 4]))
    temperatures = [
        learner.embedder(FitData(overlapping(400, 0), validation)).settings()["temperature"]
        for validation in (seen, both, Dataset(more.inputs, more.labels + 4))
    ]
    assert temperatures[0] == pytest.approx(temperatures[1], rel=1e-6)
    assert temperatures[0] != pytest.approx(1.0, rel=1e-2)
    assert temperatures[2] == 1.0
    # Where classes have names, the same name is the same class, whatever its number.
    names = ("ant", "bee", "cat", "dog")
    named = replace(overlapping(400, 0), class_names=names)
    turned = replace(seen, labels=3 - seen.labels, class_names=names[::-1])
    others = replace(seen, class_names=("elk", "fox", "gnu", "hen"))
    by_name = [
        learner.embedder(FitData(named, validation)).settings()["temperature"]
        for validation in (turned, others)
    ]
    assert by_name == [pytest.approx(temperatures[0], rel=1e-6), 1.0]


def test_members_are_trained_as_if_they_were_alone() -> None:
    learner = a_learner("softmax-ensemble", members=2)
    batch = overlapping(20, 0)
    learner.loss(batch.inputs, batch.labels).backward()
    for member in learner.network.members:  # type: ignore[union-attr]
        together = [parameter.grad.clone() for parameter in member.parameters()]
        member.zero_grad()
        F.cross_entropy(member.draws(batch.inputs, None)[0], batch.labels).backward()
        assert all(torch.allclose(a, p.grad) for a, p in zip(together, member.parameters(), strict=True))


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        ("softmax", {"score": "variance"}, "score"),
        ("softmax", {"score": "disagreement"}, "disagreement"),
        ("softmax", {"heads": 0}, "heads"),
        ("softmax", {"dropout": 1.0}, "dropout"),
        ("softmax", {"temperature": 0.0}, "temperature"),
        ("softmax-ensemble", {"members": 1}, "members"),
        ("het-xl", {"rank": 0}, "rank"),
        ("het-xl", {"score": "variance"}, "score"),
        ("sngp", {"momentum": 1.0}, "momentum"),
        ("sngp", {"bound": -1.0}, "bound"),
    ],
)
def test_options_that_make_no_sense_are_refused(name: str, options: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        make(name, **options)


@pytest.mark.parametrize("name", ["softmax", "softmax-ensemble", "het-xl", "sngp"])
def test_the_number_of_classes_is_needed(name: str) -> None:
    encoder = Encoder(nn.Identity(), nn.Linear(6, 3))
    with pytest.raises(ValueError, match="num_classes"):
        make(name).learner([encoder], Setup(ContrastiveLoss(), num_images=9))
    learner = a_learner(name, num_classes=3)
    with pytest.raises(ValueError, match="class 3 at position 1"):
        learner.loss(overlapping(4, 0).inputs[:2], torch.tensor([0, 3]))


def a_network(dim: int = 5, rank: int = 2) -> HetXLNetwork:
    torch.manual_seed(0)
    return HetXLNetwork(Encoder(nn.Identity(), nn.Linear(6, dim)), 4, rank, 10, seed=1).double()


@pytest.mark.statistical
@pytest.mark.parametrize("shared", [False, True])
def test_the_noise_has_the_covariance_that_it_says(shared: bool) -> None:
    network = a_network()
    u = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        factor, variance = network.covariance(u)
        expected = factor @ factor.mT + torch.diag_embed(variance)
        noise = network.noisy(u, 200_000, torch.Generator().manual_seed(3), shared=shared) - u
    for image in range(3):
        error = torch.cov(noise[:, image].T) - expected[image]
        assert float(error.norm() / expected[image].norm()) < 0.05
        # Of full rank: with noise of one number for all dimensions it would be of rank R + 1.
        assert torch.linalg.matrix_rank(torch.cov(noise[:, image].T), rtol=1e-3) == 5
        assert float(noise[:, image].mean(0).abs().max()) < 0.02


def test_the_log_determinant_is_that_of_the_whole_matrix() -> None:
    g = torch.Generator().manual_seed(0)
    factor = torch.randn(4, 6, 3, generator=g, dtype=torch.float64)
    variance = torch.rand(4, 6, generator=g, dtype=torch.float64) + 0.1
    whole = torch.logdet(factor @ factor.mT + torch.diag_embed(variance))
    assert torch.allclose(log_determinant(factor, variance).double(), whole, atol=1e-5)
