"""Fits of samples, at once and streamed, against sums in float64, and what happens where samples say little."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from laplacian_metric import vmf
from tests.generators import seeded
from tests.vmf.tables import directions, relative_error

float64 = torch.float64


def test_the_formulas_by_hand() -> None:
    samples = vmf.sample(
        directions(3, 7), torch.tensor([2.0, 20.0, 200.0], dtype=float64), 5, generator=seeded()
    )
    average = samples.mean(0)
    squared = average.square().sum(1)
    for debiased in (True, False):
        R2 = ((5 * squared - 1) / 4).clamp(min=0) if debiased else squared
        R = R2.sqrt()
        mean, kappa = vmf.fit(samples, debiased=debiased)
        torch.testing.assert_close(kappa, R * (7 - R2) / (1 - R2), rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(mean, average / average.norm(dim=1, keepdim=True))


@given(st.integers(2, 6), st.integers(0, 3), st.integers(2, 40), st.integers(0, 2**31))
def test_every_shape_gives_unit_means_and_finite_concentrations(
    count: int, num: int, dim: int, seed: int
) -> None:
    samples = directions(count * num, dim, seed, torch.float32).view(count, num, dim)
    for debiased in (True, False):
        mean, kappa = vmf.fit(samples, debiased=debiased)
        assert mean.shape == (num, dim)
        assert kappa.shape == (num,)
        assert bool((torch.isfinite(kappa) & (kappa >= 0)).all())
        torch.testing.assert_close(mean.norm(dim=1), torch.ones(num))


@pytest.mark.parametrize("exponent", [2, 4, 6, 8, 10])
def test_float32_agrees_with_float64_where_a_subtraction_would_not(exponent: int) -> None:
    """At kappa = 1e8 the variance is 1e-6: 1 - R^2 has no digits in float32."""
    kappa = torch.full((20,), 10.0**exponent)
    samples = vmf.sample(directions(20, 128, dtype=torch.float32), kappa, 50, generator=seeded())
    assert relative_error(vmf.fit(samples)[1], vmf.fit(samples.double())[1]) < 1e-4


def test_refining_solves_the_likelihood_equation() -> None:
    samples = vmf.sample(directions(1, 3), torch.tensor([3.0], dtype=float64), 20, generator=seeded())
    _, kappa = vmf.fit(samples, debiased=False, refine=4)
    length = samples.mean(0).norm(dim=1)
    torch.testing.assert_close(vmf.mean_resultant_length(kappa, 3), length, rtol=1e-9, atol=0)


@pytest.mark.statistical
@pytest.mark.parametrize(("dim", "kappa"), [(2, 1.0), (3, 10.0), (16, 30.0), (512, 300.0), (2048, 1e6)])
def test_the_fit_finds_what_was_sampled(dim: int, kappa: float) -> None:
    """The mean of 200 fits of 100 samples each; the bound is five of its standard errors and 1 % of bias at most."""
    mean = directions(1, dim).expand(200, dim)
    samples = vmf.sample(mean, torch.full((200,), kappa, dtype=float64), 100, generator=seeded())
    lengths = vmf.mean_resultant_length(vmf.fit(samples, refine=3)[1], dim)
    true = float(vmf.mean_resultant_length(torch.tensor(kappa, dtype=float64), dim))
    error = 5 * float(lengths.std()) / 200**0.5
    assert float(lengths.mean()) == pytest.approx(true, abs=error + 0.01 * true)


@pytest.mark.statistical
def test_debiasing_takes_the_noise_out_of_uniform_samples() -> None:
    """100 uniform samples in 2048 dimensions look like kappa = 207; half of the debiased estimates are 0."""
    samples = vmf.sample(directions(100, 2048), torch.zeros(100, dtype=float64), 100, generator=seeded())
    assert float(vmf.fit(samples, debiased=False)[1].median()) == pytest.approx(207, abs=3)
    share = float((vmf.fit(samples)[1] == 0).double().mean())
    assert 0.25 < share < 0.75  # five standard errors around one half


def test_samples_that_cancel_out_and_samples_that_agree() -> None:
    axis = torch.eye(3)[1]
    mean, kappa = vmf.fit(torch.stack([axis, -axis])[:, None])
    assert mean.tolist() == [[1, 0, 0]]
    assert kappa.tolist() == [0]
    for dtype in (torch.float32, float64):
        mean, kappa = vmf.fit(axis.to(dtype).expand(10, 2, 3))
        assert mean.tolist() == [[0, 1, 0]] * 2
        assert kappa.tolist() == pytest.approx([2 / max(torch.finfo(dtype).eps ** 2, 1e-30)] * 2)


def test_gradients_reach_the_samples() -> None:
    raw = directions(12, 4).view(6, 2, 4).add(torch.eye(4, dtype=float64)[0]).requires_grad_()
    for debiased in (True, False):
        assert torch.autograd.gradcheck(
            lambda x, d=debiased: vmf.fit(torch.nn.functional.normalize(x, dim=-1), debiased=d, refine=3),
            (raw,),
            rtol=1e-5,
        )


def around(count: int, num: int, dim: int, spread: float) -> Tensor:
    """Draws (count, num, dim) around one direction for each of num."""
    noise = torch.randn(count, num, dim, generator=seeded(1), dtype=torch.float64)
    return F.normalize(directions(num, dim) + spread * noise, dim=2)


def streamed(z: Tensor, **options: int) -> tuple[Tensor, Tensor]:
    stream = vmf.StreamedFit()
    for draw in z:
        stream.add(draw)
    assert stream.count == len(z)
    return stream.fit(**options)


@settings(max_examples=25)
@given(
    count=st.integers(2, 30),
    num=st.integers(0, 4),
    dim=st.integers(2, 9),
    spread=st.sampled_from([1e-6, 1e-3, 0.3, 10.0]),
    debiased=st.booleans(),
    refine=st.integers(0, 3),
)
def test_as_the_fit_to_all_samples(
    count: int, num: int, dim: int, spread: float, debiased: bool, refine: int
) -> None:
    z = around(count, num, dim, spread)
    mean, kappa = streamed(z, debiased=debiased, refine=refine)
    expected = vmf.fit(z, debiased=debiased, refine=refine)
    torch.testing.assert_close(mean, expected[0], rtol=0, atol=1e-9)
    torch.testing.assert_close(kappa, expected[1], rtol=1e-7, atol=1e-7)


def test_float32_keeps_the_digits_of_samples_that_hardly_differ() -> None:
    z = around(50, 4, 8, 3e-4)
    mean, kappa = streamed(z.float())
    assert mean.dtype == kappa.dtype == torch.float32
    # The samples themselves are rounded at 6e-8 of a spread of 3e-4; 1 - R^2 in float32 would be off by everything.
    torch.testing.assert_close(kappa.double(), vmf.fit(z)[1], rtol=2e-3, atol=0)


def test_identical_opposite_and_half_precision_samples() -> None:
    z = around(1, 2, 4, 0.1).float()
    _, kappa = streamed(z.expand(3, -1, -1))
    assert bool(kappa.isfinite().all())
    torch.testing.assert_close(kappa, vmf.fit(z.expand(3, -1, -1))[1])
    mean, kappa = streamed(torch.cat([z, -z]))
    assert kappa.tolist() == [0.0, 0.0]
    assert mean.tolist() == [[1.0, 0.0, 0.0, 0.0]] * 2
    assert streamed(around(3, 2, 4, 0.1).bfloat16())[1].dtype == torch.float32


def test_several_draws_at_once_are_the_same() -> None:
    z = around(13, 3, 5, 0.2)
    stream = vmf.StreamedFit()
    for some in (z[:4], z[4], z[5:]):
        stream.add(some)
    for mine, expected in zip(stream.fit(), vmf.fit(z), strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-10, atol=1e-12)
