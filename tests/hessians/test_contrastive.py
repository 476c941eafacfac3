"""The contrastive loss against plain loops, autograd and finite differences."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hessians import ContrastiveLoss, Pairs
from hessians.pair_loss import PairBlocks, PairLoss
from tests.hessians.reference import (
    Problem,
    listed_pairs,
    normalized,
    pair_value,
    problems,
    value_of_points,
)

KINDS = [("arccos", True), ("euclidean", True), ("euclidean", False)]


@given(problems())
def test_value_is_that_of_plain_loops(problem: Problem) -> None:
    points = normalized(problem.u) if problem.loss.normalize else problem.u
    expected = value_of_points(points, *problem.counts(), problem.loss)
    for pairs in (problem.pairs, problem.listed()):
        torch.testing.assert_close(problem.loss(problem.u, pairs), expected)
        torch.testing.assert_close(PairLoss.__call__(problem.loss, problem.u, pairs), expected)


def test_value_by_hand() -> None:
    # Distances: 0-1: 3, 0-2: 1, 1-2: sqrt(10). Positive 0-1; of the negatives only 0-2 is inside the margin 2.
    u = torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 1.0]])
    loss = ContrastiveLoss(margin=2.0, distance="euclidean", normalize=False, negative_weight=0.25)
    expected = 2 * (0.75 * 9 / 2 + 0.25 * ((4 - 1) / 2 + 0) / 2)
    assert loss(u, Pairs.from_labels([0, 0, 1])).item() == pytest.approx(expected)
    active = ContrastiveLoss(2.0, "euclidean", 0.25, normalize=False, negatives="active")
    assert active(u, Pairs.from_labels([0, 0, 1])).item() == pytest.approx(2 * (0.75 * 9 / 2 + 0.25 * 1.5))


@given(problems())
def test_gradient_is_autograds_and_that_of_finite_differences(problem: Problem) -> None:
    u = problem.u.requires_grad_()
    loss, pairs = problem.loss, problem.pairs
    (expected,) = torch.autograd.grad(loss(u, pairs), u)
    torch.testing.assert_close(loss.gradient(u, pairs), expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(loss.gradient(u, problem.listed()), expected, rtol=1e-9, atol=1e-12)
    points = normalized(problem.u) if loss.normalize else problem.u
    clear = ((torch.cdist(points, points) - loss.margin).abs() > 1e-3).all()  # away from the kink
    if clear and problem.u.norm(dim=1).min() > 0.1:
        assert torch.autograd.gradcheck(lambda v: loss(v, pairs), (u,))


@pytest.mark.parametrize(("distance", "normalize"), KINDS)
@pytest.mark.parametrize("positive", [True, False])
@given(
    seed=st.integers(0, 2**31),
    dim=st.integers(1, 4),
    margin=st.floats(0.3, 2.5),
    power=st.sampled_from([1, 2]),
)
def test_blocks_of_one_pair_are_autograds(
    distance: str, normalize: bool, positive: bool, seed: int, dim: int, margin: float, power: int
) -> None:
    """Arccos: the Hessian in u. Euclidean: the Hessian in z, pulled back by the Jacobian of the norm."""
    u = torch.randn(2, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    loss = ContrastiveLoss(margin=margin, distance=distance, normalize=normalize, power=power)

    def value(points: Tensor) -> Tensor:
        return pair_value(points[0], points[1], loss, positive=positive)

    if distance == "arccos":
        expected = torch.autograd.functional.hessian(lambda v: value(normalized(v)), u)
    elif normalize:
        jacobian = torch.func.jacrev(normalized)(u)
        in_points = torch.autograd.functional.hessian(value, normalized(u))
        expected = torch.einsum("abnk,abcd,cdml->nkml", jacobian, in_points, jacobian)
    else:
        expected = torch.autograd.functional.hessian(value, u)
    blocks = loss.pair_blocks(u[:1], u[1:], positive)
    scale = 1 / u.norm(dim=1).min().item() ** 2 + 1
    for block, (n, m) in zip(blocks, ((0, 0), (0, 1), (1, 1)), strict=True):
        torch.testing.assert_close(block[0], expected[n, :, m], rtol=1e-9, atol=1e-12 * scale)
    torch.testing.assert_close(
        loss.pair_values(u[:1], u[1:], positive)[0], value(normalized(u) if normalize else u)
    )


def test_a_pair_at_the_margin_is_inactive() -> None:
    u = torch.tensor([[0.0, 0.0], [3.0, 4.0]], dtype=torch.float64)
    pairs = Pairs.from_labels([0, 1])
    for margin, active in ((5.0, False), (5.0 + 1e-9, True)):
        loss = ContrastiveLoss(margin=margin, distance="euclidean", normalize=False)
        assert (loss.gradient(u, pairs) != 0).any().item() is active
        assert (loss.output_hessian(u, pairs).dense() != 0).any().item() is active


@given(problems())
def test_value_and_curvature_add_up_over_batches_given_the_population(problem: Problem) -> None:
    """Pairs split over two lists, with the counts of all of them, add up to what the whole list gives."""
    counts = problem.counts()
    whole = problem.listed()
    population = (whole.num_positives, whole.num_negatives)
    value, hessian = torch.zeros((), dtype=torch.float64), torch.zeros(())
    for half in (0, 1):
        some = [dict(list(kind.items())[half::2]) for kind in counts]
        part = listed_pairs(some[0], some[1], len(problem.labels), population)
        value = value + problem.loss(problem.u, part)
        hessian = hessian + problem.loss.output_hessian(problem.u, part).dense()
    torch.testing.assert_close(value, problem.loss(problem.u, whole))
    torch.testing.assert_close(hessian, problem.loss.output_hessian(problem.u, whole).dense())


@given(problems(), st.integers(2, 3))
def test_repeats_equal_weights(problem: Problem, times: int) -> None:
    """Listing every pair several times changes nothing; one pair listed twice weighs twice in the sum."""
    positive, negative = problem.counts()
    repeated = listed_pairs(
        dict.fromkeys(positive, times), dict.fromkeys(negative, times), len(problem.labels)
    )
    torch.testing.assert_close(problem.loss(problem.u, repeated), problem.loss(problem.u, problem.pairs))
    if positive:
        chosen = next(iter(positive))
        one_more = listed_pairs({**positive, chosen: times}, negative, len(problem.labels))
        points = normalized(problem.u) if problem.loss.normalize else problem.u
        expected = value_of_points(points, {**positive, chosen: times}, negative, problem.loss)
        torch.testing.assert_close(problem.loss(problem.u, one_more), expected)


@pytest.mark.parametrize("power", [1, 2])
def test_rows_on_demand_equal_the_dense_graph(power: int, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    u = torch.randn(40, 3, dtype=torch.float64, generator=generator)
    pairs = Pairs.from_labels(torch.randint(0, 4, (40,), generator=generator))
    loss = ContrastiveLoss(margin=1.2, power=power)
    dense = loss.output_hessian(u, pairs).dense()
    gradient = loss.gradient(u, pairs)
    monkeypatch.setattr("hessians.contrastive.DENSE_IMAGES", 10)
    torch.testing.assert_close(loss.output_hessian(u, pairs).dense(), dense)
    for row, blocks in enumerate(loss.output_hessian(u, pairs, "fixed").dense()):
        torch.testing.assert_close(blocks[:, row], dense[row, :, row])
    torch.testing.assert_close(loss.gradient(u, pairs), gradient)


def test_no_digits_are_lost_far_from_the_origin() -> None:
    """Without a norm, embeddings may lie anywhere; float32 keeps their distances."""
    u = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    loss = ContrastiveLoss(margin=2.0, distance="euclidean", normalize=False)
    pairs = Pairs.from_labels([0, 0, 1, 1, 2, 2])
    far = (u.double() + 1000).float()
    torch.testing.assert_close(loss(far, pairs).double(), loss(far.double(), pairs), rtol=1e-5, atol=0)


def test_half_precision_is_computed_in_float32() -> None:
    u = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)).bfloat16().requires_grad_()
    loss, pairs = ContrastiveLoss(), Pairs.from_labels([0, 0, 1, 1, 2, 2])
    value = loss(u, pairs)
    assert torch.equal(value, loss(u.float(), pairs))
    value.backward()
    torch.testing.assert_close(u.grad, loss.gradient(u, pairs).bfloat16())


class CosineLoss(PairLoss):
    """Another pair loss, which shows that the interface is general: 1 - cos, and cos^2/2 for negatives."""

    negative_weight = 0.4

    def pair_values(self, first: Tensor, second: Tensor, positive: bool) -> Tensor:
        cosine = (normalized(first) * normalized(second)).sum(1)
        return 1 - cosine if positive else cosine.square() / 2

    def pair_blocks(self, first: Tensor, second: Tensor, positive: bool) -> PairBlocks:
        def value(i: Tensor, j: Tensor) -> Tensor:
            return self.pair_values(i[None], j[None], positive)[0]

        (ii, ij), (_, jj) = torch.func.vmap(torch.func.hessian(value, argnums=(0, 1)))(first, second)
        return PairBlocks(ii, ij, jj)


def test_other_pair_losses_need_only_pairs() -> None:
    u = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    loss, pairs = CosineLoss(), Pairs.from_labels([0, 0, 1, 1, 2])
    expected = torch.autograd.functional.hessian(lambda v: loss(v, pairs), u)
    torch.testing.assert_close(loss.output_hessian(u, pairs, "full").dense(), expected)
    fixed = loss.output_hessian(u, pairs, "fixed").dense()
    torch.testing.assert_close(fixed, expected * torch.eye(5, dtype=torch.float64)[:, None, :, None])
    clipped = loss.output_hessian(u, pairs, "clipped").dense().reshape(15, 15)
    assert torch.linalg.eigvalsh(clipped).min() > -1e-12


def test_an_empty_batch_and_a_single_image_have_no_loss() -> None:
    loss = ContrastiveLoss()
    assert loss(torch.ones(0, 2), Pairs.from_labels([])).item() == 0
    single = torch.ones(1, 2, requires_grad=True)
    loss(single, Pairs.from_labels([3])).backward()
    assert torch.equal(single.grad, torch.zeros(1, 2))


# --- the un-squared distance ---


@pytest.mark.parametrize(("distance", "normalize"), KINDS)
@pytest.mark.parametrize("approximation", ["full", "fixed", "positive", "clipped"])
def test_coincident_points_neither_pull_nor_push(distance: str, normalize: bool, approximation: str) -> None:
    """Four images at one point, of two classes: every d is 0, where |z_i - z_j| has no derivative."""
    u = torch.ones(4, 3, dtype=torch.float64, requires_grad=True)
    loss = ContrastiveLoss(0.5, distance, normalize=normalize, power=1)
    pairs = Pairs.from_labels([0, 0, 1, 1])
    value = loss(u, pairs)
    value.backward()
    assert value.item() == pytest.approx(2 * (0.5 * 0.5 / 1000 + 0.5 * (0.5 - 0.5 / 1000)))
    for zero in (u.grad, loss.gradient(u, pairs), loss.output_hessian(u, pairs, approximation).dense()):
        assert torch.equal(zero, torch.zeros_like(zero))
    first, second = u.detach()[:1], u.detach()[1:2]
    for positive in (True, False):
        assert all(torch.equal(block, 0 * block) for block in loss.pair_blocks(first, second, positive))


@pytest.mark.parametrize("share", [1.001, 2.0, 100.0])
def test_curvature_of_close_pairs_keeps_its_digits(share: float) -> None:
    """float32 embeddings a thousandth of the margin apart: the curvature 1/d is that of float64."""
    generator = torch.Generator().manual_seed(0)
    u = torch.randn(1, 5, generator=generator)
    u = torch.cat(
        [u, u + torch.nn.functional.normalize(torch.randn(1, 5, generator=generator)) * share / 1000]
    )
    pairs = Pairs.from_labels([0, 0])
    loss = ContrastiveLoss(1.0, "euclidean", normalize=False, power=1)
    single = loss.output_hessian(u, pairs, "fixed").dense()
    wide = loss.output_hessian(u.double(), pairs, "fixed").dense()
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), wide, rtol=1e-4, atol=1e-4 * float(wide.abs().max()))
    assert float(torch.einsum("nknk->", wide)) == pytest.approx(2 * 4 / (share / 1000), rel=1e-3)


@pytest.mark.parametrize("labels", [[0, 0, 0], [0, 1, 2], [0, 0, 1]])
def test_a_type_without_pairs_or_active_ones_adds_nothing(labels: list[int]) -> None:
    """One class only, no class twice, and negatives all beyond the margin."""
    u = torch.eye(3, dtype=torch.float64, requires_grad=True)
    loss, pairs = ContrastiveLoss(0.5, power=1, negatives="active"), Pairs.from_labels(labels)
    value = loss(u, pairs)
    value.backward()
    assert value.item() == pytest.approx(2**0.5 if pairs.num_positives else 0.0)
    hessians = (loss.output_hessian(u, pairs, kind).dense() for kind in ("full", "positive"))
    torch.testing.assert_close(
        *hessians
    )  # both average over the positives alone, with weight 1 where w = 1/2
    torch.testing.assert_close(u.grad, loss.gradient(u, pairs))


def test_blocks_of_too_many_images_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hessians.unsquared.BLOCK_ENTRIES", 20)
    u, pairs = torch.eye(3, dtype=torch.float64), Pairs.from_labels([0, 0, 1])
    hessian = ContrastiveLoss(1.5, power=1).output_hessian(u, pairs, "fixed")
    with pytest.raises(ValueError, match=r'3 blocks of 3 x 3 numbers .* structure "diag"'):
        hessian.matmul(u)
    assert hessian.diagonal_per_dimension().shape == (3, 3)
