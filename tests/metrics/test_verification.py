"""Verification beside scikit-learn and scipy, and by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import average_precision_score
from sklearn.neighbors import KNeighborsClassifier

from laplacian_metric import metrics
from laplacian_metric.metrics.nearest import distances, nearest, rank_by_distance, vote
from laplacian_metric.metrics.verification import binned, falling, kendall_tau, pair_average_precision

NUMBERS = st.lists(st.integers(-3, 3), min_size=2, max_size=25)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_kendalls_tau_is_that_of_scipy(data: st.DataObject) -> None:
    first = data.draw(NUMBERS)
    second = data.draw(st.lists(st.integers(-3, 3), min_size=len(first), max_size=len(first)))
    correlation = kendall_tau(torch.tensor(first).double(), torch.tensor(second).double())
    expected = stats.kendalltau(first, second).statistic
    assert correlation == pytest.approx(expected, nan_ok=True, abs=1e-12)


def test_kendalls_tau_by_hand_and_where_there_is_none() -> None:
    # Of six pairs five are in order and one is not.
    assert kendall_tau(torch.arange(4.0), torch.tensor([1.0, 2.0, 4.0, 3.0])) == pytest.approx(4 / 6)
    assert falling([0.9, 0.8, 0.85, 0.1]) == pytest.approx(4 / 6)
    assert falling([0.2, 0.4]) == -1.0
    assert math.isnan(falling([0.5, 0.5, 0.5]))
    assert math.isnan(kendall_tau(torch.zeros(0), torch.zeros(0)))
    # A bin without a number is left out.
    assert falling([0.9, math.nan, 0.85, 0.1]) == falling([0.9, 0.85, 0.1]) == 1.0
    with pytest.raises(ValueError, match="two of one length are needed"):
        kendall_tau(torch.zeros(2), torch.zeros(3))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=30))
def test_average_precision_is_that_of_scikit_learn(rows: list[tuple[int, bool]]) -> None:
    scores, matching = (torch.tensor(column) for column in zip(*rows, strict=True))
    precision = pair_average_precision(scores.double(), matching.bool())
    if not any(match for _, match in rows):
        assert math.isnan(precision)
        return
    assert precision == pytest.approx(average_precision_score(matching.numpy(), scores.numpy()))


def test_bins_are_of_equal_size_and_in_order() -> None:
    values = torch.tensor([0.3, 0.1, 0.2, 0.1, 0.9, 0.5, 0.4])
    orders: list[list[int]] = []

    def seen(rows: torch.Tensor) -> float:
        orders.append(rows.tolist())
        return float(len(rows))

    assert binned(values, seen, 3) == [3.0, 2.0, 2.0]
    assert orders == [[1, 3, 2], [0, 6], [5, 4]]
    with pytest.raises(ValueError, match="7 items cannot be put into 8 bins"):
        binned(values, seen, 8)
    with pytest.raises(ValueError, match="uncertainty has NaN in 1 of 2"):
        binned(torch.tensor([0.0, math.nan]), seen, 2)


# --- neighbours ---


def points(number: int = 60, dim: int = 2, seed: int = 0) -> torch.Tensor:
    return torch.randn(number, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_the_vote_is_that_of_scikit_learn(dim: int) -> None:
    z, labels = points(300, dim), torch.arange(300) % 4
    gallery, queries = z[:200], z[200:]
    members, _ = nearest(lambda rows: -distances(queries[rows], gallery), 100, 200, 5)
    actual = vote(labels[members])
    model = KNeighborsClassifier(5).fit(gallery.numpy(), labels[:200].numpy())
    expected = torch.from_numpy(model.predict(queries.numpy()))
    votes = torch.nn.functional.one_hot(labels[members], 4).sum(1).sort(1, descending=True).values
    clear = votes[:, 0] > votes[:, 1]
    assert 50 < int(clear.sum()) < 100
    assert torch.equal(actual[clear], expected[clear])
    # Of classes with as many votes, the one whose member is nearest.
    for row in (~clear).nonzero().flatten().tolist():
        most = int(votes[row, 0])
        tied = [label for label in range(4) if int((labels[members[row]] == label).sum()) == most]
        first = next(int(label) for label in labels[members[row]] if int(label) in tied)
        assert int(actual[row]) == first


def test_own_and_twins_are_passed_over_and_equal_ones_are_in_order() -> None:
    z = torch.tensor([[0.0], [1.0], [1.0], [-1.0], [5.0]])

    def score(rows: torch.Tensor) -> torch.Tensor:
        return -distances(z[rows], z)

    members, scores = nearest(score, 5, 5, 2, own=torch.arange(5))
    assert members.tolist() == [[1, 2], [2, 0], [1, 0], [0, 1], [1, 2]]
    assert scores[0].tolist() == [-1.0, -1.0]
    everything, _ = nearest(score, 5, 5, 2)
    assert everything[1].tolist() == [1, 2]
    assert nearest(score, 5, 5, 9, own=torch.arange(5))[0].shape == (5, 4)
    with pytest.raises(ValueError, match="no neighbour"):
        nearest(lambda rows: torch.zeros(1, 1), 1, 1, 1, own=torch.arange(1))
    with pytest.raises(ValueError, match=r"shape \(5, 3\), \(5, 5\) is needed"):
        nearest(lambda rows: torch.zeros(len(rows), 3), 5, 5, 1)
    with pytest.raises(ValueError, match="NaN"):
        nearest(lambda rows: torch.full((len(rows), 5), torch.nan), 5, 5, 1)


def test_ranking_by_distance_is_the_search_on_the_sphere_and_does_not_see_shifts() -> None:
    z, labels = torch.nn.functional.normalize(points(80, 3)), torch.arange(80) % 5
    ranking, expected = rank_by_distance(z, labels, 10), metrics.rank(z, labels, 10)
    for name in ("hits", "positives", "nearest"):
        assert torch.equal(getattr(ranking, name), getattr(expected, name)), name
    torch.testing.assert_close(ranking.distance, expected.distance)
    moved = rank_by_distance(z + 3, labels, 10)
    assert torch.equal(moved.hits, ranking.hits)
    with pytest.raises(ValueError, match="k is 80, but a point has 79 others"):
        rank_by_distance(z, labels, 80)
    with pytest.raises(ValueError, match="labels has 3 entries for 80 points"):
        rank_by_distance(z, labels[:3])
    with pytest.raises(ValueError, match=r"\(Q, k\)"):
        vote(labels)
