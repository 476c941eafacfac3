"""Which triplets are trained on, against loops that read like the definition."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from laplacian_metric.methods.pairs.triplet_mining import batch_triplets, laid_out, mined_batches, pairwise


def images(count: int, classes: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, generator=generator), torch.randint(classes, (count,), generator=generator)


def is_hard(x: Tensor, a: int, p: int, n: int, margin: float) -> bool:
    return not float((x[a] - x[p]).square().sum()) < float((x[a] - x[n]).square().sum()) - margin


# --- of a batch ---


@settings(max_examples=25)
@given(st.integers(0, 12), st.integers(1, 4), st.integers(0, 99))
def test_with_enough_draws_all_hard_triplets_of_a_batch_are_found(
    count: int, classes: int, seed: int
) -> None:
    x, labels = images(count, classes, seed)
    for margin in (None, 0.0, 1.0):
        triplets = batch_triplets(pairwise(x), labels, margin, count + 1)
        expected = [
            (a, p, n)
            for a in range(count)
            for p in range(count)
            for n in range(count)
            if a != p and labels[a] == labels[p] and labels[a] != labels[n]
            if margin is None or is_hard(x, a, p, n, margin)
        ]
        assert sorted(zip(*(index.tolist() for index in triplets), strict=True)) == expected


def test_some_negatives_are_drawn_of_each_pair_without_repeats_and_from_a_seed() -> None:
    x, labels = images(30, 3, 0)
    triplets = [
        batch_triplets(pairwise(x), labels, None, 4, torch.Generator().manual_seed(seed))
        for seed in (1, 1, 2)
    ]
    pairs = int((labels[:, None] == labels).sum()) - 30
    listed = set(zip(*(index.tolist() for index in triplets[0]), strict=True))
    assert len(listed) == len(triplets[0].anchor) == 4 * pairs
    assert all(torch.equal(*both) for both in zip(triplets[0], triplets[1], strict=True))
    assert not torch.equal(triplets[0].negative, triplets[2].negative)


@pytest.mark.statistical
def test_every_negative_has_the_same_chance() -> None:
    """5 standard deviations of a binomial count are allowed."""
    x, labels = images(30, 3, 0)
    counts = torch.zeros(30)
    generator = torch.Generator().manual_seed(0)
    for _ in range(300):
        some = batch_triplets(pairwise(x), labels, None, 4, generator)
        counts += torch.bincount(some.negative[(some.anchor == 0)], minlength=30)
    others = counts[labels != labels[0]]
    share = 4 / len(others)
    draws = float(others.sum()) / 4
    assert float((others - share * draws).abs().max()) < 5 * (draws * share * (1 - share)) ** 0.5


def test_distances_are_those_of_differences_and_so_are_their_gradients() -> None:
    x, _ = images(6, 1, 0)
    x = torch.cat([x, x[:1]]).double().requires_grad_()
    distances = pairwise(x)
    expected = (x[:, None] - x).square().sum(2)
    torch.testing.assert_close(distances, expected)
    weights = torch.rand(7, 7, dtype=torch.float64)
    (one,) = torch.autograd.grad((weights * distances).sum(), x)
    (other,) = torch.autograd.grad((weights * expected).sum(), x)
    torch.testing.assert_close(one, other)


# --- out of a cache ---


@settings(max_examples=25)
@given(st.integers(1, 20), st.integers(1, 4), st.integers(1, 25), st.integers(1, 4), st.integers(0, 99))
def test_mined_batches_have_the_hardest_of_the_cache(
    count: int, classes: int, cache: int, negatives: int, seed: int
) -> None:
    x, labels = images(count, classes, seed)
    anchors = list(torch.randperm(count, generator=torch.Generator().manual_seed(1)).split(7))
    embedded_rows: list[Tensor] = []

    def embed(rows: Tensor) -> Tensor:
        embedded_rows.append(rows)
        return x[rows]

    options = {"cache": cache, "negatives": negatives, "margin": 0.5}
    generator = torch.Generator().manual_seed(seed)
    batches = mined_batches(embed, labels, anchors, generator=generator, **options)  # type: ignore[arg-type]
    again = mined_batches(
        lambda rows: x[rows],
        labels,
        anchors,
        generator=torch.Generator().manual_seed(seed),
        **options,  # type: ignore[arg-type]
    )
    drawn = torch.randperm(count, generator=torch.Generator().manual_seed(seed))[:cache].tolist()
    assert len(embedded_rows) == 1
    assert set(drawn) <= set(embedded_rows[0].tolist())
    for rows, batch, same in zip(anchors, batches, again, strict=True):
        assert torch.equal(batch, same)
        kept = {}
        for a, p, *rest in batch.view(-1, 2 + negatives).tolist():
            assert labels[a] == labels[p]
            kept[a] = (p, [n for n in rest if n != a])
        for a in rows.tolist():
            p, members = kept.get(a, (None, []))
            others = [c for c in drawn if labels[c] != labels[a]]
            nearest = sorted(others, key=lambda c: float((x[a] - x[c]).square().sum()))[:negatives]
            if p is None or p == a:  # left out: it is alone in its class, or nothing is hard for its positive
                assert not members
                continue
            assert members == [n for n in nearest if is_hard(x, a, p, n, 0.5)]
            assert members
        if not any(members for _, members in kept.values()):
            assert batch.tolist() == [int(rows[0])] * (2 + negatives)
        triplets = laid_out(labels[batch], negatives)
        listed = [tuple(batch[index].tolist() for index in row) for row in zip(*triplets, strict=True)]
        assert listed == [(a, p, n) for a, (p, members) in kept.items() for n in members]


def test_every_other_image_of_a_class_can_be_a_positive() -> None:
    labels = torch.tensor([5, 5, 5, 5, 1, 1, 9])
    x = torch.zeros(7, 2)  # everything is as hard
    seen: dict[int, set[int]] = {}
    generator = torch.Generator().manual_seed(0)
    for _ in range(60):
        (batch,) = mined_batches(
            lambda rows: x[rows],
            labels,
            [torch.arange(7)],
            cache=7,
            negatives=2,
            margin=0.0,
            generator=generator,
        )
        for a, p, *_ in batch.view(-1, 4).tolist():
            seen.setdefault(a, set()).add(p)
    same = {a: set(range(4)) - {a} for a in range(4)}
    assert seen == {**same, 4: {5}, 5: {4}}


def test_without_a_constraint_the_nearest_are_taken_whatever_their_order() -> None:
    x, labels = torch.tensor([[0.0], [0.1], [5.0], [6.0]]), torch.tensor([0, 0, 1, 1])
    for margin, negatives in ((None, [2, 3]), (0.0, [])):
        (batch,) = mined_batches(
            lambda rows: x[rows],
            labels,
            [torch.tensor([0])],
            cache=4,
            negatives=2,
            margin=margin,
            generator=torch.Generator(),
        )
        assert batch.tolist() == [0, 1, *negatives] if negatives else [0] * 4


@pytest.mark.parametrize("labels", [[0, 0, 1, 1, 0], [0, 1, 1, 1]])
def test_a_batch_of_another_making_is_refused(labels: list[int]) -> None:
    with pytest.raises(ValueError, match='use mining="batch"'):
        laid_out(torch.tensor(labels), 2)
