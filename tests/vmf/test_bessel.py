"""The normaliser, its derivatives and its inverse against mpmath's table, closed forms and finite differences."""

from __future__ import annotations

import math

import pytest
import scipy.special
import torch
from hypothesis import given
from hypothesis import strategies as st

from laplacian_metric import vmf
from laplacian_metric.vmf.bessel import expand
from tests.vmf.make_tables import DIGITS, DIMS, mp, normalizer_row
from tests.vmf.tables import column, relative_error, rows

float64 = torch.float64


@pytest.mark.parametrize("dim", DIMS)
def test_float64_agrees_with_the_table_to_twelve_digits(dim: int) -> None:
    kappa = column("kappa", dim)
    assert relative_error(vmf.log_normalizer(kappa, dim), column("log_normalizer", dim)) < 1e-12
    assert relative_error(vmf.relative_log_normalizer(kappa, dim), column("relative", dim)) < 1e-12
    assert relative_error(vmf.mean_resultant_length(kappa, dim), column("length", dim)) < 1e-12


@pytest.mark.parametrize("dim", DIMS)
def test_what_is_left_of_large_numbers_keeps_its_digits(dim: int) -> None:
    at = expand(column("kappa", dim), dim)
    assert relative_error(at.scaled, column("scaled", dim)) < 1e-12
    assert relative_error(at.gap, column("gap", dim)) < 1e-12
    assert relative_error(at.slope, column("slope", dim)) < 1e-11


@pytest.mark.parametrize("dim", DIMS)
def test_float32_agrees_with_the_table_to_its_precision(dim: int) -> None:
    kappa = column("kappa", dim).float()
    exact = vmf.relative_log_normalizer(kappa.double(), dim)
    g, length = vmf.relative_log_normalizer(kappa, dim), vmf.mean_resultant_length(kappa, dim)
    assert g.dtype == length.dtype == torch.float32
    assert relative_error(g, exact) < 1e-7
    assert relative_error(length, vmf.mean_resultant_length(kappa.double(), dim)) < 1e-7


def test_the_kernel_itself_holds_in_float32() -> None:
    """Devices without float64 compute in float32."""
    for dim in DIMS:
        at = expand(column("kappa", dim).float(), dim)
        assert relative_error(at.relative, column("relative", dim)) < 1e-6
        assert relative_error(at.length, column("length", dim)) < 1e-6
        assert relative_error(at.gap, column("gap", dim)) < 1e-5


def test_the_table_is_what_mpmath_computes_now() -> None:
    chosen = [
        row for row in rows("normalizer.json") if (row["dim"], row["kappa"]) in [(2, "3"), (512, "100")]
    ]
    with mp.workdps(2 * DIGITS):
        assert chosen == [normalizer_row(2, "3"), normalizer_row(512, "100")]


def test_three_dimensions_have_a_closed_form() -> None:
    kappa = torch.logspace(-2, 2, 41, dtype=float64)
    expected = (kappa / (4 * math.pi * torch.sinh(kappa))).log()
    torch.testing.assert_close(vmf.log_normalizer(kappa, 3), expected, rtol=1e-13, atol=0)
    torch.testing.assert_close(
        vmf.mean_resultant_length(kappa, 3), 1 / kappa.tanh() - 1 / kappa, rtol=1e-9, atol=0
    )


def test_two_dimensions_agree_with_scipy() -> None:
    kappa = torch.logspace(-3, 6, 61, dtype=float64)
    i0 = torch.from_numpy(scipy.special.i0e(kappa.numpy()))
    i1 = torch.from_numpy(scipy.special.i1e(kappa.numpy()))
    expected = -(2 * math.pi * i0).log() - kappa
    torch.testing.assert_close(vmf.log_normalizer(kappa, 2), expected, rtol=1e-13, atol=0)
    torch.testing.assert_close(vmf.mean_resultant_length(kappa, 2), i1 / i0, rtol=1e-12, atol=0)


@given(st.integers(2, 4096), st.floats(-3, 6))
def test_any_dimension_satisfies_the_differential_equation(dim: int, exponent: float) -> None:
    """A' = 1 - A^2 - (D - 1) A/k, of which the right side loses digits as k grows."""
    kappa = torch.tensor([10.0**exponent], dtype=float64)
    at = expand(kappa, dim)
    expected = 1 - at.length.square() - (dim - 1) * at.length / kappa
    assert abs(float(at.slope - expected)) < 1e-11 * (1 + (dim - 1) / max(1.0, float(kappa)))


@pytest.mark.parametrize("dim", [2, 3, 34, 2048])
def test_zero_and_huge_concentrations(dim: int) -> None:
    for dtype in (torch.float32, float64):
        kappa = torch.tensor([0.0, 1e30], dtype=dtype, requires_grad=True)
        g, length = vmf.relative_log_normalizer(kappa, dim), vmf.mean_resultant_length(kappa, dim)
        (slope,) = torch.autograd.grad(length.sum(), kappa, retain_graph=True)
        (down,) = torch.autograd.grad(g.sum(), kappa)
        assert g[0].tolist() == 0
        assert length.tolist() == pytest.approx([0, 1])
        assert float(slope[0]) == pytest.approx(1 / dim)
        assert down.tolist() == pytest.approx([0, -1])
        assert bool(torch.isfinite(g).all())


@pytest.mark.parametrize("dim", [2, 3, 16, 512])
def test_gradients_of_first_and_second_order(dim: int) -> None:
    kappa = torch.tensor([0.3, 2.0, 50.0, 700.0], dtype=float64, requires_grad=True)
    for function in (vmf.relative_log_normalizer, vmf.mean_resultant_length, vmf.entropy):
        assert torch.autograd.gradcheck(lambda k, f=function: f(k, dim), (kappa,), eps=1e-5, rtol=1e-6)
    assert torch.autograd.gradgradcheck(lambda k: vmf.log_normalizer(k, dim), (kappa,), eps=1e-5, rtol=1e-6)


def test_derivatives_by_torch_func_agree_with_the_table() -> None:
    kappa = column("kappa", 16)
    first = torch.func.vmap(torch.func.grad(lambda k: vmf.bessel.evaluate(k, 16, "relative")))
    torch.testing.assert_close(-first(kappa), column("length", 16), rtol=1e-12, atol=0)


@pytest.mark.parametrize("dim", DIMS)
def test_the_inverse_returns_to_kappa(dim: int) -> None:
    kappa = column("kappa", dim)
    at = expand(kappa, dim)
    variance = at.gap * (1 + at.length)
    back = vmf.concentration(at.length, dim, variance=variance, refine=4)
    assert relative_error(back, kappa) < 1e-9
    assert relative_error(vmf.concentration(at.length, dim, variance=variance, refine=3), kappa) < 1e-8
    assert relative_error(vmf.concentration(at.length, dim, variance=variance, refine=2), kappa) < 4e-5
    estimate = vmf.concentration(at.length, dim, variance=variance, refine=0)
    assert relative_error(estimate, kappa) < {2: 0.066, 3: 0.05}.get(dim, 0.04)


def test_either_of_length_and_variance_is_enough() -> None:
    length = torch.tensor([0.0, 0.2, 0.9], dtype=float64)
    by_length = vmf.concentration(length, 5)
    torch.testing.assert_close(vmf.concentration(None, 5, variance=1 - length**2), by_length)
    assert float(vmf.concentration(None, 5, variance=torch.tensor([1e-12]))) == pytest.approx(4e12)
    assert float(by_length[0]) == 0


@pytest.mark.parametrize("refine", [0, 3])
def test_gradients_of_the_inverse(refine: int) -> None:
    values = torch.tensor([0.05, 0.3, 0.6, 0.97], dtype=float64, requires_grad=True)
    rtol = 1e-6 if refine == 0 else 1e-5
    assert torch.autograd.gradcheck(lambda R: vmf.concentration(R, 4, refine=refine), (values,), rtol=rtol)
    assert torch.autograd.gradcheck(
        lambda V: vmf.concentration(None, 4, variance=V, refine=refine), (values,), rtol=rtol
    )


def test_half_precisions_are_computed_in_float32() -> None:
    kappa = torch.tensor([1.0, 300.0], dtype=torch.bfloat16)
    assert vmf.log_normalizer(kappa, 8).dtype == torch.float32
