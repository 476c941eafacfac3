"""Indexes against plain loops: neighbours, orders, refusals, credible sets, and items that come and go."""

from __future__ import annotations

import logging
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laplacian_metric import vmf
from laplacian_metric.retrieval import exact, gallery
from laplacian_metric.retrieval.calibrations import Calibrations, NotCalibratedError
from laplacian_metric.retrieval.gallery import HNSW, IVF
from laplacian_metric.retrieval.index import Index
from laplacian_metric.retrieval.items import Items, angles
from laplacian_metric.retrieval.likelihood import log_expected_likelihood, mean_resultant_length
from laplacian_metric.retrieval.matching import MatchProbability
from tests.retrieval.clusters import clusters, nothing_but, unit

MATCHING = MatchProbability(0.5, -1.0, 100, 40, 0.3)


@dataclass(frozen=True)
class Limit:
    """A threshold without a promise."""

    value: float

    def answers(self, uncertainty: np.ndarray) -> np.ndarray:
        return uncertainty <= self.value

    def to_dict(self) -> dict[str, float]:
        return {"value": self.value}


@dataclass(frozen=True)
class Caps:
    """Caps whose radius falls with kappa."""

    scale: float
    dim: int

    def radius(self, kappa: np.ndarray) -> np.ndarray:
        return np.minimum(self.scale / np.sqrt(np.maximum(kappa, 1e-30)), np.pi)

    def to_dict(self) -> dict[str, float]:
        return {"scale": self.scale}


def keys(items: Items, queries: Items, order: str) -> np.ndarray:
    """What every item is ordered by for every query, (Q, N), in float64."""
    cosine = queries.mean.astype(np.float64) @ items.mean.astype(np.float64).T
    if order == "cosine":
        return cosine
    if order == "expected distance":
        return cosine * mean_resultant_length(items.kappa, items.dim)
    rows = [
        log_expected_likelihood(np.clip(cosine[q], -1, 1), float(queries.kappa[q]), items.kappa, items.dim)
        for q in range(len(queries))
    ]
    return np.array(rows)


def assert_first(key: np.ndarray, rows: np.ndarray, tolerance: float = 1e-5) -> None:
    """The rows are the first by the key, but for rounding: at each place the key is the one that belongs there."""
    best = -np.sort(-key, axis=1)[:, : rows.shape[1]]
    np.testing.assert_allclose(np.take_along_axis(key, rows, axis=1), best, atol=tolerance, rtol=tolerance)
    assert all(len(set(row)) == len(row) for row in rows.tolist())


@settings(max_examples=15)
@given(
    count=st.integers(1, 60),
    num_queries=st.integers(0, 25),
    dim=st.integers(2, 9),
    seed=st.integers(0, 99),
    data=st.data(),
)
def test_neighbours_are_those_of_all_cosines(
    count: int, num_queries: int, dim: int, seed: int, data: st.DataObject
) -> None:
    items, _ = clusters(count, dim, seed=seed)
    queries, _ = clusters(num_queries, dim, seed=seed + 1)
    k = data.draw(st.integers(1, count))
    answers = Index(items).query(queries, k)
    assert answers.rows.shape == answers.similarity.shape == (num_queries, k)
    key = keys(items, queries, "cosine")
    assert_first(key, answers.rows)
    np.testing.assert_allclose(answers.similarity, np.take_along_axis(key, answers.rows, axis=1), atol=1e-6)
    np.testing.assert_array_equal(answers.ids, answers.rows)
    assert answers.probability is None
    assert answers.answered is None


@pytest.mark.parametrize("order", ["expected distance", "match probability"])
@pytest.mark.parametrize("candidates", ["all", 60])
def test_other_orders_are_those_of_all_pairs(
    monkeypatch: pytest.MonkeyPatch, order: Any, candidates: Any
) -> None:
    items, _ = clusters(60, 4)
    queries, _ = clusters(9, 4, seed=1)
    index = Index(items)
    key = keys(items, queries, order)
    assert_first(key, index.query(queries, 7, order=order, candidates=candidates).rows)
    # Blocks that do not fit the numbers of items, queries and answers give the same.
    monkeypatch.setattr(gallery.Gallery.blocks, "__defaults__", (13,))
    monkeypatch.setattr(exact, "LIKELIHOOD_ROWS", 5)
    monkeypatch.setattr(exact, "PAIRS_AT_ONCE", 11)
    monkeypatch.setattr(exact.queries_at_once, "__defaults__", (11,))
    again = Index(items).query(queries, 7, order=order, candidates=candidates)
    assert_first(key, again.rows)
    np.testing.assert_allclose(
        again.similarity, np.take_along_axis(keys(items, queries, "cosine"), again.rows, axis=1), atol=1e-6
    )


def test_the_expected_distance_is_that_of_the_distributions() -> None:
    """Against the distances of `vmf`, which are computed with torch."""
    import torch

    items, _ = clusters(40, 5)
    queries, _ = clusters(3, 5, seed=1)
    rows = Index(items).query(queries, 40, order="expected distance").rows
    mean, kappa = (torch.from_numpy(np.array(a)).double() for a in (items.mean, items.kappa))
    lengths = vmf.mean_resultant_length(kappa, 5)
    own = vmf.mean_resultant_length(torch.from_numpy(np.array(queries.kappa)).double(), 5)
    directions = torch.from_numpy(np.array(queries.mean)).double()
    distance = (2 - 2 * own[:, None] * lengths * (directions @ mean.T)).gather(1, torch.from_numpy(rows))
    assert bool((distance.diff(dim=1) > -1e-6).all())


def test_candidates_limit_what_is_ordered_anew() -> None:
    items, _ = clusters(300, 4)
    queries, _ = clusters(5, 4, seed=1)
    index = Index(items)
    for order in ("expected distance", "match probability"):
        nearest = index.query(queries, 20).rows
        answers = index.query(queries, 5, order=order, candidates=20)  # type: ignore[arg-type]
        for near, rows, key in zip(nearest, answers.rows, keys(items, queries, order), strict=True):
            assert rows.tolist() == near[np.argsort(-key[near], kind="stable")][:5].tolist()
    usual = index.query(queries, 3, order="match probability")
    np.testing.assert_array_equal(
        usual.rows, index.query(queries, 3, order="match probability", candidates=100).rows
    )
    far = index.query(queries, 12, order="match probability")
    np.testing.assert_array_equal(
        far.rows, index.query(queries, 12, order="match probability", candidates=120).rows
    )


def test_certain_items_come_first_where_doubt_counts() -> None:
    """A doubtful item right at the query and a certain one a little beside it."""
    mean = unit(np.array([[1, 0, 0], [1, 0.2, 0], [-1, 0, 0]]))
    items = Items(mean, [0.5, 1000, np.inf], [2, 0.001, 0], None, "a")
    query = Items(mean[:1], [50], [0.02], None, "a")
    index = Index(items)
    assert index.query(query, 3).rows.tolist() == [[0, 1, 2]]
    assert index.query(query, 3, order="expected distance").rows.tolist() == [[1, 0, 2]]
    assert index.query(query, 3, order="match probability").rows.tolist() == [[1, 0, 2]]


def test_probabilities_are_those_of_the_pairs() -> None:
    items, _ = clusters(30, 4)
    queries, _ = clusters(6, 4, seed=1)
    index = Index(items).calibrated(matching=MATCHING)
    for order in ("cosine", "match probability"):
        answers = index.query(queries, 4, order=order)  # type: ignore[arg-type]
        assert answers.probability is not None
        for q in range(6):
            for place, row in enumerate(answers.rows[q]):
                cosine = float(queries.mean[q].astype(np.float64) @ items.mean[row].astype(np.float64))
                likelihood = log_expected_likelihood(cosine, queries.kappa[q], items.kappa[row], 4)
                expected = 1 / (1 + np.exp(-(0.5 * likelihood - 1)))
                assert answers.probability[q, place] == pytest.approx(expected, rel=1e-3)
    assert (np.diff(answers.probability, axis=1) <= 0).all()


@pytest.mark.parametrize("order", ["cosine", "expected distance", "match probability"])
def test_items_ask_for_others(order: Any) -> None:
    items, _ = clusters(40, 4)
    twice = Items.cat([items, items[:5]])  # five pairs that are one point
    index = Index(twice, [f"item {i}" for i in range(45)])
    query_ids = ["item 3", "item 41", "item 20", "item 3"]
    answers = index.query_ids(query_ids, 6, order=order)
    key = keys(twice, twice, order)
    np.fill_diagonal(key, -np.inf)
    rows = index.rows(query_ids)
    assert rows.tolist() == [3, 41, 20, 3]
    assert not (answers.rows == rows[:, None]).any()
    assert_first(key[rows], answers.rows)
    np.testing.assert_array_equal(answers.ids, index.ids[answers.rows])
    assert index.query_ids(query_ids, 44, order=order).rows.shape == (4, 44)


@pytest.mark.parametrize("order", ["cosine", "expected distance", "match probability"])
def test_among_equals_nobody_is_his_own_neighbour(order: Any) -> None:
    alike = nothing_but(np.repeat(np.eye(3), [40, 1, 1], axis=0))
    for kind in ("flat", "hnsw"):
        answers = Index(alike, kind=kind).query_ids(np.arange(42), 2, order=order)
        assert not (answers.rows == np.arange(42)[:, None]).any()
        assert (answers.similarity[:40] == 1).all()


def test_as_many_candidates_as_answers_are_enough() -> None:
    index = Index(clusters(40, 4)[0])
    few = index.query_ids([7, 8], 5, order="match probability", candidates=5)
    nearest = index.query_ids([7, 8], 5)
    np.testing.assert_array_equal(np.sort(few.rows, axis=1), np.sort(nearest.rows, axis=1))


def test_refused_queries_get_nothing_and_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    items, _ = clusters(50)
    queries, _ = clusters(20, seed=1)
    limit = float(np.median(queries.uncertainty))
    index = Index(items, [f"{i}" for i in range(50)]).calibrated(threshold=Limit(limit), matching=MATCHING)
    calibrated, free = index.query(queries, 3), Index(items).query(queries, 3)
    assert calibrated.answered is not None
    np.testing.assert_array_equal(calibrated.answered, queries.uncertainty <= limit)
    np.testing.assert_array_equal(calibrated.rows, free.rows)
    searched: list[int] = []
    scan = gallery.Scan.__call__
    monkeypatch.setattr(
        gallery.Scan, "__call__", lambda self, q, k: (searched.append(len(q)), scan(self, q, k))[1]
    )
    answers = index.query(queries, 3, abstain=True)
    assert searched == [calibrated.answered.sum()]
    yes = calibrated.answered
    np.testing.assert_array_equal(answers.rows[yes], free.rows[yes])
    assert (answers.rows[~yes] == -1).all()
    assert (answers.ids[~yes] == "").all()
    assert np.isnan(answers.similarity[~yes]).all()
    assert answers.probability is not None
    assert np.isnan(answers.probability[~yes]).all()
    assert np.isfinite(answers.probability[yes]).all()
    assert answers.to_dict()["similarity"][int(np.flatnonzero(~yes)[0])] == [None] * 3
    own = index.query_ids(["7"], abstain=True)
    assert own.answered is not None
    assert own.answered.tolist() == [items.uncertainty[7] <= limit]
    nobody = Index(items).calibrated(threshold=Limit(-1.0)).query(queries, 3, abstain=True)
    assert (nobody.ids == -1).all()


# --- credible sets ---


@pytest.mark.parametrize("blocks", [(1 << 16, 1 << 24), (7, 20)])
def test_credible_sets_hold_what_is_within_the_cap(
    monkeypatch: pytest.MonkeyPatch, blocks: tuple[int, int]
) -> None:
    monkeypatch.setattr(gallery.Gallery.blocks, "__defaults__", blocks[:1])
    monkeypatch.setattr(exact, "COSINES_AT_ONCE", blocks[1])
    items, _ = clusters(80, 3)
    queries, _ = clusters(12, 3, seed=1)
    caps = Caps(2.0, 3)
    sets = Index(items, np.arange(80) + 100).calibrated(credible=caps).credible_sets(queries)
    radius = caps.radius(queries.kappa)
    apart = angles(queries.mean[:, None], items.mean[None])
    assert len(sets) == 12
    for q in range(12):
        inside = np.flatnonzero(apart[q] <= radius[q])
        expected = inside if len(inside) else apart[q].argmin()[None]
        assert sorted(sets[q].tolist()) == sorted((expected + 100).tolist())
        part = slice(sets.offsets[q], sets.offsets[q + 1])
        assert (np.diff(sets.similarity[part]) <= 0).all()
        np.testing.assert_allclose(np.cos(apart[q][sets.rows[part]]), sets.similarity[part], atol=1e-6)
    assert (sets.sizes == np.diff(sets.offsets)).all()
    assert sum(len(one) for one in sets) == len(sets.ids)
    assert len(set(sets.sizes.tolist())) > 3
    with pytest.raises(IndexError, match="no query 12 among 12"):
        sets[12]


def test_caps_from_nothing_to_everything() -> None:
    items, _ = clusters(30, 4)
    queries = Items(items.mean[:3], [0, 1e30, np.inf], np.ones(3), None, items.source)
    sets = Index(items).calibrated(credible=Caps(1.0, 4)).credible_sets(queries)
    assert sets.sizes.tolist() == [30, 1, 1]
    assert sets[1].tolist() == [1]
    none = Index(items).calibrated(credible=Caps(1.0, 4)).credible_sets(queries[:0])
    assert (len(none), none.offsets.tolist(), len(none.ids)) == (0, [0], 0)


def test_small_caps_are_told_apart_beyond_the_digits_of_a_cosine() -> None:
    apart = np.array([0, 1e-5, 2e-5, 3e-5])
    items = nothing_but(np.stack([np.cos(apart), np.sin(apart)], axis=1))
    query = Items(items.mean[:1], [1e10], [1e-10], None, items.source)
    assert Index(items).calibrated(credible=Caps(2.5, 2)).credible_sets(query)[0].tolist() == [0, 1, 2]


@pytest.mark.parametrize("block", [1 << 16, 9])
def test_the_angle_to_the_right_item(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(gallery.Gallery.blocks, "__defaults__", (block,))
    items, item_labels = clusters(50, 4)
    queries, labels = clusters(15, 4, seed=1)
    labels[3] = 77
    computed = Index(items).angle_to_right(queries, labels, item_labels)
    apart = np.where(labels[:, None] == item_labels, angles(queries.mean[:, None], items.mean[None]), np.inf)
    np.testing.assert_allclose(computed, apart.min(axis=1), atol=1e-6)
    assert computed[3] == np.inf
    text = Index(items).angle_to_right(queries, labels.astype(str), item_labels.astype(str))
    np.testing.assert_array_equal(text, computed)
    with pytest.raises(ValueError, match=r"item_labels has shape \(4,\) for 50"):
        Index(items).angle_to_right(queries, labels, item_labels[:4])


# --- calibrations and items that change ---


def test_calibrations_are_replaced_as_a_whole() -> None:
    index = Index(clusters(10)[0])
    one = index.calibrated(threshold=Limit(1.0), matching=MATCHING)
    assert index.threshold is None
    assert (one.threshold, one.matching, one.credible, one.drift) == (Limit(1.0), MATCHING, None, None)
    other = one.calibrated(credible=Caps(1.0, 8))
    assert (other.threshold, other.credible) == (None, Caps(1.0, 8))
    both = one.calibrated(one.calibrations.and_also(credible=Caps(2.0, 8)))
    assert (both.threshold, both.credible) == (Limit(1.0), Caps(2.0, 8))
    index.calibrations = Calibrations(drift=Limit(3.0))  # type: ignore[arg-type]
    assert index.drift == Limit(3.0)
    with pytest.raises(TypeError, match="calibrations is a dict"):
        index.calibrations = {}  # type: ignore[assignment]
    with pytest.raises(ValueError, match="the credible caps are of 3 dimensions and the index has 8"):
        index.calibrated(credible=Caps(1.0, 3))
    with pytest.raises(ValueError, match="not both"):
        index.calibrated(Calibrations(), threshold=Limit(1.0))


def test_what_is_not_calibrated_is_not_promised() -> None:
    items, _ = clusters(10)
    index = Index(items)
    with pytest.raises(NotCalibratedError, match="this index has no threshold: calibrate one"):
        index.query(items, 1, abstain=True)
    with pytest.raises(NotCalibratedError, match="no credible caps"):
        index.credible_sets(items)


def changed(way: str) -> Index:
    items, _ = clusters(30)
    index = Index(items).calibrated(threshold=Limit(1.0), credible=Caps(1.0, 8))
    if way == "add":
        index.add(clusters(3, seed=5)[0])
    elif way == "remove":
        index.remove([4, 7])
    elif way == "without":
        index = index.without([4])
    else:
        index = index.cleaned(0.2)
    return index


@pytest.mark.parametrize("way", ["add", "remove", "without", "cleaned"])
def test_other_items_withdraw_what_was_promised(way: str) -> None:
    index = changed(way)
    assert index.calibrations == Calibrations(withdrawn=("threshold", "credible"))
    queries, _ = clusters(4, seed=1)
    with pytest.raises(
        NotCalibratedError, match="threshold of this index was calibrated for other items, and withdrawn"
    ):
        index.query(queries, 1, abstain=True)
    with pytest.raises(NotCalibratedError, match="calibrate again, and set it"):
        index.credible_sets(queries)
    assert index.query(queries, 1).answered is None
    index.remove([int(index.ids[0])])  # a second change forgets nothing
    again = index.calibrated(index.calibrations.and_also(threshold=Limit(2.0)))
    assert again.calibrations == Calibrations(threshold=Limit(2.0), withdrawn=("credible",))  # type: ignore[arg-type]
    assert again.query(queries, 1, abstain=True).answered is not None


@pytest.mark.parametrize("kind", ["flat", IVF(nlist=3, nprobe=3), "hnsw"])
def test_items_come_and_go(kind: Any) -> None:
    items, _ = clusters(120, 6)
    queries, _ = clusters(10, 6, seed=1)
    index = Index(items[:60], kind=kind)
    before = index.query(queries, 5)
    shared = index.calibrated(threshold=Limit(1.0))
    index.add(items[60:100])
    index.add(items[100:], np.arange(100, 120))
    index.add(items[:0])
    assert index.ids.tolist() == list(range(120))
    assert_first(keys(items, queries, "cosine"), index.query(queries, 5).rows)
    np.testing.assert_array_equal(shared.query(queries, 5).rows, before.rows)
    index.remove(np.arange(0, 120, 3))
    kept = np.array([i for i in range(120) if i % 3])
    answers = index.query(queries, 5)
    assert_first(keys(items[kept], queries, "cosine"), answers.rows)
    np.testing.assert_array_equal(answers.ids, kept[answers.rows])
    index.remove([])
    index.add(items[:1], [0])
    assert index.query(items[:1], 1).ids.tolist() == [[0]]
    assert len(index.without(rows=slice(0, 11))) == 70
    assert index.without(rows=[-1]).ids.tolist() == kept.tolist()


def test_the_most_uncertain_items_go() -> None:
    items, labels = clusters(200)
    index = Index(items, np.arange(200) + 1000)
    clean = index.cleaned(0.1)
    worst = np.argsort(-items.uncertainty)[:20]
    assert clean.ids.tolist() == [i + 1000 for i in range(200) if i not in worst]
    by_class = index.cleaned(0.25, groups=labels)
    kept = by_class.ids - 1000
    for label in np.unique(labels):
        own = np.flatnonzero(labels == label)
        stays = np.intersect1d(own, kept)
        assert len(stays) == len(own) - len(own) // 4
        if len(stays) < len(own):
            assert items.uncertainty[stays].max() <= items.uncertainty[np.setdiff1d(own, stays)].min()
    assert len(index.cleaned(0)) == 200
    alike = Index(nothing_but(np.eye(30))).cleaned(0.1)
    assert alike.ids.tolist() == list(range(27))
    for share in (1, -0.1, np.nan):
        with pytest.raises(ValueError, match="share is"):
            index.cleaned(share)
    with pytest.raises(ValueError, match=r"groups has shape \(3,\) for 200"):
        index.cleaned(0.1, groups=[1, 2, 3])


# --- approximate kinds ---


@pytest.fixture(scope="module")
def many() -> tuple[Items, Items, np.ndarray]:
    items, _ = clusters(6000, 16, centres=60)
    queries, _ = clusters(200, 16, centres=60, seed=1)
    return items, queries, Index(items).query(queries, 10).rows


def recall(rows: np.ndarray, true: np.ndarray) -> float:
    return float(np.mean([len(np.intersect1d(a, b)) / len(b) for a, b in zip(rows, true, strict=True)]))


@pytest.mark.parametrize("kind", ["ivf", "hnsw"])
def test_approximate_kinds_find_nearly_all(
    many: tuple[Items, Items, np.ndarray], kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    items, queries, true = many
    with caplog.at_level(logging.INFO, "laplacian_metric.retrieval"):
        index = Index(items, kind=kind)
    assert f"building an {kind} index of 6000 vectors in 16 dimensions" in caplog.text
    size = gallery.as_kind(kind).size(6000, 16)  # type: ignore[union-attr]
    stored = gallery.faiss().serialize_index(index.built).nbytes
    assert 0.9 * stored < size < 1.6 * stored
    rows = index.query(queries, 10).rows
    assert recall(rows, true) > 0.95
    # the same each time
    np.testing.assert_array_equal(Index(items, kind=kind).query(queries, 10).rows, rows)
    # orders and sets
    for order in ("expected distance", "match probability"):
        exactly = Index(items).query(queries[:20], 5, order=order, candidates=100).rows  # type: ignore[arg-type]
        assert recall(index.query(queries[:20], 5, order=order).rows, exactly) > 0.9  # type: ignore[arg-type]
        everything = index.query(queries[:3], 5, order=order, candidates="all").rows  # type: ignore[arg-type]
        np.testing.assert_array_equal(
            everything, Index(items).query(queries[:3], 5, order=order, candidates="all").rows  # type: ignore[arg-type]
        )  # fmt: skip
    sets, others = (
        one.calibrated(credible=Caps(1.0, 16)).credible_sets(queries) for one in (index, Index(items))
    )
    np.testing.assert_array_equal(sets.rows, others.rows)


def test_where_too_few_are_found_all_are_looked_at() -> None:
    items, _ = clusters(400, 4, centres=10, spread=0.05)
    queries, _ = clusters(5, 4, centres=10, seed=1, spread=0.05)
    index = Index(items, kind=IVF(nlist=10, nprobe=1))
    assert_first(keys(items, queries, "cosine"), index.query(queries, 300).rows)


def test_lists_are_made_anew_when_items_have_become_many() -> None:
    items, _ = clusters(2000, 6)
    index = Index(items[:100], kind="ivf")
    assert index.built.nlist == 2
    index.add(items[100:])
    assert index.built.nlist == 51
    assert (IVF().probes(4000), IVF().probes(100), IVF().probes(9)) == (250, 32, 9)
    assert IVF().lists(1_000_000) == 4000
    fixed = Index(items[:100], kind=IVF(nlist=2))
    fixed.add(items[100:])
    assert fixed.built.nlist == 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: IVF(nlist=0), "nlist is 0"),
        (lambda: IVF(nprobe=2.5), "nprobe is 2.5"),  # type: ignore[arg-type]
        (lambda: HNSW(links=1), "links is 1: a whole number of at least 2"),
        (lambda: HNSW(search_depth=True), "search_depth is True"),
        (lambda: gallery.as_kind("pq"), "kind is 'pq': flat, ivf, hnsw"),
        (lambda: gallery.kind_from_dict({"name": "pq"}), "kind is 'pq'"),
        (lambda: Index(clusters(5)[0], kind=IVF(nlist=6)), "nlist is 6 for 5 items"),
    ],
)
def test_settings_that_do_not_fit(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


# --- what is refused ---


def test_ids_that_do_not_fit() -> None:
    items, _ = clusters(4)
    with pytest.raises(ValueError, match="there are no items"):
        Index(items[:0])
    with pytest.raises(ValueError, match="2 ids are repeated, the first is 1"):
        Index(items, [3, 3, 1, 1])
    with pytest.raises(ValueError, match="first is b"):
        Index(items, ["a", "b", "b", "c"])
    with pytest.raises(ValueError, match="ids has 2 entries for 4 items"):
        Index(items, [1, 2])
    for wrong in ([1.5, 2, 3, 4], [True, False, True, True], [None] * 4, [b"a", b"b", b"c", b"d"]):
        with pytest.raises(TypeError, match="ids has dtype"):
            Index(items, wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="either all ids are whole numbers or all are text"):
        Index(items, [1, 2, 3, "4"])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="empty text at index 2"):
        Index(items, ["a", "b", "", "c"])
    with pytest.raises(ValueError, match="63 bits"):
        Index(items, np.array([1, 2, 3, 2**63], dtype=np.uint64))
    with pytest.raises(TypeError, match="pass a list"):
        Index(items, "abcd")
    with pytest.raises(TypeError, match="items is a ndarray"):
        Index(items.mean)  # type: ignore[arg-type]


def test_changes_that_do_not_fit_change_nothing() -> None:
    items, _ = clusters(8)
    index = Index(items[:4], ["a", "b", "c", "d"])
    for call, error, message in (
        (lambda: index.add(items[4:5], ["a"]), ValueError, "repeated that the index has already, the first is a"),
        (lambda: index.add(items[4:6], ["e", "e"]), ValueError, "1 ids are repeated, the first is e"),
        (lambda: index.add(items[4:6]), ValueError, "give those of the new items"),
        (lambda: index.add(items[4:6], ["e"]), ValueError, "ids has 1 entries for 2 items"),
        (lambda: index.add(items[4:5], [5]), TypeError, "are text and those given are numbers"),
        (lambda: index.add(clusters(1, source="b")[0], ["e"]), ValueError, "comes from b and the index from 5e1f"),
        (lambda: index.remove(["a", "x", "y"]), KeyError, "2 of 3 ids are not in the index, the first is x"),
        (lambda: index.remove([1]), TypeError, "pass text"),
        (lambda: index.remove(["a", "a"]), ValueError, "1 ids are repeated, the first is a"),
        (lambda: index.remove(["a", "b", "c", "d"]), ValueError, "take out all items"),
        (lambda: index.without(), ValueError, "either ids or rows"),
        (lambda: index.without(rows=[4]), IndexError, "no row 4"),
        (lambda: index.query_ids(["z"], 1), KeyError, "the first is z"),
    ):  # fmt: skip
        with pytest.raises(error, match=message):
            call()  # type: ignore[no-untyped-call]
    assert index.ids.tolist() == ["a", "b", "c", "d"]
    index.add(items[4:5], ["a longer name"])
    assert index.ids.tolist()[-1] == "a longer name"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"k": 11}, ValueError, "k is 11, and the index has only 10 items"),
        ({"k": 0}, ValueError, "k is 0"),
        ({"k": 2.0}, ValueError, "k is 2.0"),
        ({"k": 1, "order": "distance"}, ValueError, "order is 'distance': 'cosine', 'expected distance'"),
        ({"k": 3, "order": "match probability", "candidates": 2}, ValueError, "at least k = 3"),
        ({"k": 3, "order": "expected distance", "candidates": "most"}, ValueError, "candidates is 'most'"),
        ({"k": 3, "candidates": 7}, ValueError, "candidates is for other orders"),
    ],
)
def test_questions_that_do_not_fit(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    items, _ = clusters(10)
    with pytest.raises(error, match=message):
        Index(items).query(items, **arguments)


def test_queries_that_do_not_fit() -> None:
    items, _ = clusters(10)
    index = Index(items)
    with pytest.raises(ValueError, match="has 4 dimensions and the index 8"):
        index.query(clusters(2, 4)[0], 1)
    with pytest.raises(
        ValueError, match=r"comes from other and the index from 5e1f5e1f5e1f\.\.\.: only what one"
    ):
        index.query(clusters(2, source="other")[0], 1)
    with pytest.raises(TypeError, match="queries is a ndarray: make Items of it"):
        index.query(items.mean, 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="k is 10, and the index has only 9 other items"):
        index.query_ids([1], 10)


def test_without_faiss_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    index = Index(clusters(5)[0])
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(ImportError, match="pip install faiss-cpu"):
        index.query(clusters(2)[0], 1)


def test_a_query_imports_no_torch(root: Path) -> None:
    code = """
import sys
import numpy as np
from laplacian_metric.retrieval.index import Index
from laplacian_metric.retrieval.items import Items
from laplacian_metric.retrieval.matching import MatchProbability
items = Items(np.eye(4), np.ones(4), np.ones(4), None, "a")
for kind in ("flat", "hnsw"):
    index = Index(items, kind=kind).calibrated(matching=MatchProbability(1.0, 0.0, 9, 4, 0.1))
    for order in ("cosine", "expected distance", "match probability"):
        assert (index.query(items, 2, order=order).rows[:, 0] == np.arange(4)).all()
print(sorted({"torch", "faiss"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=root, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "['faiss']"


def test_the_number_of_items_may_be_numpy_s() -> None:
    items, _ = clusters(8, 4)
    index = Index(items)
    np.testing.assert_array_equal(index.query(items, np.int64(3)).ids, index.query(items, 3).ids)
