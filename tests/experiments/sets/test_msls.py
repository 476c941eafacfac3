"""MSLS: cities, parts, positions, and tables that are broken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.sets import MissingDataError
from laplacian_metric import data
from laplacian_metric.data import Dataset, Role
from tests.experiments.sets import miniatures


def load(folder: Path, split: str, **options: Any) -> Dataset:
    return data.load("msls", split=split, data_dir=folder, **options)


def test_places_match_by_distance(tmp_path: Path) -> None:
    miniatures.msls(tmp_path)
    query = load(tmp_path, "validation", part="query")
    database = load(tmp_path, "validation", part="database")
    assert (len(query), len(database)) == (4, 6)  # without a panorama in each
    assert query.positive_distance == 25.0
    assert query.class_names[query.labels[0]] == "cph"
    distance = torch.cdist(query.extras["positions"], database.extras["positions"])
    same = query.labels[:, None] == database.labels[None]
    assert torch.equal(distance <= 25.0, same)
    # Both cities have the same coordinates here, in zones of their own; unmoved they would coincide.
    assert torch.equal(query.extras["utm"][:2], query.extras["utm"][2:])
    both = load(tmp_path, "validation", part="both", cities=["sf"], panoramas=True)
    assert both.extras["is_query"].tolist() == [True] * 3 + [False] * 4


def test_places_for_training_match_within_ten_metres(tmp_path: Path) -> None:
    miniatures.msls(tmp_path, ("trondheim", "goa"))
    train = load(tmp_path, "train", cities=["trondheim", "goa"])
    assert train.positive_distance == 10.0
    assert {train.class_names[label] for label in train.classes} == {"trondheim", "goa"}
    with pytest.raises(MissingDataError, match="train_val/london/query/images"):
        load(tmp_path, "train")


def test_test_cities_need_no_positions(tmp_path: Path) -> None:
    place = tmp_path / "test" / "miami" / "query"
    miniatures.write_csv(place / "subtask_index.csv", [{"key": "a", "all": True}, {"key": "b", "all": True}])
    for key in ("a", "b"):
        miniatures.write_image(place / "images" / f"{key}.jpg", 1)
    test = load(tmp_path, "test", cities=["miami"])
    assert len(test) == 2
    assert test.role is Role.EVALUATION


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("easting", "east", r"postprocessed\.csv"),
        ("500003.0", "here", r"postprocessed\.csv"),
        ("sfquery1", "other", "'other'"),
    ],
)
def test_broken_tables_of_places(old: str, new: str, named: str, tmp_path: Path) -> None:
    miniatures.msls(tmp_path)
    table = tmp_path / "msls" / "train_val" / "sf" / "query" / "postprocessed.csv"
    table.write_text(table.read_text().replace(old, new))
    with pytest.raises(ValueError, match=named):
        load(tmp_path, "validation")


@pytest.mark.parametrize("options", [{"part": "gallery"}, {"positive_distance": 0.0}, {"cities": ["goa"]}])
def test_wrong_options_are_named(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        load(tmp_path, "validation", **options)
