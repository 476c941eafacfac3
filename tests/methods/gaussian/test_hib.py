"""Hedged instance embeddings: the loss of a batch, mixtures, scores, and what training makes of two clusters."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from laplacian_metric.core.embedding import StochasticEmbedding, unit_rows
from laplacian_metric.core.gaussian import Gaussians
from laplacian_metric.methods.gaussian.hib import HIBEmbedder, HIBLearner, matched
from laplacian_metric.methods.gaussian.match_probability import match_probability
from tests.generators import seeded
from tests.methods.learning import NOTHING, encoder_of, epoch
from tests.methods.learning import learner_of as make_learner

OPTIONS: list[dict[str, Any]] = [{}, {"normalize": False}, {"head": "linear"}, {"components": 2}]


def learner_of(**options: Any) -> HIBLearner:
    return make_learner("hib", dtype=torch.float64, **{"hidden": 8, **options})


def embedder_of(learner: HIBLearner) -> HIBEmbedder:
    return learner.embedder(NOTHING)


def images(num: int = 9) -> tuple[Tensor, Tensor]:
    return torch.randn(num, 2, generator=seeded(1), dtype=torch.float64), torch.arange(num) % 3


def no_spread(learner: HIBLearner) -> None:
    """Make the variances of a linear head 1e-6, the least that there is."""
    head = learner.network.log_variance
    with torch.no_grad():
        head.linear.bias.fill_(-1e3)


# --- the loss ---


def test_without_spread_the_loss_is_that_of_points() -> None:
    inputs, labels = images()
    learner = learner_of(head="linear", kl_weight=0.0, scale=3.0, offset=1.0)
    no_spread(learner)
    z = unit_rows(learner.points(inputs)).detach()
    losses: dict[bool, list[float]] = {True: [], False: []}
    for i, j in itertools.combinations(range(9), 2):
        p = 1 / (1 + math.exp(3.0 * float((z[i] - z[j]).norm()) - 1.0))
        same = bool(labels[i] == labels[j])
        losses[same].append(-math.log(p if same else 1 - p))
    expected = sum(sum(values) / len(values) for values in losses.values()) / 2
    # Of deviation 1e-3: the loss, whose slope is at most 3, is off by no more than a few of them.
    assert float(learner.loss(inputs, labels).detach()) == pytest.approx(expected, abs=3e-3)


def test_the_divergence_counts_twice_for_every_pair() -> None:
    inputs, labels = images()
    values = []
    for weight in (0.0, 0.5):
        learner = learner_of(kl_weight=weight)
        learner.train_mode()
        values.append(learner.loss(inputs, labels))
    learner.train_mode()
    means, log_variances = learner.network(inputs)
    normal = torch.distributions.Normal(means, (0.5 * log_variances).exp())
    standard = torch.distributions.Normal(torch.zeros_like(means), torch.ones_like(means))
    divergence = torch.distributions.kl_divergence(normal, standard).sum(2)[:, 0]
    pairs = [divergence[i] + divergence[j] for i, j in itertools.combinations(range(9), 2)]
    torch.testing.assert_close(values[1] - values[0], 0.5 * torch.stack(pairs).mean())


@pytest.mark.parametrize("options", OPTIONS)
def test_gradients_reach_everything(options: dict[str, Any]) -> None:
    learner = learner_of(**options)
    inputs, labels = images()
    epoch(learner, inputs, labels, 2)  # the first step moves a zero weight of the linear head
    learner.train_mode()
    learner.module.zero_grad()
    learner.loss(inputs, labels).backward()
    for name, parameter in learner.module.named_parameters():
        assert parameter.requires_grad, name
        assert parameter.grad is not None, name
        assert float(parameter.grad.abs().sum()) > 0, name


def test_means_are_on_the_sphere_or_are_not() -> None:
    inputs, _ = images()
    raw = encoder_of(dtype=torch.float64).raw(inputs).detach()
    means = learner_of().network.eval()(inputs)[0][:, 0].detach()
    torch.testing.assert_close(means, unit_rows(raw))
    learner = learner_of(normalize=False)
    torch.testing.assert_close(learner.network.eval()(inputs)[0][:, 0].detach(), raw)
    e = embedder_of(learner).embed(inputs)
    torch.testing.assert_close(e.gaussians.mean, raw)
    torch.testing.assert_close(e.point, unit_rows(raw))
    torch.testing.assert_close(learner.points(inputs).detach(), raw)


# --- mixtures ---


def test_samples_are_of_every_component_alike() -> None:
    network = learner_of(components=2).network
    means = torch.tensor([[[0.0, 0.0, 0.0], [9.0, 9.0, 9.0]]], dtype=torch.float64)
    drawn = network.draw(means, torch.full_like(means, -20.0), torch.ones(4, 1, 2, 3).double())
    assert drawn.shape == (8, 1, 3)
    torch.testing.assert_close(drawn[:4], means[:, :1].expand(4, 1, 3), atol=1e-4, rtol=0)
    torch.testing.assert_close(drawn[4:], means[:, 1:].expand(4, 1, 3), atol=1e-4, rtol=0)


@pytest.mark.statistical
def test_the_gaussian_of_a_mixture_has_its_moments() -> None:
    g = seeded()
    means = torch.randn(2, 3, 2, generator=g, dtype=torch.float64)
    variances = torch.rand(2, 3, 2, generator=g, dtype=torch.float64)
    actual = matched(means, variances)
    noise = torch.randn(40_000, 2, 3, 2, generator=g, dtype=torch.float64)
    drawn = (means + variances.sqrt() * noise).movedim(1, 0).flatten(1, 2)
    for at in range(2):
        # 120,000 draws of deviations of about 1: errors of about 0.003, five of them are allowed.
        torch.testing.assert_close(drawn[at].mean(0), actual.mean[at], atol=0.02, rtol=0)
        torch.testing.assert_close(torch.cov(drawn[at].T), actual.covariance[at], atol=0.03, rtol=0)
    one = matched(means[:, :1], variances[:, :1])
    assert torch.equal(one.mean, means[:, 0])
    assert torch.equal(one.variance, variances[:, 0])


@pytest.mark.statistical
def test_joint_samples_of_a_mixture_are_of_its_components() -> None:
    learner = learner_of(components=2, head="linear")
    no_spread(learner)
    inputs, _ = images(3)
    embedder = embedder_of(learner)
    means, _ = embedder.mixtures(inputs)
    drawn = torch.stack(list(embedder.sample_embeddings(inputs, 400, generator=seeded())))
    near = (drawn[:, :, None] - means).norm(dim=3) < 0.01
    assert bool(near.any(2).all())
    # 400 throws of a coin: 0.5 with a deviation of 0.025, four of them are allowed.
    assert float((near[:, :, 0].double().mean(0) - 0.5).abs().max()) < 0.1


# --- scores ---


def test_similarity_is_the_match_probability() -> None:
    inputs, labels = images()
    learner = learner_of()
    epoch(learner, inputs, labels, 3)
    embedder = embedder_of(learner)
    e = embedder.embed(inputs)
    similarity = embedder.similarity(e[:4], e)
    torch.testing.assert_close(similarity, embedder.match_probability(inputs[:4], inputs))
    drawn = torch.randn(2, 4, 1, 1, 3, generator=seeded()).double()
    noise = torch.cat([drawn, -drawn], dim=1)
    first, second = (e.gaussians.mean + e.variance.sqrt() * each[:, :, 0] for each in noise)
    a, b = float(learner.network.match.scale.detach()), float(learner.network.match.offset.detach())
    for i, j in ((0, 0), (1, 5), (3, 8)):
        logits = [b - a * (x - y).norm() for x, y in itertools.product(first[:, i], second[:, j])]
        torch.testing.assert_close(similarity[i, j], torch.stack(logits).sigmoid().mean())


@pytest.mark.parametrize("seed", range(5))
def test_draws_in_common_move_no_query(seed: int) -> None:
    """Of images that are equally unsure the nearest is the likeliest match."""
    means = torch.linspace(-2, 2, 41, dtype=torch.float64)[:, None] * unit_rows(torch.ones(1, 3).double())
    e = StochasticEmbedding.from_gaussians(Gaussians(means + 1e-9, torch.full((41, 3), 0.1).double()))
    learner = learner_of()
    similarity = HIBEmbedder(learner.network, learner.method, seed).similarity(e, e)
    assert similarity.argmax(1).tolist() == list(range(41))


def test_an_odd_number_of_draws_is_drawn() -> None:
    learner = learner_of(samples=7, score_samples=5)
    embedder = embedder_of(learner)
    inputs, _ = images()
    means, log_variances = embedder.mixtures(inputs)
    drawn = torch.randn(2, 4, 1, 1, 3, generator=seeded()).double()
    noises = torch.cat([drawn, -drawn], dim=1)[:, :7]
    first, second = (learner.network.draw(means, log_variances, noise) for noise in noises)
    expected = match_probability(first, second, embedder.match)
    torch.testing.assert_close(embedder.match_probability(inputs, inputs), expected)
    assert len(embedder.embed(inputs)) == 9


def test_the_score_grows_with_the_variance() -> None:
    learner = learner_of(head="linear")
    head = learner.network.log_variance
    scores = []
    for log_variance in (-8.0, -4.0, 0.0, 4.0):
        with torch.no_grad():
            head.linear.bias.fill_(log_variance)
        scores.append(embedder_of(learner).embed(images()[0]).uncertainty)
    for less, more in itertools.pairwise(scores):
        assert bool((less < more).all())
