"""What a framework's search returned, in the form that `Trust` takes, and what it says of each hit; numpy only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from laplacian_metric.core.check import Floats, check, unit_rows
from laplacian_metric.core.neighbours import Neighbours, distances_to
from laplacian_metric.trust.answer import ACCEPT
from laplacian_metric.trust.relevance import right_of
from laplacian_metric.trust.trust import Trust

# What a score is -> 1 - cosine. "vectors": the scores are not used, the distances are those of the vectors.
SCORES: dict[str, Callable[[Floats], Floats]] = {
    "cosine": lambda score: 1 - score,
    "distance": lambda score: score,
    "squared L2": lambda score: score / 2,
}
VECTORS = "vectors"
LEAST_HITS = (
    3  # what the local outlier factor needs: of fewer hits the probability is NaN, which is never accepted
)


class Hit(NamedTuple):
    """What a search returned: the id of an item, and its score, label and vector where they are known."""

    id: Any
    score: float | None = None
    label: Any = None
    vector: Any = None


def responses(found: Sequence[Sequence[Hit]], scores: str = "cosine", queries: Any = None) -> Neighbours:
    """Return the neighbours of Q queries, in the order of their hits, of which each query may have another number.

    Args:
        found: for each query, its hits.
        scores: what a score is: "cosine", "distance" (1 - cosine) or "squared L2" of unit vectors; or "vectors", where
            the distances are computed from vectors of hits and queries, as is needed after a reranker.
        queries: (Q, D), for "vectors".

    Example:
        >>> neighbours = responses([[Hit("a", 0.9), Hit("b", 0.5)], [Hit("c", 0.8)]])
        >>> neighbours.distances.round(3).tolist(), neighbours.ids.tolist()
        ([[0.1, 0.5, inf], [0.2, inf, inf]], [['a', 'b', None], ['c', None, None]])
    """
    width = max([LEAST_HITS, *(len(hits) for hits in found)])
    vectors = _vectors(found, width)
    if scores == VECTORS:
        if vectors is None or queries is None:
            raise ValueError("scores is 'vectors': vectors of the queries and of all hits are needed")
        distances = distances_to(unit_rows("queries", check("queries", queries, "Q D")), vectors)
    elif scores in SCORES:
        if any(hit.score is None for hits in found for hit in hits):
            raise ValueError("scores are missing: the search has to return one for each hit")
        values = np.array([_padded([hit.score for hit in hits], width, np.nan) for hits in found])
        missing = np.arange(width) >= np.array([[len(hits)] for hits in found])
        distances = np.where(missing, np.inf, SCORES[scores](values))
    else:
        raise ValueError(f"scores is {scores!r}: one of {', '.join((*SCORES, VECTORS))} is needed")
    ids = [_padded([hit.id for hit in hits], width, None) for hits in found]
    labels = [_padded([hit.label for hit in hits], width, None) for hits in found]
    labelled = any(hit.label is not None for hits in found for hit in hits)
    return Neighbours(ids, distances, labels if labelled else None, vectors)  # type: ignore[arg-type]


def _padded(values: list[Any], width: int, nothing: Any) -> list[Any]:
    return [*values, *[nothing] * (width - len(values))]


def _vectors(found: Sequence[Sequence[Hit]], width: int) -> Floats | None:
    """Return vectors (Q, width, D), NaN where there are fewer hits; None where a hit has none."""
    flat = [hit.vector for hits in found for hit in hits]
    if not flat or any(vector is None for vector in flat):
        return None
    nothing = np.full(check("vectors", flat, "N D").shape[1], np.nan)
    return np.array(
        [_padded([hit.vector for hit in hits], width, nothing) for hits in found], dtype=np.float64
    )


def fit_relevant(neighbours: Neighbours, relevant: Any, **options: Any) -> Trust:
    """Return the Trust that is calibrated on what a search returned to validation queries.

    Args:
        neighbours: of Q queries, see `responses`.
        relevant: for each query an id, or a list or a set of ids.
        options: of `Trust.fit_responses`, such as ``target="each@10"``, which judges every hit.
    """
    return Trust.fit_responses(neighbours, right_of(neighbours, None, relevant, None), **options)


def judge(
    trust: Trust, neighbours: Neighbours, features: Any = None, *, only_accepted: bool = True
) -> list[dict[int, dict[str, Any]]]:
    """Return, for each query, the places of its hits that are kept, each with what Trust says of it.

    A hit is kept where the answer is accepted and, if the target is "each@k", its own probability reaches the
    threshold; hits beyond the first k are not kept.

    Args:
        trust: calibrated on responses like these.
        neighbours: of Q queries.
        features: (Q, H), of the queries, where Trust has a Gaussian view.
        only_accepted: False keeps every hit.

    Returns:
        ``probability``: of the hit itself for the target "each@k", else of the answer; ``verdict``, ``known`` and
        ``because`` of the answer.
    """
    if not neighbours.counts.any():
        return [{} for _ in range(len(neighbours))]
    answer = trust(neighbours=neighbours, features=features if trust.spaces.view is not None else None)
    kept: list[dict[int, dict[str, Any]]] = []
    for query, count in enumerate(neighbours.counts.tolist()):
        said = {
            name: getattr(answer, name)[query : query + 1].tolist()[0]
            for name in ("verdict", "known", "because")
        }
        each = (
            [float(answer.probability[query])] * count
            if answer.each is None
            else answer.each[query, :count].tolist()
        )
        kept.append(
            {
                place: {"probability": probability, **said}
                for place, probability in enumerate(each)
                if not only_accepted or (said["verdict"] == ACCEPT and probability >= trust.threshold)
            }
        )
    return kept
