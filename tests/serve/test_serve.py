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

from laplacian_metric.retrieval import engines, load
from laplacian_metric.retrieval.replies import query_embedded
from laplacian_metric.serve import Limits, Service
from laplacian_metric.serve.service import Options, OverloadedError
from tests.retrieval.engines.cases import collection_of, data
from tests.serve.running import client_of, plain, process, running, saved

httpx = pytest.importorskip("httpx", reason="httpx is not installed")
pytest.importorskip("starlette.testclient", reason="FastAPI is not installed")
pytest.importorskip("uvicorn", reason="uvicorn is not installed")

QUERIES = data(12, seed=7, spread=0.4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("served") / "index")


@pytest.fixture
def client(folder: Path) -> Iterator[Any]:
    with client_of(Service(folder)) as opened:
        yield opened


def test_answers_are_those_of_the_index(folder: Path, client: Any) -> None:
    index = load(folder)
    expected = query_embedded(index, QUERIES.items, [""] * 12, 3, features=QUERIES.h)
    verdicts = set()
    for row, reply in enumerate(expected):
        answer = client.post("/query/vector", json={"features": QUERIES.h[row].tolist(), "k": 3})
        assert answer.status_code == 200, answer.text
        content = answer.json()
        assert [item["id"] for item in content["neighbours"]] == [match.item for match in reply.matches]
        assert content["answered"] == reply.answered
        assert content["probability"] == pytest.approx(reply.probability, abs=1e-5)
        assert (content["reason"], content["because"]) == (reply.verdict, reply.because)
        assert (content["refusal"] is None) == (reply.answered is True)
        verdicts.add(reply.answered)
    assert verdicts == {True, False}
    far = client.post("/query/vector", json={"features": [-3.0] * 12, "all": True, "k": 2}).json()
    assert far["reason"] == "unlike anything seen"
    assert far["answered"] is False
    assert len(far["neighbours"]) == 2


def test_an_index_without_trust_takes_embeddings(tmp_path: Path) -> None:
    with client_of(Service(plain(tmp_path / "index"))) as client:
        answer = client.post("/query/vector", json={"embedding": [0, 3, 0.1, 0], "k": 99}).json()
        assert [item["id"] for item in answer["neighbours"]][:1] == ["bee"]
        assert len(answer["neighbours"]) == 4
        assert (answer["answered"], answer["reason"], answer["probability"]) == (None, None, None)
        health = client.get("/health").json()
        assert (health["items"], health["dim"], health["features"], health["takes"]) == (
            4,
            4,
            None,
            ["vector"],
        )
        assert (
            "where"
            in client.post("/query/vector", json={"embedding": [1] * 4, "where": {"a": 1}}).json()["detail"]
        )


def test_a_collection_in_an_engine_is_served_with_filters(tmp_path: Path) -> None:
    gallery, validation = data(150), data(80, seed=1)
    collection = collection_of("exact:", tmp_path, gallery)
    collection.fit_trust((validation.h, validation.labels), encoder=gallery.head)
    engines.save(collection, tmp_path / "saved")
    with client_of(Service(tmp_path / "saved")) as client:
        query = {"features": QUERIES.h[0].tolist(), "where": {"shop": [1]}, "all": True}
        answer = client.post("/query/vector", json=query).json()
        assert {int(item["id"].split()[1]) % 3 for item in answer["neighbours"]} == {1}
        refused = client.post("/query/vector", json={**query, "where": {"shop": 55}})
        assert (refused.status_code, "filter" in refused.json()["detail"]) == (422, True)


def malformed(width: int) -> list[tuple[str, bytes, dict[str, str]]]:
    """Return a hundred requests that are wrong: path, body and headers."""
    good = [0.5] * width
    kind = {"content-type": "application/json"}
    bodies: list[bytes] = [b"", b"{", b"null", b"[]", b"3", b'"text"', b"\xff\xfe", b"{}", b"[" * 5000]
    bodies += [
        b'{"features": %s}' % text
        for text in (b"[NaN]", b"[Infinity]", b"[1e999]", b"null", b"{}", b'"x"', b"[[1]]")
    ]
    wrong: list[Any] = [
        good[:-1],
        [*good, 1.0],
        [0.0] * width,
        [],
        [None] * width,
        ["a"] * width,
        [1e39] * width,
        [True, *good],
        {"0": 1},
        7,
    ]
    bodies += [json.dumps({"features": value}).encode() for value in wrong]
    bodies += [json.dumps({"embedding": value}).encode() for value in (good, None, "x")]
    for name, values in {
        "k": [0, -1, 10**9, 1.5, "many", None, [5], 10**30],
        "order": ["size", 1, None, ""],
        "all": ["perhaps", 7, None, [True]],
        "kappa": [-1, "x", [1]],
        "uncertainty": ["x", {}],
        "where": [{"a": 1}, "a = 1", [1], {"a": {"b": 1}}],
        "unknown": [1],
        "features ": [good],
    }.items():
        bodies += [json.dumps({"features": good, name: value}).encode() for value in values]
    requests = [("/query/vector", body, kind) for body in bodies]
    requests += [
        ("/query/vector", json.dumps({"features": good}).encode(), {"content-type": c})
        for c in ("text/plain", "image/png", "")
    ]
    requests += [
        ("/query/text", body, kind)
        for body in (b"", b"{}", b'{"text": ""}', b'{"text": 5}', b'{"text": "hello"}', b'{"text": ["a"]}')
    ]
    requests += [
        (f"/query/image?{query}", b"no image", {})
        for query in ("", "k=0", "k=x", "k=-5", "all=perhaps", "k=1e3")
    ]
    requests += [
        ("/query", b"{}", kind),
        ("/", b"{}", kind),
        ("/health", b"", {}),
        ("/assets/serve.js", b"", {}),
        ("/assets/..%2f..%2fsetup.py", b"", {}),
        ("/query/vector/5", b"{}", kind),
    ]
    number = 0
    while len(requests) < 100:
        number += 1
        requests.append(("/query/vector", json.dumps({"features": good}).encode()[:-number], kind))
    return requests


def test_a_hundred_malformed_requests_are_refused_with_a_reason(client: Any) -> None:
    requests = malformed(12)
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
    limits = Limits(body=2000, items=3)
    with client_of(Service(folder, limits=limits)) as client:
        large = b'{"features": [' + b"1," * 2000 + b"1]}"
        assert client.post("/query/vector", content=large).status_code == 413
        chunks = client.post(
            "/query/vector",
            content=(large[i : i + 500] for i in range(0, len(large), 500)),
            headers={"content-type": "application/json"},
        )
        assert chunks.status_code == 413
        many = client.post("/query/vector", json={"features": [1.0] * 12, "k": 4})
        assert (many.status_code, "3" in many.json()["detail"]) == (422, True)
        assert client.post("/query/vector", json={"features": [1.0] * 12, "k": 3}).status_code == 200
        assert client.get("/health", headers={"host": "elsewhere.example"}).status_code == 400


def test_slow_answers_and_a_long_queue_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(folder, limits=Limits(seconds=0.2, waiting=2))
    waiting = threading.Event()
    replies = service._replies
    monkeypatch.setattr(service, "_replies", lambda *these: waiting.wait(5) and replies(*these))
    query = service.of_vector({"features": [1.0] * 12})

    async def several() -> list[Any]:
        first = asyncio.create_task(service.ask(query, Options()))
        await asyncio.sleep(0.05)
        others = [asyncio.create_task(service.ask(query, Options())) for _ in range(4)]
        results = await asyncio.gather(first, *others, return_exceptions=True)
        waiting.set()
        await service._task
        results.append(await service.ask(query, Options()))
        return results

    *refused, answered = asyncio.run(several())
    kinds = [type(result) for result in refused]
    assert kinds.count(OverloadedError) == 2
    assert all(
        isinstance(result, (TimeoutError, asyncio.TimeoutError, OverloadedError)) for result in refused
    )
    assert answered.probability is not None


def test_queries_that_wait_are_answered_together(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(folder)
    sizes: list[int] = []
    replies = service._replies
    monkeypatch.setattr(
        service, "_replies", lambda batch, options: sizes.append(len(batch)) or replies(batch, options)
    )

    async def many() -> list[Any]:
        vectors = [service.of_vector({"features": row.tolist()}) for row in QUERIES.h]
        expected = [
            service.ask(one, Options(k=1 + row % 2, answer_all=True)) for row, one in enumerate(vectors)
        ]
        return list(await asyncio.gather(*expected))

    answers = asyncio.run(many())
    assert [len(reply.matches) for reply in answers] == [1, 2] * 6
    assert max(sizes) > 1
    assert sum(sizes) == 12
    alone = query_embedded(load(folder), QUERIES.items, [""] * 12, 1, features=QUERIES.h, answer_all=True)
    assert [reply.matches[0].item for reply in answers] == [reply.matches[0].item for reply in alone]


def test_the_index_is_replaced_under_load_without_a_failed_request(tmp_path: Path) -> None:
    service = Service(saved(tmp_path / "index", 60, "old"))
    with running(service, watch=0.05) as address:
        seen: list[str] = []
        wrong: list[Any] = []
        stop = threading.Event()

        def ask() -> None:
            with httpx.Client(base_url=address, timeout=30) as client:
                while not stop.is_set():
                    query = {"features": QUERIES.h[0].tolist(), "k": 1, "all": True}
                    answer = client.post("/query/vector", json=query)
                    if answer.status_code == 200:
                        seen.append(answer.json()["neighbours"][0]["id"].split()[0])
                    else:
                        wrong.append(answer.text)

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        saved(tmp_path / "index", 80, "new", overwrite=True)
        until = time.monotonic() + 30
        while "new" not in seen[-3:] and time.monotonic() < until:
            time.sleep(0.05)
        before = service.number
        assert httpx.post(f"{address}/reload").json() == {"read": before + 1}
        (tmp_path / "index" / "manifest.json").write_text("{}", encoding="utf-8")
        assert httpx.post(f"{address}/reload").status_code == 409
        health = httpx.get(f"{address}/health").json()
        stop.set()
        for thread in threads:
            thread.join()
    assert wrong == []
    assert {seen[0], seen[-1]} == {"old", "new"}
    assert (health["status"], health["items"]) == ("stale", 80)
    assert "manifest" in health["problem"]


def test_a_killed_server_restarts_from_its_files(folder: Path) -> None:
    query = {"features": QUERIES.h[1].tolist()}
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
        f"app = create_app(Service({str(folder)!r}))\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_description_names_paths_answers_and_refusals(client: Any) -> None:
    description = client.get("/openapi.json").json()
    assert {"/query/vector", "/query/text", "/query/image", "/health", "/reload"} <= set(description["paths"])
    vector = description["paths"]["/query/vector"]["post"]["responses"]
    assert {"200", "413", "422", "503", "504"} <= set(vector)
    reason = description["components"]["schemas"]["Answered"]["properties"]["reason"]
    assert "unlike anything seen" in reason["description"]


def test_many_clients_at_once_and_no_growth_of_memory(folder: Path) -> None:
    """The short form of `python -m benchmarks.serve`."""
    from benchmarks.serve import loaded

    with process(folder) as (server, address):
        bodies = [json.dumps({"features": row.tolist()}).encode() for row in QUERIES.h]
        row = loaded(address, server.pid, bodies, clients=10, seconds=2.0, warm_up=1.0)
    assert row["errors"] == 0
    assert row["answers"] > 10
    assert row["growth MiB"] < 20


@pytest.mark.parametrize("vector", [np.ones(12), np.linspace(-1, 1, 12)])
def test_a_kappa_of_the_query_gives_match_probabilities(client: Any, vector: Any) -> None:
    query = {"features": vector.tolist(), "all": True}
    without = client.post("/query/vector", json=query).json()["neighbours"]
    neighbours = client.post("/query/vector", json={**query, "kappa": 20.0}).json()["neighbours"]
    assert all(item["probability"] is None for item in without)
    assert all(0 <= item["probability"] <= 1 for item in neighbours)
