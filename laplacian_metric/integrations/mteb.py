"""MTEB: a model whose retrieval scores are confidences, so that its abstention metrics measure Trust."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from laplacian_metric.core.neighbours import Neighbours
from laplacian_metric.integrations.optional import require
from laplacian_metric.integrations.responses import Hit, fit_relevant, responses
from laplacian_metric.trust.inputs import RESPONSE
from laplacian_metric.trust.trust import Trust

INSTALL = "laplacian-metric[mteb]"

Results = Mapping[str, Mapping[str, float]]


class TrustSearch:
    """A model for retrieval tasks of MTEB: ranked as by the model below, the best score being Trust's probability.

    Scores of each query are moved by a constant, so that all retrieval metrics stay as they are, and the abstention
    metrics of the greatest score, such as ``nauc_ndcg_at_10_max``, measure the probability.

    Attributes:
        confidence: query -> probability, of the last search.

    Args:
        model: an encoder of MTEB, or a model that searches.
        trust: calibrated on what the model returns to other queries, see `fit_trust`.
        scores: what the model's scores are, see `laplacian_metric.integrations.responses.responses`.
    """

    def __init__(self, model: Any, trust: Trust, scores: str = "cosine") -> None:
        wrappers = require("mteb.models.search_wrappers", "TrustSearch", INSTALL)
        self.model = model if hasattr(model, "search") else wrappers.SearchEncoderWrapper(model)
        meta = model.mteb_model_meta
        named = {
            **(meta.experiment_kwargs or {}),
            "scores": "trust",
        }  # results are cached apart from the model's own
        self.mteb_model_meta = meta.model_copy(update={"experiment_kwargs": named})
        self.trust, self.scores = trust, scores
        self.confidence: dict[str, float] = {}

    def index(self, corpus: Any, **options: Any) -> None:
        """Index a corpus, as the model below does."""
        self.model.index(corpus, **options)

    def search(self, queries: Any, **options: Any) -> dict[str, dict[str, float]]:
        """Return, for each query, the scores of documents, of which the greatest is the probability."""
        results = self.model.search(queries, **options)
        answer = self.trust(neighbours=_neighbours(results, self.scores))
        self.confidence = dict(zip(results, answer.probability.tolist(), strict=True))
        moved = {}
        for query, hits in results.items():
            shift = self.confidence[query] - max(hits.values(), default=0.0)
            moved[query] = {document: score + shift for document, score in hits.items()}
        return moved


def fit_trust(
    results: Results, relevant: Mapping[str, Mapping[str, int]], *, scores: str = "cosine", **options: Any
) -> Trust:
    """Return the Trust that is calibrated on what a model returned to validation queries.

    Args:
        results: query -> document -> score, as a model's ``search`` returns and as MTEB saves predictions.
        relevant: query -> document -> grade, as in a task's ``relevant_docs``; grades above 0 are right.
        scores: as in `TrustSearch`.
        options: of `Trust.fit_responses`.
    """
    right = [
        [document for document, grade in relevant.get(query, {}).items() if grade > 0] for query in results
    ]
    return fit_relevant(_neighbours(results, scores), right, **options)


def _neighbours(results: Results, scores: str) -> Neighbours:
    """Return the 50 documents with the greatest scores of each query."""
    hits = []
    for found in results.values():
        best = sorted(found.items(), key=lambda item: item[1], reverse=True)[:RESPONSE]
        hits.append([Hit(document, score) for document, score in best])
    return responses(hits, scores)
