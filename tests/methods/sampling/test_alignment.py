"""Orthogonal Procrustes: against what was turned, against scipy, and against small turns around the solution."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import orthogonal_procrustes
from torch import Tensor

from laplacian_metric.methods.sampling.ensemble import nearest_orthogonal


def procrustes(source: Tensor, target: Tensor, *, reflections: bool = True) -> Tensor:
    """The orthogonal matrix that brings rows closest to others."""
    return nearest_orthogonal(source.T @ target, reflections=reflections)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def orthogonal(dim: int, seed: int = 0, sign: int = 1) -> Tensor:
    """With this sign of its determinant."""
    Q = torch.linalg.qr(normal(dim, dim, seed=seed)).Q
    if float(torch.linalg.det(Q)) * sign < 0:
        Q[:, 0] *= -1
    return Q


@settings(max_examples=15, deadline=None)
@given(dim=st.integers(1, 6), extra=st.integers(0, 20), seed=st.integers(0, 99))
def test_it_is_scipy_s(dim: int, extra: int, seed: int) -> None:
    source, target = normal(dim + extra, dim, seed=seed), normal(dim + extra, dim, seed=seed + 1)
    expected = torch.from_numpy(orthogonal_procrustes(source.numpy(), target.numpy())[0])
    torch.testing.assert_close(procrustes(source, target), expected)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("dim", [2, 3, 8])
def test_what_was_turned_is_turned_back(dim: int, sign: int) -> None:
    source, turn = normal(40, dim), orthogonal(dim, seed=4, sign=sign)
    torch.testing.assert_close(procrustes(source, source @ turn), turn)


def test_without_reflections_the_determinant_is_one_and_no_small_turn_is_better() -> None:
    source = normal(30, 3)
    target = source @ orthogonal(3, seed=1, sign=-1)
    R = procrustes(source, target, reflections=False)
    torch.testing.assert_close(R.T @ R, torch.eye(3, dtype=torch.float64))
    assert float(torch.linalg.det(R)) == pytest.approx(1)
    best = float((source @ R - target).square().sum())
    assert best > float((source @ procrustes(source, target) - target).square().sum()) + 1e-3
    for seed in range(50):
        A = normal(3, 3, seed=seed)
        for size in (1e-3, 1.0):
            other = R @ torch.linalg.matrix_exp(size * (A - A.T))
            assert float((source @ other - target).square().sum()) >= best - 1e-9


def test_one_image_and_too_few_of_them_still_give_an_orthogonal_matrix() -> None:
    source, target = normal(1, 4), normal(1, 4, seed=1)
    R = procrustes(source, target)
    torch.testing.assert_close(R @ R.T, torch.eye(4, dtype=torch.float64))
    torch.testing.assert_close((source @ R) / source.norm(), target / target.norm())
