"""Fits of samples against sums in float64, and what happens where samples say little."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

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
