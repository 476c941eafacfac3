"""Equations of the LAM paper that cannot be meant as they stand, each in numbers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hessians import ContrastiveLoss, Pairs
from laplacian_metric.metrics import Consensus
from tests.experiments.published_code.reference import (
    diagonal,
    float64,
    generator,
    half_square,
    normal,
    output_hessian,
    unit,
)

close = torch.testing.assert_close


def negative_at(squared: float, margin: float) -> dict[str, float]:
    """The value of a negative pair, and whether it is inside the margin, by equation."""
    return {
        "1 and 20": max(0.0, margin - squared) / 2,
        "21": margin - squared / 2 if squared**0.5 <= margin else 0.0,
        "18": float(squared**0.5 <= margin),
        "ours": max(0.0, margin**2 - squared) / 2,
    }


def test_equations_1_18_20_21_put_the_margin_on_two_different_things() -> None:
    """m = 0.7: a negative at distance 0.8 is active by Eq. 1 and 20 and outside by Eq. 18 and 19."""
    negative = negative_at(0.64, 0.7)
    assert negative["1 and 20"] == pytest.approx(0.03)
    assert (negative["18"], negative["21"], negative["ours"]) == (0, 0, 0)
    first = torch.tensor([[1.0, 0.0]], dtype=float64)
    angle = 2 * torch.asin(torch.tensor(0.4, dtype=float64))  # a chord of 0.8
    second = torch.stack([angle.cos(), angle.sin()])[None]
    assert float(ContrastiveLoss(0.7).pair_values(first, second, positive=False)) == 0


def test_equations_20_and_21_differ_by_a_constant_that_jumps_at_the_margin() -> None:
    """At distance 0.6 their difference is m/2, and Eq. 21 drops from 0.455 to 0 where a pair leaves the margin."""
    negative = negative_at(0.36, 0.7)
    assert negative["21"] - negative["1 and 20"] == pytest.approx(0.35)
    edge = 0.7**2
    assert negative_at(edge - 1e-9, 0.7)["21"] == pytest.approx(0.455)
    assert negative_at(edge + 1e-9, 0.7)["21"] == 0
    assert negative_at(edge - 1e-9, 0.7)["ours"] == pytest.approx(0, abs=1e-9)


def test_equations_4_77_79_ascend_the_loss() -> None:
    u, pairs, loss = normal(12, 3), Pairs.from_labels(torch.arange(12) % 3), ContrastiveLoss()
    gradient = loss.gradient(u, pairs)
    assert (
        float(loss(u + 0.05 * gradient, pairs))
        > float(loss(u, pairs))
        > float(loss(u - 0.05 * gradient, pairs))
    )


def test_equation_41_lacks_a_factor_of_two() -> None:
    z, mean = unit(normal(2, 5))
    squared, cosine = float((z - mean).square().sum()), float(z @ mean)
    assert squared == pytest.approx(2 - 2 * cosine) == pytest.approx(4 - float((z + mean).square().sum()))
    assert abs(squared - (2 - cosine)) == pytest.approx(abs(cosine))


def test_equation_110_halves_the_gradient_and_gives_half_of_111() -> None:
    both = normal(2, 4)

    def halves(v: Tensor) -> Tensor:
        fixed = v.detach()
        return (half_square(torch.stack([fixed[0], v[1]])) + half_square(torch.stack([v[0], fixed[1]]))) / 2

    close(halves(both), half_square(both))
    gradient = torch.autograd.functional.jacobian(half_square, both)
    close(torch.autograd.functional.jacobian(halves, both), gradient / 2)
    blocks = ContrastiveLoss().pair_blocks(both[:1], both[1:], positive=True)
    for own, block in ((0, blocks.first[0]), (1, blocks.second[0])):

        def alone(row: Tensor, own: int = own) -> Tensor:
            pair = [both[0], both[1]]
            pair[own] = row
            return half_square(torch.stack(pair)) / 2

        close(torch.autograd.functional.hessian(alone, both[own]), block / 2)


def test_equation_121_weighs_a_bin_by_one_over_its_size() -> None:
    """90 queries in a bin with a gap of 0.1, 10 in one with a gap of 0.5: 0.14, and by Eq. 121 0.051."""
    gaps, sizes = torch.tensor([0.1, 0.5], dtype=float64), torch.tensor([90.0, 10.0], dtype=float64)
    votes = torch.tensor([9] * 90 + [5] * 10)
    right = torch.tensor([1.0] * 72 + [0.0] * 18 + [1.0] * 10)
    agreement = Consensus(
        torch.zeros(100, dtype=torch.long), votes, right, torch.ones(100, dtype=torch.bool), 10
    )
    assert agreement.error == pytest.approx(0.14)
    assert float((gaps * sizes / 100).sum()) == pytest.approx(0.14)
    assert float((gaps / sizes).sum()) == pytest.approx(0.0511, abs=1e-4)


def test_proposition_f3_fails_where_the_classes_differ_in_size() -> None:
    """Eq. 119 divides by an image's own pairs, Eq. 23 by all: classes of 2 and 1 have weights 1/2, 1/2, -1."""
    u = 0.1 * normal(3, 2) + 1
    pairs = Pairs.from_labels([0, 0, 1])
    loss = ContrastiveLoss(2.5, "euclidean")
    weights = loss.graph(unit(u), pairs).dense().sum(1)
    close(weights, torch.tensor([0.5, 0.5, -1.0], dtype=float64))
    matrix = loss.output_hessian(u, pairs, "fixed").dense().reshape(6, 6)
    assert float(torch.linalg.eigvalsh(matrix).min()) < -0.1
    assert float(diagonal(matrix.view(3, 2, 3, 2), torch.eye(3, dtype=float64)).min()) < 0


def test_equation_10_gives_half_of_equation_9_at_one_half() -> None:
    """(1 - w) H_p + w H_n is H_p for "positive", w = 0, but half of H_p + H_n for "full", w = 1/2."""
    u, labels = normal(8, 3, seed=4), torch.arange(8) % 2

    def hessian(weight: float) -> Tensor:
        return output_hessian(
            u, labels, "arccos", "full", margin=9.0, weight=weight, flip_cross=False, curve_inactive=False
        )

    # 2 [(1 - w) H_p + w H_n] of the loop, at w = 0 and 1.
    positives, negatives = hessian(0.0) / 2, hessian(1.0) / 2
    pairs, loss = Pairs.from_labels(labels), ContrastiveLoss(9.0)
    equation_10 = {w: (1 - w) * positives + w * negatives for w in (0.0, 0.5)}
    close(equation_10[0.0], loss.output_hessian(u, pairs, "positive").dense())
    close(2 * equation_10[0.5], loss.output_hessian(u, pairs, "full").dense())


def test_equations_16_and_23_count_an_image_as_its_own_positive() -> None:
    """Pairs (i, i) are at distance 0: with them, the average over a class of 4 is 3/4 of that over its pairs."""
    z = unit(torch.randn(4, 3, generator=generator(), dtype=float64))
    squared = torch.cdist(z, z).square() / 2
    pairs = Pairs.from_labels([0, 0, 0, 0])
    ours = float(ContrastiveLoss()(z, pairs))
    assert ours == pytest.approx(float(squared.sum()) / 12)
    assert float(squared.mean()) == pytest.approx(0.75 * ours)
