"""The numpy forms against those of `vmf`, which are checked against autograd and tables."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from laplacian_metric import vmf
from laplacian_metric.retrieval.likelihood import (
    log_expected_likelihood,
    mean_resultant_length,
)

KAPPAS = st.one_of(st.just(0.0), st.floats(1e-6, 1e8))


def pair(dim: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    vectors = torch.randn(2, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    one, other = torch.nn.functional.normalize(vectors, dim=1)
    return one, other


@settings(max_examples=60, deadline=None)
@given(dim=st.sampled_from([2, 3, 8, 64, 512]), k=KAPPAS, other=KAPPAS, seed=st.integers(0, 99))
def test_log_expected_likelihood_is_that_of_vmf(dim: int, k: float, other: float, seed: int) -> None:
    one, two = pair(dim, seed)
    kp, kq = (torch.tensor(value, dtype=torch.float64) for value in (k, other))
    nothing = torch.zeros((), dtype=torch.float64)
    expected = vmf.log_expected_likelihood(one, kp, two, kq) - vmf.log_expected_likelihood(
        one, nothing, two, nothing
    )
    computed = log_expected_likelihood(float(one @ two), k, other, dim)
    assert computed == pytest.approx(float(expected), rel=1e-9, abs=1e-8)


@pytest.mark.parametrize("dim", [2, 3, 128])
def test_lengths_are_those_of_vmf(dim: int) -> None:
    kappa = np.array([0.0, 1e-3, 1.0, 50.0, 1e6])
    expected = vmf.mean_resultant_length(torch.from_numpy(kappa), dim).numpy()
    np.testing.assert_allclose(mean_resultant_length(kappa, dim), expected, rtol=1e-13)
    assert mean_resultant_length(np.inf, dim) == 1


def test_it_grows_with_similarity_and_vanishes_without_knowledge() -> None:
    values = log_expected_likelihood(np.linspace(-1, 1, 50), 30.0, 7.0, 16)
    assert (np.diff(values) > 0).all()
    assert log_expected_likelihood([-1.0, 0.0, 1.0], 0.0, 12.0, 16) == pytest.approx([0, 0, 0], abs=1e-12)


def test_points_are_the_same_or_not() -> None:
    same, different = log_expected_likelihood([1.0, 0.5], np.inf, np.inf, 8)
    assert np.isfinite(same)
    assert same > 0
    assert different < -1e90


def test_shapes_broadcast() -> None:
    computed = log_expected_likelihood(np.zeros((4, 3)), np.ones((4, 1)), np.ones(3), 8)
    assert computed.shape == (4, 3)
    assert log_expected_likelihood(np.zeros((0, 3)), np.ones((0, 1)), np.ones(3), 8).shape == (0, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, -1.0, 1.0, 8), "kappa has the value -1: concentrations are from 0"),
        ((0.0, 1.0, np.nan, 8), "other_kappa has the value nan"),
        ((1.5, 1.0, 1.0, 8), "similarity has the value 1.5: cosines are"),
        ((np.nan, 1.0, 1.0, 8), "similarity has the value nan"),
        ((0.0, 1.0, 1.0, 1), "dim is 1, at least 2"),
    ],
)
def test_bad_input_is_named(arguments: tuple[float, float, float, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        log_expected_likelihood(*arguments)
