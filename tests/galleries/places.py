"""Where the galleries of the tests are: every engine, each collection under a name of its own."""

from __future__ import annotations

import itertools
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from laplacian_metric.galleries import open_gallery

DIM = 6
ENGINES = ("arrays", "faiss", "pgvector", "qdrant", "milvus", "lancedb", "chroma")
DATABASES = ENGINES[2:]
NUMBERS = itertools.count()


class Places:
    """One place for each engine, which lasts as long as the tests of a file."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.folder.chmod(0o755)  # PostgreSQL is another user's where the tests are root's
        self.server: Any = None

    def address(self, engine: str) -> str:
        if engine == "pgvector":
            if self.server is None:
                self.server = pytest.importorskip("pgserver").get_server(self.folder / "postgresql")
            return str(self.server.get_uri())
        pytest.importorskip(
            {"faiss": "faiss", "qdrant": "qdrant_client", "milvus": "pymilvus"}.get(engine, "numpy")
        )
        pytest.importorskip({"lancedb": "lancedb", "chroma": "chromadb"}.get(engine, "numpy"))
        places = {
            "arrays": "arrays:",
            "faiss": "faiss:Flat",
            "qdrant": f"qdrant:{self.folder / 'qdrant'}",
            "milvus": f"milvus:{self.folder / 'milvus.db'}",
            "lancedb": f"lancedb:{self.folder / 'lancedb'}",
            "chroma": f"chroma:{self.folder / 'chroma'}",
        }
        return places[engine]

    def open(self, engine: str, name: str | None = None, **options: Any) -> Any:
        """Return a gallery; an empty one of a new name where no name is given."""
        name = f"items_{next(NUMBERS)}" if name is None else name
        if engine == "qdrant":  # a folder of its local mode has one client
            return self._of_client(engine, name, options)
        return open_gallery(self.address(engine), name=name, **options)

    def _of_client(self, engine: str, name: str, options: dict[str, Any]) -> Any:
        import qdrant_client

        if not hasattr(self, "client"):
            self.client = qdrant_client.QdrantClient(":memory:")
            self.turn = threading.RLock()
        original = qdrant_client.QdrantClient
        qdrant_client.QdrantClient = lambda *_, **__: self.client  # type: ignore[misc, assignment]
        try:
            gallery: Any = open_gallery("qdrant:", name=name, **options)
        finally:
            qdrant_client.QdrantClient = original  # type: ignore[misc]
        gallery._turn = self.turn
        return gallery

    def close(self) -> None:
        if self.server is not None:
            self.server.cleanup()
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture(scope="module")
def places() -> Iterator[Places]:
    made = Places()
    yield made
    made.close()


def vectors(count: int, seed: int = 0) -> Any:
    """Return random vectors (count, DIM) of different lengths."""
    return np.random.default_rng(seed).standard_normal((count, DIM))
