"""The direction of a Gaussian vector against mpmath's table, many nodes, Monte Carlo and its own symmetries."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from laplacian_metric import vmf
from laplacian_metric.vmf import projected
from tests.vmf.tables import directions, relative_error, rows

float64 = torch.float64
TABLE = rows("projected.json")


def gaussian(*shape: int, seed: int = 0, dtype: torch.dtype = float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def assert_same(
    one: vmf.ProjectedNormal, other: vmf.ProjectedNormal, rtol: float, atol: float = 1e-12
) -> None:
    for name in ("variance", "length", "kappa"):
        torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=rtol, atol=atol, msg=name)
    torch.testing.assert_close(one.mean, other.mean, rtol=0, atol=rtol)


def compare(row: dict[str, Any], result: vmf.ProjectedNormal, rtol: float) -> None:
    """With the table's E u/|u|; R and V to ``rtol``, the direction in absolute terms."""
    assert float(result.variance) == pytest.approx(float(row["spread"]), rel=rtol)
    assert float(result.length) == pytest.approx(float(row["length"]), rel=rtol)
    expected = torch.tensor([[float(x) for x in row["direction"]]], dtype=float64)
    torch.testing.assert_close(result.mean.double(), expected, rtol=0, atol=rtol)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row['name']}, {len(row['mean'])}")
def test_every_case_of_the_table(row: dict[str, Any]) -> None:
    rtol = 3e-6 if row["name"] in ("zeros", "dominated") else 6e-7
    for dtype, looser in ((float64, 0.0), (torch.float32, 1e-6)):
        mean = torch.tensor([row["mean"]], dtype=dtype)
        variance = torch.tensor([row["variance"]], dtype=dtype)
        compare(row, vmf.projected_normal(mean, variance), rtol + looser)


@pytest.mark.parametrize("row", TABLE[::3], ids=lambda row: f"{row['name']}, {len(row['mean'])}")
def test_full_and_low_rank_covariances_of_the_table(row: dict[str, Any]) -> None:
    """The diagonal written as a full matrix, and with the part of one dimension moved into a factor."""
    mean = torch.tensor([row["mean"]], dtype=float64)
    variance = torch.tensor([row["variance"]], dtype=float64)
    compare(row, vmf.projected_normal(mean, torch.diag_embed(variance)), 3e-6)
    compare(row, vmf.projected_normal(mean.float(), torch.diag_embed(variance).float()), 4e-6)
    for share in (0.5, 1.0):
        factor = torch.zeros(1, mean.shape[1], 1, dtype=float64)
        factor[0, -1, 0] = (share * variance[0, -1]).sqrt()
        rest = variance.clone()
        rest[0, -1] *= 1 - share
        compare(row, vmf.projected_normal(mean, rest, factor), 3e-6)


@settings(max_examples=25)
@given(st.integers(2, 24), st.integers(1, 4), st.integers(1, 6), st.floats(-8, 4), st.integers(0, 2**31))
def test_low_rank_and_full_are_one_covariance(
    dim: int, num: int, rank: int, exponent: float, seed: int
) -> None:
    mean, scale = gaussian(num, dim, seed=seed), 10.0**exponent
    variance = scale * gaussian(num, dim, seed=seed + 1).square()
    factor = math.sqrt(scale) * gaussian(num, dim, rank, seed=seed + 2)
    full = torch.diag_embed(variance) + factor @ factor.mT
    assert_same(vmf.projected_normal(mean, variance, factor), vmf.projected_normal(mean, full), 1e-6)
    single = [x.float() for x in (mean, variance, factor)]
    exact = vmf.projected_normal(*(x.double() for x in single))
    rounded = vmf.projected_normal(*single)
    torch.testing.assert_close(rounded.variance.double(), exact.variance, rtol=1e-6, atol=0)


@pytest.mark.parametrize(("dim", "rank"), [(6, 2), (128, 8), (5, 4)])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e3])
def test_a_singular_covariance_around_a_mean_in_its_range(dim: int, rank: int, scale: float) -> None:
    """The problem of ``rank`` dimensions, turned into ``dim`` ones."""
    mean, root = gaussian(3, rank), math.sqrt(scale) * gaussian(3, rank, rank, seed=1)
    frame = torch.linalg.qr(gaussian(dim, rank, seed=2)).Q
    few = vmf.projected_normal(mean, root @ root.mT)
    factor = frame @ root
    none = torch.zeros(3, dim, dtype=float64)
    for many in (
        vmf.projected_normal(mean @ frame.T, factor @ factor.mT),
        vmf.projected_normal(mean @ frame.T, none, factor),
    ):
        # The integrals of both have an error of up to 1e-6 each, and other frames have other errors.
        torch.testing.assert_close(many.variance, few.variance, rtol=3e-6, atol=0)
        torch.testing.assert_close(many.length, few.length, rtol=1e-6, atol=0)
        torch.testing.assert_close(many.mean @ frame, few.mean, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dim", [2, 3, 128, 2048])
def test_nodes_are_enough(dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """48 nodes against 200."""
    mean = gaussian(12, dim)
    variance = torch.logspace(-10, 4, 12, dtype=float64)[:, None] * gaussian(12, dim, seed=1).square()
    few = vmf.projected_normal(mean, variance)
    monkeypatch.setattr(projected, "STEPS", projected.steps(200))
    assert_same(few, vmf.projected_normal(mean, variance), 2e-6)


@pytest.mark.statistical
@pytest.mark.parametrize("kind", ["diagonal", "low rank", "full"])
@pytest.mark.parametrize(("dim", "scale"), [(2, 0.3), (3, 1.0), (3, 30.0), (128, 0.05), (128, 3.0)])
def test_monte_carlo(kind: str, dim: int, scale: float) -> None:
    """200,000 draws: the mean within five standard errors along the mean direction, and across it."""
    count = 200_000
    generator = torch.Generator().manual_seed(0)
    mean, variance = gaussian(1, dim, seed=1), scale * gaussian(1, dim, seed=2).square()
    factor = math.sqrt(scale) * gaussian(1, dim, 2, seed=3)
    u = mean + variance.sqrt() * torch.randn(count, dim, generator=generator, dtype=float64)
    if kind != "diagonal":
        u += torch.randn(count, 2, generator=generator, dtype=float64) @ factor[0].T
    z = torch.nn.functional.normalize(u, dim=1)
    full = torch.diag_embed(variance) + factor @ factor.mT
    arguments = {"diagonal": (variance,), "low rank": (variance, factor), "full": (full,)}[kind]
    result = vmf.projected_normal(mean, *arguments)
    along = z @ result.mean[0]
    assert abs(float(along.mean() - result.length)) < 5 * float(along.std()) / count**0.5
    across = z - along[:, None] * result.mean
    error = float((across.square().sum(1).mean() / count).sqrt())
    assert float(across.mean(0).norm()) < 5 * error


@given(st.integers(2, 40), st.integers(0, 5), st.floats(-30, 30), st.integers(0, 2**31))
def test_any_length_gives_the_same_direction(dim: int, num: int, exponent: float, seed: int) -> None:
    """u/|u| does not know how long u is; |m| = 1e30 would overflow in float32 if it were squared."""
    mean = gaussian(num, dim, seed=seed, dtype=torch.float32)
    variance = gaussian(num, dim, seed=seed + 1, dtype=torch.float32).square()
    scale = 2.0 ** round(exponent)
    expected = vmf.projected_normal(mean, variance)
    assert_same(vmf.projected_normal(scale * mean, scale**2 * variance), expected, 1e-5)
    assert expected.mean.shape == (num, dim)
    assert expected.kappa.shape == expected.length.shape == expected.variance.shape == (num,)
    torch.testing.assert_close(expected.mean.norm(dim=1), torch.ones(num))


@pytest.mark.parametrize("dtype", [torch.float32, float64])
def test_extremes_are_finite(dtype: torch.dtype) -> None:
    big = 1e37 if dtype == torch.float32 else 1e300
    mean = torch.tensor(
        [[0.0, 0, 0], [0, 0, 0], [0, 2, 0], [big, -big, 0], [1e-30, 0, 0], [1, 0, 0]], dtype=dtype
    )
    variance = torch.tensor([[0.0] * 3, [1] * 3, [0] * 3, [1] * 3, [1] * 3, [big, 0, 0]], dtype=dtype)
    full = torch.diag_embed(variance)
    for result in (
        vmf.projected_normal(mean, variance),
        vmf.projected_normal(mean, full),
        vmf.projected_normal(mean, variance, torch.zeros(6, 3, 1, dtype=dtype)),
    ):
        assert all(bool(torch.isfinite(part).all()) for part in result)
        assert result.kappa[:2].tolist() == [0, 0]  # no mean: every direction is as good as any other
        assert result.mean[:2].tolist() == [[1, 0, 0]] * 2
        assert result.mean[2].tolist() == [0, 1, 0]
        assert result.variance[2].item() == 0  # a point
        assert result.kappa[2] > 1e20
        assert result.kappa[3] > 1e13
        assert float(result.kappa[5]) < 1e-10  # one line, both directions


def test_tiny_variances_rank_without_ties() -> None:
    """V below the square of float32's precision is still told apart: it is not the result of a subtraction."""
    mean = torch.eye(3)[:1].expand(5, 3)
    variance = torch.logspace(-22, -10, 5)[:, None].expand(5, 3)
    result = vmf.projected_normal(mean, variance)
    torch.testing.assert_close(result.variance, 2 * variance[:, 0], rtol=1e-5, atol=0)
    assert bool((result.kappa.diff() < 0).all())


def test_isotropic_three_dimensions_have_a_closed_form() -> None:
    """For u ~ N(m, I) in three dimensions R = (1 - 1/m^2) erf(m/sqrt 2) + sqrt(2/pi) exp(-m^2/2)/m."""
    norm = torch.tensor([0.5, 1.0, 2.0, 4.0], dtype=float64)
    expected = (1 - 1 / norm**2) * torch.erf(norm / math.sqrt(2))
    expected = expected + math.sqrt(2 / math.pi) * torch.exp(-(norm**2) / 2) / norm
    result = vmf.projected_normal(norm[:, None] * directions(4, 3), torch.ones(4, 3, dtype=float64))
    assert relative_error(result.length, expected) < 1e-7


def test_refining_solves_for_the_length() -> None:
    mean = gaussian(5, 3)
    result = vmf.projected_normal(mean, torch.ones_like(mean), refine=4)
    torch.testing.assert_close(vmf.mean_resultant_length(result.kappa, 3), result.length, rtol=1e-9, atol=0)


@pytest.mark.parametrize("kind", ["diagonal", "low rank", "full"])
def test_gradients_by_finite_differences(kind: str) -> None:
    mean, root = gaussian(2, 5).requires_grad_(), gaussian(2, 5, seed=1).requires_grad_()
    factor = gaussian(2, 5, 2, seed=2).requires_grad_()

    def run(m: Tensor, r: Tensor, f: Tensor) -> tuple[Tensor, ...]:
        if kind == "diagonal":
            return tuple(vmf.projected_normal(m, r.square()))
        if kind == "low rank":
            return tuple(vmf.projected_normal(m, r.square(), f))
        return tuple(vmf.projected_normal(m, torch.diag_embed(r.square()) + f @ f.mT))

    inputs = (mean, root, factor) if kind != "diagonal" else (mean, root, factor.detach())
    assert torch.autograd.gradcheck(run, inputs, eps=1e-5, rtol=1e-4, atol=1e-6, fast_mode=True)


def test_gradients_are_finite_where_mean_or_variance_is_zero() -> None:
    mean = torch.tensor([[0.0, 0, 0], [1, 0, 0], [1, 2, 3]], dtype=float64, requires_grad=True)
    variance = torch.tensor([[1.0, 1, 1], [0, 0, 0], [0, 1, 0]], dtype=float64, requires_grad=True)
    result = vmf.projected_normal(mean, variance)
    gradients = torch.autograd.grad(result.length.sum() + result.mean.sum(), (mean, variance))
    assert all(bool(torch.isfinite(gradient).all()) for gradient in gradients)


def test_blocks_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    mean, variance = gaussian(50, 7), gaussian(50, 7, seed=1).square()
    whole = vmf.projected_normal(mean, variance)
    monkeypatch.setattr(projected, "BLOCK", 30)
    assert_same(vmf.projected_normal(mean, variance), whole, 1e-12)
