"""Haystack: a component that keeps the relevant documents of a retriever, and says how far to trust them."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from laplacian_metric.core.neighbours import Neighbours
from laplacian_metric.integrations.optional import base_class, class_decorator
from laplacian_metric.integrations.responses import Hit, fit_relevant, judge, responses
from laplacian_metric.trust.trust import Trust

INSTALL = "laplacian-metric[haystack]"

_component = class_decorator("haystack", "component", INSTALL)
if TYPE_CHECKING:
    Document = Any
else:
    Document = base_class("haystack", "Document", INSTALL)


@_component
class TrustFilter:
    """A component that keeps the order of documents, and returns none where the answer is not accepted.

    Its outputs are ``documents`` and ``dropped``, with ``probability``, ``verdict``, ``known`` and ``because`` in their
    meta data. With a Trust of the target "each@k" each document is judged by itself.

    Args:
        trust: calibrated on what the same retriever returns, about 50 documents a query (`fit_trust`); or the folder
            that it was saved to, which a pipeline needs to be written to a file.
        scores: what a document's score is, see `laplacian_metric.integrations.responses.responses`; "vectors" where a
            reranker replaced it, for documents that have their embeddings.
        label: the key in the meta data of a document's label, for a Trust of labels.
    """

    def __init__(self, trust: Any, scores: str = "cosine", label: str | None = None) -> None:
        self.trust, self.scores, self.label = trust, scores, label
        self._trust = Trust.load(trust) if isinstance(trust, (str, os.PathLike)) else trust
        _component.set_output_types(self, documents=list[Document], dropped=list[Document])

    def run(self, documents: list[Document], query_embedding: list[float] | None = None) -> dict[str, Any]:
        """Return the documents that are kept, and those that are dropped."""
        queries = None if query_embedding is None else [query_embedding]
        neighbours = _neighbours([documents], self.scores, self.label, queries)
        kept = judge(self._trust, neighbours, queries)[0]
        said = judge(self._trust, neighbours, queries, only_accepted=False)[0]
        parts: dict[str, list[Any]] = {"documents": [], "dropped": []}
        for place, document in enumerate(documents):
            meta = {**document.meta, **said.get(place, {})}
            parts["documents" if place in kept else "dropped"].append(
                dataclasses.replace(document, meta=meta)
            )
        return parts


def fit_trust(
    found: Sequence[Sequence[Any]],
    relevant: Any,
    *,
    scores: str = "cosine",
    queries: Any = None,
    **options: Any,
) -> Trust:
    """Return the Trust that is calibrated on what a retriever returned to validation queries.

    Args:
        found: for each query, about 50 documents.
        relevant: for each, the id of the document that answers it, or a list or a set of ids.
        scores: what a document's score is, as in `TrustFilter`.
        queries: (Q, D), the queries' embeddings where ``scores`` is "vectors".
        options: of `Trust.fit_responses`, such as ``target="each@5"``, which judges each document.
    """
    return fit_relevant(_neighbours(found, scores, None, queries), relevant, **options)


def _neighbours(found: Sequence[Any], scores: str, label: str | None, queries: Any) -> Neighbours:
    hits = [
        [
            Hit(document.id, document.score, document.meta.get(label) if label else None, document.embedding)
            for document in documents
        ]
        for documents in found
    ]
    return responses(hits, scores, queries)
