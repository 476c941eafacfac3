"""Batches: every image once, in another order in every epoch, classes in equal parts, pairs with their probability."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hessians import ContrastiveLoss, Pairs
from laplacian_metric.core.method import Keep, Learner
from laplacian_metric.training import TrainingOptions, pair_choice, validate
from laplacian_metric.training.options import dealt_pairs
from laplacian_metric.training.pair_streams import (
    balanced_pairs,
    differing_pairs,
    epoch_batches,
    matching_pairs,
    random_pairs,
)
from tests.training.cases import clusters, plain

LABELS = torch.arange(40) % 5


def balanced(
    labels: Tensor = LABELS, size: int = 8, each: int = 2, seed: int = 0, epoch: int = 0, **more: Any
) -> Any:
    options = TrainingOptions(batch_size=size, sampling="balanced", images_per_class=each)  # type: ignore[arg-type]
    return epoch_batches(labels, options, seed, epoch, **more)


@settings(max_examples=40)
@given(st.integers(2, 60), st.integers(2, 20), st.integers(0, 2**63 - 1), st.integers(0, 3))
def test_every_image_is_seen_once(count: int, size: int, seed: int, epoch: int) -> None:
    batches = epoch_batches(torch.zeros(count), TrainingOptions(batch_size=size), seed, epoch)
    seen = torch.cat(batches)
    left_out = count % size == 1  # an image that has no other to make a pair with
    assert len(seen) == count - left_out
    assert len(torch.unique(seen)) == len(seen)
    assert all(len(rows) == size for rows in batches[:-1])
    assert 2 <= len(batches[-1]) <= size


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    options = TrainingOptions(batch_size=40)

    def order(seed: int, epoch: int) -> list[int]:
        return epoch_batches(LABELS, options, seed, epoch)[0].tolist()

    torch.manual_seed(0)
    orders = {(seed, epoch): order(seed, epoch) for seed in range(3) for epoch in range(3)}
    torch.manual_seed(1)
    assert all(order(*key) == value for key, value in orders.items())
    assert len({tuple(value) for value in orders.values()}) == 9


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("sampling", ["shuffled", "balanced", "pairs"])
def test_processes_share_the_batches_of_one(count: int, sampling: str) -> None:
    options = TrainingOptions(batch_size=6, sampling=sampling, images_per_class=2)  # type: ignore[arg-type]
    whole = [tuple(rows.tolist()) for rows in epoch_batches(LABELS, options, 3, 1)]
    parts = [
        [tuple(rows.tolist()) for rows in epoch_batches(LABELS, options, 3, 1, process, count)]
        for process in range(count)
    ]
    assert {len(part) for part in parts} == {len(whole) // count}
    # In turn, and none twice.
    dealt = [rows for turn in zip(*parts, strict=True) for rows in turn]
    assert dealt == whole[: len(dealt)]


@pytest.mark.parametrize(("size", "each"), [(8, 2), (8, 4), (10, 2), (6, 3)])
def test_a_balanced_batch_has_as_many_images_of_each_class(size: int, each: int) -> None:
    batches = balanced(size=size, each=each)
    assert len(batches) == len(LABELS) // size
    for rows in batches:
        classes, counts = torch.unique(LABELS[rows], return_counts=True)
        assert len(classes) == size // each
        assert counts.unique().tolist() == [each]
        assert len(torch.unique(rows)) == size  # no class is too small here


def test_classes_with_too_few_images_repeat_some() -> None:
    labels = torch.tensor([0] * 9 + [1] * 2 + [7])
    for rows in balanced(labels, size=12, each=4):
        counts = torch.bincount(labels[rows], minlength=8)
        assert counts.tolist() == [4, 4, 0, 0, 0, 0, 0, 4]
    assert len(balanced(labels[:3], size=6, each=6)) == 1  # fewer images than a batch has


def test_balanced_batches_depend_on_seed_and_epoch_alone_and_leave_numpy_alone() -> None:
    np.random.seed(3)  # noqa: NPY002
    before = np.random.get_state()[1].copy()  # type: ignore[index,union-attr]  # noqa: NPY002
    first = torch.stack(balanced(seed=1, epoch=2))
    assert (np.random.get_state()[1] == before).all()  # type: ignore[index]  # noqa: NPY002
    np.random.seed(4)  # noqa: NPY002
    assert torch.equal(torch.stack(balanced(seed=1, epoch=2)), first)
    assert not torch.equal(torch.stack(balanced(seed=1, epoch=3)), first)
    assert not torch.equal(torch.stack(balanced(seed=2, epoch=2)), first)


SOME_LABELS = st.lists(st.integers(-2, 4), min_size=3, max_size=30)


@settings(max_examples=60, deadline=None)
@given(SOME_LABELS, st.integers(1, 40), st.integers(0, 2**63 - 1))
def test_half_of_the_pairs_match_and_none_is_of_one_image(labels: list[int], half: int, seed: int) -> None:
    given_labels = torch.tensor(labels)
    classes = Counter(labels)
    if len(classes) < 2 or max(classes.values()) < 2:
        with pytest.raises(ValueError, match="cannot be drawn"):
            balanced_pairs(given_labels, 2 * half, (seed,))
        return
    pairs = balanced_pairs(given_labels, 2 * half, (seed,))
    assert pairs.shape == (2 * half, 2)
    assert int(pairs.min()) >= 0
    assert int(pairs.max()) < len(labels)
    assert bool((pairs[:, 0] != pairs[:, 1]).all())
    same = given_labels[pairs[:, 0]] == given_labels[pairs[:, 1]]
    assert same.tolist() == [True] * half + [False] * half
    again = balanced_pairs(given_labels, 2 * half, (seed,))
    assert torch.equal(pairs, again)


def expected_matching(labels: list[int]) -> dict[tuple[int, int], float]:
    """Any image that has a partner, and any of its partners."""
    size = Counter(labels)
    able = [i for i, label in enumerate(labels) if size[label] > 1]
    return {
        (i, j): 1 / len(able) / (size[labels[i]] - 1)
        for i in able
        for j, label in enumerate(labels)
        if j != i and label == labels[i]
    }


def expected_differing(labels: list[int]) -> dict[tuple[int, int], float]:
    return {
        (i, j): 1 / len(labels) / (len(labels) - Counter(labels)[labels[i]])
        for i in range(len(labels))
        for j, label in enumerate(labels)
        if label != labels[i]
    }


@pytest.mark.statistical
@pytest.mark.parametrize("kind", ["matching", "differing", "random"])
def test_every_pair_is_as_likely_as_it_should_be(kind: str) -> None:
    labels = [5, 2, 5, 9, 2, 5, 7]
    count = 200_000
    if kind == "random":
        pairs = random_pairs(7, count, (3,))
        expected = {(i, j): 1 / 42 for i in range(7) for j in range(7) if i != j}
    else:
        draw, table = {
            "matching": (matching_pairs, expected_matching),
            "differing": (differing_pairs, expected_differing),
        }[kind]
        pairs, expected = draw(torch.tensor(labels), count, (3,)), table(labels)
    counted = Counter(map(tuple, pairs.tolist()))
    assert set(counted) == set(expected)
    assert sum(expected.values()) == pytest.approx(1)
    for pair, share in expected.items():
        # Five standard errors of a share.
        assert counted[pair] / count == pytest.approx(share, abs=5 * (share / count) ** 0.5), pair


def test_seeds_and_kinds_have_streams_of_their_own() -> None:
    labels = torch.arange(200) % 10
    drawn = [balanced_pairs(labels, 40, seed) for seed in ((0,), (1,), (0, 0), (0, 1))]
    assert len({tuple(pairs.flatten().tolist()) for pairs in drawn}) == 4
    first = [draw(labels, 40, (0,))[:, 0] for draw in (matching_pairs, differing_pairs)]
    assert not torch.equal(first[0], first[1])
    before = torch.get_rng_state()
    balanced_pairs(labels, 40, (0,))
    assert torch.equal(torch.get_rng_state(), before)


def pair_options(**more: Any) -> TrainingOptions:
    return TrainingOptions(**{"sampling": "pairs", "batch_size": 6, "steps_per_epoch": 7, **more})


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 10), st.integers(1, 12), st.integers(0, 2**63 - 1), st.integers(0, 3))
def test_half_of_every_batch_matches(half: int, steps: int, seed: int, epoch: int) -> None:
    chosen = pair_options(batch_size=2 * half, steps_per_epoch=steps)
    batches = epoch_batches(LABELS, chosen, seed, epoch)
    assert len(batches) == steps
    for rows in batches:
        assert rows.shape == (4 * half,)
        first, second = rows.view(-1, 2).unbind(1)
        assert bool((first != second).all())
        assert int((LABELS[first] == LABELS[second]).sum()) == half
        pairs = dealt_pairs(torch.zeros(len(rows), 2), LABELS[rows])
        assert (pairs.num_positives, pairs.num_negatives) == (half, half)


def test_an_epoch_has_places_for_all_images_unless_its_steps_are_given() -> None:
    assert len(epoch_batches(LABELS, pair_options(steps_per_epoch=None, batch_size=4), 0, 0)) == 5
    assert len(epoch_batches(LABELS, pair_options(steps_per_epoch=None, batch_size=100), 0, 0)) == 1


def test_the_dealt_pairs_alone_are_trained_on() -> None:
    choose = pair_choice(pair_options())
    labels = torch.tensor([3, 3, 1, 3, 1, 2])
    u = torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    loss = ContrastiveLoss(margin=0.7)
    listed = Pairs.from_indices(
        (torch.tensor([0]), torch.tensor([1]), torch.tensor([2, 4]), torch.tensor([3, 5])), 6
    )
    assert float(loss(u, choose(u, labels))) == float(loss(u, listed))
    assert float(loss(u, choose(u, labels))) != float(loss(u, Pairs.from_labels(labels)))


def test_euclidean_points_are_validated_by_their_distance() -> None:
    validation = clusters(20, seed=1)

    def measured(euclidean: bool, scale: float) -> dict[str, float]:
        learner: Learner = plain(norm=False)
        learner.euclidean = euclidean
        away = torch.tensor([scale, 0.0, 0.0])
        with torch.no_grad():
            learner.module[1].bias += away
        return validate(learner, validation)

    assert Learner.keep is Keep.RETRIEVAL
    here, far = measured(True, 0.0), measured(True, 1e3)
    # Distances do not depend on where the origin is; directions do.
    assert far["map@5"] == pytest.approx(here["map@5"], abs=0.02)
    assert measured(False, 0.0)["map@5"] != here["map@5"]
