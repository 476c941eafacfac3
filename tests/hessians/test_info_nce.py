"""InfoNCE and its generalised Gauss-Newton matrix, against autograd and loops."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from hessians import InfoNCELoss, Pairs, last_layer_ggn_diagonal
from hessians.layer_ggn import LayerBatch, LayerGGN
from hessians.loss_summary import summarise
from hessians.output_blocks import output_blocks
from hessians.output_hessian import DenseHessian
from laplacian_metric.core.info_nce import info_nce


def _embeddings(number: int, dim: int, seed: int = 0) -> Tensor:
    return torch.randn(number, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _by_autograd(u: Tensor, ids: Tensor, temperature: float, keys_fixed: bool) -> Tensor:
    """sum_i w_i J_i^T (diag(p_i) - p_i p_i^T) J_i with the Jacobians of the logits by autograd, (N Z, N Z)."""
    number, dim = u.shape
    own = torch.eye(number, dtype=torch.bool)
    positive = (ids[:, None] == ids) & ~own

    def logits(v: Tensor) -> Tensor:
        z = F.normalize(v)
        return z @ (F.normalize(u) if keys_fixed else z).T / temperature

    jacobian = torch.autograd.functional.jacobian(logits, u).reshape(number, number, number * dim)
    p = logits(u).masked_fill(own, -torch.inf).softmax(1)
    matrix = torch.zeros(number * dim, number * dim, dtype=u.dtype)
    for i in range(number):
        covariance = torch.diag(p[i]) - torch.outer(p[i], p[i])
        matrix += float(positive[i].sum()) / float(positive.sum()) * jacobian[i].T @ covariance @ jacobian[i]
    return matrix


IDS = (torch.arange(4).repeat(2), torch.tensor([0, 0, 0, 1, 1, 2, 3]), torch.tensor([0, 0]))


@pytest.mark.parametrize("ids", IDS, ids=["two views", "uneven", "two images"])
@pytest.mark.parametrize("approximation", ["fixed", "full", "clipped"])
def test_matrix_is_that_of_autograd_and_has_no_negative_eigenvalue(ids: Tensor, approximation: str) -> None:
    u, pairs, loss = _embeddings(len(ids), 5), Pairs.from_labels(ids), InfoNCELoss(0.3)
    expected = _by_autograd(u, ids, 0.3, keys_fixed=approximation == "fixed")
    hessian = loss.output_hessian(u, pairs, approximation)
    matrix = hessian.dense().reshape(len(expected), -1)
    assert float((matrix - expected).abs().max()) <= 1e-13
    assert float(torch.linalg.eigvalsh(matrix).min()) >= -1e-12
    hessian.check_positive()
    unit = torch.eye(len(expected), dtype=u.dtype).view(-1, len(ids), 5)
    root = hessian.root(unit).flatten(1)
    torch.testing.assert_close(root.T @ root, expected, atol=1e-12, rtol=0)
    assert hessian.positive_part() is hessian


@settings(max_examples=12, deadline=None)
@given(images=st.integers(2, 5), dim=st.integers(2, 6), views=st.integers(2, 3), seed=st.integers(0, 99))
def test_contractions_are_those_of_the_dense_matrix(images: int, dim: int, views: int, seed: int) -> None:
    ids = torch.arange(images).repeat(views)
    u, pairs, loss = _embeddings(len(ids), dim, seed), Pairs.from_labels(ids), InfoNCELoss(0.5)
    inner = _embeddings(len(ids), len(ids), seed + 1)
    inner, output = inner + inner.T, _embeddings(dim, dim, seed + 2)
    output = output + output.T
    for approximation in ("fixed", "full"):
        hessian = loss.output_hessian(u, pairs, approximation)
        dense = output_blocks(DenseHessian(hessian.dense()))
        blocks = output_blocks(hessian, coupled=True)
        torch.testing.assert_close(
            blocks.sum_over_images(inner), dense.sum_over_images(inner), atol=1e-11, rtol=0
        )
        torch.testing.assert_close(
            blocks.inner_products(output), dense.inner_products(output), atol=1e-11, rtol=0
        )
    fixed = loss.output_hessian(u, pairs, "fixed")
    torch.testing.assert_close(
        fixed.diagonal_per_dimension(), fixed.matrix.diagonal(dim1=1, dim2=2), atol=1e-12, rtol=0
    )


@pytest.mark.parametrize("approximation", ["fixed", "full"])
def test_pull_back_to_the_last_layer(approximation: str) -> None:
    ids = torch.arange(6).repeat(2)
    x, pairs, loss = _embeddings(12, 6), Pairs.from_labels(ids), InfoNCELoss(0.2)
    layer = torch.nn.Linear(6, 4).double()
    theta = torch.cat([layer.weight, layer.bias[:, None]], dim=1).detach()
    extended = torch.cat([x, torch.ones(12, 1, dtype=x.dtype)], dim=1)
    u = (extended @ theta.T).detach()
    expected = _by_autograd(u, ids, 0.2, keys_fixed=approximation == "fixed").view(12, 4, 12, 4)
    full = torch.einsum("nkml,nh,mg->khlg", expected, extended, extended).reshape(28, 28)
    w, b = last_layer_ggn_diagonal(x, layer.weight, layer.bias, pairs, loss, approximation)
    diagonal = torch.cat([w, b[:, None]], dim=1).flatten()
    torch.testing.assert_close(diagonal, full.diagonal(), atol=1e-12, rtol=0)
    operator = LayerGGN([LayerBatch(x, lambda: loss.output_hessian(u, pairs, approximation))], 4, True)
    torch.testing.assert_close(operator.dense(), full, atol=1e-12, rtol=0)
    factors = operator.kronecker(tolerance=1e-12, max_iterations=200)
    nearest = torch.linalg.norm(torch.kron(factors.output, factors.input) - full)
    best = torch.linalg.svdvals(full.view(4, 7, 4, 7).permute(0, 2, 1, 3).reshape(16, 49))[1:].norm()
    torch.testing.assert_close(nearest, best, atol=1e-8, rtol=1e-6)


def test_columns_give_the_diagonal_of_any_network() -> None:
    ids = torch.arange(3).repeat(2)
    u, pairs = _embeddings(6, 3), Pairs.from_labels(ids)
    jacobian = _embeddings(6 * 3, 4, 5).view(6, 3, 4)
    for approximation in ("fixed", "full"):
        hessian = InfoNCELoss(0.4).output_hessian(u, pairs, approximation)
        matrix = hessian.dense().reshape(18, 18)
        expected = (jacobian.reshape(18, 4).T @ matrix @ jacobian.reshape(18, 4)).diagonal()
        total = torch.zeros(4, dtype=u.dtype)
        for group in hessian.columns():
            rows = torch.einsum("cnz,nzp->cnp", group.cotangents, jacobian)
            if group.nodes is not None:
                total += (group.nodes[:, :, None] * rows.square()).sum((0, 1))
            if group.joint is not None:
                total += (group.joint[:, None] * rows.sum(1).square()).sum(0)
        torch.testing.assert_close(total, expected, atol=1e-12, rtol=0)


def test_value_is_info_nce_and_batches_sum_up_to_the_data_set() -> None:
    ids = torch.arange(5).repeat(2)
    u, loss = _embeddings(10, 4), InfoNCELoss(0.1)
    z = F.normalize(u)
    expected = info_nce(z @ z.T / 0.1, ids, negatives="all")
    value = loss(u, Pairs.from_labels(ids))
    assert abs(float(value - expected)) < 1e-12
    summary = summarise(loss, u, Pairs.from_labels(ids))
    (gradient,) = torch.autograd.grad(loss(leaf := u.clone().requires_grad_(), Pairs.from_labels(ids)), leaf)
    assert summary.value == pytest.approx(float(value))
    assert torch.equal(summary.positive_gradient, gradient)
    # Two batches of the same views, with the counts of both, are the mean of their losses.
    twice = Pairs.from_labels(ids, population=(10, 90))
    assert float(2 * loss(u, twice)) == pytest.approx(float(value))
    first, second = (
        loss.output_hessian(u, pairs, "fixed").dense() for pairs in (twice, Pairs.from_labels(ids))
    )
    torch.testing.assert_close(2 * first, second)


def test_float32_keeps_its_digits_where_the_softmax_is_nearly_certain() -> None:
    ids = torch.arange(8).repeat(2)
    u = torch.eye(8, dtype=torch.float64).repeat(2, 1) + 1e-2 * _embeddings(16, 8)
    pairs, loss = Pairs.from_labels(ids), InfoNCELoss(0.07)
    exact = loss.output_hessian(u, pairs, "fixed").diagonal_per_dimension()  # type: ignore[attr-defined]
    rounded = loss.output_hessian(u.float(), pairs, "fixed").diagonal_per_dimension()  # type: ignore[attr-defined]
    torch.testing.assert_close(rounded.double(), exact, rtol=1e-3, atol=1e-9)
    assert bool((rounded >= 0).all())


def test_without_a_positive_pair_there_is_nothing() -> None:
    u, none, loss = torch.eye(4), Pairs.from_labels([0, 1, 2, 3]), InfoNCELoss()
    assert float(loss(u, none)) == 0
    assert float(loss.output_hessian(u, none).dense().abs().max()) == 0
