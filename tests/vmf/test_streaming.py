"""The streamed fit beside the fit to the stacked samples."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from laplacian_metric import vmf


def samples(count: int, num: int, dim: int, spread: float, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    centre = F.normalize(torch.randn(num, dim, generator=generator, dtype=torch.float64), dim=1)
    noise = torch.randn(count, num, dim, generator=generator, dtype=torch.float64)
    return F.normalize(centre + spread * noise, dim=2)


def streamed(z: Tensor, **options: int) -> tuple[Tensor, Tensor]:
    stream = vmf.StreamedFit()
    for draw in z:
        stream.add(draw)
    assert stream.count == len(z)
    return stream.fit(**options)


@settings(max_examples=25)
@given(
    count=st.integers(2, 30),
    num=st.integers(1, 4),
    dim=st.integers(2, 9),
    spread=st.sampled_from([1e-6, 1e-3, 0.3, 10.0]),
    debiased=st.booleans(),
    refine=st.integers(0, 3),
)
def test_as_the_fit_to_all_samples(
    count: int, num: int, dim: int, spread: float, debiased: bool, refine: int
) -> None:
    z = samples(count, num, dim, spread)
    mean, kappa = streamed(z, debiased=debiased, refine=refine)
    expected = vmf.fit(z, debiased=debiased, refine=refine)
    torch.testing.assert_close(mean, expected[0], rtol=0, atol=1e-9)
    torch.testing.assert_close(kappa, expected[1], rtol=1e-7, atol=1e-7)


def test_float32_keeps_the_digits_of_samples_that_hardly_differ() -> None:
    z = samples(50, 4, 8, 3e-4)
    mean, kappa = streamed(z.float())
    assert mean.dtype == kappa.dtype == torch.float32
    # The samples themselves are rounded at 6e-8 of a spread of 3e-4; 1 - R^2 in float32 would be off by everything.
    torch.testing.assert_close(kappa.double(), vmf.fit(z)[1], rtol=2e-3, atol=0)


def test_identical_opposite_and_half_precision_samples() -> None:
    z = samples(1, 2, 4, 0.1).float()
    _, kappa = streamed(z.expand(3, -1, -1))
    assert bool(kappa.isfinite().all())
    torch.testing.assert_close(kappa, vmf.fit(z.expand(3, -1, -1))[1])
    mean, kappa = streamed(torch.cat([z, -z]))
    assert kappa.tolist() == [0.0, 0.0]
    assert mean.tolist() == [[1.0, 0.0, 0.0, 0.0]] * 2
    assert streamed(samples(3, 2, 4, 0.1).bfloat16())[1].dtype == torch.float32


def test_no_images() -> None:
    mean, kappa = streamed(torch.zeros(3, 0, 4))
    assert mean.shape == (0, 4)
    assert kappa.shape == (0,)


def test_several_draws_at_once_are_the_same() -> None:
    z = samples(13, 3, 5, 0.2)
    stream = vmf.StreamedFit()
    for some in (z[:4], z[4], z[5:]):
        stream.add(some)
    for mine, expected in zip(stream.fit(), vmf.fit(z), strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-10, atol=1e-12)


def test_refusals() -> None:
    stream = vmf.StreamedFit()
    for draws in (0, 1):
        with pytest.raises(ValueError, match=f"{draws} draws"):
            stream.fit()
        stream.add(torch.eye(3))
    for wrong in (torch.eye(3)[:2], torch.full((3, 3), torch.nan), torch.ones(3)):
        with pytest.raises(ValueError, match="samples"):
            stream.add(wrong)
    assert stream.count == 2
