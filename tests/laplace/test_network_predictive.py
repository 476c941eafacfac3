"""The linearised and the sampled predictive, beside the whole Jacobian and beside networks drawn one by one."""

from __future__ import annotations

import logging
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from laplacian_metric import vmf
from laplacian_metric.core.gaussian import Gaussians
from laplacian_metric.core.modes import evaluating
from laplacian_metric.encoder import Encoder
from laplacian_metric.laplace.network import NetworkLAM
from laplacian_metric.laplace.network.layers import RawNetwork
from laplacian_metric.laplace.network.linearised import Linearised
from laplacian_metric.laplace.network.predictive import Draws
from laplacian_metric.laplace.posthoc import LAM
from laplacian_metric.metrics import recall_at_k
from tests.hessians.jacobians import jacobians, randomise
from tests.hessians.networks import Shared, TextEncoder, VisionTransformer
from tests.laplace.network_reference import (
    LOSS,
    convolutional,
    covariance_of,
    mlp,
    pooled,
    random,
    residual,
)

LABELS = torch.tensor([0, 1, 0, 2, 1, 0, 2])


def text(batch_first: bool) -> Encoder:
    return randomise(Encoder.from_module(TextEncoder(batch_first), "head"))


class Transposed(nn.Module):
    """A grouped convolution, a transposed one, and one called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.grouped = nn.Conv2d(2, 4, 3, groups=2, padding=1)
        self.up = nn.ConvTranspose2d(4, 4, 3, stride=2, groups=2)
        self.twice = nn.Conv2d(4, 4, 1)
        self.norm = nn.GroupNorm(2, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.up(torch.tanh(self.grouped(x))))
        return self.norm(self.twice(torch.tanh(self.twice(x)))).mean((2, 3))


def weight_normed() -> Encoder:
    """Its norm has no forward derivative."""
    torch.manual_seed(0)
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(4, 5))
    return Encoder(nn.Sequential(layer, nn.Tanh()), nn.Linear(5, 3)).double().eval()


def token_inputs(masked: bool) -> Any:
    ids = torch.randint(0, 7, (7, 5), generator=torch.Generator().manual_seed(2))
    ids[:, 0] = 1
    return {"ids": ids, "attention_mask": (ids > 0).long()} if masked else ids


CASES = {
    "mlp": (mlp, lambda: random(7, 4)),
    "conv": (convolutional, lambda: random(7, 1, 8, 8)),
    "residual": (residual, lambda: random(7, 1, 6, 6)),
    "few positions": (pooled, lambda: random(7, 1, 4, 4)),
    "transposed": (lambda: randomise(Encoder(Transposed(), nn.Linear(4, 5))), lambda: random(7, 2, 3, 3)),
    "vision": (
        lambda: randomise(Encoder.from_module(VisionTransformer(), "head")),
        lambda: random(7, 1, 6, 6),
    ),
    "text": (lambda: text(True), lambda: token_inputs(False)),
    "text masked": (lambda: text(True), lambda: token_inputs(True)),
    "text sequence first": (lambda: text(False), lambda: token_inputs(True)),
    "shared": (lambda: randomise(Encoder(Shared(), nn.Linear(3, 3))), lambda: random(7, 4)),
    "weight norm": (weight_normed, lambda: random(7, 4)),
}


def some_variance(network: nn.Module) -> dict[str, Tensor]:
    return {
        name: random(*parameter.shape, seed=at).square() + 0.01
        for at, (name, parameter) in enumerate(network.named_parameters())
    }


def dense(network: RawNetwork, inputs: Any, variance: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    u, jacobian = jacobians(network, inputs)
    parts = [
        torch.einsum("nkp,p,nlp->nkl", jacobian[name], s.flatten(), jacobian[name])
        for name, s in variance.items()
    ]
    return u, torch.stack(parts).sum(0)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("budget", [256 << 20, 20_000, 1])
def test_covariances_are_those_of_the_whole_jacobian(name: str, budget: int) -> None:
    """All images and layers at once; in blocks; and one image, one layer and one output at a time."""
    make, make_inputs = CASES[name]
    network, inputs = RawNetwork(make()), make_inputs()
    variance = some_variance(network)
    with evaluating(network):
        actual = Linearised(network, variance, budget).gaussians(inputs)
    u, expected = dense(network, inputs, variance)
    torch.testing.assert_close(actual.mean, u, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(
        actual.covariance, expected, rtol=1e-9, atol=1e-10 * float(expected.abs().max())
    )
    assert torch.equal(actual.covariance, actual.covariance.mT)


@pytest.mark.parametrize("name", ["residual", "vision", "text masked"])
def test_covariances_of_some_parameters(name: str) -> None:
    """Every second parameter: weights without their biases, biases without their weights."""
    make, make_inputs = CASES[name]
    network, inputs = RawNetwork(make()), make_inputs()
    for start in (0, 1):
        variance = dict(list(some_variance(network).items())[start::2])
        with evaluating(network):
            actual = Linearised(network, variance).gaussians(inputs).covariance
        expected = dense(network, inputs, variance)[1]
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-10 * float(expected.abs().max()))


def test_a_rule_that_does_not_hold_is_left_to_autograd(caplog: pytest.LogCaptureFixture) -> None:
    """The weight is used outside of its layer as well, which no rule can know."""

    class Outside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(self.layer(x)) @ self.layer.weight

    encoder = randomise(Encoder(Outside(), nn.Linear(4, 3)))
    batches = list(zip(random(7, 4).split([4, 3]), LABELS.split([4, 3]), strict=True))
    lam = NetworkLAM(encoder, LOSS, layers="all").fit(batches, check_mode=False)
    u, expected = covariance_of(lam, random(7, 4))
    e = lam.embed(random(7, 4))
    torch.testing.assert_close(e.gaussians.covariance, expected, rtol=1e-10, atol=1e-14)
    torch.testing.assert_close(e.gaussians.mean, u)


def fitted(encoder: Encoder, inputs: Tensor, **options: Any) -> NetworkLAM:
    options = {"layers": "all", "prior_precision": 50.0, **options}
    return NetworkLAM(encoder, LOSS, **options).fit([(inputs, LABELS)], check_mode=False)


def test_embeddings_are_those_of_the_gaussians() -> None:
    x = random(7, 1, 6, 6)
    lam = fitted(residual(), x)
    u, covariance = covariance_of(lam, x)
    e = lam.embed(x)
    direction = Gaussians(u, covariance).direction()
    torch.testing.assert_close(e.point, F.normalize(u), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(e.mean, direction.mean, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(e.kappa, direction.kappa, rtol=1e-7, atol=0)
    torch.testing.assert_close(e.uncertainty, 1 / e.kappa)
    assert e.samples is None
    batched = lam.embed([(x[:3], LABELS[:3]), x[3:]])
    torch.testing.assert_close(batched.kappa, e.kappa, rtol=1e-9, atol=0)


def test_memory_is_announced_and_kept_to(caplog: pytest.LogCaptureFixture) -> None:
    x = random(7, 1, 8, 8)
    lam = fitted(convolutional(), x, memory_budget=60_000)
    with caplog.at_level(logging.INFO):
        e = lam.embed(x)
    (message,) = [one for one in caplog.messages if "covariances of" in one]
    size = int(message.split()[2])
    assert 1 <= size < 7
    assert "GiB" in message
    whole = fitted(convolutional(), x).embed(x)
    torch.testing.assert_close(e.kappa, whole.kappa, rtol=1e-9, atol=0)


# --- joint samples ---


@pytest.mark.parametrize("name", ["mlp", "residual", "vision", "text masked", "weight norm"])
def test_a_linearised_sample_is_the_jacobian_times_the_deviation(name: str) -> None:
    make, make_inputs = CASES[name]
    network, inputs = RawNetwork(make()), make_inputs()
    deviation = {key: random(*x.shape, seed=5) for key, x in list(network.named_parameters())[1:]}
    with evaluating(network):
        actual = Linearised(network, deviation).sample(inputs, deviation)
    u, j = jacobians(network, inputs)
    expected = u + torch.stack([j[key] @ x.flatten() for key, x in deviation.items()]).sum(0)
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("predictive", ["linearised", "sampled"])
def test_all_images_and_batches_share_the_draws(predictive: str) -> None:
    x = random(7, 1, 8, 8)
    lam = fitted(convolutional(), x, predictive=predictive, samples=5)

    def drawn(inputs: Any, seed: int = 4, samples: int = 6) -> Tensor:
        embedded_draws = lam.embed(
            inputs, samples=samples, generator=torch.Generator().manual_seed(seed)
        ).samples
        return embedded_draws

    one = drawn(x)
    assert one.shape == (6, 7, 3)
    torch.testing.assert_close(one.norm(dim=2), torch.ones(6, 7, dtype=torch.float64))
    torch.testing.assert_close(drawn([x[:2], x[2:]]), one, rtol=1e-10, atol=1e-12)
    assert not torch.allclose(drawn(x, seed=5), one)
    lam.memory_budget = 1  # draws are made again for each batch rather than kept
    torch.testing.assert_close(drawn([x[:2], x[2:]]), one, rtol=1e-10, atol=1e-12)


def test_linearised_samples_have_the_covariance_of_the_gaussians() -> None:
    x = random(7, 4)
    lam = fitted(mlp(), x)
    network = Linearised(lam.network, lam.posterior.variance())
    draws = Draws(lam.posterior, 1500, torch.Generator().manual_seed(0))
    with evaluating(lam.encoder):
        u = torch.stack([network.sample(x, deviation) for deviation in draws])
    mean, covariance = covariance_of(lam, x)
    centred = u - mean
    empirical = torch.einsum("snk,snl->nkl", centred, centred) / len(u)
    # The standard deviation of a sample covariance is at most sqrt(2/S) of the variances: 3.7 %.
    spread = covariance.diagonal(dim1=1, dim2=2)
    bound = 4.5 * math.sqrt(2 / len(u)) * (spread[:, :, None] * spread[:, None, :]).sqrt()
    assert ((empirical - covariance).abs() < bound).all()


# --- the sampled predictive ---


def test_sampled_embeddings_are_those_of_the_drawn_networks() -> None:
    x = random(7, 1, 6, 6)
    lam = fitted(residual(), x, predictive="sampled", samples=9)
    draws = Draws(lam.posterior, 9, torch.Generator().manual_seed(1))
    theta = {name: p.detach() for name, p in lam.network.named_parameters()}
    before = {name: p.clone() for name, p in theta.items()}
    stacked = torch.stack(
        [
            F.normalize(
                functional_call(lam.network, {n: theta[n] + change for n, change in d.items()}, (x,)).detach()
            )
            for d in draws
        ]
    )
    e = lam.embed(x, generator=torch.Generator().manual_seed(1))
    mean, kappa = vmf.fit(stacked)
    torch.testing.assert_close(e.mean, mean, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(e.kappa, kappa, rtol=1e-8, atol=0)
    torch.testing.assert_close(e.point, F.normalize(lam.encoder.raw(x)).detach(), rtol=1e-10, atol=1e-12)
    assert e.samples is None
    assert e.gaussians is None
    kept = lam.embed(x, samples=4, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(kept.samples, stacked[:4], rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(kept.kappa, kappa, rtol=1e-8, atol=0)
    for name, values in before.items():
        assert torch.equal(values, theta[name])


def test_both_predictives_agree_where_the_posterior_is_narrow() -> None:
    x = random(7, 1, 8, 8)
    lam = fitted(convolutional(), x, prior_precision=1e8, samples=1000)
    linearised = lam.embed(x)
    lam.predictive = "sampled"  # type: ignore[assignment]
    sampled = lam.embed(x, generator=torch.Generator().manual_seed(0))
    # V is a mean of 1000 squared deviations, each with about as much spread as mean: 3.2 %.
    torch.testing.assert_close(sampled.kappa, linearised.kappa, rtol=0.15, atol=0)
    torch.testing.assert_close(sampled.mean, linearised.mean, rtol=0, atol=1e-3)


def test_one_layer_sampled_is_lam_sampled() -> None:
    x = random(7, 4)
    lam = fitted(mlp(), x, layers=1, predictive="sampled", samples=1500, prior_precision=30.0)
    head = LAM(lam.encoder, LOSS, prior_precision=30.0).fit([(x, LABELS)], check_mode=False)
    kappa = lam.embed(x, generator=torch.Generator().manual_seed(0)).kappa
    torch.testing.assert_close(kappa, head.embed(x).kappa, rtol=0.15, atol=0)


def test_recall_lost() -> None:
    x = random(7, 4)
    lam = fitted(mlp(), x, prior_precision=1e8)
    assert lam.recall_lost(x, LABELS, samples=3) == pytest.approx(0.0)
    e = fitted(mlp(), x, prior_precision=0.01).embed(x, samples=5, generator=torch.Generator().manual_seed(0))
    lost = recall_at_k(e.point, LABELS) - sum(recall_at_k(z, LABELS) for z in e.samples) / 5
    wide = fitted(mlp(), x, prior_precision=0.01)
    assert wide.recall_lost(
        x, LABELS, samples=5, generator=torch.Generator().manual_seed(0)
    ) == pytest.approx(lost)


# --- what comes in ---


@pytest.mark.parametrize("predictive", ["linearised", "sampled"])
def test_one_image_and_no_image(predictive: str) -> None:
    x = random(7, 1, 8, 8)
    lam = fitted(convolutional(), x, predictive=predictive, samples=4)
    generator = torch.Generator()
    whole = lam.embed(x, generator=generator.manual_seed(0))
    one = lam.embed(x[:1], generator=generator.manual_seed(0))
    torch.testing.assert_close(one.kappa, whole.kappa[:1], rtol=1e-9, atol=0)
    none = lam.embed(x[:0], samples=3)
    assert (none.point.shape, none.kappa.shape, none.samples.shape) == ((0, 3), (0,), (3, 0, 3))


@pytest.mark.parametrize("predictive", ["linearised", "sampled"])
def test_float32_stays_float32(predictive: str) -> None:
    encoder = residual().float()
    x = random(7, 1, 6, 6).float()
    lam = fitted(encoder, x, predictive=predictive, samples=300)
    e = lam.embed(x, samples=2)
    assert {e.point.dtype, e.mean.dtype, e.kappa.dtype, lam.posterior.variance()["head.weight"].dtype} == {
        torch.float32
    }
    assert e.samples.dtype == torch.float32
    if predictive == "linearised":
        exact = fitted(residual(), x.double()).embed(x.double())
        torch.testing.assert_close(e.kappa.double(), exact.kappa, rtol=1e-3, atol=0)
