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

from experiments.harness.verification import (
    distances,
    falling,
    kendall_tau,
    pair_average_precision,
    vote,
)
from laplacian_metric.core.search import best_by_score

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


# --- neighbours ---


def points(number: int = 60, dim: int = 2, seed: int = 0) -> torch.Tensor:
    return torch.randn(number, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_the_vote_is_that_of_scikit_learn(dim: int) -> None:
    z, labels = points(300, dim), torch.arange(300) % 4
    gallery, queries = z[:200], z[200:]
    members, _ = best_by_score(lambda rows: -distances(queries[rows], gallery), 100, 200, 5)
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
