"""LangChain: a retriever that may return nothing, and a document compressor that drops what is not relevant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pydantic import InstanceOf

from laplacian_metric.core.neighbours import Neighbours
from laplacian_metric.integrations.optional import base_class
from laplacian_metric.integrations.responses import VECTORS, Hit, fit_relevant, judge, responses
from laplacian_metric.trust.trust import Trust

INSTALL = "laplacian-metric[langchain]"

_Retriever: Any = base_class("langchain_core.retrievers", "BaseRetriever", INSTALL)
_Compressor: Any = base_class("langchain_core.documents", "BaseDocumentCompressor", INSTALL)

Search = Callable[[str], Sequence[tuple[Any, float]]]


class TrustRetriever(_Retriever):
    """A retriever whose documents have ``probability``, ``verdict``, ``known`` and ``because`` in their metadata.

    Where the answer is not accepted it returns nothing.

    Args:
        search: a text -> about 50 (document, score) pairs, the most relevant first, whose distances Trust looks at:
            ``functools.partial(store.similarity_search_with_score, k=50)``.
        trust: calibrated on what the same search returns; `fit` makes the whole.
        scores: what a score of the store is, see `laplacian_metric.integrations.responses.responses`.
        label: the key in the metadata of a document's label, for a Trust of labels.
        top: how many documents are returned at most.
        only_accepted: False returns documents that are not accepted too.
    """

    search: Search
    trust: InstanceOf[Trust]
    scores: str = "cosine"
    label: str | None = None
    top: int = 4
    only_accepted: bool = True

    @classmethod
    def fit(
        cls,
        search: Search,
        queries: Sequence[str],
        relevant: Any,
        *,
        scores: str = "cosine",
        top: int = 4,
        **options: Any,
    ) -> TrustRetriever:
        """Return the retriever whose Trust is calibrated on validation queries.

        Args:
            search, scores, top: see above.
            queries: Q texts.
            relevant: for each, the id of the document that answers it, or a list or a set of ids; a document without
                an id goes by its text.
            options: of `Trust.fit_responses`, such as ``target="each@5"``, which judges each document.
        """
        found = [list(search(query)) for query in queries]
        trust = fit_relevant(_scored(found, scores, None), relevant, **options)
        return cls(search=search, trust=trust, scores=scores, top=top)

    def _get_relevant_documents(self, query: str, **_: Any) -> list[Any]:
        hits = list(self.search(query))
        neighbours = _scored([hits], self.scores, self.label)
        kept = judge(self.trust, neighbours, only_accepted=self.only_accepted)[0]
        return _kept([document for document, _ in hits], kept)[: self.top]


class TrustFilter(_Compressor):
    """A document compressor that drops retrieved or reranked documents, in whose order they stay.

    The documents get ``probability``, ``verdict``, ``known`` and ``because`` in their metadata. With a Trust of the
    target "each@k" each document is judged by itself; with any other one all stay or all go.

    Args:
        embeddings: of the texts of documents and queries, which are embedded anew.
        trust: calibrated on what the same retriever returns; `fit` makes the whole.
        label: the key in the metadata of a document's label, for a Trust of labels.
    """

    embeddings: Any
    trust: InstanceOf[Trust]
    label: str | None = None

    @classmethod
    def fit(
        cls, embeddings: Any, retriever: Any, queries: Sequence[str], relevant: Any, **options: Any
    ) -> TrustFilter:
        """Return the filter whose Trust is calibrated on what a retriever returns to validation queries."""
        found = [list(retriever.invoke(query)) for query in queries]
        return cls(
            embeddings=embeddings,
            trust=fit_relevant(_embedded(embeddings, queries, found, None)[0], relevant, **options),
        )

    def compress_documents(self, documents: Sequence[Any], query: str, callbacks: Any = None) -> list[Any]:
        """Return the documents that are kept."""
        if not documents:
            return []
        neighbours, features = _embedded(self.embeddings, [query], [documents], self.label)
        return _kept(documents, judge(self.trust, neighbours, features)[0])


def _scored(found: list[list[tuple[Any, float]]], scores: str, label: str | None) -> Neighbours:
    """Return the neighbours of queries, from (document, score) pairs."""
    return responses(
        [[_hit(document, label, score=score) for document, score in hits] for hits in found], scores
    )


def _embedded(
    embeddings: Any, queries: Sequence[str], found: Sequence[Sequence[Any]], label: str | None
) -> tuple[Neighbours, list[Any]]:
    """Return the neighbours of queries, by the embeddings of texts, and those of the queries (Q, D)."""
    features = [embeddings.embed_query(query) for query in queries]
    hits = []
    for documents in found:
        vectors = embeddings.embed_documents([document.page_content for document in documents])
        hits.append(
            [
                _hit(document, label, vector=vector)
                for document, vector in zip(documents, vectors, strict=True)
            ]
        )
    return responses(hits, VECTORS, features), features


def _hit(document: Any, label: str | None, **known: Any) -> Hit:
    labelled = None if label is None else document.metadata.get(label)
    return Hit(document.id or document.page_content, label=labelled, **known)


def _kept(documents: Sequence[Any], kept: dict[int, dict[str, Any]]) -> list[Any]:
    """Return copies of the documents that are kept, with what Trust says of them in their metadata."""
    return [
        documents[n].model_copy(update={"metadata": {**documents[n].metadata, **said}})
        for n, said in kept.items()
    ]
