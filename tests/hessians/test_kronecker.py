"""Kronecker factors against the singular value decomposition of the rearranged dense GGN."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given

from hessians import ContrastiveLoss, last_layer_ggn_diagonal, last_layer_kronecker
from hessians.output_hessian import IndefiniteHessianError
from tests.hessians.reference import Problem, dense_ggn, problems


@pytest.mark.parametrize("project", [False, True])
@pytest.mark.parametrize("approximation", ["full", "fixed", "positive", "clipped"])
@given(problem=problems(max_images=6, max_dim=3))
def test_nearest_in_frobenius_norm(approximation: str, project: bool, problem: Problem) -> None:
    arguments = (problem.features, problem.weight, problem.bias, problem.pairs, problem.loss, approximation)
    try:
        factors = last_layer_kronecker(*arguments, project=project)
    except IndefiniteHessianError:
        assert not project
        with pytest.raises(IndefiniteHessianError):
            problem.loss.output_hessian(problem.u, problem.pairs, approximation).check_positive()
        return
    ggn = dense_ggn(problem, approximation, project=project)
    dim, width = ggn.shape[:2]
    singular = torch.linalg.svdvals(ggn.permute(0, 2, 1, 3).reshape(dim * dim, width * width))
    size = problem.scale().sum()
    product = torch.einsum("kl,hg->khlg", factors.output, factors.input)
    best = singular[1:].square().sum().sqrt()
    assert (ggn - product).norm() <= best + 1e-5 * singular[0] + 1e-10 * size
    assert factors.output.trace() == pytest.approx(dim)
    if factors.exact:
        assert (ggn - product).norm() <= 1e-10 * size
    if ggn.norm() < 1e-10 * size:  # nothing but rounding
        return
    for factor in (factors.output, factors.input):
        assert (factor - factor.T).abs().max() <= 1e-12 * factor.abs().max()
        assert torch.linalg.eigvalsh(factor).min() >= -1e-9 * factor.abs().max()


def test_exact_without_a_norm() -> None:
    problem = Problem(
        *(torch.randn(shape, dtype=torch.float64) for shape in ((9, 4), (3, 4), (3,))),
        torch.arange(9) % 3,
        ContrastiveLoss(2.0, "euclidean", normalize=False),
    )
    factors = last_layer_kronecker(
        problem.features, problem.weight, None, problem.pairs, problem.loss, "positive"
    )
    w, b = last_layer_ggn_diagonal(
        problem.features, problem.weight, None, problem.pairs, problem.loss, "positive"
    )
    assert factors.exact
    assert b is None
    torch.testing.assert_close(factors.input.diagonal().expand(3, -1), w)
