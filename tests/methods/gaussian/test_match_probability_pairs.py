"""Listed pairs: the same loss and gradients as among all pairs, and the probabilities of a match in every form."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hessians import Pairs
from laplacian_metric.methods.gaussian import match_probability as soft_contrastive
from laplacian_metric.methods.gaussian.match_probability import (
    MatchProbability,
    match_probability,
    mismatch_probability,
    paired_match_probability,
    soft_contrastive_loss,
)


def samples(count: int = 3, number: int = 6, dim: int = 2, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, number, dim, generator=generator, dtype=torch.float64)


def listed(number: int, seed: int) -> Pairs:
    generator = torch.Generator().manual_seed(seed)
    index = [torch.randint(number, (5,), generator=generator) for _ in range(4)]
    for second in (1, 3):
        index[second] = torch.where(
            index[second] == index[second - 1], (index[second] + 1) % number, index[second]
        )
    return Pairs.from_indices(index, number)


@pytest.mark.parametrize("average", ["probability", "log"])
@pytest.mark.parametrize("balance", ["types", "pairs"])
@settings(max_examples=10, deadline=None)
@given(st.integers(1, 4), st.integers(2, 8), st.integers(0, 100))
def test_listed_pairs_have_the_loss_and_gradients_of_the_blocks(
    average: str, balance: str, count: int, number: int, seed: int
) -> None:
    pairs, match = listed(number, seed), MatchProbability(2.0, 1.0).double()
    computed = []
    for elements in (1 << 19, 0):
        z = samples(count, number, seed=seed).requires_grad_()
        match.zero_grad()
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(soft_contrastive, "ELEMENTS_AT_ONCE", elements)
            loss = soft_contrastive_loss(z, pairs, match, balance=balance, average=average)
        loss.backward()
        computed.append([loss.detach(), z.grad, match.log_scale.grad, match.offset.grad])
    for few, blocks in zip(*computed, strict=True):
        torch.testing.assert_close(few, blocks)


def test_listed_pairs_by_a_plain_loop() -> None:
    z, match = samples(), MatchProbability(2.0, 1.0).double()
    index = [torch.tensor(each) for each in ([0, 2], [1, 3], [4, 4, 0], [5, 5, 3])]
    loss = soft_contrastive_loss(z, Pairs.from_indices(index, 6), match)

    def probability(i: int, j: int) -> float:
        terms = [
            1 / (1 + math.exp(2 * float((x - y).norm()) - 1)) for x, y in itertools.product(z[:, i], z[:, j])
        ]
        return sum(terms) / 9

    positive = [-math.log(probability(i, j)) for i, j in ((0, 1), (2, 3))]
    negative = [-math.log(1 - probability(i, j)) for i, j in ((4, 5), (4, 5), (0, 3))]
    assert float(loss.detach()) == pytest.approx(sum(positive) / 4 + sum(negative) / 6)


def test_images_at_one_place_have_finite_gradients() -> None:
    z = torch.zeros(1, 2, 2, requires_grad=True)
    pairs = Pairs.from_indices(
        [torch.tensor([0]), torch.tensor([1]), torch.zeros(0).long(), torch.zeros(0).long()], 2
    )
    soft_contrastive_loss(z, pairs, MatchProbability(2.0, 1.0)).backward()
    assert z.grad is not None
    assert bool(z.grad.isfinite().all())


def test_all_forms_of_the_match_probability_agree() -> None:
    first, second = samples(3, 5), samples(4, 7, seed=1)
    match = MatchProbability(1.5, 0.7).double()
    whole = match_probability(first, second, match)
    torch.testing.assert_close(mismatch_probability(first, second, match), 1 - whole)
    torch.testing.assert_close(paired_match_probability(first, second[:, :5], match), whole[:, :5].diagonal())
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(soft_contrastive, "ELEMENTS_AT_ONCE", 30)
        torch.testing.assert_close(mismatch_probability(first, second, match), 1 - whole)
        torch.testing.assert_close(
            paired_match_probability(first, second[:, :5], match), whole[:, :5].diagonal()
        )


def test_a_mismatch_keeps_its_digits_where_images_are_alike() -> None:
    match = MatchProbability(1.0, 30.0)
    near = torch.tensor([[[0.0], [0.5], [1.0]]])
    assert match_probability(near[:, :1], near, match).unique().tolist() == [1.0]
    probability = mismatch_probability(near[:, :1], near, match)[0].double()
    expected = torch.tensor([math.exp(-30.0), math.exp(-29.5), math.exp(-29.0)], dtype=torch.float64)
    torch.testing.assert_close(probability, expected, rtol=1e-5, atol=0)


def test_what_does_not_fit_is_said() -> None:
    match = MatchProbability()
    with pytest.raises(ValueError, match="samples of as many images are needed"):
        paired_match_probability(torch.zeros(1, 2, 2), torch.zeros(1, 3, 2), match)
    with pytest.raises(ValueError, match="first has 2 dimensions and second 3"):
        mismatch_probability(torch.zeros(1, 2, 2), torch.zeros(1, 2, 3), match)
    with pytest.raises(ValueError, match=r"\(K, N, Z\) is needed"):
        mismatch_probability(torch.zeros(2, 2), torch.zeros(1, 2, 2), match)
