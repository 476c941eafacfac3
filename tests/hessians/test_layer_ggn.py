"""The last layer's GGN as an operator over batches: against the dense matrix and its nearest Kronecker product."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given

from hessians import ContrastiveLoss, Pairs
from hessians.layer_ggn import LayerBatch, LayerGGN
from tests.hessians.reference import Problem, dense_ggn, problems

APPROXIMATIONS = ["full", "fixed", "positive", "clipped"]


def operator(problem: Problem, approximation: str, repeats: int = 1, memory: int = 1 << 20) -> LayerGGN:
    hessian = problem.loss.output_hessian(problem.u, problem.pairs, approximation)
    batch = LayerBatch(problem.features, lambda: hessian)
    return LayerGGN([batch] * repeats, problem.u.shape[1], problem.bias is not None, memory_budget=memory)


@pytest.mark.parametrize("approximation", APPROXIMATIONS)
@pytest.mark.parametrize("memory", [1, 1 << 20])
@given(problem=problems(max_images=6, max_dim=3))
def test_the_operator_is_the_dense_matrix(approximation: str, memory: int, problem: Problem) -> None:
    expected = dense_ggn(problem, approximation)
    ggn = operator(problem, approximation, repeats=2, memory=memory)
    size = expected.shape[0] * expected.shape[1]
    torch.testing.assert_close(
        ggn.dense(columns_at_once=3), 2 * expected.reshape(size, size), rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("approximation", APPROXIMATIONS)
@given(problem=problems(max_images=6, max_dim=3))
def test_kronecker_is_the_leading_singular_pair(approximation: str, problem: Problem) -> None:
    dense = dense_ggn(problem, approximation)
    outputs, inputs = dense.shape[:2]
    rearranged = dense.permute(0, 2, 1, 3).reshape(outputs**2, inputs**2)
    singular = torch.linalg.svdvals(rearranged)
    factors = operator(problem, approximation).kronecker(tolerance=1e-14, max_iterations=2000)
    actual = factors.output.flatten()[:, None] * factors.input.flatten()
    error = float((rearranged - actual).norm())
    # The input factor is the best one for this output factor, whatever the signs in G.
    torch.testing.assert_close(
        rearranged.square().sum() - actual.square().sum(),
        torch.tensor(error).double() ** 2,
        atol=1e-8,
        rtol=1e-6,
    )
    assert float(factors.output.trace()) == pytest.approx(outputs)
    if float(torch.linalg.eigvalsh(dense.reshape(outputs * inputs, -1))[0]) >= -1e-12 * float(singular[0]):
        # Two nearly equal singular values make the iteration slow, never the error large.
        best = float(singular[1:].square().sum().sqrt())
        assert error <= best + 1e-4 * float(singular[0]) + 1e-9


def test_the_sum_over_batches_is_reduced_over_processes() -> None:
    features, labels = torch.randn(6, 4, dtype=torch.float64), torch.tensor([0, 0, 1, 1, 2, 2])
    weight, loss = torch.randn(2, 4, dtype=torch.float64), ContrastiveLoss()
    hessian = loss.output_hessian(features @ weight.T, Pairs.from_labels(labels), "fixed")
    batch = LayerBatch(features, lambda: hessian)
    two = LayerGGN([batch, batch], 2, bias=False)
    reduced = LayerGGN([batch], 2, bias=False, reduce=lambda tensor: tensor * 2)
    torch.testing.assert_close(two.dense(), reduced.dense())
    for one, other in zip(two.kronecker()[:2], reduced.kronecker()[:2], strict=True):
        torch.testing.assert_close(one, other)


def test_a_curvature_of_zero() -> None:
    features = torch.randn(4, 3, dtype=torch.float64)
    with pytest.warns(UserWarning, match="no positive pair"):
        hessian = ContrastiveLoss().output_hessian(features, Pairs.from_labels(torch.arange(4)), "positive")
    factors = LayerGGN([LayerBatch(features, lambda: hessian)], 3, bias=True).kronecker()
    assert float(factors.input.abs().max()) == 0
    assert bool(torch.isfinite(factors.output).all())
