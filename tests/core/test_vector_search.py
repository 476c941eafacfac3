"""Exact search in numpy against loops, whatever the blocks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laplacian_metric.core import vector_search
from laplacian_metric.core.vector_search import Classes, Vectors, search


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    items=st.integers(2, 60),
    queries=st.integers(1, 7),
    k=st.integers(1, 70),
    block=st.integers(1, 40),
    blocks_of_queries=st.integers(1, 7),
    classes=st.integers(1, 4),
    mode=st.sampled_from(["plain", "own", "class"]),
)
def test_search_is_that_of_loops(
    seed: int, items: int, queries: int, k: int, block: int, blocks_of_queries: int, classes: int, mode: str
) -> None:
    generator = np.random.default_rng(seed)
    rows = generator.standard_normal((items, 4))
    rows[generator.integers(0, items, items // 3)] = rows[0]  # equal ones
    codes = generator.integers(0, classes, items)
    own = generator.integers(0, items, queries) if mode == "own" else None
    x = rows[own] if own is not None else generator.standard_normal((queries, 4))
    query_classes = generator.integers(0, classes, queries) if mode == "class" else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vector_search, "GATHERED_AT_ONCE", 4 * block)
        patch.setattr(vector_search, "COSINES_AT_ONCE", block * blocks_of_queries)
        neighbours = search(
            Vectors.of("a", rows), Vectors.of("b", x), k, own=own, codes=Classes(codes), classes=query_classes
        )
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    for i in range(queries):
        direction = x[i] / np.linalg.norm(x[i])
        d = [
            (float(((direction - unit[j]) ** 2).sum() / 2), j)
            for j in range(items)
            if own is None or j != own[i]
        ]
        d.sort()
        np.testing.assert_allclose(neighbours.distances[i], [value for value, _ in d[:k]], atol=1e-12)
        c = codes[neighbours.rows[i, 0]] if query_classes is None else query_classes[i]
        for same, row, value in (
            (True, neighbours.same_row, neighbours.same),
            (False, neighbours.other_row, neighbours.other),
        ):
            expected = [entry for entry in d if (codes[entry[1]] == c) == same]
            assert value[i] == pytest.approx(expected[0][0] if expected else 2.0, abs=1e-12)
            assert (row[i] < 0) == (not expected)


@pytest.mark.parametrize("leave_out", [False, True])
def test_faiss_finds_the_same(monkeypatch: pytest.MonkeyPatch, leave_out: bool) -> None:
    generator = np.random.default_rng(0)
    vectors = Vectors.of("rows", generator.standard_normal((300, 8)))
    own = np.arange(40) if leave_out else None
    queries = Vectors.of("queries", vectors.rows[:40] if leave_out else generator.standard_normal((40, 8)))
    plain = search(vectors, queries, 11, own=own)
    monkeypatch.setattr(vector_search, "PAIRS_FOR_FAISS", 1)
    monkeypatch.setattr(vector_search, "GATHERED_AT_ONCE", 8 * 70)
    by_faiss = search(vectors, queries, 11, own=own)
    assert np.array_equal(plain.rows, by_faiss.rows)
    assert np.array_equal(plain.distances, by_faiss.distances)


def test_near_distances_keep_their_digits() -> None:
    items = Vectors.of("items", np.array([[1.0, 0.0], [1.0, 1e-5]], dtype=np.float32))
    neighbours = search(items, Vectors.of("queries", [[1.0, 0.0]]), 2)
    assert neighbours.distances[0].tolist() == pytest.approx([0, 5e-11], rel=1e-5)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_mapped_gallery_of_any_precision(tmp_path, dtype) -> None:
    rows = np.random.default_rng(0).standard_normal((50, 6)).astype(dtype)
    np.save(tmp_path / "rows.npy", rows)
    mapped = Vectors.of("rows", np.load(tmp_path / "rows.npy", mmap_mode="r"))
    assert isinstance(mapped.rows, np.memmap)
    queries = Vectors.of("queries", rows[:5])
    plain, other = (search(vectors, queries, 7) for vectors in (Vectors.of("rows", rows), mapped))
    assert np.array_equal(plain.rows, other.rows)
    assert np.array_equal(plain.distances, other.distances)
    assert plain.distances[:, 0].max() == 0


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[1.0, np.nan]], "h has NaN or infinity in 1 of 1 rows, the first is row 0"),
        ([[1.0, 0.0], [0.0, 0.0]], "h is zero in 1 of 2 rows, the first is row 1"),
        (np.zeros((0, 3)), "h has shape"),
        ([1.0, 2.0], "h has shape"),
    ],
)
def test_bad_rows_are_named(rows, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Vectors.of("h", rows)
