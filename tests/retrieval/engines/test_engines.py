"""Every engine finds what exact search finds, and Trust on top of it says the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from laplacian_metric.core.labelled_gallery import LabelledGallery
from laplacian_metric.core.vector_search import Vectors
from laplacian_metric.retrieval import Index, NotCalibratedError, calibrate, engines
from laplacian_metric.retrieval.engines import ChangedCollectionError, EngineError, NoItemError
from laplacian_metric.retrieval.gallery import HNSW, IVF, Kind
from laplacian_metric.trust import Trust
from tests.retrieval.engines.cases import APPROXIMATE, EXACT, KEPT, Data, address_of, collection_of, data

ITEMS, VALIDATION, QUERIES = data(120), data(80, seed=1), data(20, seed=2)
ROUNDING = 2e-6  # of distances in float32


@pytest.fixture(scope="module")
def reference() -> Trust:
    """Trust over arrays."""
    return Trust.fit((ITEMS.h, ITEMS.labels), (VALIDATION.h, VALIDATION.labels), encoder=ITEMS.head)


def rows_of(ids: Any) -> Any:
    return np.vectorize(lambda name: int(name.split()[1]))(ids)


def compare(answer: Any, expected: Any, atol: float = 5e-4) -> None:
    """Compare what Trust says over an engine with what it says over arrays."""
    np.testing.assert_array_equal(rows_of(answer.nearest), expected.nearest)
    assert answer.labels == expected.labels
    np.testing.assert_allclose(answer.distance, expected.distance, atol=ROUNDING)
    np.testing.assert_allclose(answer.match_parts, expected.match_parts, atol=10 * atol)
    np.testing.assert_allclose(answer.probability, expected.probability, atol=atol)
    np.testing.assert_array_equal(answer.reason, expected.reason)


@pytest.mark.parametrize("engine", EXACT)
def test_an_exact_engine_answers_as_arrays_do(engine: str, tmp_path: Path, reference: Trust) -> None:
    collection = collection_of(engine, tmp_path, ITEMS)
    assert collection.engine.exact
    neighbours = collection.nearest(QUERIES.items, 12)
    cosines = QUERIES.items.mean.astype(float) @ ITEMS.items.mean.T.astype(float)
    order = np.argsort(-cosines, axis=1)[:, :12]
    np.testing.assert_array_equal(rows_of(neighbours.ids), order)
    np.testing.assert_allclose(neighbours.distances, 1 - np.take_along_axis(cosines, order, 1), atol=ROUNDING)
    np.testing.assert_array_equal(neighbours.labels, ITEMS.labels[order])
    np.testing.assert_allclose(neighbours.payload["kappa"], ITEMS.items.kappa[order], rtol=1e-6)
    collection.trust = replace(reference, gallery=collection.gallery)
    compare(collection.trust(QUERIES.h), reference(QUERIES.h))
    # A fit ends where its steps get small, and a quantile of few numbers is one of them: rounding moves both a little.
    collection.use_trust(reference)
    assert collection.trust is not None
    compare(collection.trust(QUERIES.h), reference.with_gallery(ITEMS.h, ITEMS.labels)(QUERIES.h), atol=2e-2)
    collection.fit_trust((VALIDATION.h, VALIDATION.labels), encoder=ITEMS.head)
    compare(collection.trust(QUERIES.h), reference(QUERIES.h), atol=2e-2)
    some = np.array(["item 3", "item 77", "item 110"])
    compare(collection.trust.items(some), reference.items(np.array([3, 77, 110])), atol=2e-2)
    collection.close()


@pytest.mark.parametrize("engine", EXACT)
def test_margins_are_searched_for_where_all_neighbours_share_a_class(engine: str, tmp_path: Path) -> None:
    """Two tight classes of 60: no query has the other class among its 50 nearest."""
    tight, queries = data(120, classes=2, spread=0.05), data(6, classes=2, spread=0.05, seed=3)
    collection = collection_of(engine, tmp_path, tight)
    features, embeddings = Vectors.of("h", queries.h), queries.head.embed(queries.h)
    expected = LabelledGallery.of(tight.h, tight.labels, tight.head).surroundings(features, embeddings)
    around = collection.gallery.surroundings(features, embeddings)
    for place, other in ((around.z, expected.z), (around.h, expected.h)):
        assert (np.asarray(place.neighbours.labels) == place.neighbours.labels[:, :1]).all()
        np.testing.assert_allclose(place.other, other.other, atol=ROUNDING)
        np.testing.assert_allclose(place.same, other.same, atol=ROUNDING)
        np.testing.assert_allclose(place.scales, other.scales, atol=ROUNDING)
    collection.close()


@pytest.mark.parametrize("engine", EXACT)
def test_filters_are_passed_through(engine: str, tmp_path: Path, reference: Trust) -> None:
    collection = collection_of(engine, tmp_path, ITEMS)
    collection.use_trust(reference)
    some = QUERIES[:8]
    in_shop = np.flatnonzero(np.arange(len(ITEMS.h)) % 3 == 1)
    native: Any = {"exact": lambda columns: columns["shop"] == 1, "milvus": "shop == 1"}.get(
        collection.engine.name
    )
    if native is None:
        from qdrant_client import models

        match = models.FieldCondition(key="shop", match=models.MatchValue(value=1))
        native = models.Filter(must=[match])
    cosines = some.items.mean @ ITEMS.items.mean[in_shop].T
    best = in_shop[cosines.argmax(axis=1)]
    for where in ({"shop": 1}, native):
        answers = collection.query(some.items, 3, features=some.h, where=where)
        assert (rows_of(answers.ids) % 3 == 1).all()
        np.testing.assert_array_equal(rows_of(answers.ids[:, 0]), best)
        assert answers.trust is not None
        np.testing.assert_array_equal(rows_of(answers.trust.nearest), best)
    one = collection.query(some.items, 3, where={"label": ["class 1"], "shop": [1, 2]})
    assert set(ITEMS.labels[rows_of(one.ids).ravel()]) == {"class 1"}
    assert collection.query(some.items, 1000, where={"shop": 0}).ids.shape == (8, 40)
    with pytest.raises(NoItemError, match="filter"):
        collection.query(some.items, 1, where={"shop": 17})
    with pytest.raises(EngineError, match="filter"):
        collection.query(some.items, 1, where=3.5)
    with pytest.raises(EngineError, match="range"):
        collection.query(some.items, 1, where={"shop": 0.5})
    collection.close()


@pytest.mark.parametrize("engine", EXACT)
def test_items_come_and_go_and_scales_near_them_are_forgotten(engine: str, tmp_path: Path) -> None:
    first, more = data(90), data(12, seed=5)
    collection = collection_of(engine, tmp_path, first)
    collection.fit_trust((VALIDATION.h, VALIDATION.labels), encoder=first.head)
    assert collection.trust is not None
    collection.gallery.store_scales(progress=False)
    before = {name: collection.engine.read(np.array([name])).payload for name in ("item 20", "item 21")}
    collection.add(
        more.items,
        [f"new {row}" for row in range(12)],
        features=more.h,
        labels=more.labels,
        columns={"shop": np.ones(12, int)},
    )
    collection.remove([f"item {row}" for row in range(10)])
    assert len(collection) == 92
    assert collection.unsettled == 0
    collection.check(vectors=True)
    kept = Data(
        np.concatenate([first.h[10:], more.h]), np.concatenate([first.labels[10:], more.labels]), first.head
    )
    expected = LabelledGallery.of(kept.h, kept.labels, kept.head)
    ids = np.array([*(f"item {row}" for row in range(10, 90)), *(f"new {row}" for row in range(12))])
    for space in ("h", "z"):
        stored = collection.engine.read(ids).payload[f"{space}_10"]
        is_stored = stored >= 0
        assert 0 < is_stored.sum() < 80  # some changed, some did not
        scales = expected.reached_scales(space, np.arange(92))[:, 0]
        np.testing.assert_allclose(stored[is_stored], scales[is_stored], atol=ROUNDING)
    collection.gallery.store_scales(progress=False)
    np.testing.assert_allclose(
        collection.engine.read(ids).payload["h_10"],
        expected.reached_scales("h", np.arange(92))[:, 0],
        atol=ROUNDING,
    )
    assert before["item 20"]["kappa"] == collection.engine.read(np.array(["item 20"])).payload["kappa"]
    answer = collection.trust(QUERIES.h[:5])
    around = expected.surroundings(Vectors.of("h", QUERIES.h[:5]), first.head.embed(QUERIES.h[:5]))
    assert answer.nearest.tolist() == ids[around.nearest].tolist()
    with pytest.raises(EngineError, match="new 3"):
        collection.add(more.items[3:4], ["new 3"], features=more.h[3:4], labels=more.labels[3:4])
    with pytest.raises(KeyError, match="item 3"):
        collection.remove(["item 3"])
    with pytest.raises(ValueError, match="labels"):
        collection.add(more.items[:1], ["x"], features=more.h[:1])
    with pytest.raises(ValueError, match=r"Collection\.add"):
        collection.trust.update(remove=[0])
    collection.close()


@pytest.mark.parametrize("engine", KEPT)
def test_a_collection_is_saved_and_a_change_behind_its_back_is_noticed(engine: str, tmp_path: Path) -> None:
    few = data(24)
    collection = collection_of(engine, tmp_path, few, ids=np.arange(24))
    collection.fit_trust((VALIDATION.h, VALIDATION.labels), encoder=few.head)
    collection.calibrate(VALIDATION.items, VALIDATION.labels, features=VALIDATION.h, alpha=0.7)
    assert collection.threshold is not None
    expected = collection.query(QUERIES.items, 2, features=QUERIES.h)
    engines.save(collection, tmp_path / "saved")
    collection.close()
    again = engines.load(tmp_path / "saved", check="vectors")
    answers = again.query(QUERIES.items, 2, features=QUERIES.h)
    assert answers.trust is not None
    assert expected.trust is not None
    np.testing.assert_array_equal(answers.ids, expected.ids)
    np.testing.assert_allclose(answers.trust.probability, expected.trust.probability, atol=1e-6)
    np.testing.assert_array_equal(answers.answered, expected.answered)
    if engine not in ("exact:", "faiss:hnsw"):  # what is in memory is written with the folder
        again.engine.delete(np.array([7]))
        again.close()
        for check in ("count", "items"):
            with pytest.raises(ChangedCollectionError, match="withdraw"):
                engines.load(tmp_path / "saved", check=check)
        changed = engines.load(tmp_path / "saved", changed="withdraw")
        assert changed.threshold is None
        assert len(changed) == 23
        assert changed.trust is not None
        with pytest.raises(NotCalibratedError, match="withdrawn"):
            changed.query(QUERIES.items, 2, features=QUERIES.h, abstain=True)
        assert len(changed.trust(QUERIES.h[:3])) == 3
        again = changed
    again.close()


def test_a_vector_or_an_item_that_something_else_wrote_is_noticed(tmp_path: Path) -> None:
    collection = collection_of("qdrant::memory:", tmp_path, ITEMS[:40], ids=np.arange(40))
    collection.fit_trust((VALIDATION.h, VALIDATION.labels), encoder=ITEMS.head)
    assert collection.trust is not None
    client, models = collection.engine.client, collection.engine._models  # type: ignore[attr-defined]
    vectors = {"z": QUERIES.items.mean[0].tolist(), "h": QUERIES.h[0].tolist()}
    client.update_vectors("laplacian_metric", [models.PointVectors(id=5, vector=vectors)])
    collection.check()
    with pytest.raises(ChangedCollectionError):
        collection.check(vectors=True)
    client.upsert(
        "laplacian_metric", [models.PointStruct(id=99, vector=vectors, payload={"label": "class 1"})]
    )
    with pytest.raises(ChangedCollectionError, match=r"Collection\.add"):
        collection.trust(QUERIES.h[:1])
    with pytest.raises(ChangedCollectionError):
        collection.check()


@pytest.mark.parametrize("engine", ["exact:"])
def test_refusal_and_credible_sets_are_those_of_an_index(engine: str, tmp_path: Path) -> None:
    names, queries = [f"item {row}" for row in range(len(ITEMS.h))], data(300, seed=1)
    index = calibrate(Index(ITEMS.items, names), queries.items, queries.labels, ITEMS.labels, alpha=0.6)
    collection = collection_of(engine, tmp_path, ITEMS)
    collection.calibrate(queries.items, queries.labels, alpha=0.6)
    assert collection.threshold == index.threshold
    for order in ("cosine", "expected distance", "match probability"):
        ours = collection.query(QUERIES.items, 4, order=order, abstain=True)
        theirs = index.query(
            QUERIES.items, 4, order=order, abstain=True, candidates=None if order == "cosine" else 100
        )
        np.testing.assert_array_equal(ours.ids, theirs.ids)
        np.testing.assert_allclose(ours.similarity, theirs.similarity, atol=ROUNDING)
        np.testing.assert_allclose(ours.probability, theirs.probability, atol=1e-4)
        np.testing.assert_array_equal(ours.answered, theirs.answered)
    sets, expected = collection.credible_sets(QUERIES.items), index.credible_sets(QUERIES.items)
    np.testing.assert_allclose(sets.radius, expected.radius, atol=1e-5)
    for own, other in zip(sets, expected, strict=True):
        assert len(set(own) ^ set(other)) <= 1  # at the very edge of a cap
    of_items = collection.query_ids(["item 4", "item 9"], 3)
    np.testing.assert_array_equal(of_items.ids, index.query_ids(["item 4", "item 9"], 3).ids)
    with pytest.raises(KeyError, match="nobody"):
        collection.query_ids(["nobody"], 3)
    with pytest.raises(ValueError, match="order"):
        collection.query(QUERIES.items, 3, order="size")  # type: ignore[arg-type]
    collection.close()


@pytest.mark.parametrize("engine", APPROXIMATE)
def test_approximate_engines_find_nearly_all(engine: str, tmp_path: Path, reference: Trust) -> None:
    many = data(2000)
    collection = collection_of(engine, tmp_path, many)
    assert not collection.engine.exact
    exact = collection_of("exact:", tmp_path, many).nearest(QUERIES.items, 10)
    neighbours = collection.nearest(QUERIES.items, 10)
    recall = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(neighbours.ids, exact.ids, strict=True)])
    assert recall > 0.95
    collection.fit_trust((VALIDATION.h, VALIDATION.labels), encoder=many.head)
    assert collection.trust is not None
    filtered = collection.query(QUERIES.items, 5, features=QUERIES.h, where={"shop": 2})
    assert (rows_of(filtered.ids) % 3 == 2).all()
    collection.remove(["item 0"])
    collection.add(
        many.items[:1], ["item 0"], features=many.h[:1], labels=many.labels[:1], columns={"shop": [0]}
    )
    collection.check(vectors=True)
    assert collection.query(many.items[:1], 1).ids.tolist() == [["item 0"]]


def test_collections_without_labels_or_features(tmp_path: Path) -> None:
    del tmp_path
    collection = engines.create("exact:", ITEMS.items)
    with pytest.raises(ValueError, match="labels"):
        collection.calibrate(VALIDATION.items, VALIDATION.labels)
    with pytest.raises(ValueError, match="encoder"):
        collection.fit_trust((VALIDATION.h, None), encoder=ITEMS.head)
    z = VALIDATION.items.mean
    collection.fit_trust((z, None))
    expected = Trust.fit((ITEMS.items.mean, None), (z, None))
    assert collection.trust is not None
    np.testing.assert_allclose(
        collection.trust(QUERIES.items.mean).known, expected(QUERIES.items.mean).known, atol=1e-4
    )
    answer = collection.trust(QUERIES.items.mean)
    with pytest.raises(ValueError, match="without labels"):
        answer.probability.sum()


@pytest.mark.parametrize(
    ("kind", "parameters"),
    [(IVF(nlist=8, nprobe=8), {"nlist": 8}), (HNSW(links=16), {"M": 16, "efConstruction": 80})],
)
def test_an_index_in_a_file_of_milvus(
    kind: Kind, parameters: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parameters arrive, rows are moved into segments, and pages hold each item once."""
    address = address_of("milvus:lite.db", tmp_path)
    from laplacian_metric.retrieval.engines import milvus

    monkeypatch.setattr(milvus, "MOST_UNFLUSHED", 100)
    monkeypatch.setattr(milvus, "MOST_HITS", 50)
    monkeypatch.setattr(milvus, "ROWS_AT_ONCE", 40)
    collection = engines.create(address, ITEMS.items, features=ITEMS.h, labels=ITEMS.labels, kind=kind)
    engine = collection.engine
    assert isinstance(engine, milvus.MilvusEngine)
    assert not engine.exact
    for space in ("z", "h"):
        assert engine.client.describe_index(engine.collection, space)["params"] == parameters
    neighbours = collection.nearest(QUERIES.items, 12)
    exact = np.argsort(-QUERIES.items.mean @ ITEMS.items.mean.T, axis=1)[:, :12]
    np.testing.assert_array_equal(neighbours.ids, exact)
    for spaces in ((), ("z", "h")):
        pages = list(engine.scroll(spaces))
        assert [len(page) for page in pages] == [50, 50, 20]
        assert sorted(np.concatenate([page.ids for page in pages]).tolist()) == list(range(120))
    collection.close()
    again = milvus.MilvusEngine(engine.place, engine.collection)
    assert type(again.kind) is type(kind)
    assert again.lists == parameters.get("nlist", milvus.DEFAULT_LISTS)
    again.close()


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("redis:here", "qdrant:URL"),
        ("qdrant:", "qdrant:URL"),
        ("exact:", "in memory"),
        ("milvus:missing.db", "missing"),
    ],
)
def test_addresses_that_lead_nowhere(address: str, said: str, tmp_path: Path) -> None:
    pytest.importorskip("milvus_lite", reason="milvus-lite is not installed")
    address = address.replace("missing.db", str(tmp_path / "missing.db"))
    with pytest.raises(EngineError, match=said):
        engines.open_engine(address, "missing")


def test_a_server_that_does_not_answer_is_named() -> None:
    pytest.importorskip("qdrant_client", reason="Qdrant's client is not installed")
    with pytest.raises(engines.EngineUnreachableError, match="127"):
        engines.open_engine("qdrant:http://127.0.0.1:9", check_compatibility=False, timeout=2)


def test_ids_labels_and_columns_are_checked(tmp_path: Path) -> None:
    few = ITEMS[:5]
    with pytest.raises(ValueError, match="kappa"):
        engines.create("exact:", few.items, columns={"kappa": np.ones(5)})
    with pytest.raises(ValueError, match="3 entries"):
        engines.create("exact:", few.items, columns={"shop": np.ones(3)})
    with pytest.raises(EngineError, match="texts or whole numbers"):
        engines.create("exact:", few.items, labels=np.ones(5))
    with pytest.raises(ValueError, match="repeated"):
        engines.create("exact:", few.items, [1, 1, 2, 3, 4])
    collection = collection_of("milvus:lite.db", tmp_path, few)
    with pytest.raises(EngineError, match="overwrite"):
        engines.create(collection.engine.address, few.items)
    collection.close()
    with pytest.raises(EngineError, match="-1"):
        collection_of("qdrant::memory:", tmp_path, few, ids=[-1, 0, 1, 2, 3])


@pytest.mark.parametrize("engine", ["exact:", "qdrant::memory:"])
def test_an_index_becomes_a_collection_with_what_was_calibrated(
    engine: str, tmp_path: Path, reference: Trust
) -> None:
    names = [f"item {row}" for row in range(len(ITEMS.h))]
    queries = data(300, seed=1)
    index = Index(ITEMS.items, names).with_trust(reference)
    index = calibrate(index, queries.items, queries.labels, ITEMS.labels, alpha=0.6, features=queries.h)
    collection = engines.from_index(index, address_of(engine, tmp_path))
    ours = collection.query(QUERIES.items, 3, features=QUERIES.h)
    theirs = index.query(QUERIES.items, 3, features=QUERIES.h)
    np.testing.assert_array_equal(ours.ids, theirs.ids)
    assert ours.trust is not None
    assert theirs.trust is not None
    np.testing.assert_allclose(ours.trust.probability, theirs.trust.probability, atol=2e-3)
    np.testing.assert_array_equal(ours.answered, theirs.answered)
    collection.close()
