"""The forms of the output Hessian: dense, product, columns, root, positive part, all of one and the same matrix."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from torch import Tensor

from hessians import ContrastiveLoss, Pairs
from hessians.output_hessian import IndefiniteHessianError, OutputHessian, StructuredHessian
from tests.hessians.reference import Problem, output_hessian, problems

APPROXIMATIONS = ("full", "fixed", "positive", "clipped")


def from_columns(hessian: OutputHessian) -> Tensor:
    """The matrix that the columns stand for: with J the identity, j_cn has one entry for each output of image n."""
    num, dim = hessian.num_images, hessian.dim
    total = torch.zeros(num, dim, num, dim, dtype=torch.float64)
    for group in hessian.columns():
        for c, cotangent in enumerate(group.cotangents):
            outer = torch.einsum("nk,ml->nkml", cotangent, cotangent)
            coupling = torch.zeros(num, num, dtype=torch.float64)
            if group.nodes is not None:
                coupling += torch.diag(group.nodes[c])
            if group.edges is not None:
                coupling += group.edges
            if group.joint is not None:
                coupling += group.joint[c]
            total += coupling[:, None, :, None] * outer
    return total


def size_of(matrix: Tensor, problem: Problem) -> float:
    """What rounding errors are measured by."""
    norm = problem.u.norm(dim=1).min() if problem.loss.normalize else torch.ones(())
    return float(matrix.abs().max()) + float(norm) ** -2


def rounding_of(problem: Problem) -> float:
    """1e-10, and more where points nearly coincide: derivatives of a distance grow as its inverse, and their errors."""
    if problem.loss.power == 2:
        return 1e-10
    u = problem.u.detach()
    distances = torch.pdist(torch.nn.functional.normalize(u, dim=1) if problem.loss.normalize else u)
    return 1e-10 / min(1.0, float(distances[distances > 0].min())) if (distances > 0).any() else 1e-10


@pytest.mark.parametrize("approximation", APPROXIMATIONS)
@given(problem=problems(max_images=6))
def test_all_forms_agree_with_autograd(approximation: str, problem: Problem) -> None:
    expected = output_hessian(problem.u, *problem.counts(), problem.loss, approximation)
    size, rounding = size_of(expected, problem), rounding_of(problem)
    for pairs in (problem.pairs, problem.listed()):
        hessian = problem.loss.output_hessian(problem.u, pairs, approximation)
        vector = torch.randn(
            2, *problem.u.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
        )
        product = torch.einsum("nkml,sml->snk", expected, vector)
        assert (hessian.dense() - expected).abs().max() < rounding * size
        assert (from_columns(hessian) - expected).abs().max() < rounding * size
        assert (hessian.matmul(vector) - product).abs().max() < rounding * size
        assert (hessian.matmul(vector[0]) - product[0]).abs().max() < rounding * size


@pytest.mark.parametrize("approximation", APPROXIMATIONS)
@given(problem=problems(max_images=6))
def test_root_or_refusal(approximation: str, problem: Problem) -> None:
    """B B^T = M where M is positive semi-definite; an error that names a remedy where it is not."""
    hessian = problem.loss.output_hessian(problem.u, problem.pairs, approximation)
    dense = hessian.dense()
    shape = dense.shape[:2]
    square = dense.reshape(shape.numel(), shape.numel())
    identity = torch.eye(shape.numel(), dtype=torch.float64).view(-1, *shape)
    size = size_of(dense, problem)
    # For the Euclidean distance it is the graph Laplacian that is clipped, and that has to be semi-definite.
    dense_only = not isinstance(hessian, StructuredHessian) or hessian.radial is not None
    values = torch.linalg.eigvalsh(square if dense_only else hessian.laplacian())
    if len(values) and values.min() < -1e-9 * values.abs().max():
        assert approximation != "clipped"
        for refused in (hessian.check_positive, lambda: hessian.root(identity)):
            with pytest.raises(IndefiniteHessianError, match="clipped"):
                refused()
    elif not len(values) or values.min() > -1e-15 * values.abs().max():
        factor = hessian.root(identity).flatten(1)
        assert (factor.T @ factor - square).abs().max() < 1e-7 * size
        hessian.check_positive()


@pytest.mark.parametrize("approximation", APPROXIMATIONS)
@given(problem=problems(max_images=6))
def test_positive_part_has_no_negative_eigenvalue_and_is_nearest(
    approximation: str, problem: Problem
) -> None:
    hessian = problem.loss.output_hessian(problem.u, problem.pairs, approximation)
    positive = hessian.positive_part()
    positive.check_positive()
    before, after = (part.dense().reshape(problem.u.numel(), -1) for part in (hessian, positive))
    size = size_of(before, problem)
    assert torch.linalg.eigvalsh(after).min() > -1e-10 * size
    if problem.loss.distance == "arccos" or not problem.loss.normalize:
        values = torch.linalg.eigvalsh(before)
        assert (
            torch.linalg.eigvalsh(before - after) - values.clamp(max=0).sort()[0]
        ).abs().max() < 1e-9 * size
    again = positive.positive_part().dense().reshape(problem.u.numel(), -1)
    assert (again - after).abs().max() < 1e-9 * size


def test_clipped_without_a_norm_clips_the_laplacian() -> None:
    """Three images, one positive pair and two active negatives: the eigenvalues of L by hand."""
    u = torch.tensor([[0.0], [0.1], [0.2]], dtype=torch.float64)
    loss = ContrastiveLoss(1.0, "euclidean", normalize=False)
    pairs = Pairs.from_labels([0, 0, 1])
    # Y: 1 at (0, 1), -1/2 at (0, 2) and (1, 2). L has eigenvalues 0, 3/2 on (1, -1, 0) and -3/2 on (1, 1, -2).
    expected = 1.5 / 2 * torch.tensor([[1.0, -1, 0], [-1, 1, 0], [0, 0, 0]], dtype=torch.float64)
    clipped = loss.output_hessian(u, pairs, "clipped").dense()[:, 0, :, 0]
    torch.testing.assert_close(clipped, expected)


def test_dense_hessian_of_too_many_outputs_is_refused() -> None:
    u = torch.randn(100, 50)
    with pytest.raises(
        ValueError, match="5000 rows, at most 4096 are allowed: use batches of at most 81 images"
    ):
        ContrastiveLoss().output_hessian(u, Pairs.from_labels(torch.arange(100) // 2)).dense()
