"""Class-balanced batches: a partition, in which every batch has positives where the classes allow it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hessians import Pairs
from laplacian_metric.laplace.batching import FEWEST_PER_CLASS, class_balanced_batches, on_host
from tests.generators import seeded


@given(
    labels=st.lists(st.integers(-3, 5), max_size=60),
    batch_size=st.integers(2, 30),
    seed=st.integers(0, 100),
)
def test_each_image_is_in_one_batch(labels: list[int], batch_size: int, seed: int) -> None:
    batches = class_balanced_batches(torch.tensor(labels), batch_size, generator=seeded(seed))
    assert sorted(row for batch in batches for row in batch.tolist()) == list(range(len(labels)))
    sizes = [len(batch) for batch in batches]
    views = _views(labels, batch_size)
    assert len(batches) == -(-len(labels) // views // (batch_size // views))
    assert all(size <= batch_size for size in sizes)
    assert not sizes or max(sizes) - min(sizes) <= views


def _views(labels: list[int], batch_size: int) -> int:
    """How many images every class has, where these are kept together; else 1."""
    counts = {labels.count(label) for label in labels}
    views = counts.pop() if len(counts) == 1 else 1
    return views if 2 <= views <= min(4, batch_size) else 1


@pytest.mark.parametrize(
    ("images", "views", "batch_size"), [(300, 2, 64), (301, 2, 64), (50, 3, 16), (7, 2, 5)]
)
def test_views_of_an_image_are_not_parted(images: int, views: int, batch_size: int) -> None:
    ids = torch.arange(images).repeat(views)
    batches = class_balanced_batches(ids, batch_size, generator=seeded(0))
    for batch in batches:
        assert len(batch) <= batch_size
        assert bool((torch.bincount(ids[batch])[ids[batch]] == views).all())
    assert sum(map(len, batches)) == len(ids)


@given(sizes=st.lists(st.integers(1, 60), min_size=1, max_size=8), batch_size=st.integers(8, 64))
def test_a_batch_has_about_its_share_of_every_class(sizes: list[int], batch_size: int) -> None:
    """All but the two groups that the ends of a batch may cut."""
    labels = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    per_class = max(FEWEST_PER_CLASS, batch_size // len(sizes))
    batches = class_balanced_batches(labels, batch_size, generator=seeded(0))
    for batch in batches:
        counts = torch.bincount(labels[batch], minlength=len(sizes))
        share = torch.tensor(sizes) * len(batch) / len(labels)
        cut = [per_class] * len(sizes)
        slack = torch.tensor(cut) * (2 + 1 / len(batches))
        assert bool(((counts - share).abs() <= slack).all())


@pytest.mark.parametrize(("classes", "images"), [(345, 20), (1000, 5), (40, 7)])
def test_positives_where_there_are_many_classes(classes: int, images: int) -> None:
    labels = torch.arange(classes * images) % classes
    batches = class_balanced_batches(labels, 256, generator=seeded(1))
    alone = torch.zeros(len(labels), dtype=torch.bool)
    for batch in batches:
        _, inverse, counts = torch.unique(labels[batch], return_inverse=True, return_counts=True)
        alone[batch] = counts[inverse] == 1
        assert Pairs.from_labels(labels[batch]).num_positives >= len(batch) / 2
    # Only the groups that the ends of the batches cut may leave an image alone.
    assert int(alone.sum()) <= 2 * len(batches)


def test_groups_leave_no_remainder_of_one() -> None:
    """Nine images of a class in groups of about four: 3 + 3 + 3, not 4 + 4 + 1."""
    labels = torch.arange(9 * 200) % 200
    batches = class_balanced_batches(labels, 64, generator=seeded(2))
    alone = sum(int((torch.bincount(labels[batch]) == 1).sum()) for batch in batches)
    assert alone <= 2 * len(batches)


def test_small_sets() -> None:
    assert class_balanced_batches(torch.tensor([], dtype=torch.long)) == []
    (one,) = class_balanced_batches(torch.tensor([7]))
    assert one.tolist() == [0]
    (alike,) = class_balanced_batches(torch.zeros(5, dtype=torch.long), 8)
    assert sorted(alike.tolist()) == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="batch_size is 1, at least 2"):
        class_balanced_batches(torch.zeros(5, dtype=torch.long), 1)


def test_a_seed_gives_one_partition() -> None:
    labels = torch.arange(500) % 7
    first, again, other = (class_balanced_batches(labels, 64, generator=seeded(s)) for s in (3, 3, 4))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))
    assert on_host(None) is None
