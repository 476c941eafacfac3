"""The service: answers as the index gives them, limits, wrong requests, reloading and restarts."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from laplacian_metric.core import artifact
from laplacian_metric.core.gallery import GalleryError
from laplacian_metric.serve import Index, Limits, Service
from laplacian_metric.serve.queries import QueryError
from laplacian_metric.serve.service import UnavailableError
from laplacian_metric.trust import Trust
from tests.serve.running import WIDTH, client_of, features, process, running, saved

httpx = pytest.importorskip("httpx", reason="httpx is not installed")
pytest.importorskip("starlette.testclient", reason="FastAPI is not installed")
pytest.importorskip("uvicorn", reason="uvicorn is not installed")

QUERIES, _ = features(12, seed=7)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("served") / "index")


@pytest.fixture
def client(folder: Path) -> Iterator[Any]:
    with client_of(Service(folder)) as opened:
        yield opened


def test_answers_are_those_of_trust(folder: Path, client: Any) -> None:
    expected = Index.load(folder).trust(QUERIES)
    assert expected.neighbours is not None
    for row, vector in enumerate(QUERIES.tolist()):
        answer = client.post("/query/vector", json={"vector": vector, "k": 3})
        assert answer.status_code == 200, answer.text
        content = answer.json()
        assert [item["id"] for item in content["neighbours"]] == expected.neighbours.ids[row, :3].tolist()
        assert content["probability"] == pytest.approx(expected.probability[row])
        for name in ("verdict", "because", "nearest"):
            assert content[name] == getattr(expected, name)[row]
        assert content["label"] == expected.labels[row]  # type: ignore[index]
    far = client.post("/query/vector", json={"vector": [-3.0] * WIDTH, "k": 2}).json()
    assert far["verdict"] == "unlike anything seen"
    assert len(far["neighbours"]) == 2


def test_a_saved_trust_is_an_index(tmp_path: Path) -> None:
    trust = Trust.fit(features(100), features(60, seed=1))
    trust.accepting(0.8).save(tmp_path / "trust")
    with client_of(Service(tmp_path / "trust")) as client:
        health = client.get("/health").json()
        assert (health["items"], health["dim"], health["threshold"]) == (100, WIDTH, 0.8)
        assert health["takes"] == ["vector"]
        assert client.post("/query/vector", json={"vector": [1.0] * WIDTH}).json()["nearest"] in range(100)


def test_an_index_keeps_its_guarantee_and_any_label(tmp_path: Path) -> None:
    (h, labels), (valid, valid_labels) = features(100), features(400, seed=1)
    pairs, valid_pairs = ([(label, 1) for label in some] for some in (labels, valid_labels))
    trust = Trust.fit((h, pairs), (valid[:200], valid_pairs[:200]))
    guarantee = trust.guarantee((valid[200:], valid_pairs[200:]), error=0.3)
    Index(trust.accepting(guarantee), "a4f0", guarantee).save(tmp_path / "index")
    index = Index.load(tmp_path / "index")
    assert (index.encoder, index.guarantee) == ("a4f0", guarantee)
    assert index.trust.threshold == guarantee.threshold
    assert "class" in str(index.replies(QUERIES[:1])[0].label)


def malformed(width: int) -> list[tuple[str, bytes, dict[str, str]]]:
    """Return a hundred requests that are wrong: path, body and headers."""
    good = [0.5] * width
    kind = {"content-type": "application/json"}
    bodies: list[bytes] = [b"", b"{", b"null", b"[]", b"3", b'"text"', b"\xff\xfe", b"{}", b"[" * 5000]
    bodies += [
        b'{"vector": %s}' % text
        for text in (b"[NaN]", b"[Infinity]", b"[1e999]", b"null", b"{}", b'"x"', b"[[1]]")
    ]
    wrong: list[Any] = [
        good[:-1],
        [*good, 1.0],
        [0.0] * width,
        [],
        [None] * width,
        ["a"] * width,
        ["1e39x"] * width,
        [True, *good],
        {"0": 1},
        7,
    ]
    bodies += [json.dumps({"vector": value}).encode() for value in wrong]
    bodies += [json.dumps({"features": value}).encode() for value in (good, None, "x")]
    options: dict[str, list[Any]] = {
        "k": [0, -1, 10**9, 1.5, "many", None, [5], 10**30],
        "unknown": [1],
        "vector ": [good],
        "where": [{"a": 1}, None],
    }
    for name, values in options.items():
        bodies += [json.dumps({"vector": good, name: value}).encode() for value in values]
    requests = [("/query/vector", body, kind) for body in bodies]
    requests += [
        ("/query/vector", json.dumps({"vector": good}).encode(), {"content-type": c})
        for c in ("text/plain", "image/png", "")
    ]
    requests += [
        ("/query/text", body, kind)
        for body in (b"", b"{}", b'{"text": ""}', b'{"text": 5}', b'{"text": "hello"}', b'{"text": ["a"]}')
    ]
    requests += [
        (f"/query/image?{query}", b"no image", {}) for query in ("", "k=0", "k=x", "k=-5", "k=51", "k=1e3")
    ]
    requests += [
        ("/query", b"{}", kind),
        ("/", b"{}", kind),
        ("/health", b"", {}),
        ("/serve.js", b"", {}),
        ("/..%2f..%2f..%2fpyproject.toml", b"", {}),
        ("/query/vector/5", b"{}", kind),
    ]
    number = 0
    while len(requests) < 100:
        number += 1
        requests.append(("/query/vector", json.dumps({"vector": good}).encode()[:-number], kind))
    return requests


def test_a_hundred_malformed_requests_are_refused_with_a_reason(client: Any) -> None:
    requests = malformed(WIDTH)
    assert len(requests) == 100
    for path, body, headers in requests:
        answer = client.post(path, content=body, headers=headers)
        assert 400 <= answer.status_code < 500, (path, body[:80], answer.status_code)
        detail = answer.json()["detail"]
        assert isinstance(detail, str)
        assert detail
        assert "Traceback" not in answer.text
    assert client.get("/health").json()["status"] == "ok"


def test_bodies_texts_and_numbers_of_items_have_limits(folder: Path) -> None:
    limits = Limits(body=2000, items=3, text=5)
    with client_of(Service(folder, limits=limits)) as client:
        large = b'{"vector": [' + b"1," * 2000 + b"1]}"
        assert client.post("/query/vector", content=large).status_code == 413
        chunks = client.post(
            "/query/vector",
            content=(large[i : i + 500] for i in range(0, len(large), 500)),
            headers={"content-type": "application/json"},
        )
        assert chunks.status_code == 413
        many = client.post("/query/vector", json={"vector": [1.0] * WIDTH, "k": 4})
        assert (many.status_code, "3" in many.json()["detail"]) == (422, True)
        assert client.post("/query/vector", json={"vector": [1.0] * WIDTH, "k": 3}).status_code == 200
        assert client.post("/query/text", json={"text": "too long"}).status_code == 422
        assert client.get("/health", headers={"host": "elsewhere.example"}).status_code == 400


def test_slow_answers_and_a_long_queue_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(folder, limits=Limits(seconds=0.2, waiting=2))
    waiting = threading.Event()
    replies = service._replies
    monkeypatch.setattr(service, "_replies", lambda *these: waiting.wait(5) and replies(*these))
    row = service.row([1.0] * WIDTH)

    async def several() -> list[Any]:
        first = asyncio.create_task(service.ask(row))
        await asyncio.sleep(0.05)
        others = [asyncio.create_task(service.ask(row)) for _ in range(4)]
        results = await asyncio.gather(first, *others, return_exceptions=True)
        waiting.set()
        await service._task
        results.append(await service.ask(row))
        return results

    *refused, answered = asyncio.run(several())
    kinds = [type(result) for result in refused]
    assert kinds.count(UnavailableError) == 2
    assert set(kinds) <= {TimeoutError, asyncio.TimeoutError, UnavailableError}
    assert answered.probability is not None


def test_queries_that_wait_are_answered_together(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(folder)
    sizes: list[int] = []
    replies = service._replies

    def counted(rows: list[Any], k: int) -> list[Any]:
        sizes.append(len(rows))
        return replies(rows, k)

    monkeypatch.setattr(service, "_replies", counted)

    async def many() -> list[Any]:
        rows = [service.row(row.tolist()) for row in QUERIES]
        return list(await asyncio.gather(*(service.ask(row, 1 + i % 2) for i, row in enumerate(rows))))

    answers = asyncio.run(many())
    assert [len(reply.neighbours) for reply in answers] == [1, 2] * 6
    assert max(sizes) > 1
    assert sum(sizes) == 12
    alone = Index.load(folder).replies(QUERIES)
    assert [reply.nearest for reply in answers] == [reply.nearest for reply in alone]


def test_a_query_that_fails_spoils_no_other(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(folder)
    index = service.index
    replies = Index.replies

    def failing(self: Index, h: Any, k: int = 1) -> Any:
        if (h[:, 0] == 99).any():
            raise ValueError("h has a row that cannot be searched for")
        if (h[:, 0] == 98).any():
            raise GalleryError("the database is gone")
        return replies(self, h, k)

    monkeypatch.setattr(Index, "replies", failing)
    rows = [QUERIES[0], np.full(WIDTH, 99.0), np.full(WIDTH, 98.0), np.ones(WIDTH + 1)]
    kinds = [type(result).__name__ for result in service._replies(rows, 1)]
    assert kinds == ["Reply", QueryError.__name__, GalleryError.__name__, UnavailableError.__name__]
    assert service.index is index
    with client_of(service) as client:
        gone = client.post("/query/vector", json={"vector": [98.0] * WIDTH})
        assert (gone.status_code, "retry-after" in gone.headers) == (503, True)


def test_the_index_is_replaced_under_load_without_a_failed_request(tmp_path: Path) -> None:
    service = Service(saved(tmp_path / "index", 60, "old"))
    with running(service, watch=0.05) as address:
        seen: list[str] = []
        wrong: list[Any] = []
        stop = threading.Event()

        def ask() -> None:
            with httpx.Client(base_url=address, timeout=30) as client:
                while not stop.is_set():
                    answer = client.post("/query/vector", json={"vector": QUERIES[0].tolist(), "k": 1})
                    if answer.status_code == 200:
                        seen.append(answer.json()["nearest"].split()[0])
                    else:
                        wrong.append(answer.text)

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        until = time.monotonic() + 30
        while not seen and time.monotonic() < until:
            time.sleep(0.01)  # the old index answers before it is replaced
        saved(tmp_path / "index", 80, "new", overwrite=True)
        while "new" not in seen[-3:] and time.monotonic() < until:
            time.sleep(0.05)
        before = service.number
        assert (
            httpx.post(f"{address}/reload").json()["read"] > before
        )  # the watcher may read it meanwhile too
        (tmp_path / "index" / artifact.POINTER).write_text("{}", encoding="utf-8")
        assert httpx.post(f"{address}/reload").status_code == 409
        health = httpx.get(f"{address}/health").json()
        stop.set()
        for thread in threads:
            thread.join()
    assert wrong == []
    assert {seen[0], seen[-1]} == {"old", "new"}
    assert (health["status"], health["items"]) == ("stale", 80)
    assert artifact.POINTER in health["problem"]


def test_a_killed_server_restarts_from_its_files(folder: Path) -> None:
    query = {"vector": QUERIES[1].tolist()}
    answers = []
    for _ in range(2):
        with process(folder) as (server, address):
            answers.append(httpx.post(f"{address}/query/vector", json=query, timeout=30).json())
            server.kill()
            assert server.wait(10) < 0
    assert answers[0] == answers[1]


def test_torch_is_not_loaded_to_answer_vectors(folder: Path) -> None:
    code = (
        "import sys; from laplacian_metric.serve import Service, create_app\n"
        f"service = Service({str(folder)!r})\n"
        f"create_app(service); service.index.replies([[1.0] * {WIDTH}])\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_description_names_paths_answers_and_refusals(client: Any) -> None:
    description = client.get("/openapi.json").json()
    assert {"/query/vector", "/query/text", "/query/image", "/health", "/reload"} <= set(description["paths"])
    vector = description["paths"]["/query/vector"]["post"]["responses"]
    assert {"200", "413", "422", "503", "504"} <= set(vector)
    verdict = description["components"]["schemas"]["Reply"]["properties"]["verdict"]
    assert "unlike anything seen" in verdict["description"]


def test_many_clients_at_once_and_no_growth_of_memory(folder: Path) -> None:
    """The short form of `python -m benchmarks.serve`."""
    from benchmarks.serve import loaded

    with process(folder) as (server, address):
        bodies = [json.dumps({"vector": row.tolist()}).encode() for row in QUERIES]
        row = loaded(address, server.pid, bodies, clients=10, seconds=2.0, warm_up=1.0)
    assert row["errors"] == 0
    assert row["answers"] > 10
    assert row["growth MiB"] < 20
