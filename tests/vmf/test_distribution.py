"""Densities and distances against scipy, quadrature, Monte Carlo and identities."""

from __future__ import annotations

import math

import pytest
import scipy.integrate
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from laplacian_metric import vmf
from tests.vmf.make_tables import DIMS
from tests.vmf.tables import column, directions, relative_error

float64 = torch.float64
Pair = tuple[Tensor, Tensor, Tensor, Tensor]


@st.composite
def pairs(draw: st.DrawFn) -> Pair:
    """Two batches of distributions, some of them equal, some opposite."""
    dim, num = draw(st.sampled_from([2, 3, 5, 64, 2048])), draw(st.integers(1, 4))
    seed = draw(st.integers(0, 2**31))
    exponents = st.lists(st.floats(-3, 6), min_size=num, max_size=num)
    one = directions(num, dim, seed)
    other = {"free": directions(num, dim, seed + 1), "equal": one, "opposite": -one}[
        draw(st.sampled_from(["free", "equal", "opposite"]))
    ]
    kappas = [10 ** torch.tensor(draw(exponents), dtype=float64) for _ in range(2)]
    return one, kappas[0], other, kappas[1] if draw(st.booleans()) else kappas[0]


@pytest.mark.parametrize(("dim", "kappa"), [(2, 0.5), (3, 5.0), (3, 1e4), (10, 20.0), (128, 300.0)])
def test_density_and_entropy_agree_with_scipy(dim: int, kappa: float) -> None:
    mean, x = directions(1, dim)[0], directions(5, dim, seed=1)
    reference = scipy.stats.vonmises_fisher(mean.numpy(), kappa)
    k = torch.tensor(kappa, dtype=float64)
    expected = torch.from_numpy(reference.logpdf(x.numpy()))
    torch.testing.assert_close(vmf.log_density(x, mean, k), expected, rtol=1e-10, atol=1e-10)
    assert float(vmf.entropy(k, dim)) == pytest.approx(float(reference.entropy()), rel=1e-8)


@pytest.mark.parametrize("dim", [2, 3, 4, 7])
@pytest.mark.parametrize("kappa", [0.0, 0.7, 40.0])
def test_the_density_integrates_to_one(dim: int, kappa: float) -> None:
    mean, k = torch.eye(dim, dtype=float64)[0], torch.tensor(kappa, dtype=float64)
    area = 2 * math.pi ** ((dim - 1) / 2) / math.gamma((dim - 1) / 2)

    def integrand(angle: float) -> float:
        x = torch.zeros(dim, dtype=float64)
        x[0], x[1] = math.cos(angle), math.sin(angle)
        return area * math.sin(angle) ** (dim - 2) * math.exp(float(vmf.log_density(x, mean, k)))

    assert scipy.integrate.quad(integrand, 0, math.pi)[0] == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("dim", DIMS)
def test_entropy_agrees_with_the_table(dim: int) -> None:
    kappa = column("kappa", dim)
    expected = column("entropy", dim)
    error = (vmf.entropy(kappa, dim) - expected).abs() / (1 + expected.abs())
    assert float(error.max()) < 1e-12


@given(pairs())
def test_distances_are_distances(pair: Pair) -> None:
    mean_p, kappa_p, mean_q, kappa_q = pair
    swapped = mean_q, kappa_q, mean_p, kappa_p
    divergence, distance = vmf.kl(*pair), vmf.bhattacharyya(*pair)
    scale = 1 + vmf.entropy(kappa_p, mean_p.shape[1]).abs()
    assert bool((divergence > -1e-12 * scale).all())
    assert bool((distance > -1e-12 * scale).all())
    torch.testing.assert_close(distance, vmf.bhattacharyya(*swapped), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        vmf.log_expected_likelihood(*pair), vmf.log_expected_likelihood(*swapped), rtol=1e-12, atol=1e-12
    )
    # - log int sqrt(p q) <= KL/2, by Jensen's inequality.
    assert bool((2 * distance <= divergence + 1e-11 * scale).all())


@given(pairs())
def test_a_distribution_has_no_distance_to_itself(pair: Pair) -> None:
    mean, kappa = pair[:2]
    assert bool((vmf.kl(mean, kappa, mean, kappa) == 0).all())
    own = vmf.bhattacharyya(mean, kappa, mean, kappa)
    torch.testing.assert_close(own, torch.zeros_like(kappa), rtol=0, atol=2e-12 * mean.shape[1])


@pytest.mark.statistical
@pytest.mark.parametrize(("dim", "kappa_p", "kappa_q"), [(2, 3.0, 1.0), (3, 10.0, 30.0), (16, 40.0, 10.0)])
def test_distances_are_the_expectations_that_define_them(dim: int, kappa_p: float, kappa_q: float) -> None:
    """Means of 200,000 samples, within five standard errors."""
    p = directions(1, dim), torch.tensor([kappa_p], dtype=float64)
    q = (
        torch.nn.functional.normalize(p[0] + 0.3 * directions(1, dim, seed=1), dim=1),
        torch.tensor([kappa_q], dtype=float64),
    )
    x = vmf.sample(*p, 200_000, generator=torch.Generator().manual_seed(0))[:, 0]
    log_p, log_q = vmf.log_density(x, *p), vmf.log_density(x, *q)
    for values, expected in (
        (log_p - log_q, vmf.kl(*p, *q)),
        (-log_p, vmf.entropy(p[1], dim)),
        (log_q.exp(), vmf.log_expected_likelihood(*p, *q).exp()),
        ((log_q / 2 - log_p / 2).exp(), (-vmf.bhattacharyya(*p, *q)).exp()),
    ):
        assert abs(float(values.mean() - expected)) < 5 * float(values.std()) / len(values) ** 0.5


@pytest.mark.parametrize("kappa", [1e-3, 1.0, 1e3, 1e6])
@pytest.mark.parametrize("dim", [3, 2048])
def test_float32_keeps_its_digits(dim: int, kappa: float) -> None:
    """Against float64 of the same rounded inputs: the distances are small differences of large numbers."""
    p = directions(20, dim, dtype=torch.float32)
    q = torch.nn.functional.normalize(p + 0.1 * directions(20, dim, seed=1, dtype=torch.float32), dim=1)
    kp, kq = torch.full((20,), kappa), torch.linspace(0.5, 2, 20) * kappa
    exact = [x.double() for x in (p, kp, q, kq)]
    for function in (vmf.kl, vmf.bhattacharyya, vmf.log_expected_likelihood):
        assert relative_error(function(p, kp, q, kq), function(*exact)) < 1e-6
    torch.testing.assert_close(
        vmf.log_density(q, p, kp).double(),
        vmf.log_density(exact[2], exact[0], exact[1]),
        rtol=1e-6,
        atol=1e-6,
    )


def test_every_combination_is_finite_with_finite_gradients() -> None:
    """Zero, tiny and huge concentrations; equal and opposite means."""
    for dtype in (torch.float32, float64):
        kappas = torch.tensor([0.0, 1e-20, 1.0, 1e6, 1e17], dtype=dtype)
        one, other = torch.meshgrid(kappas, kappas, indexing="ij")
        for dim in (2, 2048):
            base = directions(1, dim, dtype=dtype)
            for sign in (1, -1):
                inputs = [base.clone(), one.clone(), sign * base, other.clone()]
                inputs = [x.requires_grad_() for x in inputs]
                for function in (vmf.kl, vmf.bhattacharyya, vmf.log_expected_likelihood):
                    value = function(*inputs)
                    assert value.dtype == dtype
                    assert bool(torch.isfinite(value).all())
                    gradients = torch.autograd.grad(value.sum(), inputs, allow_unused=True)
                    assert all(g is None or bool(torch.isfinite(g).all()) for g in gradients)


def test_gradients_by_finite_differences() -> None:
    p, q = directions(3, 5), directions(3, 5, seed=1)
    kp = torch.tensor([0.5, 3.0, 40.0], dtype=float64, requires_grad=True)
    kq = torch.tensor([2.0, 0.4, 90.0], dtype=float64, requires_grad=True)
    for function in (vmf.kl, vmf.bhattacharyya, vmf.log_expected_likelihood):
        assert torch.autograd.gradcheck(lambda a, b, f=function: f(p, a, q, b), (kp, kq), rtol=1e-6)
    # Off the sphere the forms in 1 - cos differ from those in cos, so only the tangential part is compared.
    turn = torch.zeros(3, 5, dtype=float64, requires_grad=True)

    def turned(step: Tensor) -> Tensor:
        return vmf.kl(torch.nn.functional.normalize(p + step, dim=1), kp.detach(), q, kq.detach())

    assert torch.autograd.gradcheck(turned, (turn,), rtol=1e-6)


def test_shapes_broadcast_to_all_pairs() -> None:
    p, q = directions(4, 6), directions(3, 6, seed=1)
    kp, kq = torch.rand(4, dtype=float64) + 1, torch.rand(3, dtype=float64) + 1
    matrix = vmf.log_expected_likelihood(p[:, None], kp[:, None], q, kq)
    assert matrix.shape == (4, 3)
    torch.testing.assert_close(matrix[2, 1], vmf.log_expected_likelihood(p[2], kp[2], q[1], kq[1]))
