"""A ranking by scores, beside the search by distances."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from laplacian_metric import metrics
from laplacian_metric.metrics.ranking import rank_by, rank_by_distance


def points(number: int, dim: int = 4) -> Tensor:
    raw = torch.randn(number, dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return torch.nn.functional.normalize(raw)


@pytest.mark.parametrize("rows", [7, 256])
def test_by_the_cosine_it_is_the_search(rows: int) -> None:
    z, labels = points(40), torch.arange(40) % 5
    labels[0] = 99  # has no positive
    ranking = rank_by(lambda chosen: z[chosen] @ z.T, labels, k=10, rows=rows)
    expected = metrics.rank(z, labels, 10, at_r=True)
    for name in ("hits", "positives", "nearest", "ties", "hits_at_r", "precision_at_r"):
        assert torch.equal(getattr(ranking, name).double(), getattr(expected, name).double()), name
    assert ranking.num_unanswerable == 1
    values = metrics.evaluate_ranking(ranking, ks=(1, 5, 10), resamples=0).values
    assert values == metrics.evaluate_ranking(expected, ks=(1, 5, 10), resamples=0).values


def test_equal_scores_are_in_the_order_of_the_index_and_counted() -> None:
    ranking = rank_by(lambda chosen: torch.zeros(len(chosen), 4), [0, 0, 0, 0], k=2)
    assert ranking.nearest.tolist() == [1, 0, 0, 0]
    assert ranking.ties.tolist() == [2, 2, 2, 2]


def test_its_own_score_does_not_count_even_where_others_are_lost() -> None:
    scores = torch.full((3, 3), -torch.inf)
    ranking = rank_by(lambda chosen: scores[chosen].clone(), [0, 0, 1], k=1)
    assert ranking.nearest.tolist() == [1, 0, 0]


def test_what_orders_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="scores"):
        rank_by(lambda chosen: torch.zeros(3, 2), [0, 0, 1])
    with pytest.raises(ValueError, match="NaN"):
        rank_by(lambda chosen: torch.full((3, 3), torch.nan), [0, 0, 1])
    with pytest.raises(ValueError, match="no metric is defined"):
        rank_by(lambda chosen: torch.zeros(3, 3), [0, 1, 2])
    with pytest.raises(ValueError, match="k is 3"):
        rank_by(lambda chosen: torch.zeros(3, 3), [0, 0, 1], k=3)


def test_ranking_by_distance_is_the_search_on_the_sphere_and_does_not_see_shifts() -> None:
    z, labels = points(80, 3), torch.arange(80) % 5
    ranking, expected = rank_by_distance(z, labels, 10), metrics.rank(z, labels, 10)
    for name in ("hits", "positives", "nearest"):
        assert torch.equal(getattr(ranking, name), getattr(expected, name)), name
    torch.testing.assert_close(ranking.distance, expected.distance)
    moved = rank_by_distance(z + 3, labels, 10)
    assert torch.equal(moved.hits, ranking.hits)
    with pytest.raises(ValueError, match="k is 80"):
        rank_by_distance(z, labels, 80)
    with pytest.raises(ValueError, match="labels"):
        rank_by_distance(z, labels[:3])
