"""Texts with known embeddings: documents, queries that one document answers, and queries that none does."""

from __future__ import annotations

from typing import Any

import numpy as np

from laplacian_metric import Trust
from laplacian_metric.core.array_gallery import ArrayGallery
from laplacian_metric.core.neighbours import Neighbours

DIM, NUM_DOCUMENTS, K = 16, 300, 50

_generator = np.random.default_rng(0)
_items = _generator.standard_normal((NUM_DOCUMENTS, DIM))
DOCUMENTS = [f"document {number}" for number in range(NUM_DOCUMENTS)]
_answers = _generator.integers(0, NUM_DOCUMENTS, 260)
_spread = np.repeat([0.4, 0.9], 130)[_generator.permutation(260), None]
_asked = _items[_answers] + _spread * _generator.standard_normal((260, DIM))
_strange = _generator.standard_normal((30, DIM)) - 4
VECTORS: dict[str, Any] = dict(zip(DOCUMENTS, _items, strict=True))
QUERIES = [f"query {number}" for number in range(260)]
STRANGE = [f"strange {number}" for number in range(30)]
VECTORS |= dict(zip(QUERIES, _asked, strict=True)) | dict(zip(STRANGE, _strange, strict=True))
RELEVANT = [f"document {number}" for number in _answers]
VALIDATION, TEST = slice(0, 200), slice(200, 260)


def embed(text: str) -> list[float]:
    return list(map(float, VECTORS[text] / np.linalg.norm(VECTORS[text])))


def nearest(queries: list[str], *, vectors: bool = False) -> Neighbours:
    """Return the 50 documents that are nearest to each query, searched exactly."""
    gallery = ArrayGallery(_items, ids=DOCUMENTS)
    found = gallery.search(np.array([embed(query) for query in queries]), K)
    return found if vectors else Neighbours(found.ids, found.distances)


def right(neighbours: Neighbours, which: slice) -> Any:
    return neighbours.ids == np.array(RELEVANT[which], dtype=object)[:, None]


def trust(target: str = "top1", *, vectors: bool = False) -> Trust:
    """Return what a framework's Trust has to equal."""
    found = nearest(QUERIES[VALIDATION], vectors=vectors)
    flags = right(found, VALIDATION)
    return Trust.fit_responses(found, flags, target=target)
