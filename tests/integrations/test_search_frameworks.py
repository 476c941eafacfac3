"""LangChain, LlamaIndex and Haystack: what their own stores return is judged as by Trust called by hand."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from laplacian_metric import Trust
from laplacian_metric.integrations import haystack as of_haystack
from laplacian_metric.integrations import langchain as of_langchain
from laplacian_metric.integrations import llama_index as of_llama_index
from laplacian_metric.integrations import mteb as of_mteb
from laplacian_metric.integrations.responses import Hit, responses
from laplacian_metric.integrations.routing import route
from tests.integrations import texts
from tests.integrations.texts import DOCUMENTS, QUERIES, RELEVANT, STRANGE, TEST, VALIDATION, K

WHY = 'is not installed: pip install "laplacian-metric[{}]"'
ANSWERED = QUERIES[VALIDATION], RELEVANT[VALIDATION]
Ask = Callable[[str], list[tuple[str, dict[str, Any]]]]


def langchain_store() -> Any:
    documents = pytest.importorskip("langchain_core.documents", reason=WHY.format("langchain"))
    from langchain_core.embeddings import Embeddings
    from langchain_core.vectorstores import InMemoryVectorStore

    class Known(Embeddings):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            return [self.embed_query(text) for text in texts]

        def embed_query(self, text: str) -> list[float]:
            return texts.embed(text)

    store = InMemoryVectorStore(Known())
    store.add_documents([documents.Document(page_content=text, id=text) for text in DOCUMENTS])
    return store


def langchain_retriever(**options: Any) -> Ask:
    store = langchain_store()
    search = functools.partial(store.similarity_search_with_score, k=K)
    retriever = of_langchain.TrustRetriever.fit(search, *ANSWERED, top=K, **options)
    return lambda query: [(document.id, document.metadata) for document in retriever.invoke(query)]


def langchain_filter(**options: Any) -> Ask:
    store = langchain_store()
    plain = store.as_retriever(search_kwargs={"k": K})
    judged = of_langchain.TrustFilter.fit(store.embeddings, plain, *ANSWERED, **options)
    return lambda query: [
        (document.id, document.metadata) for document in judged.compress_documents(plain.invoke(query), query)
    ]


def llama_index_retriever() -> Any:
    pytest.importorskip("llama_index.core", reason=WHY.format("llama-index"))
    from llama_index.core import VectorStoreIndex
    from llama_index.core.embeddings import BaseEmbedding
    from llama_index.core.schema import TextNode

    class Known(BaseEmbedding):
        def _get_text_embedding(self, text: str) -> list[float]:
            return texts.embed(text)

        def _get_query_embedding(self, query: str) -> list[float]:
            return texts.embed(query)

        async def _aget_query_embedding(self, query: str) -> list[float]:
            return texts.embed(query)

    nodes = [TextNode(id_=text, text=text) for text in DOCUMENTS]
    return VectorStoreIndex(nodes, embed_model=Known()).as_retriever(similarity_top_k=K)


def llama_index(**options: Any) -> Ask:
    retriever = llama_index_retriever()
    judged = of_llama_index.TrustPostprocessor.fit(retriever, *ANSWERED, **options)
    return lambda query: [
        (hit.node.node_id, hit.node.metadata)
        for hit in judged.postprocess_nodes(retriever.retrieve(query), query_str=query)
    ]


def haystack_retriever() -> Any:
    pytest.importorskip("haystack", reason=WHY.format("haystack"))
    from haystack import Document
    from haystack.components.retrievers.in_memory import InMemoryEmbeddingRetriever
    from haystack.document_stores.in_memory import InMemoryDocumentStore

    store = InMemoryDocumentStore(embedding_similarity_function="cosine")
    store.write_documents(
        [Document(id=text, content=text, embedding=texts.embed(text)) for text in DOCUMENTS]
    )
    return InMemoryEmbeddingRetriever(store, top_k=K)


def haystack(**options: Any) -> Ask:
    retriever = haystack_retriever()

    def found(query: str) -> Any:
        return retriever.run(query_embedding=texts.embed(query))["documents"]

    judged = of_haystack.TrustFilter(
        of_haystack.fit_trust([found(query) for query in ANSWERED[0]], ANSWERED[1], **options)
    )
    return lambda query: [(document.id, document.meta) for document in judged.run(found(query))["documents"]]


FRAMEWORKS = [langchain_retriever, langchain_filter, llama_index, haystack]


@pytest.mark.parametrize("target", ["top1", "each@5"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_is_kept_is_what_trust_accepts(framework: Callable[..., Ask], target: str) -> None:
    """Accepted hits come in the framework's order with their probability; of other answers there are none."""
    vectors = framework is langchain_filter
    ask, neighbours = framework(target=target), texts.nearest(QUERIES[TEST], vectors=vectors)
    answer = texts.trust(target, vectors=vectors)(neighbours=neighbours)
    each = np.repeat(answer.probability[:, None], K, axis=1) if answer.each is None else answer.each
    for row, query in enumerate(QUERIES[TEST]):
        kept = ask(query)
        places = np.flatnonzero((each[row] >= 0.5) & (answer.verdict[row] == "accept"))
        assert [name for name, _ in kept] == neighbours.ids[row][places].tolist()
        np.testing.assert_allclose([said["probability"] for _, said in kept], each[row][places], atol=1e-6)
        expected = {"verdict": "accept", "because": answer.because[row]}
        assert all(expected.items() <= said.items() and said["known"] > 0 for _, said in kept)
    assert len({len(ask(query)) for query in QUERIES[TEST]}) > 1
    assert np.mean([len(ask(query)) == 0 for query in STRANGE]) > 0.5


HITS = [[Hit("a", 0.9), Hit("b", 0.5)], [Hit("c", 0.8)]]


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: responses(HITS, "inner product"), "scores"),
        (lambda: responses([[Hit("a")]]), "scores"),
        (lambda: responses(HITS, "vectors"), "vectors"),
        (lambda: responses([[Hit("a", vector=[1.0])]], "vectors"), "queries"),
        (lambda: responses([[Hit("a", vector=[1.0]), Hit("b", vector=[1.0, 2.0])]]), "vectors"),
        (lambda: responses([[Hit("a", 7.5)]]), "distances"),
        (lambda: route(texts.trust(), [1.0, 0.0]), "neighbours"),
        (lambda: of_langchain.TrustRetriever(search=lambda _: [], trust="a folder"), "trust"),
    ],
)
def test_bad_inputs(call: Callable[[], Any], argument: str) -> None:
    with pytest.raises(ValueError, match=argument):
        call()


def test_scores_of_other_kinds_are_the_same_distances() -> None:
    cosines = np.array([[0.9, 0.5], [0.8, -0.2]])
    for kind, scores in (("distance", 1 - cosines), ("squared L2", 2 - 2 * cosines)):
        hits = [[Hit(place, score) for place, score in enumerate(row)] for row in scores]
        np.testing.assert_allclose(responses(hits, kind).first(2).distances, 1 - cosines)


# --- LangChain ---


def test_langchain_keeps_the_order_of_a_reranker_and_knows_labels() -> None:
    """In a ContextualCompressionRetriever's place: documents in another order, and a Trust with a view of classes."""
    store = langchain_store()
    from langchain_core.documents import Document

    classes = np.arange(3)[np.arange(300) % 3]
    generator = np.random.default_rng(1)
    items = generator.standard_normal((3, texts.DIM))[classes] + 0.6 * generator.standard_normal(
        (300, texts.DIM)
    )
    trust = Trust.fit((items[:150], classes[:150]), (items[150:], classes[150:]))
    documents = [Document(page_content=f"label {n}", metadata={"class": int(classes[n])}) for n in range(150)]
    texts.VECTORS.update(
        {document.page_content: vector for document, vector in zip(documents, items, strict=False)}
    )
    judged = of_langchain.TrustFilter(embeddings=store.embeddings, trust=trust, label="class")
    texts.VECTORS["question"] = items[200]
    near = np.argsort(-(items[:150] @ items[200]) / np.linalg.norm(items[:150], axis=1))[:K]
    kept = judged.compress_documents([documents[row] for row in near], "question")
    assert kept[0].metadata["probability"] == pytest.approx(trust(items[200:201]).probability[0], abs=1e-6)
    order = [near[3], *near[:3], *near[4:]]
    kept = judged.compress_documents([documents[row] for row in order], "question")
    assert [document.page_content for document in kept] == [documents[row].page_content for row in order][
        : len(kept)
    ]
    assert judged.compress_documents([], "question") == []


@pytest.mark.parametrize("number", [0, 1, 2])
def test_too_few_documents_are_not_accepted(number: int) -> None:
    store = langchain_store()
    plain = store.as_retriever(search_kwargs={"k": K})
    judged = of_langchain.TrustFilter.fit(store.embeddings, plain, *ANSWERED)
    assert judged.compress_documents(plain.invoke(QUERIES[230])[:number], QUERIES[230]) == []
    retriever = of_langchain.TrustRetriever(search=lambda _: [], trust=judged.trust, only_accepted=False)
    assert retriever.invoke("anything") == []


# --- LlamaIndex ---


def test_llama_index_in_a_query_engine_with_vectors() -> None:
    """Scores of a reranker are not used where embeddings are there; an LLM is not shown what Trust says."""
    retriever = llama_index_retriever()
    from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle

    def reranked(bundle: QueryBundle) -> list[NodeWithScore]:
        hits = retriever.retrieve(bundle)
        embedded = [hit.node.model_copy(update={"embedding": texts.embed(hit.node.text)}) for hit in hits]
        return [NodeWithScore(node=node, score=9.0 - place) for place, node in enumerate(embedded)]

    class Reranked:
        retrieve = staticmethod(reranked)

    bundles = [QueryBundle(query, embedding=texts.embed(query)) for query in QUERIES]
    judged = of_llama_index.TrustPostprocessor.fit(
        Reranked(), bundles[VALIDATION], RELEVANT[VALIDATION], scores="vectors"
    )
    direct = texts.trust(vectors=True)(neighbours=texts.nearest(QUERIES[TEST], vectors=True))
    accepted = np.flatnonzero(direct.verdict == "accept")
    kept = judged.postprocess_nodes(reranked(bundles[TEST][accepted[0]]), bundles[TEST][accepted[0]])
    assert kept[0].node.metadata["probability"] == pytest.approx(direct.probability[accepted[0]], abs=1e-9)
    assert "probability" not in kept[0].node.get_content(MetadataMode.LLM)
    assert kept[0].score == 9.0


# --- Haystack ---


def test_haystack_in_a_pipeline_that_is_written_to_a_file(tmp_path: Path) -> None:
    retriever = haystack_retriever()
    from haystack import Pipeline

    texts.trust().save(tmp_path / "trust")
    pipeline = Pipeline()
    pipeline.add_component("retriever", retriever)
    pipeline.add_component("trust", of_haystack.TrustFilter(str(tmp_path / "trust")))
    pipeline.connect("retriever.documents", "trust.documents")
    answer = texts.trust()(neighbours=texts.nearest(QUERIES[TEST]))
    again = Pipeline.loads(pipeline.dumps(), allowed_modules=["laplacian_metric.*", "haystack.*"])
    again.get_component("retriever").document_store = retriever.document_store
    for made in (pipeline, again):
        for row, query in enumerate(QUERIES[TEST]):
            parts = made.run({"retriever": {"query_embedding": texts.embed(query)}})["trust"]
            accepted = answer.verdict[row] == "accept"
            assert (len(parts["documents"]), len(parts["dropped"])) == ((K, 0) if accepted else (0, K))


# --- MTEB ---


def mteb_task(split: slice) -> Any:
    """A retrieval task of the texts, and a model that embeds them."""
    mteb = pytest.importorskip("mteb", reason=WHY.format("mteb"))
    from datasets import Dataset
    from mteb.abstasks.retrieval import AbsTaskRetrieval
    from mteb.mocks.mock_tasks.retrieval import MockRetrievalTask

    class Task(AbsTaskRetrieval):
        metadata = MockRetrievalTask.metadata.model_copy(update={"name": "Texts", "eval_splits": ["test"]})

        def load_data(self, **_: Any) -> None:
            queries = [{"id": name, "text": name} for name in QUERIES[split]]
            relevant = {
                name: {document: 1} for name, document in zip(QUERIES[split], RELEVANT[split], strict=True)
            }
            self.dataset = {
                "default": {
                    "test": {
                        "queries": Dataset.from_list(queries),
                        "corpus": Dataset.from_list([{"id": n, "title": "", "text": n} for n in DOCUMENTS]),
                        "relevant_docs": relevant,
                        "top_ranked": None,
                    }
                }
            }
            self.data_loaded = True

    class Model:
        mteb_model_meta = mteb.models.ModelMeta.create_empty({"name": "texts/known", "revision": "1"})

        def encode(self, inputs: Any, **_: Any) -> Any:
            return np.array([texts.embed(text.strip()) for batch in inputs for text in batch["text"]])

        def similarity(self, first: Any, second: Any) -> Any:
            return np.asarray(first) @ np.asarray(second).T

        def similarity_pairwise(self, first: Any, second: Any) -> Any:
            return (np.asarray(first) * np.asarray(second)).sum(axis=1)

    return mteb, Task(), Model()


def test_mteb_measures_trust_s_confidence(tmp_path: Path) -> None:
    """Retrieval metrics stay; abstention by the greatest score is abstention by Trust's probability, and is better."""
    mteb, task, model = mteb_task(TEST)
    found = texts.nearest(QUERIES[VALIDATION])
    results = {
        query: dict(zip(ids, (1 - distances).tolist(), strict=True))
        for query, ids, distances in zip(QUERIES, found.ids.tolist(), found.distances, strict=False)
    }
    relevant = {query: {document: 1, "another": 0} for query, document in zip(QUERIES, RELEVANT, strict=True)}
    wrapped = of_mteb.TrustSearch(model, of_mteb.fit_trust(results, relevant))
    options = {"cache": mteb.ResultCache(tmp_path), "show_progress_bar": False, "co2_tracker": False}
    plain, judged = (
        mteb.evaluate(one, task, **options).task_results[0].scores["test"][0] for one in (model, wrapped)
    )
    for name in ("ndcg_at_10", "map_at_100", "recall_at_1", "mrr_at_10"):
        assert judged[name] == pytest.approx(plain[name], abs=1e-9)
    direct = texts.trust()(neighbours=texts.nearest(QUERIES[TEST]))
    confidence = [wrapped.confidence[query] for query in QUERIES[TEST]]
    np.testing.assert_allclose(confidence, direct.probability, atol=1e-6)
    nauc = importlib.import_module("mteb._evaluators.retrieval_metrics").nauc
    right = texts.right(texts.nearest(QUERIES[TEST]), TEST)[:, 0].astype(float)
    assert judged["nauc_ndcg_at_1_max"] == pytest.approx(nauc(direct.probability, right))
    assert judged["nauc_ndcg_at_1_std"] == pytest.approx(plain["nauc_ndcg_at_1_std"])
