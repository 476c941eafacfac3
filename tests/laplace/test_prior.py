"""The prior's precision: the evidence, its only maximum, and validation pairs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

from hessians import ContrastiveLoss, Pairs
from laplacian_metric.encoder import Encoder
from laplacian_metric.laplace import prior as module
from laplacian_metric.laplace.layer import DiagonalCurvature
from laplacian_metric.laplace.posthoc import LAM
from laplacian_metric.laplace.prior import (
    NoOptimumError,
    few_pairs,
    log_marginal_likelihood,
    optimal_prior,
    pair_log_likelihood,
)
from tests.generators import seeded
from tests.laplace.layer_cases import (
    SMALL,
    Make,
    Problem,
    a_prior,
    a_problem,
    every_structure,
    float64,
    gaussian,
)


@every_structure
@settings(max_examples=20)
@given(problem=a_problem, prior=a_prior)
def test_the_evidence(make: Make, problem: Problem, prior: float) -> None:
    """-scale L - 1/2 [prior |theta|^2 + log det P - log det(prior I)]: a Gaussian integral over the weights."""
    curvature, dense, _ = make(problem)
    scale, square, value = 7.0, 3.0, 0.4
    data = torch.linalg.eigvalsh(dense).clamp(min=0) * scale
    occam = float(torch.log1p(data / prior).sum())
    expected = -scale * value - (prior * square + occam) / 2
    likelihood = log_marginal_likelihood(curvature, scale, prior, square, value)
    size = abs(scale * value) + prior * square + occam + curvature.num_parameters * abs(math.log(prior))
    # Eigenvalues are rounded to the digits of the largest: where they are 0, that counts against a small prior.
    size += curvature.num_parameters * 1e-6 * float(data.max()) / prior
    assert likelihood == pytest.approx(expected, abs=1e-9 * size)


def test_the_evidence_is_an_integral() -> None:
    """Of exp(-scale L - prior/2 |w|^2) over two weights, the loss quadratic around theta*, by a fine grid."""
    theta, curvature, scale, prior, value = torch.tensor([0.7, -0.3]), torch.tensor([2.0, 0.6]), 3.0, 1.5, 0.2
    steps = torch.linspace(-12, 12, 1601, dtype=float64)
    deviation = torch.stack(torch.meshgrid(steps, steps, indexing="ij"), -1)
    # Laplace's method: at theta*, a mode, prior and likelihood together have the precision P and no slope.
    exponent = -scale * value - prior / 2 * float(theta.square().sum())
    exponent = exponent - (deviation.square() * (scale * curvature + prior)).sum(-1) / 2
    density = exponent.exp().sum() * (steps[1] - steps[0]) ** 2 * prior / (2 * math.pi)
    likelihood = log_marginal_likelihood(
        DiagonalCurvature(curvature[None].double()), scale, prior, float(theta.square().sum()), value
    )
    assert likelihood == pytest.approx(float(density.log()), abs=1e-6)


@every_structure
@pytest.mark.parametrize("square", [1e-4, 1.0, 1e5])
@pytest.mark.parametrize("start", [1e-5, 1.0, 1e5])
def test_the_optimum(make: Make, square: float, start: float) -> None:
    curvature = make(SMALL)[0]
    prior = optimal_prior(curvature, 2.0, square, start)
    best = minimize_scalar(
        lambda log_prior: -log_marginal_likelihood(curvature, 2.0, math.exp(log_prior), square, 0.0),
        bracket=(math.log(prior) - 3, math.log(prior) + 2),
    )
    assert math.log(prior) == pytest.approx(best.x, abs=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, float64])
@pytest.mark.parametrize("square", [1e-8, 1e-3, 1.0, 1e3, 1e8])
def test_badly_scaled_curvature(square: float, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eigenvalues over 16 orders of magnitude; a plain fixed-point iteration goes to and fro for square = 1e-8."""
    monkeypatch.setattr(module, "MAX_ITERATIONS", 60)
    values = 10.0 ** torch.linspace(-8, 8, 50, dtype=float64)
    curvature = DiagonalCurvature(values[None].to(dtype))
    for start in (1e-10, 1.0, 1e10):
        prior = optimal_prior(curvature, 1.0, square, start)
        gamma = float((values / (values + prior)).sum())
        assert prior * square == pytest.approx(gamma, rel=1e-8 if dtype is float64 else 1e-5)


def test_no_optimum() -> None:
    nothing = DiagonalCurvature(-torch.ones(2, 3))
    with pytest.raises(NoOptimumError, match="clamped at 0: the data say nothing"):
        optimal_prior(nothing, 1.0, 1.0)
    with pytest.raises(NoOptimumError, match=r"squared norm 0\.0"):
        optimal_prior(DiagonalCurvature(torch.ones(2, 3)), 1.0, 0.0)


def test_likelihood_of_pairs() -> None:
    """Against loops over the pairs, at the best beta of a fine grid."""
    loss = ContrastiveLoss(0.8, negative_weight=0.3)
    labels = torch.tensor([0, 0, 1, 1, 2])
    samples = [gaussian(3, 3, seed=9)[labels] + 0.5 * gaussian(5, 3, seed=s) for s in range(4)]
    unit = [u / u.norm(dim=1, keepdim=True) for u in samples]

    def value(beta: float) -> float:
        parts: dict[bool, list[float]] = {True: [], False: []}
        for i in range(5):
            for j in range(i):
                positive = bool(labels[i] == labels[j])
                chances = []
                for z in unit:
                    squared = float((z[i] - z[j]).square().sum())
                    evidence = max(0.0, 0.64 - squared) / 2 - squared / 2  # for a positive
                    against = -evidence if positive else evidence
                    chances.append(1 / (1 + math.exp(min(600.0, beta * against))))
                parts[positive].append(math.log(sum(chances) / 4))
        return 0.7 * sum(parts[True]) / len(parts[True]) + 0.3 * sum(parts[False]) / len(parts[False])

    best = max(value(math.exp(b / 50)) for b in range(-230, 460))
    assert best > 0.9 * math.log(0.5)
    assert pair_log_likelihood(samples, Pairs.from_labels(labels), loss) == pytest.approx(best, abs=1e-4)


def test_pairs_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    samples, pairs = [gaussian(20, 3, seed=0)], Pairs.from_labels(torch.arange(20) % 4)
    whole = pair_log_likelihood(samples, pairs, ContrastiveLoss())
    monkeypatch.setattr(module, "GATHERED", 21)
    assert pair_log_likelihood(samples, pairs, ContrastiveLoss()) == pytest.approx(whole, rel=1e-12)
    with pytest.raises(ValueError, match="no positive one: both types are needed"):
        pair_log_likelihood(samples, Pairs.from_labels(torch.arange(20)), ContrastiveLoss())


def test_few_pairs() -> None:
    """A random share of each type: pairs of that type, none twice, and all of a type that has few."""
    labels = torch.arange(40) % 10
    pairs = few_pairs(Pairs.from_labels(labels), 100, torch.Generator().manual_seed(0))
    assert (pairs.num_positives, pairs.num_negatives) == (60, 100)
    for positive in (True, False):
        (listed,) = pairs.listed(positive)
        assert bool(((labels[listed.first] == labels[listed.second]) == positive).all())
        assert bool((listed.times == 1).all())
    whole = Pairs.from_labels(labels)
    assert few_pairs(whole, 10_000) is whole


def noisy(seed: int, num: int = 120, classes: int = 6) -> tuple[Tensor, Tensor]:
    """Features whose classes overlap."""
    labels = torch.arange(num) % classes
    centres = gaussian(classes, 6, seed=11)
    return centres[labels] + 0.5 * gaussian(num, 6, seed=seed), labels


@pytest.fixture(scope="module")
def fitted() -> LAM:
    encoder = Encoder(nn.Identity(), nn.Linear(6, 3, dtype=float64))
    encoder.head.weight.data.copy_(gaussian(3, 6, seed=2))
    encoder.head.bias.data.zero_()
    lam = LAM(encoder, ContrastiveLoss(0.9))
    return lam.fit_features(*noisy(0), check_mode=False)


def test_validation_finds_the_best_prior(fitted: LAM) -> None:
    """At least as good, on its images and draws, as any of a grid over nine orders of magnitude."""
    features, labels = noisy(1)
    chosen = fitted.optimize_prior_precision("validation", features, labels, samples=4, generator=seeded(3))
    again = fitted.optimize_prior_precision("validation", features, labels, samples=4, generator=seeded(3))
    assert chosen == again == fitted.prior_precision

    def value(prior: float) -> float:
        fitted.prior_precision = prior
        drawn = list(fitted.head.draws(features, 4, seeded(5)))
        return pair_log_likelihood(drawn, Pairs.from_labels(labels), fitted.loss)

    grid = [value(10.0**exponent) for exponent in range(-3, 7)]
    assert value(chosen) >= max(grid) - 0.03 * (max(grid) - min(grid))
    assert max(grid) - min(grid) > 0.01


def test_validation_sees_its_own_images_only(fitted: LAM, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    original = pair_log_likelihood

    def watched(samples: list[Tensor], pairs: Pairs, loss: Any) -> float:
        seen.append((len(samples), pairs.num_images, pairs.num_positives))
        return original(samples, pairs, loss)

    monkeypatch.setattr(module, "pair_log_likelihood", watched)
    features, labels = noisy(1)
    fitted.optimize_prior_precision(
        "validation", features, labels, samples=2, max_images=60, generator=seeded()
    )
    assert {each[:2] for each in seen} == {(2, 60)}
    # 60 at random would do as well; of many small classes, groups have to be drawn.
    many = torch.arange(120) // 4
    fitted.optimize_prior_precision(
        "validation", features, many, samples=2, max_images=60, generator=seeded()
    )
    assert seen[-1][2] >= 60


Refusal = tuple[Callable[[LAM], object], type[Exception], str]
