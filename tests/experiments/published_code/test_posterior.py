"""What the published code makes of a batch's curvature: noise, scale and start, each beside ours."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from experiments.published import PublishedOnlineLAM, Switches
from hessians import ContrastiveLoss, Pairs, last_layer_ggn_diagonal
from laplacian_metric.laplace.online import OnlineLAM
from laplacian_metric.laplace.online.running import Running
from laplacian_metric.laplace.posthoc import LAM
from tests.experiments.published_code.reference import (
    LastLayer,
    encoder_of,
    every_triplet,
    float64,
    generator,
    normal,
)

close = torch.testing.assert_close


def running(share: float, summed: bool = False, start: float | None = None) -> Running:
    return Running(torch.zeros(1, 1, dtype=float64), share, summed, start)


def taken(into: Running, curvature: Tensor) -> None:
    into.add(curvature, torch.zeros_like(curvature), 0.0, 1.0, (1, 1))


def precision_of(lam: LAM) -> Tensor:
    return 1 / lam.posterior.marginal_variance()


# --- the ReLU ---


@pytest.mark.statistical
@pytest.mark.parametrize(("signal", "factor"), [(0.1, 4.5), (0.01, 40.4)])
def test_relu_per_batch_turns_noise_into_precision(signal: float, factor: float) -> None:
    """Mean r times the noise: E max(0, G)/E G = Phi(r) + phi(r)/r in closed form, and memory 0.999 keeps all of it."""
    normal_density = math.exp(-(signal**2) / 2) / math.sqrt(2 * math.pi)
    expected = (1 + math.erf(signal / math.sqrt(2))) / 2 + normal_density / signal
    assert expected == pytest.approx(factor, abs=0.05)
    entries, draws = 2000, generator()
    shape = torch.zeros(1, entries, dtype=float64)
    ours, published = Running(shape, 1e-3), Running(shape, 1e-3)
    for _ in range(2000):
        batch = signal + torch.randn(1, entries, generator=draws, dtype=float64)
        taken(ours, batch)
        taken(published, batch.clamp(min=0))
    # The running mean's standard deviation is sqrt(0.001/2) = 0.022 for an entry, 0.0005 for the mean of 2,000.
    assert float(published.mean_curvature().mean()) / signal == pytest.approx(expected, rel=0.02)
    assert float(ours.mean_curvature().mean()) == pytest.approx(signal, abs=0.003)


@pytest.mark.statistical
def test_relu_per_batch_of_arccos_full_gives_many_times_the_precision_at_memory_0999() -> None:
    """Batches of 12 images in 3 dimensions, the network at rest: more than 20 times the precision of the average."""
    draws, loss = generator(), ContrastiveLoss(0.7)
    weight = torch.randn(3, 20, generator=draws, dtype=float64) / 20**0.5
    centres = torch.randn(3, 20, generator=draws, dtype=float64)
    ours, published = Running(weight, 1e-3), Running(weight, 1e-3)
    for _ in range(500):
        labels = torch.randint(3, (12,), generator=draws)
        features = centres[labels] + torch.randn(12, 20, generator=draws, dtype=float64)
        batch, _ = last_layer_ggn_diagonal(features, weight, None, Pairs.from_labels(labels), loss, "full")
        taken(ours, batch)
        taken(published, batch.clamp(min=0))
    kept = ours.mean_curvature().clamp(min=0)
    assert float(kept.sum()) > 0
    assert float(published.mean_curvature().sum() / kept.sum()) > 20


# --- the scale ---


def test_scale_online_and_post_hoc_differ_by_a_temperature_of_a_million() -> None:
    """The same network and batch: N^2/a online, the number of triplets post-hoc; for FashionMNIST 3e6 apart."""
    layer = LastLayer.random(12, 5, 3, classes=3, spread=0.7)
    triplets = every_triplet(layer.labels)
    pairs, number = Pairs.from_indices(triplets, 12), len(triplets[0])
    batches, images, share = 7, 500, 0.2
    loss = ContrastiveLoss(distance="euclidean")  # whose "positive" nothing clamps
    summed = LAM(encoder_of(layer), loss, "positive", n_effective=batches * number, prior_precision=1.0)
    summed.fit_features(layer.features, pairs, check_mode=False)
    encoder = encoder_of(layer)
    online = PublishedOnlineLAM.as_published(
        encoder,
        torch.optim.SGD(encoder.parameters(), lr=0.0),
        loss,
        images,
        approximation="positive",
        memory=share,
        warmup=10**6,
    )
    for _ in range(120):
        online.step(layer.features, layer.labels)
    ratio = (precision_of(online.posterior()) - 1) / (precision_of(summed) - 1)
    close(ratio, torch.full_like(ratio, images**2 / share / (batches * number)), rtol=1e-6, atol=0)

    multiplier_online = 60_000**2 / 1e-3
    multiplier_post_hoc = 5_000 * math.ceil(60_000 / 256)
    assert multiplier_online == 3.6e12
    assert multiplier_post_hoc == 1.175e6
    assert round(multiplier_online / multiplier_post_hoc / 1e6, 1) == 3.1
    assert round(math.sqrt(multiplier_online / multiplier_post_hoc), -1) == 1750


# --- the memory and its start ---


def test_memory_a_sum_counts_every_batch_as_a_thousand() -> None:
    """H <- 0.999 H + G converges to 1,000 G; an average to G, from its first batch on."""
    ours, published = running(1e-3), running(1e-3, summed=True)
    batch = torch.full((1, 1), 2.0, dtype=float64)
    for _ in range(12_000):
        taken(ours, batch)
        taken(published, batch)
    assert float(published.mean_curvature()) == pytest.approx(2000, rel=1e-4)
    assert float(ours.mean_curvature()) == pytest.approx(2.0)


def test_start_at_the_prior_is_forgotten_and_ours_is_not() -> None:
    """After 20 epochs of FashionMNIST in batches of 64, 7e-9 of what the precision started at is left."""
    steps = 20 * math.ceil(60_000 / 64)
    assert f"{0.999**steps:.0e}" == "7e-09"
    started = running(1e-3, summed=True, start=1.0)
    for _ in range(2000):
        taken(started, torch.zeros(1, 1, dtype=float64))
    assert float(started.mean_curvature()) == pytest.approx(math.exp(-2), rel=2e-3)
    layer = LastLayer.random(6, 4, 3, classes=1)
    encoder = encoder_of(layer)
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.0)
    online = OnlineLAM(encoder, optimizer, ContrastiveLoss(), 500, prior_precision=3.0)
    for labels in (torch.arange(6), torch.zeros(6, dtype=torch.long)):
        online.step(layer.features, labels)
    assert float(precision_of(online.posterior()).min()) >= 3.0


def test_start_of_an_average_at_the_prior_counts_it_as_often_as_there_are_images() -> None:
    """In an average of curvatures of mean losses, a start of 1 is a precision of n_effective until it is forgotten."""
    layer = LastLayer.random(9, 4, 3, classes=3)
    encoder = encoder_of(layer)
    online = PublishedOnlineLAM(
        encoder,
        torch.optim.SGD(encoder.parameters(), lr=0.0),
        ContrastiveLoss(),
        500,
        prior_precision=1.0,
        switches=Switches(start=500.0),  # a precision: 1 in the average itself
    )
    online.step(layer.features, layer.labels)
    assert float(precision_of(online.posterior()).min()) > 450
    assert float(running(1e-3, start=1.0).mean_curvature()) == 1.0
    assert float(running(1e-3).mean_curvature()) == 0.0


# --- the scalar ---


def test_kappa_a_sum_of_standard_deviations_depends_on_the_axes_and_kappa_does_not() -> None:
    """The same spread along an axis or along the diagonal of 64 dimensions: 8 times the sum, the same kappa."""
    from laplacian_metric import vmf

    dim, spread = 64, 0.02 * normal(4000, 1)
    axis = torch.zeros(dim, dtype=float64)
    axis[0] = 1
    diagonal = torch.full((dim,), dim**-0.5, dtype=float64)
    diagonal[1::2] *= -1
    kappas, sums = [], []
    for along in (axis, diagonal):
        mean = torch.zeros(dim, dtype=float64)
        mean[-2:] = 0.5**0.5  # orthogonal to both, but for the first
        points = mean + spread * (along - (along @ mean) * mean)
        samples = points / points.norm(dim=1, keepdim=True)
        kappas.append(float(vmf.fit(samples[:, None])[1]))
        sums.append(float(samples.std(dim=0).sum()))
    assert kappas[0] == pytest.approx(kappas[1], rel=1e-6)
    assert sums[1] / sums[0] == pytest.approx(8, rel=0.05)
