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

from laplacian_metric.retrieval import Index, Items, calibrate, save
from laplacian_metric.serve import Service
from laplacian_metric.trust import Trust
from tests.retrieval.engines.cases import data


def saved(folder: Path, items: int = 200, name: str = "item", overwrite: bool = False) -> Path:
    """Save an index with Trust and a threshold."""
    gallery, validation = data(items, spread=0.4), data(200, seed=1, spread=0.4)
    trust = Trust.fit((gallery.h, gallery.labels), (validation.h, validation.labels), encoder=gallery.head)
    index = Index(gallery.items, [f"{name} {row}" for row in range(items)]).with_trust(trust)
    index = calibrate(
        index,
        validation.items,
        validation.labels,
        gallery.labels,
        alpha=0.4,
        level=None,
        features=validation.h,
    )
    save(index, folder, overwrite=overwrite)
    return folder


def plain(folder: Path) -> Path:
    """Save an index without anything calibrated."""
    items = Items(np.eye(4), np.full(4, 10.0), np.full(4, 0.1), None, "a4f0")
    save(Index(items, ["ant", "bee", "cat", "dog"]), folder)
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
