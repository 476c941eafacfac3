"""What answers what where images match by distance: the numbers of a plain loop, and places instead of labels."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from experiments.harness.image_sets import image_sets
from experiments.harness.place_matching import matching, places
from experiments.harness.sections import DataSection
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.embedding import StochasticEmbedding
from laplacian_metric.core.splits import Split
from tests.experiments.sets import miniatures

RADIUS = 10.0


def images(positions: Tensor, is_query: Tensor | None = None) -> Dataset:
    number = len(positions)
    return Dataset(
        torch.zeros(number, 1, 2, 2, dtype=torch.uint8),
        torch.zeros(number, dtype=torch.long),
        name="streets",
        split=Split.TEST,
        class_names=("town",),
        extras={"positions": positions}
        if is_query is None
        else {"positions": positions, "is_query": is_query},
        positive_distance=RADIUS,
    )


def random_case() -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    points = torch.nn.functional.normalize(torch.randn(40, 3, generator=g, dtype=torch.float64))
    return points, 40 * torch.rand(40, 2, generator=g, dtype=torch.float64), torch.arange(40) % 3 == 0


def recall_by_loop(
    points: Tensor, positions: Tensor, queries: list[int], database: list[int], k: int
) -> float:
    right = []
    for query in queries:
        others = [row for row in database if row != query]
        near = {
            row for row in others if math.dist(positions[query].tolist(), positions[row].tolist()) <= RADIUS
        }
        if near:
            first = sorted(others, key=lambda row: float((points[query] - points[row]).norm()))[:k]
            right.append(bool(near & set(first)))
    return sum(right) / len(right)


@pytest.mark.parametrize("k", [1, 3])
def test_queries_search_the_database_within_the_distance(k: int) -> None:
    points, positions, is_query = random_case()
    rows = torch.arange(40)
    queries, database = rows[is_query].tolist(), rows[~is_query].tolist()
    matches = matching(images(positions, is_query))
    assert matches.by_distance
    assert matches.gallery_size(40) == len(database)
    ranking = matches.rank(points, k)
    expected = recall_by_loop(points, positions, queries, database, k)
    assert float(ranking.recall(k).mean()) == pytest.approx(expected)
    assert torch.equal(matches.of_queries(rows), rows[is_query])
    e = StochasticEmbedding(points, points, torch.ones(40), torch.ones(40))
    own = matches.rank_by(lambda q, g: q.point @ g.point.T, e, k)
    for name in ("hits", "positives", "nearest", "ties", "hits_at_r", "precision_at_r"):
        assert torch.equal(getattr(own, name).double(), getattr(ranking, name).double()), name


def test_without_a_database_every_image_searches_all_others() -> None:
    points, positions, is_query = random_case()
    rows = list(range(40))
    for mask in (None, torch.zeros_like(is_query), torch.ones_like(is_query)):
        matches = matching(images(positions, mask))
        assert matches.queries is None
        assert matches.gallery_size(40) == 39
        ranking = matches.rank(points, 2)
        expected = recall_by_loop(points, positions, rows, rows, 2)
        assert float(ranking.recall(2).mean()) == pytest.approx(expected)
        assert torch.equal(matches.of_queries(points), points)


def test_no_two_images_of_a_place_are_farther_apart_than_positives() -> None:
    g = torch.Generator().manual_seed(1)
    positions = 60 * torch.rand(300, 2, generator=g, dtype=torch.float64)
    numbers = places(positions, RADIUS)
    same = numbers[:, None] == numbers[None]
    apart = torch.cdist(positions, positions)
    assert float(apart[same].max()) <= RADIUS
    assert int(same.sum()) > 300
    # Squares tile the plane: where two share no square, a line between squares lies between them.
    side = RADIUS / math.sqrt(2)
    differ = (positions[:, None] // side != positions[None] // side).any(-1)
    assert torch.equal(~same, differ)


def test_options_of_one_split(tmp_path: Path) -> None:
    miniatures.msls(tmp_path, ("ottawa", "goa", "cph"))
    section = DataSection.model_validate(
        {
            "train": "msls",
            "splits": {"train": "train", "validation": "train", "test": "validation"},
            "options": {"part": "both"},
            "split_options": {
                "train": {"cities": ["ottawa"]},
                "validation": {"cities": ["goa"], "positive_distance": 25.0},
                "test": {"cities": ["cph"]},
            },
            "image_size": 8,
        }
    )
    sets = image_sets(section, tmp_path)
    split_images = {name: sets.images[name] for name in ("train", "validation", "test")}
    assert {name: part.positive_distance for name, part in split_images.items()} == {
        "train": 10.0,
        "validation": 25.0,
        "test": 25.0,
    }
    assert all("ottawa" in name for name in split_images["train"].images.names)  # type: ignore[union-attr]
    assert all("goa" in name for name in split_images["validation"].images.names)  # type: ignore[union-attr]
