"""Nearest neighbours: against brute force and faiss, in blocks, in other precisions, with ties, and bad input."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import faiss
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize

from laplacian_metric.core import search as neighbours
from laplacian_metric.core.search import Nearest, best_by_score, search, search_blocks

ROW = neighbours.BYTES_PER_SIMILARITY * neighbours.GROUP  # memory for one query of a gallery of one group


def unit(num: int, dim: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return normalize(torch.randn(num, dim, generator=generator, dtype=dtype), dim=1)


def brute_force(
    queries: Tensor, gallery: Tensor, own: list[int], k: int
) -> tuple[list[list[int]], list[int]]:
    """The definition: sort everything but the own copy by distance, then by index; count equal neighbouring places."""
    nearest, ties = [], []
    exact = [[row / row.norm() for row in vectors.double()] for vectors in (queries, gallery)]
    for query, mine in zip(exact[0], own, strict=True):
        order = sorted((float((query - g).square().sum()), i) for i, g in enumerate(exact[1]) if i != mine)
        nearest.append([i for _, i in order[:k]])
        ties.append(sum(nearer[0] == farther[0] for nearer, farther in pairwise(order[: k + 1])))
    return nearest, ties


def assert_same(first: Nearest, second: Nearest) -> None:
    """Neighbours, ties and the first distances to the last bit; deep distances to the rounding of a product."""
    exact = neighbours.EXACT_COLUMNS
    assert torch.equal(first.indices, second.indices)
    assert torch.equal(first.ties, second.ties)
    assert torch.equal(first.distances[:, :exact], second.distances[:, :exact])
    assert torch.allclose(first.distances, second.distances, rtol=1e-12, atol=0)


@st.composite
def sets(draw: st.DrawFn) -> tuple[Tensor, int]:
    """A set of unit vectors on a coarse grid, where duplicates and ties are common, and a k."""
    num, dim = draw(st.integers(2, 12)), draw(st.integers(1, 4))
    entries = st.lists(st.integers(-2, 2), min_size=dim, max_size=dim).filter(any)
    rows = draw(st.lists(entries, min_size=num, max_size=num))
    return normalize(torch.tensor(rows, dtype=torch.float64), dim=1), draw(st.integers(1, num - 1))


@given(sets())
def test_one_set_is_what_brute_force_finds(case: tuple[Tensor, int]) -> None:
    z, k = case
    nearest_items = search(z, k)
    assert (nearest_items.indices.tolist(), nearest_items.ties.tolist()) == brute_force(
        z, z, list(range(len(z))), k
    )


@given(sets(), sets(), st.data())
def test_a_gallery_with_own_rows_is_what_brute_force_finds(
    case: tuple[Tensor, int], other: tuple[Tensor, int], data: st.DataObject
) -> None:
    dim = min(case[0].shape[1], other[0].shape[1])
    queries, gallery = (unit(len(z), dim, seed=7 * len(z), dtype=torch.float64) for z in (case[0], other[0]))
    gallery = torch.cat([gallery, queries])
    own = data.draw(st.lists(st.integers(-1, len(gallery) - 1), min_size=len(queries), max_size=len(queries)))
    k = data.draw(st.integers(1, len(gallery) - 1))
    nearest_items = search(queries, k, database=gallery, own=torch.tensor(own))
    assert (nearest_items.indices.tolist(), nearest_items.ties.tolist()) == brute_force(
        queries, gallery, own, k
    )


def test_by_hand() -> None:
    z = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-1.0, 0.0]])
    nearest_items = search(z, 3)
    assert nearest_items.indices.tolist() == [[1, 2, 3], [2, 0, 3], [1, 0, 3], [2, 1, 0]]
    assert nearest_items.similarities[1].tolist() == pytest.approx([0.8, 0.6, -0.6], abs=1e-7)
    assert nearest_items.distances[0].tolist() == pytest.approx([math.sqrt(0.8), math.sqrt(2), 2.0], rel=1e-7)
    # (0, 1) is as far from (1, 0) as from (-1, 0).
    assert nearest_items.ties.tolist() == [0, 0, 1, 0]
    assert (nearest_items.indices.shape[1], nearest_items.gallery_size) == (3, 4)


def test_a_duplicate_stays_and_the_own_copy_goes_whatever_its_place() -> None:
    z = torch.tensor([[0.0, 1.0]]).expand(5, 2)
    nearest_items = search(z, 2)
    assert nearest_items.indices.tolist() == [[1, 2], [0, 2], [0, 1], [0, 1], [0, 1]]
    assert nearest_items.ties.tolist() == [2] * 5
    assert bool((nearest_items.distances == 0).all())


@pytest.mark.parametrize(("dim", "k"), [(3, 1), (3, 10), (64, 1), (64, 50), (64, 200)])
def test_faiss_finds_the_same(dim: int, k: int) -> None:
    z = unit(1500, dim)
    index = faiss.IndexFlatIP(dim)
    index.add(z.numpy())
    similarity, member = (torch.from_numpy(x) for x in index.search(z.numpy(), k + 1))
    nearest_items = search(z, k, database=z)
    # In float32 faiss may exchange what lies closer together than its rounding.
    assert (nearest_items.indices != member[:, :k]).double().mean() < 1e-2
    assert torch.allclose(nearest_items.similarities, similarity[:, :k].double(), atol=1e-6)


@pytest.mark.parametrize("k", [1, 5, 99])
@pytest.mark.parametrize("rows", [0, 1, 7, 64, 10_000])
def test_one_block_and_many_give_the_same(rows: int, k: int) -> None:
    z = unit(150, 3)
    z[100:] = z[:50]
    whole = search(z, k)
    parts = search(z, k, memory=max(1, ROW * 3 * rows))
    assert_same(whole, parts)


@pytest.mark.parametrize("k", [1, 20, 100])
def test_float32_and_float64_give_the_same(k: int) -> None:
    z = unit(300, 3)
    assert_same(search(z, k), search(z.double(), k))


def test_rounding_to_float32_leaves_well_separated_neighbours_alone() -> None:
    z = unit(400, 16, dtype=torch.float64)
    assert torch.equal(search(z, 5).indices, search(z.float(), 5).indices)


@pytest.mark.parametrize("k", [1, 10, 120])
def test_shuffled_input_gives_the_same_neighbours(k: int) -> None:
    z = unit(200, 4)
    order = torch.randperm(200, generator=torch.Generator().manual_seed(1))
    straight, shuffled = search(z, k), search(z[order], k)
    assert torch.equal(straight.indices[order], order[shuffled.indices])
    assert torch.allclose(straight.distances[order], shuffled.distances, rtol=1e-12, atol=0)
    assert torch.equal(straight.distances[order, 0], shuffled.distances[:, 0])


@pytest.mark.parametrize("k", [1, 3, 80])
def test_neighbours_closer_than_float32_can_tell_are_in_the_right_order(k: int) -> None:
    # All within 1e-6 of each other: every similarity is 1 in float32.
    angle = torch.randperm(100, generator=torch.Generator().manual_seed(0)).double() * 1e-8
    z = torch.stack([angle.cos(), angle.sin()], dim=1)
    place = (angle * 1e8).round().long()
    nearest_items = search(z, k, database=z)
    assert torch.equal(nearest_items.indices[:, 0], torch.arange(100))
    distance = (place[nearest_items.indices] - place[:, None]).abs()
    assert bool((distance.diff(dim=1) >= 0).all())


def test_products_in_fewer_digits_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    z = unit(300, 8)
    expected = search(z, 5)
    real = torch.mm

    def coarse(a: Tensor, b: Tensor, *, out: Tensor) -> Tensor:
        return real(a.bfloat16().float(), b.bfloat16().float(), out=out)

    monkeypatch.setattr(torch, "mm", coarse)
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "medium")
    assert torch.equal(search(z, 5).indices, expected.indices)


def test_half_precision_is_taken() -> None:
    z = unit(50, 8)
    half = z.bfloat16()
    assert torch.equal(search(half, 3).indices, search(normalize(half.double(), dim=1), 3).indices)


def test_blocks_are_as_deep_as_their_deepest_query() -> None:
    z = unit(6, 3)
    depth = torch.tensor([1, 3, 1, 2, 5, 1])
    blocks = list(search_blocks(z, depth, memory=2 * ROW))
    assert [(rows.start, rows.stop, block.indices.shape[1]) for rows, block in blocks] == [
        (0, 2, 3),
        (2, 4, 2),
        (4, 6, 5),
    ]
    full = search(z, 5).indices
    for rows, block in blocks:
        assert torch.equal(block.indices, full[rows, : block.indices.shape[1]])


@pytest.mark.parametrize(
    ("named", "arguments"),
    [
        ("k is 4", {"k": 4}),
        ("k is 0", {"k": 0}),
        ("k is 5", {"k": 5, "database": unit(4, 2)}),
        ("k is 9", {"k": torch.tensor([1, 1, 1, 9])}),
        ("k has", {"k": 1.5}),
        ("k is 1", {"embeddings": unit(1, 2)}),
        ("embeddings", {"embeddings": torch.zeros(0, 2)}),
        ("embeddings", {"embeddings": 2 * unit(4, 2)}),
        ("embeddings", {"embeddings": torch.zeros(4, 2)}),
        ("embeddings", {"embeddings": torch.full((4, 2), torch.nan)}),
        ("embeddings", {"embeddings": unit(4, 2)[0]}),
        ("embeddings", {"embeddings": unit(4, 2).numpy()}),
        ("embeddings", {"embeddings": torch.ones(4, 1).long()}),
        ("database", {"database": torch.zeros(0, 2)}),
        ("database", {"database": 1.001 * unit(4, 2)}),
        ("database", {"database": unit(4, 3)}),
        ("own", {"own": torch.zeros(4).long()}),
        ("own", {"database": unit(5, 2), "own": torch.zeros(3).long()}),
        ("own", {"database": unit(5, 2), "own": torch.full((4,), 5)}),
    ],
)
def test_bad_input_is_named(named: str, arguments: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError), match=named):
        search(**{"embeddings": unit(4, 2), "k": 1, **arguments})


def test_own_and_twins_are_passed_over_and_equal_ones_are_in_order() -> None:
    z = torch.tensor([[0.0], [1.0], [1.0], [-1.0], [5.0]])

    def score(rows: torch.Tensor) -> torch.Tensor:
        return -torch.cdist(z[rows], z)

    members, scores = best_by_score(score, 5, 5, 2, own=torch.arange(5))
    assert members.tolist() == [[1, 2], [2, 0], [1, 0], [0, 1], [1, 2]]
    assert scores[0].tolist() == [-1.0, -1.0]
    everything, _ = best_by_score(score, 5, 5, 2)
    assert everything[1].tolist() == [1, 2]
    assert best_by_score(score, 5, 5, 9, own=torch.arange(5))[0].shape == (5, 4)
    with pytest.raises(ValueError, match="no neighbour"):
        best_by_score(lambda rows: torch.zeros(1, 1), 1, 1, 1, own=torch.arange(1))
    with pytest.raises(ValueError, match=r"shape \(5, 3\), \(5, 5\) is needed"):
        best_by_score(lambda rows: torch.zeros(len(rows), 3), 5, 5, 1)
    with pytest.raises(ValueError, match="NaN"):
        best_by_score(lambda rows: torch.full((len(rows), 5), torch.nan), 5, 5, 1)


@pytest.mark.slow
def test_sixty_thousand_never_need_a_square_matrix(long_form: bool) -> None:
    number = 60_000 if long_form else 8_000
    z = unit(number, 16)
    seen, widest = 0, 0
    for rows, block in search_blocks(z, 3, memory=512 << 20):
        seen += rows.stop - rows.start
        widest = max(widest, rows.stop - rows.start)
        assert block.indices.shape == (rows.stop - rows.start, 3)
    assert seen == number
    assert widest * number * neighbours.BYTES_PER_SIMILARITY <= 512 << 20
