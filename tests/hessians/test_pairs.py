"""Pairs: counting, folding, listing, and what is refused."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hessians import Pairs


def blocks_by_rows(pairs: Pairs) -> tuple[Tensor, Tensor]:
    rows = [pairs.block(i, i + 1) for i in range(pairs.num_images)] or [pairs.block(0, 0)]
    return torch.cat([p for p, _ in rows]).long(), torch.cat([n for _, n in rows]).long()


def check_consistent(pairs: Pairs) -> None:
    """Blocks, lists, sums and counts of one set tell the same."""
    blocks = blocks_by_rows(pairs)
    for kind, positive in enumerate((True, False)):
        assert torch.equal(blocks[kind], pairs.block(0, pairs.num_images)[kind].long())
        assert torch.equal(blocks[kind], blocks[kind].T)
        assert not blocks[kind].diagonal().any()
        matrix = torch.zeros_like(blocks[kind])
        for first, second, times in pairs.listed(positive):
            assert bool((first < second).all())
            matrix[first, second] += times
        assert torch.equal(matrix + matrix.T, blocks[kind])
    assert pairs.num_positives == blocks[0].sum() // 2
    assert pairs.num_negatives == blocks[1].sum() // 2
    values = torch.randn(pairs.num_images, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(pairs.positive_sums(values), blocks[0].double() @ values)


@given(st.lists(st.integers(-2, 3), max_size=12))
def test_labels_imply_all_pairs(labels: list[int]) -> None:
    pairs = Pairs.from_labels(labels)
    check_consistent(pairs)
    assert pairs.num_positives + pairs.num_negatives == len(labels) * (len(labels) - 1) // 2


@given(
    st.integers(2, 7).flatmap(
        lambda n: st.tuples(
            st.just(n),
            st.lists(st.tuples(st.integers(0, n - 1), st.integers(1, n - 1)), max_size=12),
            st.lists(st.tuples(st.integers(0, n - 1), st.integers(1, n - 1)), max_size=12),
        )
    )
)
def test_listed_pairs_fold_repeats_in_either_order(case: tuple[int, list, list]) -> None:
    num, *kinds = case
    columns = []
    for kind in kinds:  # (image, step) keeps the two images apart
        rows = torch.tensor(kind, dtype=torch.long).reshape(-1, 2)
        columns += [rows[:, 0], (rows[:, 0] + rows[:, 1]) % num]
    pairs = Pairs.from_indices(columns, num)
    check_consistent(pairs)
    assert (pairs.num_positives, pairs.num_negatives) == (len(kinds[0]), len(kinds[1]))


def test_triplets_are_folded() -> None:
    triplets = (torch.tensor([0, 0, 1]), torch.tensor([1, 1, 0]), torch.tensor([2, 3, 2]))
    pairs = Pairs.from_indices(triplets, num_images=4)
    first, second, times = next(iter(pairs.listed(positive=True)))
    assert (first.tolist(), second.tolist(), times.tolist()) == ([0], [1], [3])
    assert pairs.num_negatives == 3


def test_large_label_sets_are_listed_by_class() -> None:
    labels = torch.arange(1500) % 300
    pairs = Pairs.from_labels(labels)
    listed = sum(len(first) for first, _, _ in pairs.listed(positive=True))
    assert listed == pairs.num_positives == 300 * 10
    for first, second, _ in pairs.listed(positive=True):
        assert torch.equal(labels[first], labels[second])
        assert bool((first < second).all())


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=9), st.floats(0, 2), st.floats(0, 2))
def test_positions_are_positive_near_negative_far_and_neither_between(
    places: list[float], near: float, gap: float
) -> None:
    # A million metres away from the origin, as map coordinates are.
    positions = torch.tensor(places, dtype=torch.float64)[:, None] + 1e6
    pairs = Pairs.from_positions(positions, near, near + gap)
    check_consistent(pairs)
    for i, row in enumerate(positions):
        for j, other in enumerate(positions):
            distance = float((row - other).abs())
            positive, negative = (bool(block[0, j]) for block in pairs.block(i, i + 1))
            assert positive == (i != j and distance <= near)
            assert negative == (i != j and distance > near + gap)


def test_population_replaces_the_counts() -> None:
    pairs = Pairs.from_labels([0, 0, 1], population=(10, 20))
    assert (pairs.num_positives, pairs.num_negatives) == (10, 20)
