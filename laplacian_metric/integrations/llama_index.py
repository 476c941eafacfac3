"""LlamaIndex: a node postprocessor that drops what is not relevant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import InstanceOf

from laplacian_metric.core.neighbours import Neighbours
from laplacian_metric.integrations.optional import base_class
from laplacian_metric.integrations.responses import VECTORS, Hit, fit_relevant, judge, responses
from laplacian_metric.trust.trust import Trust

INSTALL = "laplacian-metric[llama-index]"

_Postprocessor: Any = base_class("llama_index.core.postprocessor.types", "BaseNodePostprocessor", INSTALL)


class TrustPostprocessor(_Postprocessor):
    """A node postprocessor that keeps the order of nodes, and drops all where the answer is not accepted.

    The nodes get ``probability``, ``verdict``, ``known`` and ``because`` in their metadata, which no LLM is shown. With
    a Trust of the target "each@k" each node is judged by itself.

    Args:
        trust: calibrated on what the same retriever returns, about 50 nodes a query; `fit` makes the whole.
        scores: what a node's score is, see `laplacian_metric.integrations.responses.responses`; "vectors" where a
            reranker replaced it, for nodes and queries that have their embeddings.
        label: the key in the metadata of a node's label, for a Trust of labels.
        only_accepted: False keeps all nodes.
    """

    trust: InstanceOf[Trust]
    scores: str = "cosine"
    label: str | None = None
    only_accepted: bool = True

    @classmethod
    def fit(
        cls, retriever: Any, queries: Sequence[Any], relevant: Any, *, scores: str = "cosine", **options: Any
    ) -> TrustPostprocessor:
        """Return the postprocessor whose Trust is calibrated on validation queries.

        Args:
            retriever: of about 50 nodes a query.
            queries: Q texts, or bundles with their embeddings where ``scores`` is "vectors".
            relevant: for each, the id of the node that answers it, or a list or a set of ids.
            scores: see above.
            options: of `Trust.fit_responses`, such as ``target="each@5"``, which judges each node.
        """
        found = [retriever.retrieve(query) for query in queries]
        neighbours = _neighbours(found, scores, None, [_embedding(query) for query in queries])
        return cls(trust=fit_relevant(neighbours, relevant, **options), scores=scores)

    def _postprocess_nodes(self, nodes: list[Any], query_bundle: Any = None) -> list[Any]:
        embedding = _embedding(query_bundle)
        neighbours = _neighbours([nodes], self.scores, self.label, [embedding])
        features = None if embedding is None else [embedding]
        kept = judge(self.trust, neighbours, features, only_accepted=self.only_accepted)[0]
        return [_described(nodes[place], said) for place, said in kept.items()]


def _neighbours(found: Sequence[Any], scores: str, label: str | None, embeddings: list[Any]) -> Neighbours:
    hits = [
        [
            Hit(
                hit.node.node_id,
                hit.score,
                hit.node.metadata.get(label) if label else None,
                hit.node.embedding,
            )
            for hit in nodes
        ]
        for nodes in found
    ]
    return responses(hits, scores, embeddings if scores == VECTORS and None not in embeddings else None)


def _embedding(query: Any) -> Any:
    return getattr(query, "embedding", None)


def _described(hit: Any, said: dict[str, Any]) -> Any:
    """Return a copy of a node with what Trust says of it in its metadata."""
    node = hit.node
    changed: dict[str, Any] = {"metadata": {**node.metadata, **said}}
    for name in ("excluded_llm_metadata_keys", "excluded_embed_metadata_keys"):
        changed[name] = [*getattr(node, name), *said]
    return hit.model_copy(update={"node": node.model_copy(update=changed)})
