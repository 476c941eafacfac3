"""The mutual likelihood score against the density of the normal distribution, plain loops and autograd."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hessians import Pairs
from laplacian_metric.methods.gaussian import mutual_likelihood
from laplacian_metric.methods.gaussian.mutual_likelihood import (
    mutual_likelihood_loss,
    mutual_likelihood_score,
)


def gaussians(num: int, dim: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    mean = torch.randn(num, dim, generator=g, dtype=torch.float64)
    return mean, torch.rand(num, dim, generator=g, dtype=torch.float64) + 0.1


def density_of_no_difference(mean: Tensor, variance: Tensor, other: Tensor, other_variance: Tensor) -> Tensor:
    """log p(z_i - z_j = 0), by torch's own normal distribution."""
    difference = torch.distributions.Normal(mean - other, (variance + other_variance).sqrt())
    return difference.log_prob(torch.zeros_like(mean)).sum()


@settings(max_examples=10, deadline=None)
@given(q=st.integers(0, 4), g=st.integers(0, 5), dim=st.integers(1, 4))
def test_the_score_is_the_density_of_no_difference(q: int, g: int, dim: int) -> None:
    mean, variance = gaussians(q, dim)
    other, other_variance = gaussians(g, dim, seed=1)
    scores = mutual_likelihood_score(mean, variance, other, other_variance)
    assert scores.shape == (q, g)
    for i, j in itertools.product(range(q), range(g)):
        expected = density_of_no_difference(mean[i], variance[i], other[j], other_variance[j])
        torch.testing.assert_close(scores[i, j], expected)


@pytest.mark.parametrize("elements", [1, 40])
def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch, elements: int) -> None:
    queries, gallery = gaussians(5, 3), gaussians(7, 3, seed=1)
    whole = mutual_likelihood_score(*queries, *gallery)
    labels = [0, 0, 1, 0, 1]
    mean, variance = queries[0], queries[1].requires_grad_()
    loss = mutual_likelihood_loss(mean, variance, Pairs.from_labels(labels))
    (gradient,) = torch.autograd.grad(loss, variance)
    monkeypatch.setattr(mutual_likelihood, "ELEMENTS_AT_ONCE", elements)
    torch.testing.assert_close(mutual_likelihood_score(mean, variance.detach(), *gallery), whole)
    blocked = mutual_likelihood_loss(mean, variance, Pairs.from_labels(labels))
    torch.testing.assert_close(blocked, loss)
    torch.testing.assert_close(torch.autograd.grad(blocked, variance)[0], gradient)


def test_the_loss_averages_over_positive_pairs_only() -> None:
    mean, variance = gaussians(5, 3)
    labels = [0, 1, 0, 1, 0]
    positives = [(i, j) for i, j in itertools.combinations(range(5), 2) if labels[i] == labels[j]]
    scores = [density_of_no_difference(mean[i], variance[i], mean[j], variance[j]) for i, j in positives]
    loss = mutual_likelihood_loss(mean, variance, Pairs.from_labels(labels))
    torch.testing.assert_close(loss, -sum(scores) / torch.tensor(len(positives)))


def test_listed_pairs_count_as_often_as_they_are_listed() -> None:
    mean, variance = gaussians(3, 2)
    index = [torch.tensor(i) for i in ([0, 0, 1], [1, 1, 2], [2, 2, 0])]
    twice, once = (
        density_of_no_difference(mean[i], variance[i], mean[j], variance[j]) for i, j in ((0, 1), (1, 2))
    )
    loss = mutual_likelihood_loss(mean, variance, Pairs.from_indices(index, 3))
    torch.testing.assert_close(loss, -(2 * twice + once) / 3)


def test_the_loss_is_least_where_the_variances_are_those_of_the_differences() -> None:
    # Two images at distance d in one dimension: s_i + s_j = d^2 is the most likely.
    mean = torch.tensor([[0.0], [0.6]], dtype=torch.float64)
    pairs = Pairs.from_labels([0, 0])
    best = torch.full((2, 1), 0.18, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(mutual_likelihood_loss(mean, best, pairs), best)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient))
    least = mutual_likelihood_loss(mean, best.detach(), pairs)
    for factor in (0.9, 1.1):
        assert mutual_likelihood_loss(mean, factor * best.detach(), pairs) > least


def test_gradients() -> None:
    mean, variance = (tensor.requires_grad_() for tensor in gaussians(4, 2))
    pairs = Pairs.from_labels([0, 0, 1, 1])
    assert torch.autograd.gradcheck(lambda m, s: mutual_likelihood_loss(m, s, pairs), (mean, variance))


@pytest.mark.parametrize("num", [0, 1, 3])
def test_no_positive_pair_is_no_loss_with_a_gradient(num: int) -> None:
    mean, variance = gaussians(num, 2)
    variance.requires_grad_()
    value = mutual_likelihood_loss(mean, variance, Pairs.from_labels(torch.arange(num)))
    value.backward()
    assert value == 0
    torch.testing.assert_close(variance.grad, torch.zeros_like(variance))
