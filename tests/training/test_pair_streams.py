"""Pairs that are drawn: which classes they are of, that all are as likely, and that none is of an image with itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from laplacian_metric.training.pair_streams import (
    balanced_pairs,
    differing_pairs,
    matching_pairs,
    random_pairs,
)

LABELS = st.lists(st.integers(-2, 4), min_size=3, max_size=30)


@settings(max_examples=60, deadline=None)
@given(LABELS, st.integers(1, 40), st.integers(0, 2**63 - 1))
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


@pytest.mark.parametrize(
    ("draw", "named"),
    [
        (lambda: balanced_pairs(torch.tensor([0, 0, 1]), 3, (0,)), "3 pairs"),
        (lambda: balanced_pairs(torch.tensor([0, 0, 1]), 0, (0,)), "0 pairs"),
        (lambda: matching_pairs(torch.arange(4), 1, (0,)), "one class"),
        (lambda: differing_pairs(torch.zeros(4), 1, (0,)), "one class"),
        (lambda: random_pairs(1, 1, (0,)), "1 images"),
        (lambda: matching_pairs(torch.zeros(0), 1, (0,)), "labels"),
    ],
)
def test_what_cannot_be_drawn_is_refused(draw: Callable[[], object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        draw()
