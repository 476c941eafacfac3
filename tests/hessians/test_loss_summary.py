"""Value and gradients in one sweep, against automatic differentiation of the loss."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given

from hessians import ContrastiveLoss, Pairs
from hessians.loss_summary import summarise, trained_gradient
from hessians.pair_loss import PairBlocks, PairLoss
from tests.hessians.reference import Problem, problems


@pytest.mark.parametrize("negatives", ["all", "active"])
@given(problem=problems(max_images=7, max_dim=3))
def test_value_and_gradient_are_those_of_the_loss(negatives: str, problem: Problem) -> None:
    loss = replace(problem.loss, negatives=negatives)
    summary = summarise(loss, problem.u, problem.pairs)
    value = replace(problem.loss, negatives="all")(problem.u, problem.pairs)
    assert summary.value == pytest.approx(float(value), abs=1e-9)
    leaf = problem.u.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(leaf, problem.pairs), leaf)
    gradient = trained_gradient(loss, summary, problem.pairs.num_negatives)
    torch.testing.assert_close(gradient, expected, rtol=1e-8, atol=1e-8)


def test_batches_add_up_with_the_counts_of_all() -> None:
    generator = torch.Generator().manual_seed(0)
    u = torch.randn(12, 3, generator=generator, dtype=torch.float64)
    labels = torch.arange(12) % 3
    halves = [Pairs.from_labels(labels[rows]) for rows in (slice(0, 6), slice(6, 12))]
    counts = tuple(
        sum(values) for values in zip(*((p.num_positives, p.num_negatives) for p in halves), strict=True)
    )
    loss = ContrastiveLoss(margin=1.2)
    parts = [
        summarise(loss, u[rows], pairs.with_population(counts))
        for rows, pairs in zip((slice(0, 6), slice(6, 12)), halves, strict=True)
    ]
    listed = [torch.triu_indices(6, 6, 1) + 6 * part for part in (0, 1)]
    first, second = torch.cat(listed, dim=1)
    positive = labels[first] == labels[second]
    values = loss.pair_values(u[first], u[second], True)[positive].mean()
    values = values + loss.pair_values(u[first], u[second], False)[~positive].mean()
    assert sum(part.value for part in parts) == pytest.approx(float(values))


class Squares(PairLoss):
    """A loss with no closed form of its own."""

    negative_weight = 0.25

    def pair_values(self, first: torch.Tensor, second: torch.Tensor, positive: bool) -> torch.Tensor:
        distance = (first - second).square().sum(1)
        return distance if positive else (-distance).exp()

    def pair_blocks(self, first: torch.Tensor, second: torch.Tensor, positive: bool) -> PairBlocks:
        raise AssertionError("not needed here")


def test_other_losses_go_through_autograd() -> None:
    u = torch.randn(5, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    pairs, loss = Pairs.from_labels([0, 0, 1, 1, 2]), Squares()
    summary = summarise(loss, u, pairs)
    leaf = u.clone().requires_grad_()
    value = loss(leaf, pairs)
    (expected,) = torch.autograd.grad(value, leaf)
    assert summary.value == pytest.approx(float(value.detach()))
    torch.testing.assert_close(trained_gradient(loss, summary, pairs.num_negatives), expected)


@pytest.mark.filterwarnings("ignore::hessians.checks.CurvatureWarning")
def test_no_pair_gives_nothing() -> None:
    summary = summarise(ContrastiveLoss(), torch.ones(1, 3), Pairs.from_labels([0]))
    assert summary.value == 0
    assert summary.active == 0
    assert summary.positive_gradient.tolist() == [[0.0, 0.0, 0.0]]
