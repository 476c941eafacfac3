"""One contract for all galleries: the same answers as the array gallery, and the same refusals."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from laplacian_metric.core.gallery import Gallery
from laplacian_metric.galleries import GalleryError, open_gallery
from laplacian_metric.galleries.engine import without_credentials
from tests.galleries.places import DATABASES, DIM, ENGINES, Places, places, vectors
from tests.pages import run_page

__all__ = ["places"]

every_engine = pytest.mark.parametrize("engine", ENGINES)
every_database = pytest.mark.parametrize("engine", DATABASES)
NOT_EMPTY = 40  # items of the collection that is filtered
TEXTS = (
    "a",
    "",
    "it's",
    'say "x"',
    "back\\slash",
    "new\nline",
    "tab\t",
    "ünï",
    "日本",
    "😀",
    "%",
    "null",
    "A",
    "x" * 3000,
)


def alike(gallery: Gallery, arrays: Gallery, k: int = 12, seed: int = 9, **options: Any) -> None:
    """Compare a gallery with the array gallery: number, neighbours, labels with their kinds, and vectors."""
    assert len(gallery) == len(arrays)
    queries = vectors(7, seed)
    ours, more = gallery.search(queries, k, **options), arrays.search(queries, k + 1, **options)
    theirs = more.first(k)
    np.testing.assert_allclose(ours.distances, theirs.distances, atol=2e-6)
    gaps = np.diff(more.distances, axis=1, append=3, prepend=-1) > 1e-5  # where float32 tells the order
    apart = (gaps[:, 1:] & gaps[:, :-1])[:, : theirs.k]
    assert (ours.ids[apart] == theirs.ids[apart]).all()
    if theirs.labels is not None:
        assert ours.labels is not None
        assert (ours.labels[apart] == theirs.labels[apart]).all()
        assert {type(label) for label in ours.labels.tolist()[0]} == {
            type(label) for label in theirs.labels.tolist()[0]
        }


# ------------------------------------------------------------------------------------------------ the five calls


@every_engine
@pytest.mark.parametrize("texts", [False, True])
def test_added_replaced_removed_and_sampled(places: Places, engine: str, texts: bool) -> None:
    gallery, arrays = places.open(engine, dim=DIM), open_gallery("arrays:", dim=DIM)
    assert isinstance(gallery, Gallery)
    assert len(gallery) == 0
    names = np.array([f"item {n} 'ü'" for n in range(300)], dtype=object) if texts else np.arange(300)
    labels = np.arange(300) % 7 if texts else [f"class {n % 7}" for n in range(300)]
    for each in (gallery, arrays):
        for call in (
            lambda e=each: e.search(vectors(1), 1),
            lambda e=each: e.sample(3),
            lambda e=each: e.remove([1]),
        ):
            with pytest.raises(ValueError, match="empty"):
                call()
        each.add(names[:200], vectors(200), labels[:200])
        each.add(names[150:], vectors(150, seed=1), labels[150:])  # 50 of them again
        each.remove(names[::10])
        with pytest.raises(KeyError):
            each.remove(names[:3])  # the first is gone already
    alike(gallery, arrays)
    alike(gallery, arrays, k=1)
    assert gallery.search(vectors(2), 1000).ids.shape == (2, 270)
    left = {name: label for row, (name, label) in enumerate(zip(names, labels, strict=True)) if row % 10}
    sample = gallery.sample(40, seed=1)
    assert len(set(sample.ids.tolist())) == 40
    assert all(left[name] == label for name, label in zip(sample.ids, sample.labels, strict=True))
    assert set(gallery.sample(40, seed=2).ids) != set(sample.ids)
    stored = dict(zip(names.tolist(), [*vectors(150), *vectors(150, seed=1)], strict=True))
    for name, row in zip(*sample[:2], strict=True):
        unit = stored[name] / np.linalg.norm(stored[name])
        np.testing.assert_allclose(row / np.linalg.norm(row), unit, atol=1e-6)
    assert len(gallery.sample(1000).ids) == 270
    for each in (gallery, arrays):
        each.remove([name for row, name in enumerate(names) if row % 10])
        assert len(each) == 0
        with pytest.raises(ValueError, match="empty"):
            each.search(vectors(1), 1)


@pytest.mark.statistical
@every_engine
def test_samples_are_uniform(places: Places, engine: str) -> None:
    """Each of 40 items is in a sample of 10 with probability 1/4: 400 draws, five standard errors."""
    gallery = places.open(engine, dim=DIM)
    gallery.add(range(40), vectors(40))
    draws = 400 if engine in ("arrays", "faiss") else 60
    counts = np.bincount(
        np.concatenate([gallery.sample(10, seed).ids for seed in range(draws)]), minlength=40
    )
    assert np.abs(counts / draws - 0.25).max() < 5 * (0.25 * 0.75 / draws) ** 0.5


@every_engine
def test_ties_and_vectors_of_any_length(places: Places, engine: str) -> None:
    gallery, arrays = places.open(engine, dim=DIM), open_gallery("arrays:", dim=DIM)
    generator = np.random.default_rng(0)
    corners = generator.integers(-1, 2, (160, DIM)) + np.array([3, 0, 0, 0, 0, 0])  # many of one direction
    lengths = 10.0 ** generator.integers(-30, 30, 160)
    for each in (gallery, arrays):
        each.add(range(160), corners * lengths[:, None])
    for k in (1, 5, 40):
        ours, theirs = gallery.search(corners[:9], k), arrays.search(corners[:9], k)
        np.testing.assert_allclose(ours.distances, theirs.distances, atol=2e-6)
        assert (np.diff(ours.distances, axis=1) > -1e-12).all()


# ------------------------------------------------------------------------------------- filters: 90, and payloads: 34

COLUMNS = {
    "text": [TEXTS[n % len(TEXTS)] for n in range(NOT_EMPTY)],
    "like": ["xy"[n % 2] for n in range(NOT_EMPTY)],
    "number": [n % 5 for n in range(NOT_EMPTY)],
    "price": [(n % 8) / 4 - 1 for n in range(NOT_EMPTY)],
    "large": [2**53 - n % 3 for n in range(NOT_EMPTY)],
    "flag": [n % 3 == 0 for n in range(NOT_EMPTY)],
}
FILTERS: list[Any] = [
    *({"text": text} for text in TEXTS),
    *({"text": [text, "a"]} for text in TEXTS[1:8]),
    *({"number": n} for n in (0, 1, 4, 5, -1, 2.0, 2.5, 1e300, np.int64(3), np.float32(1), 2**53)),
    *(
        {"price": n}
        for n in (-1, -1.0, 0, 0.0, -0.0, 0.25, 0.75, 0.1, np.float64(0.5), [0, 0.25], [0.25, -0.25, 7])
    ),
    *({"large": n} for n in (2**53, 2**53 - 1, [2**53 - 2, 0], 2.0**53)),
    *(
        {"flag": f}
        for f in (True, False, [True], [True, False], [False, True], np.True_, np.array([True, False]))
    ),
    *(
        {"like": x}
        for x in ("x", "y", "z", ["x", "y"], ("x",), {"x"}, frozenset({"y"}), np.array(["x", "q"]))
    ),
    *({column: []} for column in COLUMNS),
    {},
    None,
    {"text": "a", "flag": True},
    {"number": [0, 1, 2], "like": "x", "price": [-1, 0.0]},
    {"number": list(range(200))},
    {"text": list(TEXTS)},
    # refused
    *(
        {"number": x}
        for x in (True, "1", None, float("nan"), float("inf"), 2**53 + 1, -(2**60), [1, "1"], [1, True])
    ),
    *({"number": x} for x in ([None], {"gte": 1}, b"1", 1j, [[1]], object, range(3))),
    *({"flag": x} for x in (1, 0, "true", None, [True, 1], 1.0)),
    *(
        {"text": x}
        for x in (1, None, True, "a\0b", "\ud800", ["a", 1], "x" * 70_000, b"a", np.datetime64("2024-01-01"))
    ),
    *({name: 1} for name in ("unknown", "", "id", "label", "vector", "number; DROP", 3, None)),
    "number = 1",
    [("number", 1)],
]
PAYLOADS: list[Any] = [
    *([text, "other"] for text in TEXTS),
    [1, 2],
    [1, 2.5],
    [-1, 0],
    [-0.0, 1.0],
    [2**53, -(2**53)],
    [1e-300, 1e300],
    [0.1, 0.2],
    [True, False],
    [np.int8(3), np.float32(0.5)],
    np.array([True, False]),
    np.array(["a", "b"]),
    # refused
    [1, "a"],
    [True, 1],
    [None, "a"],
    [float("nan"), 1.0],
    [float("inf"), 1.0],
    [2**53 + 1, 1],
    ["a\0", "b"],
    ["\udfff", "b"],
    [["a"], ["b"]],
    [{"a": 1}, {"b": 2}],
    [b"a", b"b"],
    ["x" * 70_000, "b"],
    ["a"],
    "ab",
]


def outcome(call: Any) -> Any:
    """Return what a call returns, or which error it raises."""
    try:
        return call()
    except (ValueError, TypeError) as error:
        return type(error)


@pytest.fixture(scope="module")
def filled(places: Places) -> dict[str, Any]:
    return {}


@every_engine
def test_filters_mean_the_same(places: Places, engine: str, filled: dict[str, Any]) -> None:
    assert len(FILTERS) >= 80
    for name in ("arrays", engine):
        if name not in filled:
            filled[name] = places.open(name, dim=DIM)
            filled[name].add(range(NOT_EMPTY), vectors(NOT_EMPTY), ["c"] * NOT_EMPTY, COLUMNS)

    def ids(gallery: Any, where: Any) -> list[Any]:
        found = gallery.search(vectors(2, 5), NOT_EMPTY, where)
        return [
            sorted(row[np.isfinite(d)].tolist()) for row, d in zip(found.ids, found.distances, strict=True)
        ]

    for where in FILTERS:
        ours, theirs = (outcome(lambda n=name, w=where: ids(filled[n], w)) for name in (engine, "arrays"))
        assert ours == theirs, where


@every_engine
@pytest.mark.parametrize("texts", [False, True])
def test_payloads_are_kept_or_refused_alike(places: Places, engine: str, texts: bool) -> None:
    """The same values as columns, found again by a filter, and, where they are texts, as labels and ids."""
    assert len(PAYLOADS) >= 30
    for number, values in enumerate(PAYLOADS):
        results = []
        for name in (engine, "arrays"):
            gallery = places.open(name, dim=DIM)
            if not texts:

                def column(g: Any = gallery, v: Any = values) -> Any:
                    g.add([1, 2], vectors(2), columns={"column": v})
                    return [g.search(vectors(1), 2, {"column": value}).ids.tolist() for value in v]

                results.append(outcome(column))
            elif all(isinstance(value, str) for value in values):

                def label(g: Any = gallery, v: Any = values) -> Any:
                    g.add([1, 2], vectors(2), v)
                    return g.search(vectors(1), 2).labels.tolist()

                results.append(outcome(label))
        assert results[:1] == results[1:], (number, values)


@every_engine
@pytest.mark.parametrize(
    "name", ["like", "in", "select", "and", "NULL", "Mixed", "order", "interval", "from_", "x" * 60]
)
def test_columns_may_have_names_that_engines_use(places: Places, engine: str, name: str) -> None:
    gallery = places.open(engine, dim=DIM)
    gallery.add(range(6), vectors(6), columns={name: list("aabbcc"), "other": [1] * 6})
    assert sorted(gallery.search(vectors(1), 6, {name: "b"}).ids[0]) == [2, 3]
    gallery.add([9], vectors(1), columns={name: ["b"], "other": [2]})
    assert len(gallery.search(vectors(1), 9, {name: ["b"]}).ids[0]) == 3


BAD: list[tuple[type[Exception], str, dict[str, Any]]] = [
    (ValueError, "columns", {"columns": {"bad name": [1, 2]}}),
    (ValueError, "columns", {"columns": {"x;--": [1, 2]}}),
    (ValueError, "columns", {"columns": {"x" * 61: [1, 2]}}),
    (TypeError, "ids", {"ids": [1.5, 2]}),
    (TypeError, "ids", {"ids": [True, False]}),
    (TypeError, "ids", {"ids": [1, "a"]}),
    (TypeError, "ids", {"ids": "ab"}),
    (TypeError, "ids", {"ids": [2**63, 1]}),
    (ValueError, "ids", {"ids": [1, 1]}),
    (ValueError, "ids", {"ids": [1, 2, 3]}),
    (ValueError, "ids", {"ids": ["", "a"]}),
    (ValueError, "ids", {"ids": ["a\0", "a"]}),
    (ValueError, "ids", {"ids": ["x" * 2000, "a"]}),
    (TypeError, "labels", {"labels": [float("nan"), "a"]}),
    (TypeError, "labels", {"labels": "ab"}),
    (ValueError, "labels", {"labels": ["a"]}),
    (ValueError, "labels", {"labels": ["a\0", "b"]}),
    (ValueError, "vectors", {"vectors": np.ones((2, DIM + 1))}),
    (ValueError, "vectors", {"vectors": np.full((2, DIM), np.nan)}),
    (ValueError, "vectors", {"vectors": np.zeros((2, DIM))}),
]


@every_engine
def test_bad_items_are_refused(places: Places, engine: str) -> None:
    gallery = places.open(engine, dim=DIM)
    for error, word, change in BAD:
        with pytest.raises(error, match=word):
            gallery.add(**({"ids": [1, 2], "vectors": vectors(2)} | change))
    assert len(gallery) == 0
    gallery.add([1, 2], vectors(2), ["a", "b"], {"column": [1, 2]})
    others: list[tuple[type[Exception], str, Any]] = [
        (TypeError, "ids", (["a"], vectors(1), ["a"], {"column": [1]})),
        (TypeError, "labels", ([3], vectors(1), [1], {"column": [1]})),
        (ValueError, "labels", ([3], vectors(1), None, {"column": [1]})),
        (ValueError, "columns", ([3], vectors(1), ["a"], None)),
        (ValueError, "columns", ([3], vectors(1), ["a"], {"column": [1], "further": [1]})),
        (TypeError, "columns", ([3], vectors(1), ["a"], {"column": ["a"]})),
    ]
    for error, word, items in others:
        with pytest.raises(error, match=word):
            gallery.add(*items)
    for k in (0, -1):
        with pytest.raises(ValueError, match="k is"):
            gallery.search(vectors(1), k)
    for queries in (np.zeros((1, DIM)), np.ones((1, DIM + 1)), np.ones(DIM), np.empty((0, DIM))):
        with pytest.raises(ValueError, match="vectors"):
            gallery.search(queries, 1)
    assert sorted(gallery.sample(9).ids) == [1, 2]


@every_database
def test_ids_and_labels_that_an_engine_does_not_take(places: Places, engine: str) -> None:
    gallery = places.open(engine, dim=DIM)
    for labels in ([None, "a"], [1.5, 2.5], [True, False], [(1, 2), (3, 4)], ["a", 1]):
        with pytest.raises(TypeError, match="labels"):
            gallery.add([1, 2], vectors(2), labels)
    with pytest.raises(ValueError, match="labels"):
        gallery.add([1, 2], vectors(2), [2**63, 1])
    ids: Any = {"qdrant": [-1, 1], "milvus": ['a"', "b"]}.get(engine)
    if ids:
        with pytest.raises(ValueError, match="ids"):
            gallery.add(ids, vectors(2))
    else:
        gallery.add([-(2**63), 2**63 - 1], vectors(2), [2**63 - 1, -(2**63)])
        found = gallery.search(vectors(2), 1)
        assert found.ids.ravel().tolist() == [-(2**63), 2**63 - 1]
        assert found.labels.ravel().tolist() == [2**63 - 1, -(2**63)]


# ---------------------------------------------------------------------------------------------- tenants


@every_engine
def test_tenants_see_their_items_only(places: Places, engine: str) -> None:
    ours = places.open(engine, "tenants", dim=DIM, where={"tenant": 7})
    ours.add(range(20), vectors(20), columns={"shop": ["a", "b"] * 10})
    if engine in DATABASES:
        theirs = places.open(engine, "tenants", where={"tenant": 8})
        theirs.add(range(100, 130), vectors(30, 1), columns={"shop": ["a", "b", "c"] * 10})
        everything = places.open(engine, "tenants")
        assert (len(ours), len(theirs), len(everything)) == (20, 30, 50)
        assert set(theirs.sample(99).ids) == set(range(100, 130))
        assert set(ours.search(vectors(3), 50).ids.ravel()) == set(range(20))
        assert len(theirs.search(vectors(1), 50, {"shop": "c"}).ids[0]) == 10
        with pytest.raises(ValueError, match="ids"):
            theirs.add([3], vectors(1), columns={"shop": ["a"]})
        with pytest.raises(KeyError):
            theirs.remove([3])
        several = places.open(engine, "tenants", where={"tenant": [7, 8]})
        assert len(several) == 50
        with pytest.raises(ValueError, match="where"):
            several.add([500], vectors(1), columns={"shop": ["a"]})
    assert not np.isfinite(ours.search(vectors(1), 5, {"tenant": 9}).distances).any()
    with pytest.raises(ValueError, match="columns"):
        ours.add([3], vectors(1), columns={"shop": ["a"], "tenant": [7]})
    ours.add([3], vectors(1, 5), columns={"shop": ["z"]})
    ours.remove([4])
    assert len(ours) == 19


# ---------------------------------------------------------------------------------------------- failures


@every_database
def test_a_failure_in_the_second_batch_is_mended_by_repeating(
    places: Places, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gallery, arrays = places.open(engine, dim=DIM), open_gallery("arrays:", dim=DIM)
    arguments = (range(90), vectors(90), [f"c{n % 4}" for n in range(90)], {"column": np.arange(90) % 3})
    gallery.batch = 40
    put, calls = gallery._put, []

    def failing(batch: Any) -> None:
        calls.append(len(batch.ids))
        if len(calls) == 2:
            raise ConnectionResetError("lost")
        put(batch)

    monkeypatch.setattr(gallery, "_put", failing)
    with pytest.raises(GalleryError, match=r"40 of 90"):
        gallery.add(*arguments)
    assert len(gallery) == 40
    gallery.add(*arguments)
    arrays.add(*arguments)
    alike(gallery, arrays)
    alike(gallery, arrays, where={"column": 1})


UNREACHABLE = {
    "pgvector": "postgresql://me:secret@127.0.0.1:1/photos",
    "qdrant": "qdrant:http://:secret@127.0.0.1:1",
    "milvus": "milvus:http://me:secret@127.0.0.1:1",
    "chroma": "chroma:http://me:secret@127.0.0.1:1",
    "lancedb": "lancedb:/dev/null/folder",
}


@every_database
def test_an_engine_that_does_not_answer(places: Places, engine: str) -> None:
    places.address(engine)
    with pytest.raises(GalleryError) as raised:
        open_gallery(UNREACHABLE[engine], dim=DIM)
    assert "secret" not in str(raised.value)
    gallery = open_gallery("qdrant:", dim=DIM) if engine == "qdrant" else places.open(engine, dim=DIM)
    gallery.add([1, 2], vectors(2))
    gallery.close()
    for call in (
        lambda: gallery.search(vectors(1), 1),
        lambda: len(gallery),
        lambda: gallery.add([3], vectors(1)),
    ):
        with pytest.raises(GalleryError):
            call()


def test_addresses_are_kept_without_credentials() -> None:
    cases = {
        "postgresql://me:secret@host/db?sslmode=require&password=secret#hnsw": "postgresql://me@host/db?sslmode=require#hnsw",
        "qdrant:https://:secret@host:6333": "qdrant:https://@host:6333",
        "milvus:https://me:secret@host:19530": "milvus:https://me@host:19530",
        "lancedb:db://name?api_key=secret": "lancedb:db://name",
        "postgresql://me:sec%40ret@/db?host=/run": "postgresql://me@/db?host=/run",
    }
    assert {address: without_credentials(address) for address in cases} == cases


def test_addresses_and_fields_that_are_wrong(places: Places) -> None:
    for address in ("photos", "oracle:", "faiss:NoSuchIndex", "arrays:folder"):
        with pytest.raises(ValueError, match="address"):
            open_gallery(address, dim=DIM)
    for engine in ENGINES:
        with pytest.raises(ValueError, match="dim"):
            places.open(engine)
    for engine in DATABASES:
        gallery = places.open(engine, f"wrong_{engine}", dim=DIM)
        gallery.add(range(3), vectors(3), ["a", "b", "c"])
        with pytest.raises(ValueError, match="dim"):
            places.open(engine, gallery.fields.name, dim=DIM + 1)
        with pytest.raises(ValueError, match="metric"):
            places.open(engine, gallery.fields.name, metric="manhattan")
        with pytest.raises(ValueError, match="label"):
            places.open(engine, gallery.fields.name, label="no_such_field")
        if engine in ("qdrant", "milvus", "chroma"):
            with pytest.raises(ValueError, match="metric"):
                places.open(engine, gallery.fields.name, metric="l2")
        if engine != "chroma":
            with pytest.raises(ValueError, match="vector"):
                places.open(engine, gallery.fields.name, vector="no_such_field")
        with pytest.raises(ValueError, match="metric"):
            places.open(engine, dim=DIM, metric="dot")


# ---------------------------------------------------------------------------------------------- threads


@every_engine
def test_answers_beside_changes_are_whole(places: Places, engine: str) -> None:
    """Items 0 to 59 stay; others come and go. No answer has NaN, a label of another item, or lacks one that stays."""
    gallery = places.open(engine, dim=DIM)
    rows = vectors(120)
    labels = [f"label {n}" for n in range(120)]
    gallery.add(range(60), rows[:60], labels[:60])
    failures: list[Any] = []
    done = threading.Event()

    def ask(seed: int) -> None:
        generator = np.random.default_rng(seed)
        try:
            while not done.is_set():
                number = int(generator.integers(60))
                found = gallery.search(rows[number][None], 8)
                good = found.ids[0, 0] == number and np.isfinite(found.distances).all()
                good &= found.labels[0].tolist() == [f"label {n}" for n in found.ids[0]]
                good &= len(set(found.ids[0].tolist())) == 8
                if not good:
                    failures.append(found)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for turn in range(12):
        some = range(60 + 5 * turn, 65 + 5 * turn)
        gallery.add(some, rows[some.start : some.stop], labels[some.start : some.stop])
        if turn % 3 == 2:
            gallery.remove(range(some.stop - 15, some.stop))
    done.set()
    for thread in threads:
        thread.join()
    assert failures == []


# ---------------------------------------------------------------------------------------------- any sequence


def machine_of(places: Places, engine: str) -> type[RuleBasedStateMachine]:
    """Return a machine that changes a gallery in any order and compares it with an array gallery set at once."""
    some_ids = st.lists(st.integers(0, 15), min_size=1, max_size=6, unique=True)

    class Machine(RuleBasedStateMachine):
        @initialize()
        def begin(self) -> None:
            self.gallery = places.open(engine, dim=DIM)
            self.items: dict[int, tuple[Any, str, int]] = {}

        @rule(ids=some_ids, seed=st.integers(0, 50))
        def add(self, ids: list[int], seed: int) -> None:
            rows, labels = vectors(len(ids), seed), [f"label {seed + n}" for n in range(len(ids))]
            columns = [(seed + n) % 3 for n in range(len(ids))]
            self.gallery.add(ids, rows, labels, {"column": columns})
            self.items |= dict(zip(ids, zip(rows, labels, columns, strict=True), strict=True))

        @precondition(lambda self: len(self.items) > 1)
        @rule(data=st.data())
        def remove(self, data: st.DataObject) -> None:
            there = sorted(self.items)
            gone = data.draw(
                st.lists(st.sampled_from(there), min_size=1, max_size=len(there) - 1, unique=True)
            )
            self.gallery.remove(gone)
            for id_ in gone:
                del self.items[id_]

        @invariant()
        def equal(self) -> None:
            if not getattr(self, "items", None):
                return
            ids = sorted(self.items)
            rows, labels, columns = zip(*(self.items[id_] for id_ in ids), strict=True)
            arrays = open_gallery("arrays:", dim=DIM)
            arrays.add(ids, np.array(rows), labels, {"column": columns})
            alike(self.gallery, arrays, k=5)
            alike(self.gallery, arrays, k=5, where={"column": columns[0]})
            assert sorted(self.gallery.sample(99).ids) == ids

    return Machine


@every_engine
def test_any_sequence_of_changes_equals_a_gallery_set_at_once(
    places: Places, engine: str, long_form: bool
) -> None:
    examples = (30 if engine in ("arrays", "faiss") else 3) * (5 if long_form else 1)
    run_state_machine_as_test(
        machine_of(places, engine),
        settings=settings(max_examples=examples, stateful_step_count=8, deadline=None),
    )


def test_the_page_runs(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = run_page(root / "docs" / "galleries.md")
    assert len(names["gallery"]) == 298  # type: ignore[arg-type]


def test_an_address_loads_its_own_engine_only() -> None:
    code = (
        "import sys; from laplacian_metric.galleries import open_gallery; open_gallery('arrays:', dim=2)\n"
        "print({'torch', 'faiss', 'psycopg', 'qdrant_client', 'pymilvus', 'lancedb', 'chromadb'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_gallery_of_faiss_is_copied_with_its_items(places: Places) -> None:
    gallery = places.open("faiss", dim=DIM)
    gallery.add(range(50), vectors(50), ["a", "b"] * 25)
    expected = gallery.search(vectors(3, 2), 5)
    for again in (pickle.loads(pickle.dumps(gallery)), copy.deepcopy(gallery)):
        assert (again.search(vectors(3, 2), 5).ids == expected.ids).all()
        again.remove([3])
        assert len(again) == len(gallery) - 1
