"""A real PostgreSQL server that is killed in the middle of everything: errors that say so, nothing lost or mixed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from laplacian_metric.galleries import GalleryError, open_gallery
from tests.galleries.places import DIM, Places, vectors
from tests.galleries.test_contract import alike

pgserver = pytest.importorskip("pgserver")
psutil = pytest.importorskip("psutil")
COUNT = 4000
LABELS = [f"label {n}" for n in range(COUNT)]


@pytest.fixture
def server() -> Iterator[Any]:
    places = Places()
    places.address("pgvector")
    yield places.server
    places.close()


def kill(server: Any) -> None:
    """End the server and its processes by SIGKILL, as a machine that fails does."""
    process = psutil.Process(server.get_pid())
    processes = [process, *process.children(recursive=True)]
    for each in processes:
        each.kill()
    psutil.wait_procs(processes, timeout=10)


def restart(server: Any) -> None:
    server.ensure_postgres_running()


@pytest.mark.parametrize("suffix", ["", "#hnsw(m=8, ef_construction=16)"])
def test_killed_in_the_middle_of_add(server: Any, suffix: str) -> None:
    gallery, arrays = open_gallery(server.get_uri() + suffix, dim=DIM), open_gallery("arrays:", dim=DIM)
    rows = vectors(COUNT)
    arguments = (range(COUNT), rows, LABELS, {"column": np.arange(COUNT) % 3})
    gallery.add(range(100), rows[:100], LABELS[:100], {"column": np.arange(100) % 3})
    gallery.search(rows[:1], 1)  # builds the index
    gallery.batch = 500
    put, written = gallery._put, []

    def killing(batch: Any) -> None:
        if len(written) == 3:
            thread = threading.Timer(0.02, kill, [server])
            thread.start()
            try:
                put(batch)
                thread.join()
                put(batch)
            finally:
                thread.join()
        put(batch)
        written.append(len(batch.ids))

    gallery._put = killing
    with pytest.raises(GalleryError, match=r"1,500 of 4,000"):
        gallery.add(*arguments)
    begun = time.perf_counter()
    for call in (lambda: gallery.search(rows[:1], 1), lambda: len(gallery), lambda: gallery.sample(3)):
        with pytest.raises(GalleryError):
            call()
    assert time.perf_counter() - begun < 30  # no storm of attempts
    restart(server)
    gallery._put = put
    assert len(gallery) in (1500, 2000)  # whole batches, each of which was committed or was not
    there = gallery.search(rows[:1500:50], 1)
    assert there.ids[:, 0].tolist() == list(range(0, 1500, 50))
    gallery.add(*arguments)
    arrays.add(*arguments)
    alike(gallery, arrays, where={"column": 1})
    alike(gallery, arrays)


def test_killed_in_the_middle_of_queries(server: Any) -> None:
    """Every answer is right, or an error that says that the engine does not answer; after a restart all are right."""
    gallery = open_gallery(server.get_uri(), dim=DIM)
    rows = vectors(COUNT)
    gallery.add(range(COUNT), rows, LABELS)
    outcomes: list[str] = []
    done = threading.Event()

    def ask(seed: int) -> None:
        generator = np.random.default_rng(seed)
        while not done.is_set():
            some = generator.integers(0, COUNT, 5)
            try:
                found = gallery.search(rows[some], 3)
            except GalleryError:
                outcomes.append("refused")
                time.sleep(0.01)
                continue
            right = found.ids[:, 0].tolist() == some.tolist() and np.isfinite(found.distances).all()
            right &= all(
                label == f"label {id_}" for label, id_ in zip(found.labels.flat, found.ids.flat, strict=True)
            )
            outcomes.append("right" if right else "wrong")

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(2):
        time.sleep(0.5)
        kill(server)
        time.sleep(0.3)
        restart(server)
    time.sleep(0.5)
    done.set()
    for thread in threads:
        thread.join(timeout=30)
        assert not thread.is_alive()
    assert set(outcomes) == {"right", "refused"}
    assert outcomes[-1] == "right"
    assert len(gallery) == COUNT


def test_a_removal_is_whole(server: Any) -> None:
    gallery = open_gallery(server.get_uri(), dim=DIM)
    gallery.add(range(COUNT), vectors(COUNT), LABELS)
    gallery.batch = 1000
    kill(server)
    with pytest.raises(GalleryError):
        gallery.remove(range(COUNT))
    restart(server)
    assert len(gallery) == COUNT
    gallery.remove(range(0, COUNT, 2))
    assert len(gallery) == COUNT // 2
