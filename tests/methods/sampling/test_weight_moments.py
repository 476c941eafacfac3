"""Moments of weights: against a plain loop, and the draws against the covariance in closed form."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from laplacian_metric.methods.sampling.weight_moments import WeightMoments


def path(count: int, size: int, seed: int = 0) -> Tensor:
    """A random walk of weights, (count, size)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, size, generator=generator, dtype=torch.float64).cumsum(0)


def moments_of(snapshots: Tensor, rank: int) -> WeightMoments:
    moments = WeightMoments(torch.zeros_like(snapshots[0]), rank)
    for snapshot in snapshots:
        moments.add(snapshot)
    return moments


@settings(max_examples=20, deadline=None)
@given(
    count=st.integers(1, 8),
    size=st.integers(1, 5),
    rank=st.sampled_from([0, 2, 3, 20]),
    seed=st.integers(0, 9),
)
def test_they_are_those_of_a_plain_loop(count: int, size: int, rank: int, seed: int) -> None:
    snapshots = path(count, size, seed)
    moments = moments_of(snapshots, rank)
    torch.testing.assert_close(moments.mean, snapshots.mean(0))
    torch.testing.assert_close(moments.variance, snapshots.square().mean(0) - snapshots.mean(0).square())
    deviations = [snapshots[i] - snapshots[: i + 1].mean(0) for i in range(count)]
    expected = torch.stack(deviations)[max(0, count - rank) :] if rank else snapshots[:0]
    torch.testing.assert_close(moments.deviations, expected)


def test_weights_that_hardly_move_keep_their_digits() -> None:
    snapshots = 1000 + 1e-3 * path(6, 3)
    variance = moments_of(snapshots.float(), 2).variance
    torch.testing.assert_close(variance, snapshots.float().double().var(0, correction=0), rtol=1e-9, atol=0)


@pytest.mark.statistical
@pytest.mark.parametrize(("rank", "scale"), [(0, 1.0), (3, 1.0), (3, 2.0), (20, 0.5)])
def test_draws_have_the_covariance_in_closed_form(rank: int, scale: float) -> None:
    moments = moments_of(path(6, 4), rank)
    diagonal = torch.diag(moments.variance)
    D = moments.deviations.T
    expected = diagonal if rank == 0 else (diagonal + D @ D.T / (D.shape[1] - 1)) / 2
    generator, count = torch.Generator().manual_seed(0), 8000
    draws = torch.stack([moments.draw(generator, scale) for _ in range(count)])
    # Each entry has the standard error sqrt((C_ij^2 + C_ii C_jj)/n); 5 of them are allowed.
    expected = scale * expected
    variances = expected.diagonal()
    allowed = 5 * ((expected.square() + variances[:, None] * variances) / count).sqrt()
    assert bool(((torch.cov(draws.T) - expected).abs() <= allowed).all())
    assert bool(((draws.mean(0) - moments.mean).abs() <= 5 * (variances / count).sqrt()).all())


def test_one_snapshot_and_snapshots_that_are_the_same_have_no_spread() -> None:
    snapshot = path(1, 5)
    for snapshots in (snapshot, snapshot.expand(4, 5)):
        moments = moments_of(snapshots, 2)
        drawn = moments.draw(torch.Generator().manual_seed(0))
        assert torch.equal(drawn, snapshot[0])


def test_scale_zero_is_the_mean() -> None:
    moments = moments_of(path(5, 3), 2)
    assert torch.equal(moments.draw(torch.Generator(), 0.0), moments.mean)


def test_draws_are_reproducible() -> None:
    moments = moments_of(path(5, 3), 2)
    one, other = (moments.draw(torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(one, other)


def test_state_goes_on_exactly() -> None:
    snapshots = path(7, 3)
    first = moments_of(snapshots[:4], 3)
    again = WeightMoments(torch.zeros(3, dtype=torch.float64), 3)
    again.restore(first.state())
    for snapshot in snapshots[4:]:
        again.add(snapshot)
    through = moments_of(snapshots, 3).state()
    assert all(torch.equal(value, through[name]) for name, value in again.state().items())


def test_an_empty_state_can_be_kept() -> None:
    state = WeightMoments(torch.zeros(3), 2).state()
    again = WeightMoments(torch.ones(3), 2)
    again.restore(state)
    assert (again.count, again.deviations.shape) == (0, (0, 3))


def test_what_does_not_fit_is_refused() -> None:
    moments = WeightMoments(torch.zeros(3), 2)
    with pytest.raises(ValueError, match="the moments of 4 weights, 3 are trained here"):
        moments.restore(WeightMoments(torch.zeros(4), 2).state())
    with pytest.raises(FloatingPointError, match="not finite"):
        moments.add(torch.tensor([0.0, torch.nan, 0.0]))
