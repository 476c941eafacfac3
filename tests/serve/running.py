"""Saved indexes to serve, and services that run."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laplacian_metric.core.array_gallery import ArrayGallery
from laplacian_metric.serve import Index, Service
from laplacian_metric.trust import Trust

WIDTH, DIM, CLASSES = 12, 8, 4


def features(num: int, seed: int = 0) -> tuple[NDArray[np.float64], list[str]]:
    """Return features (N, 12) around one centre for each class, and the classes."""
    codes = np.arange(num) % CLASSES
    noise = np.random.default_rng(seed).standard_normal((num, WIDTH))
    return np.eye(WIDTH)[codes] + 0.4 * noise, [f"class {code}" for code in codes]


def saved(folder: Path, items: int = 200, name: str = "item", overwrite: bool = False) -> Path:
    """Save an index of features and embeddings whose ids begin with a name."""
    head = (np.random.default_rng(5).standard_normal((DIM, WIDTH)), np.zeros(DIM))
    (h, labels), ids = features(items), [f"{name} {row}" for row in range(items)]
    galleries = [ArrayGallery(rows, labels, ids) for rows in (h @ head[0].T, h)]
    trust = Trust.fit(galleries[0], features(200, seed=1), features=galleries[1], encoder=head)
    Index(trust).save(folder, overwrite=overwrite)
    return folder


def client_of(service: Service) -> Any:
    """Return a client of a service in this process, whose errors become answers."""
    from starlette.testclient import TestClient

    return TestClient(service_app(service, watch=0), raise_server_exceptions=False)


def service_app(service: Service, **options: Any) -> Any:
    """Return a service as an application; FastAPI is imported here, so that tests are skipped without it."""
    from laplacian_metric.serve import create_app

    return create_app(service, **options)


@contextmanager
def running(service: Service, **options: Any) -> Iterator[str]:
    """Run a service in a thread; yields its address."""
    import uvicorn

    app = service_app(service, **options)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(256)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        server.should_exit = True
        thread.join(20)


@contextmanager
def process(folder: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run `lam serve` in a process of its own; yields it and its address."""
    command = [sys.executable, "-m", "laplacian_metric.cli", "serve", str(folder), "--port", "0", *options]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert started.stdout is not None
        line = started.stdout.readline()
        yield started, line.split()[-1].rstrip("/")
    finally:
        started.kill()
        started.wait()
        assert started.stdout is not None
        started.stdout.close()
