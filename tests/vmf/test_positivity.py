"""The expected positivity: the series against quadrature over the sphere, autograd, its limits, and what it is for."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import eval_gegenbauer
from torch import Tensor
from torch.nn import functional as F

from laplacian_metric import vmf
from laplacian_metric.vmf import positivity
from tests.generators import seeded

float64 = torch.float64


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=float64)


def log_sphere(dim: int) -> float:
    """log of the area of the sphere in R^dim."""
    return math.log(2) + dim / 2 * math.log(math.pi) - math.lgamma(dim / 2)


gauss_legendre = lru_cache(np.polynomial.legendre.leggauss)


def nodes(low: float, high: float, count: int) -> tuple[Tensor, Tensor]:
    x, w = gauss_legendre(count)
    return torch.tensor((x + 1) / 2 * (high - low) + low), torch.tensor(w / 2 * (high - low))


def by_quadrature(c: float, k1: float, k2: float, kpos: float, dim: int, count: int = 100) -> float:
    """log of |S| int vMF(z; m1, k1) int vMF(z+; z, kpos) vMF(z+; m2, k2), the inner one in closed form.

    z is at an angle t from m1, its part across at an angle p from m2's: Gauss-Legendre in both, on the ranges where
    the integrand is not negligible.
    """
    low, high = [0.0, 0.0], [math.pi, math.pi]
    for _ in range(5):
        (t, wt), (p, wp) = (nodes(low[i], high[i], count) for i in (0, 1))
        if dim == 2:
            p, wp = numbers(0.0, math.pi), numbers(0.5, 0.5)
        across = 0.0 if dim == 2 else (dim - 3) * p.sin().log() + log_sphere(dim - 2) - log_sphere(dim - 1)
        along = vmf.log_normalizer(numbers(k1), dim) + k1 * t.cos() + (dim - 2) * t.sin().log()
        cosine = t.cos()[:, None] * c + t.sin()[:, None] * p.cos() * math.sqrt(1 - c * c)
        combined = (k2**2 + kpos**2 + 2 * k2 * kpos * cosine).clamp(min=1e-200).sqrt()
        g2, gp = vmf.relative_log_normalizer(numbers(k2, kpos), dim)
        inner = g2 + gp - vmf.relative_log_normalizer(combined, dim)
        outer = along + wt.log() + (log_sphere(dim - 1) if dim > 2 else math.log(2))
        value: Tensor = outer[:, None] + inner + across + wp.log()
        near = value > value.max() - 60
        for i, x in enumerate((t, p)):
            inside = near.any(1 - i).nonzero()[:, 0]
            first, last = int(inside[0]), int(inside[-1])
            low[i] = float(x[first - 1]) if first else low[i]
            high[i] = float(x[last + 1]) if last + 1 < len(x) else high[i]
    return float(value.flatten().logsumexp(0))


CASES = [
    (k1, k2, kpos, c)
    for k1, k2 in ((1e-3, 30.0), (5.0, 5.0), (16.0, 32.0), (500.0, 3.0), (1e4, 1e4))
    for kpos in (1.0, 20.0)
    for c in (1.0, 0.9, 0.3, -0.4, -1.0)
]


@pytest.mark.parametrize("dim", [2, 3, 10, 32, 128, 512, 2048])
def test_the_series_is_the_integral_over_the_sphere(dim: int) -> None:
    """To 1e-8 where h(c) > 1e-7 h(1); below, the rounding of terms that cancel is what remains."""
    k1, k2, kpos, c = (torch.tensor(x, dtype=float64) for x in zip(*CASES, strict=True))
    log = vmf.log_positivity(c, k1, k2, kpos, dim)
    largest = vmf.log_positivity(torch.ones_like(c), k1, k2, kpos, dim)
    compared = 0
    for case, value, top in zip(CASES, log.tolist(), largest.tolist(), strict=True):
        expected = by_quadrature(case[3], *case[:3], dim)
        if expected - top > math.log(1e-7):
            compared += 1
            assert value == pytest.approx(expected, abs=1e-8), case
        elif expected - top > math.log(1e-12) and expected > math.log(1e-9):
            assert value == pytest.approx(expected, abs=1e-15 * math.exp(top - expected)), case
    assert compared > len(CASES) / 2


@pytest.mark.parametrize("dim", [512, 2048])
def test_where_the_series_cancels_the_matched_form_stands_in(dim: int) -> None:
    """h(1)/h(-1) is above 1e15 here: no sum of float64 terms has a digit left."""
    k = numbers(1e4)
    value = vmf.log_positivity(numbers(-1.0), k, k, 20.0, dim)
    torch.testing.assert_close(value, vmf.log_positivity_matched(numbers(-1.0), k, k, 20.0, dim))
    assert float(value) == pytest.approx(by_quadrature(-1.0, 1e4, 1e4, 20.0, dim), abs=0.03)


@pytest.mark.parametrize("dim", [3, 10, 128, 2048])
def test_large_concentrations_of_all_three(dim: int) -> None:
    """The terms of the series are up to exp(5000) here, which no floating point number holds."""
    for c in (1.0, 0.9999):
        expected = by_quadrature(c, 1e4, 8e3, 1e4, dim)
        value = vmf.log_positivity(numbers(c), numbers(1e4), numbers(8e3), 1e4, dim)
        assert float(value) == pytest.approx(expected, abs=1e-8 * max(1, abs(expected)))


def test_the_polynomials_are_those_of_gegenbauer() -> None:
    c = torch.linspace(-1, 1, 7, dtype=float64)
    for dim in (3, 4, 10):
        nu = dim / 2 - 1
        for n, value in zip(range(12), positivity._polynomials(c, dim), strict=False):
            expected = eval_gegenbauer(n, nu, c.numpy()) / eval_gegenbauer(n, nu, 1.0)
            np.testing.assert_allclose(value.numpy(), expected, atol=1e-13)
    for n, value in zip(range(12), positivity._polynomials(c, 2), strict=False):
        np.testing.assert_allclose(value.numpy(), np.cos(n * np.arccos(c.numpy())), atol=1e-13)


@pytest.mark.parametrize("dim", [2, 3, 16, 128])
def test_gradients(dim: int) -> None:
    c = (1.1 * torch.rand(4, 3, generator=seeded(), dtype=float64) - 0.2).requires_grad_()
    k1, k2, kpos = (
        x.requires_grad_()
        for x in (numbers(2.0, 9.0, 20.0, 60.0)[:, None], numbers(1.0, 8.0, 30.0), numbers(16.0)[0])
    )
    for function in (vmf.log_positivity, vmf.log_positivity_matched):

        def value(*x: Tensor, function: Callable[..., Tensor] = function) -> Tensor:
            return function(*x, dim)

        assert torch.autograd.gradcheck(value, (c, k1, k2, kpos), rtol=1e-5, atol=1e-6)


def test_gradients_are_the_same_in_blocks_and_where_terms_are_huge(monkeypatch: pytest.MonkeyPatch) -> None:
    mean = F.normalize(torch.randn(9, 6, generator=seeded(), dtype=float64), dim=1)
    k = numbers(*range(4, 40, 4)).requires_grad_()
    c = (mean @ mean.T).clamp(-1, 1).requires_grad_()

    def both() -> tuple[Tensor, ...]:
        log = vmf.log_positivity(c, k[:, None], k, 12.0, 6)
        return log, *torch.autograd.grad(log.sin().sum(), [c, k])

    whole = both()
    for name, value in (("ENTRIES_AT_ONCE", 20), ("LARGEST_EXPONENT", -1.0)):
        with monkeypatch.context() as patch:
            patch.setattr(positivity, name, value)
            torch.testing.assert_close(both(), whole)


@given(
    dim=st.integers(2, 40),
    shapes=st.sampled_from(
        [((), (), ()), ((3,), (), (3,)), ((2, 3), (2, 1), (3,)), ((1,), (4, 1), (1, 2)), ((0,), (), ())]
    ),
    seed=st.integers(0, 10),
)
def test_any_shapes_broadcast(dim: int, shapes: tuple[tuple[int, ...], ...], seed: int) -> None:
    generator = seeded(seed)
    c = 2 * torch.rand(shapes[0], generator=generator, dtype=float64) - 1
    k1, k2 = (30 * torch.rand(shape, generator=generator, dtype=float64) + 0.1 for shape in shapes[1:])
    log = vmf.log_positivity(c, k1, k2, 7.0, dim)
    full = [x.flatten() for x in torch.broadcast_tensors(c, k1, k2)]
    assert log.shape == torch.broadcast_shapes(*shapes)
    for i in range(log.numel()):
        one = vmf.log_positivity(full[0][i], full[1][i], full[2][i], 7.0, dim)
        torch.testing.assert_close(one, log.flatten()[i], rtol=1e-9, atol=1e-9)


def test_it_is_symmetric_and_averages_to_one_over_the_sphere() -> None:
    c = numbers(0.3)
    values = [
        vmf.log_positivity(c, numbers(a), numbers(b), p, 7)
        for a, b, p in ((3, 9, 20), (20, 3, 9), (9, 20, 3))
    ]
    torch.testing.assert_close(values[0], values[1])
    torch.testing.assert_close(values[0], values[2])
    t, w = nodes(0, math.pi, 200)
    h = vmf.log_positivity(t.cos(), numbers(3.0), numbers(9.0), 20.0, 7).exp()
    weight = w * t.sin() ** 5
    assert float((h * weight).sum() / weight.sum()) == pytest.approx(1, abs=1e-10)


def test_certain_images_leave_the_density_of_the_positive_pair() -> None:
    c, sure = numbers(0.9, 0.2, -0.3), numbers(1e12)
    expected = vmf.relative_log_normalizer(numbers(8.0), 5) + 8 * c
    torch.testing.assert_close(vmf.log_positivity(c, sure, sure, 8.0, 5), expected, rtol=0, atol=1e-9)
    torch.testing.assert_close(vmf.log_positivity_matched(c, sure, sure, 8.0, 5), expected, rtol=0, atol=1e-3)


def test_the_matched_form_is_near_for_positive_cosines() -> None:
    """At D = 10 and kpos = 20 it is off by 0.12 nats for k of 16 and 32, by 0.16 for 32 and 32."""
    c, k = torch.linspace(0, 1, 21, dtype=float64)[:, None, None], torch.linspace(16, 32, 5, dtype=float64)
    error = vmf.log_positivity_matched(c, k[:, None], k, 20.0, 10) - vmf.log_positivity(
        c, k[:, None], k, 20.0, 10
    )
    assert 0.01 < float(error[:, 0, -1].abs().max()) < 0.12
    assert 0.15 < float(error.abs().max()) < 0.16


def test_unlikely_pairs_keep_a_gradient() -> None:
    c, k = numbers(-0.9).requires_grad_(), numbers(400.0).requires_grad_()
    log = vmf.log_positivity(c, k, k, 200.0, 8)
    assert float(log.detach()) < math.log(1e-9)
    slope_c, slope_k = torch.autograd.grad(log, [c, k])
    assert float(slope_c) > 1
    assert float(slope_k) < 0


def test_float32_is_computed_in_float64() -> None:
    c, k = torch.tensor([1.0000002, -0.2]), torch.tensor([10.0, 300.0])
    log = vmf.log_positivity(c, k, k, 16.0, 64)
    assert log.dtype == torch.float32
    exact = vmf.log_positivity(c.double().clamp(max=1), k.double(), k.double(), 16.0, 64)
    torch.testing.assert_close(log, exact.float())


@pytest.mark.statistical
@pytest.mark.parametrize(("low", "high"), [(16.0, 32.0), (64.0, 128.0)])
def test_the_right_concentrations_minimise_the_cross_entropy(low: float, high: float) -> None:
    """Of concentrations multiplied by s, the best s over 20 batches of 192 is within 0.05 of 1."""
    scales = torch.linspace(0.8, 1.25, 10, dtype=float64)
    losses = torch.zeros_like(scales)
    generator = seeded()
    dim, kpos, num = 10, torch.full((192,), 20.0, dtype=float64), 192
    for _ in range(20):
        mean = F.normalize(torch.randn(num, dim, generator=generator, dtype=float64), dim=1)
        k1, k2 = (low * (high / low) ** torch.rand(num, generator=generator, dtype=float64) for _ in range(2))
        z = vmf.sample(mean, k1, 1, generator=generator)[0]
        positive = vmf.sample(z, kpos, 1, generator=generator)[0]
        other = vmf.sample(positive, k2, 1, generator=generator)[0]
        cosine = (mean @ other.T).clamp(-1, 1)
        for i, s in enumerate(scales):
            log = vmf.log_positivity(cosine, s * k1[:, None], s * k2, 20.0, dim)
            losses[i] += F.cross_entropy(log, torch.arange(num)) / 20
    a, b, _ = np.polyfit(scales.log().numpy(), losses.numpy(), 2)
    assert a > 0
    assert math.exp(-b / (2 * a)) == pytest.approx(1, abs=0.05)
