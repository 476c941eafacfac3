"""Collections that somebody else filled with the engine's own client, and approximate indexes."""

from __future__ import annotations

import importlib
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from laplacian_metric.galleries import GalleryError, open_gallery
from laplacian_metric.trust import Trust
from tests.galleries.places import DATABASES, DIM, Places, places, vectors
from tests.galleries.test_contract import alike

__all__ = ["places"]

COUNT = 60
SKUS = [f"sku-{n}" for n in range(COUNT)]
KINDS = [n % 4 for n in range(COUNT)]
PRICES = [n / 4 for n in range(COUNT)]
FIELDS = {"id": "sku", "label": "kind", "vector": "embedding"}


def foreign(places: Places, engine: str, name: str, rows: Any, metric: str = "cosine") -> None:
    """Fill a collection with the client of the engine: ids "sku", labels "kind", vectors "embedding", prices."""
    address = places.address(engine)
    records = [
        {"sku": s, "kind": k, "price": p, "embedding": row.tolist()}
        for s, k, p, row in zip(SKUS, KINDS, PRICES, np.asarray(rows), strict=True)
    ]
    if engine == "pgvector":
        import psycopg

        with psycopg.connect(address) as connection:
            connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
            connection.execute(
                f"CREATE TABLE {name} (number serial, sku varchar(20) UNIQUE, embedding vector({DIM}), "
                "kind int, price numeric)"
            )
            for r in records:
                values = [r["sku"], str(r["embedding"]), r["kind"], r["price"]]
                connection.execute(
                    f"INSERT INTO {name} (sku, embedding, kind, price) VALUES (%s, %s, %s, %s)", values
                )
            operators = {"cosine": "vector_cosine_ops", "l2": "vector_l2_ops", "dot": "vector_ip_ops"}
            connection.execute(f"CREATE INDEX ON {name} USING hnsw (embedding {operators[metric]})")
    elif engine == "qdrant":
        from qdrant_client import models

        distance = {"cosine": "Cosine", "l2": "Euclid", "dot": "Dot"}[metric]
        client = places.open("qdrant", dim=DIM).client
        config = models.VectorParams(size=DIM, distance=models.Distance(distance))
        client.create_collection(name, vectors_config={"embedding": config})
        points = [
            models.PointStruct(id=str(uuid.uuid4()), vector={"embedding": r.pop("embedding")}, payload=r)
            for r in records
        ]
        client.upsert(name, points)
    elif engine == "milvus":
        from pymilvus import DataType, MilvusClient

        client = MilvusClient(address.partition(":")[2])
        schema = client.create_schema(auto_id=False)
        schema.add_field("sku", DataType.VARCHAR, is_primary=True, max_length=20)
        schema.add_field("embedding", DataType.FLOAT_VECTOR, dim=DIM)
        schema.add_field("kind", DataType.INT64)
        schema.add_field("price", DataType.DOUBLE)
        indexes = client.prepare_index_params()
        kind = {"cosine": "COSINE", "l2": "L2", "dot": "IP"}[metric]
        indexes.add_index("embedding", index_type="FLAT", metric_type=kind)
        client.create_collection(name, schema=schema, index_params=indexes)
        client.insert(name, records)
    elif engine == "lancedb":
        import lancedb
        import pyarrow

        table = pyarrow.table({key: [r[key] for r in records] for key in ("sku", "kind", "price")})
        flat = pyarrow.array(np.asarray(rows, dtype=np.float32).ravel())
        table = table.append_column("embedding", pyarrow.FixedSizeListArray.from_arrays(flat, DIM))
        lancedb.connect(address.partition(":")[2]).create_table(name, table)
    else:
        gallery = places.open("chroma", dim=DIM)
        space = {"cosine": "cosine", "l2": "l2", "dot": "ip"}[metric]
        collection = gallery.client.create_collection(
            name, configuration={"hnsw": {"space": space}}, embedding_function=None
        )
        metadatas = [{"kind": r["kind"], "price": r["price"]} for r in records]
        collection.add(SKUS, embeddings=[r["embedding"] for r in records], metadatas=metadatas)


@pytest.mark.parametrize("engine", DATABASES)
@pytest.mark.parametrize("metric", ["cosine", "l2", "dot"])
def test_a_foreign_collection_is_adopted(places: Places, engine: str, metric: str) -> None:
    rows = vectors(COUNT)
    if metric != "cosine":
        rows = 2 * rows / np.linalg.norm(rows, axis=1, keepdims=True)  # all of one length
    name = f"foreign_{metric}"
    foreign(places, engine, name, rows, metric)
    gallery = places.open(engine, name, metric=metric, **FIELDS)
    assert gallery.dim == DIM
    arrays = open_gallery("arrays:", dim=DIM)
    arrays.add(SKUS, rows, KINDS, {"price": PRICES})
    alike(gallery, arrays)
    alike(gallery, arrays, k=3, where={"price": [1, 2.5, 7.25]})
    changed = (["sku-3", "new"], rows[:2][::-1], [9, 8], {"price": [0.5, 0.75]})
    for each in (gallery, arrays):
        each.add(*changed)
        each.remove(["sku-10"])
    alike(gallery, arrays)
    if metric != "cosine":
        with pytest.raises(ValueError, match="metric"):
            gallery.add(["longer"], 3 * rows[:1], [9], {"price": [0.5]})


@pytest.mark.parametrize("engine", DATABASES)
@pytest.mark.parametrize("metric", ["l2", "dot"])
def test_an_order_that_is_not_that_of_cosines_is_refused(places: Places, engine: str, metric: str) -> None:
    name = f"lengths_{metric}"
    foreign(places, engine, name, vectors(COUNT), metric)
    with pytest.raises(ValueError, match="metric"):
        places.open(engine, name, metric=metric, **FIELDS)


@pytest.mark.parametrize("engine", ["pgvector", "qdrant", "lancedb", "chroma"])
def test_an_item_that_lacks_something_is_named(places: Places, engine: str) -> None:
    """A row without a label, or of another kind of label, is an error that names it."""
    name = "lacking"
    foreign(places, engine, name, vectors(COUNT))
    gallery = places.open(engine, name, **FIELDS)
    if engine == "pgvector":
        gallery._connection().execute(f"UPDATE {name} SET kind = NULL WHERE sku = 'sku-5'")
    elif engine == "qdrant":
        points = gallery._points(["sku-5"])
        gallery.client.delete_payload(name, keys=["kind"], points=points)
    elif engine == "lancedb":
        gallery.table.update(where="sku = 'sku-5'", values_sql={"kind": "NULL"})
    else:
        gallery._collection.update(["sku-5"], metadatas=[{"kind": "seven"}])
    near = vectors(COUNT)[5:6]
    for call in (lambda: gallery.search(near, 1), lambda: gallery.sample(COUNT)):
        with pytest.raises(GalleryError, match="sku-5"):
            call()
    if engine == "pgvector":
        gallery._connection().execute(f"UPDATE {name} SET kind = 1, embedding = NULL WHERE sku = 'sku-5'")
        with pytest.raises(GalleryError, match="sku-5"):
            gallery.sample(COUNT)


def test_points_without_payload_are_named(places: Places) -> None:
    from qdrant_client import models

    gallery = places.open("qdrant", dim=DIM)
    gallery.add(range(5), vectors(5), list("abcde"))
    gallery.client.upsert(gallery.fields.name, [models.PointStruct(id=77, vector={"vector": [1.0] * DIM})])
    with pytest.raises(GalleryError, match="77"):
        gallery.search(np.ones((1, DIM)), 1)


INDEXES = {
    "hnsw": ("pgvector", "#hnsw(m=16, ef_construction=64)", {"hnsw.ef_search": 200}),
    "ivfflat": ("pgvector", "#ivfflat(lists=8)", {"ivfflat.probes": 8}),
    "lists": ("faiss", "faiss:IVF8,Flat", {"nprobe": 8}),
    "graph": ("faiss", "faiss:HNSW16", {"efSearch": 400}),
    "rotated": ("faiss", "faiss:PCA6,IVF8,Flat", {"nprobe": 8}),
    "milvus graph": ("milvus", "#HNSW(M=16, efConstruction=64)", {"ef": 400}),
    "milvus lists": ("milvus", "#IVF_FLAT(nlist=8)", {"nprobe": 8}),
    "lance": ("lancedb", "#IVF_HNSW_SQ(num_partitions=2)", {"nprobes": 2, "refine_factor": 4}),
    "chroma": ("chroma", "#hnsw(ef_search=300)", {}),
}


@pytest.mark.parametrize("index", list(INDEXES))
def test_approximate_indexes(places: Places, index: str) -> None:
    """With the greatest depth the neighbours are the exact ones; with filters and after changes there are k of them."""
    engine, suffix, native = INDEXES[index]
    address = suffix if suffix.startswith("faiss") else places.address(engine) + suffix
    gallery, arrays = (
        open_gallery(a, dim=DIM, name="approx_" + index.replace(" ", "_")) for a in (address, "arrays:")
    )
    rows = vectors(900)
    for each in (gallery, arrays):
        each.add(
            range(600), rows[:600], [f"c{n % 5}" for n in range(600)], {"one_in_fifty": np.arange(600) % 50}
        )
        each.search(rows[:3], 2)  # builds the index
        each.add(
            range(550, 900),
            rows[550:],
            [f"c{n % 5}" for n in range(550, 900)],
            {"one_in_fifty": np.arange(550, 900) % 50},
        )
        each.remove(range(0, 900, 9))
    ours, theirs = gallery.search(vectors(30, 3), 10, native=native), arrays.search(vectors(30, 3), 10)
    assert (ours.counts == 10).all()
    assert np.mean([len(set(a) & set(b)) / 10 for a, b in zip(ours.ids, theirs.ids, strict=True)]) > 0.97
    filtered = gallery.search(vectors(30, 3), 10, {"one_in_fifty": 7})
    assert (filtered.counts == 10).all()
    assert {id_ % 50 for id_ in filtered.ids.ravel().tolist()} == {7}
    assert gallery.search(vectors(2), 1000).counts.tolist() == [800, 800]


@pytest.mark.parametrize("engine", DATABASES)
def test_native_filters(places: Places, engine: str) -> None:
    gallery = places.open(engine, dim=DIM)
    gallery.add(range(50), vectors(50), columns={"price": np.arange(50) / 2, "shop": ["a", "b"] * 25})
    native: Any = {
        "pgvector": "price < 3",
        "milvus": "price < 3",
        "lancedb": "price < 3",
        "chroma": {"price": {"$lt": 3.0}},
    }.get(engine)
    if engine == "qdrant":
        from qdrant_client import models

        native = models.Filter(must=[models.FieldCondition(key="price", range=models.Range(lt=3))])
    assert sorted(gallery.search(vectors(1), 50, {"shop": "a"}, native={"filter": native}).ids[0]) == [
        0,
        2,
        4,
    ]
    if engine != "milvus":  # which ignores what it does not know
        with pytest.raises(GalleryError):
            gallery.search(vectors(1), 5, native={"no such option": 1})


@pytest.mark.parametrize("engine", DATABASES)
def test_trust_over_an_engine_is_trust_over_arrays(places: Places, engine: str, tmp_path: Path) -> None:
    """The same probabilities; saved by its address, opened again from it."""
    generator = np.random.default_rng(0)
    classes = generator.integers(0, 5, 520)
    rows = (np.eye(5, DIM)[classes] + 0.35 * generator.standard_normal((520, DIM))).astype(np.float32)
    names = [f"class {number}" for number in classes]
    gallery, arrays = places.open(engine, dim=DIM), open_gallery("arrays:", dim=DIM)
    for each in (gallery, arrays):
        each.add(range(300), rows[:300], names[:300])
    ours, theirs = (Trust.fit(each, (rows[300:500], names[300:500])) for each in (gallery, arrays))
    answers = ours(rows[500:]), theirs(rows[500:])
    np.testing.assert_allclose(answers[0].probability, answers[1].probability, atol=2e-3)
    assert list(answers[0].labels) == list(answers[1].labels)
    assert list(answers[0].verdict) == list(answers[1].verdict)
    ours.save(tmp_path / "trust")
    again = Trust.load(tmp_path / "trust", gallery=gallery if engine == "qdrant" else None)
    np.testing.assert_allclose(again(rows[500:]).probability, answers[0].probability, atol=1e-9)


def test_an_index_of_faiss_is_trained_when_there_are_enough_items(places: Places) -> None:
    """With too few items every one is searched; after changes that keep their number the index is built anew."""
    gallery = open_gallery("faiss:IVF32,Flat", dim=DIM)
    gallery.add(range(20), vectors(20))
    assert gallery.search(vectors(3, 1), 20).counts.tolist() == [20] * 3
    assert gallery._index is None
    gallery.add(range(20, 800), vectors(780, 2))
    gallery.search(vectors(3, 1), 5)
    assert gallery._index.ntotal == 800
    gallery.remove(range(100))
    gallery.add(range(1000, 1100), vectors(100, 3))
    assert gallery._index is None
    gallery.search(vectors(3, 1), 5)
    assert gallery._index.ntotal == 800


def test_a_library_that_replaces_methods_of_faiss_changes_nothing() -> None:
    """pytorch-metric-learning loads faiss.contrib.torch_utils, whose `search` takes no parameters."""
    importlib.import_module("faiss.contrib.torch_utils")
    vectors = np.random.default_rng(0).standard_normal((300, 8))
    gallery = open_gallery("faiss:HNSW16", dim=8)
    gallery.add(np.arange(300), vectors)
    found = gallery.search(vectors[:5], 3, native={"efSearch": 64})
    assert found.ids[:, 0].tolist() == [0, 1, 2, 3, 4]
