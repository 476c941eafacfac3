"""The noun `Neighbours`: checked, copied, read-only."""

from __future__ import annotations

import numpy as np
import pytest

from laplacian_metric.core.neighbours import Neighbours


def test_it_is_a_read_only_copy() -> None:
    ids, distances = np.array([[3, 1]]), np.array([[0.1, 0.2]])
    neighbours = Neighbours(ids, distances, np.array([["a", "b"]]))
    ids[0, 0], distances[0, 0] = 9, 9
    assert neighbours.ids.tolist() == [[3, 1]]
    assert neighbours.distances.tolist() == [[0.1, 0.2]]
    for array in (neighbours.ids, neighbours.distances, neighbours.labels):
        assert array is not None
        with pytest.raises(ValueError, match="read-only"):
            array[0, 0] = array[0, 1]


def test_rounding_of_engines_is_undone() -> None:
    assert Neighbours([[1, 2, 3]], [[-1e-7, 0.5, 0.5 - 1e-7]]).distances.tolist() == [[0, 0.5, 0.5]]


def test_some_queries_are_taken() -> None:
    neighbours = Neighbours([[1], [2], [3]], [[0.1], [0.2], [0.3]], [["a"], ["b"], ["c"]])
    taken = neighbours[np.array([2, 0])]
    assert taken.ids.tolist() == [[3], [1]]
    assert taken.labels is not None
    assert taken.labels.tolist() == [["c"], ["a"]]


@pytest.mark.parametrize(
    ("ids", "distances", "labels", "message"),
    [
        ([[1, 2]], [[0.2, 0.1]], None, "distances does not ascend in row 0"),
        ([[1, 2]], [[0.9, np.nan]], None, "distances has NaN in row 0"),
        ([[1]], [[-0.9]], None, "distances, such as 1 - cosine, and not similarities"),
        ([[1]], [[0.1, 0.2]], None, "ids has shape"),
        ([[1, 2]], [[0.1, 0.2]], [[1]], "labels has shape"),
        ([1, 2], [0.1, 0.2], None, r"distances has shape \(2,\)"),
    ],
)
def test_what_is_refused(ids: list, distances: list, labels: list | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Neighbours(ids, distances, labels)
