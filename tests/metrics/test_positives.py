"""What counts as a positive: by class, or by distance."""

from __future__ import annotations

import pytest
import torch

from laplacian_metric import metrics
from laplacian_metric.metrics import Positives
from tests.metrics.reference import unit


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


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Positives.within(-1.0, torch.zeros(2, 2)), "radius is -1.0"),
        (lambda: Positives.within(1.0, torch.full((2, 2), torch.nan)), "positions has NaN"),
        (lambda: Positives.within(1.0, torch.zeros(2, 2), torch.zeros(2, 3)), "positions has 2 coordinates"),
    ],
)
def test_bad_input_is_named(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match=message):
        make()


def test_positives_of_other_sizes_are_refused() -> None:
    positives = Positives.from_labels([0, 0, 1])
    with pytest.raises(ValueError, match="positives"):
        metrics.recall_at_k(unit(4, 2), positives)
    with pytest.raises(ValueError, match="database_labels"):
        metrics.recall_at_k(unit(3, 2), positives, database=unit(3, 2), database_labels=[0, 0, 1])
