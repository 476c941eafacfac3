"""Recall and mean average precision: by hand, by the definition, and by another library."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from torch import Tensor

from laplacian_metric import metrics
from laplacian_metric.metrics import Positives
from laplacian_metric.metrics.ranking import rank_by, rank_by_distance
from tests.metrics import reference
from tests.metrics.reference import clustered, labelled, unit

Metric = Callable[..., float]


def on_circle(*degrees: float) -> Tensor:
    angle = torch.tensor(degrees, dtype=torch.float64).deg2rad()
    return torch.stack([angle.cos(), angle.sin()], dim=1)


# Query 0 sees 1, 2, 3, 4 in this order, and so do the others from their ends; image 4 is alone in its class.
LINE = on_circle(0, 10, 21, 33, 46)
LABELS = [0, 1, 0, 0, 2]


def test_recall_by_hand() -> None:
    # 0: wrong, right; 1 and 4 have no positive; 2: sees 1, 3: wrong, right; 3: sees 2: right.
    assert metrics.recall_at_k(LINE, LABELS) == pytest.approx(1 / 3)
    assert metrics.recall_at_k(LINE, LABELS, k=2) == 1


def test_map_by_hand() -> None:
    # Query 0: 1, 2, 3, 4 -> hits at 2 and 3; query 2: 1, 3, 0, 4 -> hits at 2 and 3; query 3: 2, 4, 1, 0 -> 1 and 4.
    two, four = (0 + 1 / 2) / 2, (1 / 2 + 2 / 3) / 2
    assert metrics.map_at_k(LINE, LABELS, k=2) == pytest.approx((two + two + 1 / 2) / 3)
    assert metrics.map_at_k(LINE, LABELS, k=4) == pytest.approx((four + four + (1 + 2 / 4) / 2) / 3)
    assert metrics.map_at_k(LINE, LABELS, k=1) == pytest.approx(1 / 3)
    assert metrics.map_at_r(LINE, LABELS) == pytest.approx((two + two + 1 / 2) / 3)
    assert metrics.r_precision(LINE, LABELS) == pytest.approx((1 / 2 + 1 / 2 + 1 / 2) / 3)


def test_the_three_normalisations_by_hand() -> None:
    # Five positives, one hit, at rank 1, of the first k = 2.
    gallery = on_circle(1, 2, 3, 50, 60, 70, 80)
    labels = [7, 3, 3, 7, 7, 7, 7]
    values = {
        way: metrics.map_at_k(
            on_circle(0), [7], k=2, database=gallery, database_labels=labels, normalisation=way
        )
        for way in ("positives", "min", "hits")
    }
    assert values == pytest.approx({"positives": 1 / 5, "min": 1 / 2, "hits": 1.0})


@given(labelled(), st.integers(1, 13))
def test_the_definitions(case: tuple[Tensor, list[int]], k: int) -> None:
    z, labels = case
    k = min(k, len(z) - 1)
    lists = reference.relevance(z, labels)
    assert metrics.recall_at_k(z, labels, k) == pytest.approx(reference.recall(lists, k))
    assert metrics.map_at_k(z, labels, k) == pytest.approx(reference.mean_average_precision(lists, k))
    assert metrics.map_at_r(z, labels) == pytest.approx(reference.mean_average_precision(lists, None))


@given(labelled(), st.data())
def test_order_of_the_numbers(case: tuple[Tensor, list[int]], data: st.DataObject) -> None:
    """mAP@1 is recall@1, recall grows with k, and nothing leaves 0 to 1."""
    z, labels = case
    recalls = [metrics.recall_at_k(z, labels, k) for k in range(1, len(z))]
    assert recalls == sorted(recalls)
    assert recalls[-1] == 1
    assert metrics.map_at_k(z, labels, 1) == recalls[0]
    k = data.draw(st.integers(1, len(z) - 1))
    assert 0 <= metrics.map_at_k(z, labels, k) <= recalls[k - 1] + 1e-12


def test_another_library_agrees() -> None:
    z, labels = clustered(400, 8, 12, 0.35)
    calculator = AccuracyCalculator(
        include=("precision_at_1", "r_precision", "mean_average_precision_at_r"), k="max_bin_count"
    )
    theirs = calculator.get_accuracy(z, labels)
    assert metrics.recall_at_k(z, labels) == pytest.approx(theirs["precision_at_1"])
    assert metrics.map_at_r(z, labels) == pytest.approx(theirs["mean_average_precision_at_r"], abs=1e-6)
    assert metrics.r_precision(z, labels) == pytest.approx(theirs["r_precision"], abs=1e-6)


def test_a_gallery_of_its_own() -> None:
    z, labels = clustered(300, 6, 5, 0.4)
    queries, gallery = slice(0, 100), slice(100, None)
    calculator = AccuracyCalculator(
        include=("precision_at_1", "mean_average_precision_at_r"), k="max_bin_count"
    )
    theirs = calculator.get_accuracy(z[queries], labels[queries], z[gallery], labels[gallery])
    data = {"database": z[gallery], "database_labels": labels[gallery]}
    assert metrics.recall_at_k(z[queries], labels[queries], **data) == pytest.approx(theirs["precision_at_1"])
    assert metrics.map_at_r(z[queries], labels[queries], **data) == pytest.approx(
        theirs["mean_average_precision_at_r"], abs=1e-6
    )


@pytest.mark.parametrize(
    "metric",
    [
        metrics.recall_at_k,
        metrics.map_at_k,
        metrics.map_at_r,
        metrics.r_precision,
        lambda z, labels: metrics.ausc(z, labels, torch.arange(float(len(z)))),
        lambda z, labels: metrics.r_auroc(z, labels, torch.arange(float(len(z)))),
        lambda z, labels: metrics.ece_at_k(z, labels, torch.arange(float(len(z))), k=3),
        lambda z, labels: metrics.retrieval_ece(z[None].expand(3, -1, -1), labels),
    ],
    ids=["recall", "map_at_k", "map_at_r", "r_precision", "ausc", "r_auroc", "ece_at_k", "retrieval_ece"],
)
def test_a_query_without_a_positive_is_left_out_of_every_metric(metric: Metric) -> None:
    # Images of classes of their own, on the far side: they are nobody's neighbours, so leaving them out as
    # queries must leave every number as it is without them.
    z, labels = clustered(40, 3, 2, 0.6)
    z = torch.nn.functional.normalize(z + torch.tensor([3.0, 0.0, 0.0]), dim=1)
    lonely = torch.nn.functional.normalize(torch.tensor([[-1.0, 0.1, 0.0], [-1.0, 0.0, 0.1]]), dim=1)
    together = metric(torch.cat([z, lonely]), torch.cat([labels, torch.tensor([8, 9])]))
    assert together == pytest.approx(metric(z, labels), abs=1e-12)
    assert metrics.rank(torch.cat([z, lonely]), [*labels.tolist(), 8, 9]).num_unanswerable == 2


@pytest.mark.parametrize(
    "metric", [metrics.recall_at_k, metrics.map_at_k, metrics.map_at_r, metrics.r_precision]
)
def test_precision_blocks_and_order_change_nothing(metric: Metric, monkeypatch: pytest.MonkeyPatch) -> None:
    z, labels = clustered(300, 3, 6, 0.5)
    expected = metric(z, labels)
    order = torch.randperm(len(z), generator=torch.Generator().manual_seed(3))
    assert metric(z.double(), labels) == expected
    assert metric(z[order], labels[order]) == pytest.approx(expected, rel=1e-14)
    monkeypatch.setattr("laplacian_metric.core.search.MAX_ROWS", 7)
    assert metric(z, labels) == pytest.approx(expected, rel=1e-14)


def test_extremes() -> None:
    z = on_circle(0, 1, 90, 91, 180, 181)
    assert metrics.map_at_r(z, [0, 0, 1, 1, 2, 2]) == 1
    assert metrics.recall_at_k(z, [0, 1, 2, 0, 1, 2]) == 0


def test_many_classes_and_labels_beyond_float32() -> None:
    z = on_circle(0, 1, 90, 91)
    big = 2**24
    assert metrics.recall_at_k(z, [big, big + 1, big, big + 1]) == 0
    assert metrics.recall_at_k(z, torch.tensor([-5, -5, 2**40, 2**40])) == 1


def test_places_by_hand() -> None:
    places = torch.tensor([[0.0, 0.0], [25.0, 0.0], [25.1, 0.0], [400.0, 0.0]])
    positives = Positives.within(25.0, places)
    assert positives.counts.tolist() == [1, 2, 1, 0]
    hits = positives.hits(torch.tensor([0, 1]), torch.tensor([[1, 2], [3, 2]]))
    assert hits.tolist() == [[True, False], [False, True]]


def test_places_are_compared_in_float64() -> None:
    # Coordinates in a map's metres, of which float32 would keep halves at best.
    base = torch.tensor([[500_000.0, 5_800_000.0]], dtype=torch.float64)
    places = torch.cat([base, base + torch.tensor([[0.0, 10.01]]), base + torch.tensor([[0.0, 9.99]])])
    assert Positives.within(10.0, places).counts.tolist() == [1, 1, 2]


def test_place_recognition_by_labels_and_by_positions_agree() -> None:
    z, labels = unit(30, 4), torch.arange(30) % 6
    database, database_labels = unit(50, 4, seed=1), torch.arange(50) % 7
    street = lambda numbers: torch.stack([100.0 * numbers, torch.zeros(len(numbers))], dim=1)  # noqa: E731
    positives = Positives.within(25.0, street(labels), street(database_labels))
    ours = metrics.map_at_k(z, positives, database=database)
    assert ours == metrics.map_at_k(z, labels, database=database, database_labels=database_labels)


def test_counting_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    places = torch.rand(40, 2, generator=torch.Generator().manual_seed(0))
    whole = Positives.within(0.3, places).counts
    monkeypatch.setattr("laplacian_metric.metrics.positives.BLOCK", 100)
    assert torch.equal(Positives.within(0.3, places).counts, whole)
    assert torch.equal(whole, (torch.cdist(places.double(), places.double()) <= 0.3).sum(1) - 1)


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


def test_ranking_by_distance_is_the_search_on_the_sphere_and_does_not_see_shifts() -> None:
    z, labels = points(80, 3), torch.arange(80) % 5
    ranking, expected = rank_by_distance(z, labels, 10), metrics.rank(z, labels, 10)
    for name in ("hits", "positives", "nearest"):
        assert torch.equal(getattr(ranking, name), getattr(expected, name)), name
    torch.testing.assert_close(ranking.distance, expected.distance)
    moved = rank_by_distance(z + 3, labels, 10)
    assert torch.equal(moved.hits, ranking.hits)
