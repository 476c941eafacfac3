"""SWAG: snapshots along training, and embeddings by weights that are drawn from their Gaussian."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from hessians import ContrastiveLoss
from laplacian_metric import vmf
from laplacian_metric.core.method import FitData, Setup
from laplacian_metric.encoder import Encoder
from laplacian_metric.encoder.layers import batch_norm_statistics
from laplacian_metric.methods.sampling.swag import SWAG, SWAGLearner
from laplacian_metric.methods.sampling.weight_moments import WeightMoments
from tests.generators import seeded
from tests.methods.learning import step

NOTHING = FitData(train=[], validation=[])


def encoder_of(seed: int = 0, *, norm: bool = False) -> Encoder:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        middle = [nn.BatchNorm1d(8)] if norm else []
        return Encoder(nn.Sequential(nn.Linear(2, 8), *middle, nn.ReLU()), nn.Linear(8, 3))


def learner_of(encoder: Encoder, rate: float = 0.1, **options: Any) -> SWAGLearner:
    learner = SWAG(**options).learner([encoder], Setup(loss=ContrastiveLoss(margin=0.7), num_images=10))
    learner.begin(torch.optim.SGD(learner.parameters(), lr=rate, momentum=0.5), seeded(0))
    return learner


def clusters(count: int = 60, seed: int = 0) -> tuple[Tensor, Tensor]:
    labels = torch.arange(count) % 2
    centres = torch.tensor([[-2.0, 0.0], [2.0, 0.0]])
    return centres[labels] + 0.4 * torch.randn(count, 2, generator=seeded(seed)), labels


def train(learner: SWAGLearner, epochs: int, start: int = 0) -> list[Tensor]:
    """Four steps an epoch; the weights after every step."""
    x, labels = clusters()
    weights = []
    for epoch in range(start, start + epochs):
        for chosen in torch.randperm(len(x), generator=seeded(epoch)).split(15):
            step(learner, x[chosen], labels[chosen])
            weights.append(parameters_to_vector(learner.parameters()).detach().clone())
        learner.end_epoch()
    return weights


def unit(encoder: Encoder, x: Tensor) -> Tensor:
    return nn.functional.normalize(encoder.raw(x).detach())


def test_a_channels_last_network_is_drawn_as_another() -> None:
    images, points = torch.rand(6, 3, 8, 8, generator=seeded(1)), []
    for layout in (torch.contiguous_format, torch.channels_last):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            encoder = Encoder(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten()), nn.Linear(144, 3))
        learner = learner_of(encoder.to(memory_format=layout), rank=2)  # type: ignore[call-overload]
        for _ in range(3):
            step(learner, images, torch.arange(6) % 2)
            learner.end_epoch()
        points.append(learner.embedder(NOTHING).embed(images).mean)
    torch.testing.assert_close(points[1], points[0])


class TestLearner:
    @pytest.mark.parametrize(
        ("options", "taken"),
        [
            ({}, [3, 7, 11]),
            ({"burn_in": 1}, [7, 11]),
            ({"collect_every": 3}, [2, 5, 8, 11]),
            ({"collect_every": 2, "burn_in": 2}, [9, 11]),
        ],
    )
    def test_snapshots_are_taken_when_they_should_be(self, options: dict[str, int], taken: list[int]) -> None:
        learner = learner_of(encoder_of(), rank=2, **options)
        weights = torch.stack(train(learner, 3)).double()[taken]
        assert learner.moments.count == len(taken)
        torch.testing.assert_close(learner.moments.mean, weights.mean(0))
        torch.testing.assert_close(learner.moments.variance, weights.var(0, correction=0))
        last = weights[-1] - weights.mean(0)
        torch.testing.assert_close(learner.moments.deviations[-1], last.float())

    def test_head_only_leaves_the_backbone(self) -> None:
        encoder = encoder_of(norm=True)
        before = copy.deepcopy(encoder.backbone.state_dict())
        learner = learner_of(encoder, weights="head")
        head = encoder.head.weight.detach().clone()
        train(learner, 2)
        assert all(
            torch.equal(tensor, before[name]) for name, tensor in encoder.backbone.state_dict().items()
        )
        assert not torch.equal(encoder.head.weight, head)
        assert len(learner.moments.mean) == 8 * 3 + 3
        assert not encoder.backbone.training
        assert encoder.head.training


def by_hand(learner: SWAGLearner, x: Tensor, count: int, seed: int) -> Tensor:
    """The embeddings by a copy of the encoder into which one draw after the other is put."""
    encoder, generator = copy.deepcopy(learner.encoder).eval(), seeded(seed)
    only_head = learner.method.weights == "head"
    moments, snapshots = learner.moments, []
    for _ in range(count):
        theta = moments.draw(generator).float()
        vector_to_parameters(theta, encoder.head.parameters() if only_head else encoder.parameters())
        snapshots.append(unit(encoder, x))
    return torch.stack(snapshots)


@pytest.mark.parametrize("weights", ["all", "head"])
class TestEmbedder:
    def test_draws_are_put_into_the_network(self, weights: str) -> None:
        learner, x = learner_of(encoder_of(), weights=weights, samples=6, seed=4), clusters()[0]
        train(learner, 4)
        before = learner.encoder.fingerprint()
        e = learner.embedder(NOTHING).embed(x, samples=6)
        expected = by_hand(learner, x, 6, seed=4)
        torch.testing.assert_close(e.samples, expected)
        mean, kappa = vmf.fit(expected)
        torch.testing.assert_close(e.mean, mean)
        torch.testing.assert_close(e.kappa, kappa, rtol=1e-3, atol=0)
        torch.testing.assert_close(e.uncertainty, 1 / e.kappa)
        assert learner.encoder.fingerprint() == before
        average = copy.deepcopy(learner.encoder)
        own = average.head if weights == "head" else average
        vector_to_parameters(learner.moments.mean.float(), own.parameters())
        torch.testing.assert_close(e.point, unit(average, x))

    def test_one_snapshot_is_deterministic(self, weights: str) -> None:
        learner, x = learner_of(encoder_of(), weights=weights, samples=3), clusters()[0]
        train(learner, 1)
        with pytest.warns(UserWarning, match="one snapshot was taken"):
            embedder = learner.embedder(NOTHING)
        assert embedder.settings() == {"snapshots": 1}
        e = embedder.embed(x, samples=3)
        torch.testing.assert_close(e.samples, unit(learner.encoder, x).expand(3, -1, -1))
        torch.testing.assert_close(e.point, unit(learner.encoder, x))
        assert bool((e.kappa > 1e12).all())

    def test_later_training_does_not_change_it(self, weights: str) -> None:
        learner, x = learner_of(encoder_of(), weights=weights, samples=4), clusters()[0]
        train(learner, 2)
        embedder = learner.embedder(NOTHING)
        before = embedder.embed(x)
        train(learner, 1, start=2)
        assert torch.equal(embedder.embed(x).kappa, before.kappa)


class TestBatchNorm:
    def test_statistics_belong_to_the_drawn_weights(self) -> None:
        learner, (x, labels) = learner_of(encoder_of(norm=True), samples=4, seed=2), clusters()
        train(learner, 4)
        data = FitData(train=[(x[:40], labels[:40]), (x[40:], labels[40:])], validation=[])
        before = learner.encoder.fingerprint()
        e = learner.embedder(data).embed(x, samples=4)
        assert learner.encoder.fingerprint() == before
        encoder, generator = copy.deepcopy(learner.encoder).eval(), seeded(2)
        for sample in e.samples:
            vector_to_parameters(learner.moments.draw(generator).float(), encoder.parameters())
            statistics = batch_norm_statistics(encoder, {}, data.train)
            encoder.load_state_dict(statistics, strict=False)
            torch.testing.assert_close(sample, unit(encoder, x))
        assert not torch.allclose(e.samples[0], by_hand(learner, x, 1, seed=2)[0])

    def test_they_may_be_kept(self) -> None:
        learner, x = learner_of(encoder_of(norm=True), samples=4, seed=2, batch_norm="keep"), clusters()[0]
        train(learner, 4)
        e = learner.embedder(NOTHING).embed(x, samples=4)
        torch.testing.assert_close(e.samples, by_hand(learner, x, 4, seed=2))

    def test_they_need_training_images_only_where_they_change(self) -> None:
        learner = learner_of(encoder_of(norm=True), samples=2)
        train(learner, 2)
        with pytest.raises(ValueError, match="the loader is empty"):
            learner.embedder(NOTHING).embed(clusters()[0])
        head = learner_of(encoder_of(norm=True), samples=2, weights="head")
        train(head, 2)
        head.embedder(NOTHING).embed(clusters()[0])


def path(count: int, size: int, seed: int = 0) -> Tensor:
    """A random walk of weights, (count, size)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, size, generator=generator, dtype=torch.float64).cumsum(0)


def moments_of(snapshots: Tensor, rank: int) -> WeightMoments:
    moments = WeightMoments(torch.zeros_like(snapshots[0]), rank)
    for snapshot in snapshots:
        moments.add(snapshot)
    return moments


@settings(max_examples=20, deadline=None)
@given(
    count=st.integers(1, 8),
    size=st.integers(1, 5),
    rank=st.sampled_from([0, 2, 3, 20]),
    seed=st.integers(0, 9),
)
def test_they_are_those_of_a_plain_loop(count: int, size: int, rank: int, seed: int) -> None:
    snapshots = path(count, size, seed)
    moments = moments_of(snapshots, rank)
    torch.testing.assert_close(moments.mean, snapshots.mean(0))
    torch.testing.assert_close(moments.variance, snapshots.square().mean(0) - snapshots.mean(0).square())
    deviations = [snapshots[i] - snapshots[: i + 1].mean(0) for i in range(count)]
    expected = torch.stack(deviations)[max(0, count - rank) :] if rank else snapshots[:0]
    torch.testing.assert_close(moments.deviations, expected)


def test_weights_that_hardly_move_keep_their_digits() -> None:
    snapshots = 1000 + 1e-3 * path(6, 3)
    variance = moments_of(snapshots.float(), 2).variance
    torch.testing.assert_close(variance, snapshots.float().double().var(0, correction=0), rtol=1e-9, atol=0)


@pytest.mark.statistical
@pytest.mark.parametrize(("rank", "scale"), [(0, 1.0), (3, 1.0), (3, 2.0), (20, 0.5)])
def test_draws_have_the_covariance_in_closed_form(rank: int, scale: float) -> None:
    moments = moments_of(path(6, 4), rank)
    diagonal = torch.diag(moments.variance)
    D = moments.deviations.T
    expected = diagonal if rank == 0 else (diagonal + D @ D.T / (D.shape[1] - 1)) / 2
    generator, count = torch.Generator().manual_seed(0), 8000
    draws = torch.stack([moments.draw(generator, scale) for _ in range(count)])
    # Each entry has the standard error sqrt((C_ij^2 + C_ii C_jj)/n); 5 of them are allowed.
    expected = scale * expected
    variances = expected.diagonal()
    allowed = 5 * ((expected.square() + variances[:, None] * variances) / count).sqrt()
    assert bool(((torch.cov(draws.T) - expected).abs() <= allowed).all())
    assert bool(((draws.mean(0) - moments.mean).abs() <= 5 * (variances / count).sqrt()).all())


def test_what_does_not_fit_is_refused() -> None:
    moments = WeightMoments(torch.zeros(3), 2)
    with pytest.raises(ValueError, match="the moments of 4 weights, 3 are trained here"):
        moments.restore(WeightMoments(torch.zeros(4), 2).state())
    with pytest.raises(FloatingPointError, match="not finite"):
        moments.add(torch.tensor([0.0, torch.nan, 0.0]))
