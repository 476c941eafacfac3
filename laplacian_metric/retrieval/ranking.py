"""From queries to answers: neighbours by cosine, other orders of them, probabilities, and refusals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from laplacian_metric.retrieval import exact
from laplacian_metric.retrieval.answers import Answers
from laplacian_metric.retrieval.calibrations import Calibrations
from laplacian_metric.retrieval.gallery import Gallery, Numbers
from laplacian_metric.retrieval.ids import nobody
from laplacian_metric.retrieval.items import Items

Order = Literal["cosine", "expected distance", "match probability"]
Candidates = int | Literal["all"] | None
FEWEST_CANDIDATES, CANDIDATES_PER_ANSWER = 100, 10


@dataclass(frozen=True)
class Asked:
    """In which order answers are wanted, among how many candidates, and whether queries may be refused."""

    order: Order = "cosine"
    candidates: Candidates = None
    abstain: bool = False


def answer(
    gallery: Gallery,
    calibrations: Calibrations,
    queries: Items,
    k: int,
    request: Asked,
    own_rows: Numbers | None = None,
) -> Answers:
    """Rows, cosines, probabilities, and what the threshold says; with ``own_rows`` each query's own row is left out."""
    _check_k(k, len(gallery) - (own_rows is not None), own_rows is not None)
    k = int(k)  # numpy's integers are none to FAISS
    threshold = calibrations.need("threshold") if request.abstain else calibrations.threshold
    answered = None
    if threshold is not None:
        answered = np.asarray(threshold.answers(queries.uncertainty), dtype=np.bool_)
    rows = np.full((len(queries), k), -1, dtype=np.int64)
    similarity = np.full((len(queries), k), np.nan, dtype=np.float32)
    ids = nobody(gallery.ids, (len(queries), k))
    probability = None if calibrations.matching is None else np.full((len(queries), k), np.nan)
    some = np.arange(len(queries))
    if request.abstain and answered is not None and not answered.all():
        some = np.flatnonzero(answered)
        queries = queries[some]
    own = None if own_rows is None else own_rows[some]
    ranked, cosine = _ranked(gallery, queries, k, request, own)
    rows[some], similarity[some], ids[some] = ranked, cosine, gallery.ids[ranked]
    if calibrations.matching is not None and probability is not None:
        likelihood = _likelihood(gallery, queries, ranked, cosine)
        probability[some] = calibrations.matching.probability(likelihood)
    return Answers(ids, rows, similarity, probability, answered)


def _ranked(
    gallery: Gallery, queries: Items, k: int, request: Asked, own_rows: Numbers | None
) -> tuple[Numbers, NDArray[np.float32]]:
    """The k first rows in the order that is asked for, without the own ones, and their cosines."""
    more = k if own_rows is None else k + 1
    number = _number_of_candidates(gallery, k, more - k, request)
    if number is None:
        rank = exact.by_expected_distance if request.order == "expected distance" else exact.by_likelihood
        rows = rank(gallery, queries, more)
        similarity = exact.cosines_at(gallery, queries.mean, rows)
    else:
        rows, similarity = gallery.nearest(queries.mean, number)
    if own_rows is not None:
        rows, similarity = _without(rows, similarity, own_rows)
    if number is not None and request.order != "cosine":
        value = _value(gallery, queries, rows, similarity, request.order)
        best = np.argsort(-value, axis=1, kind="stable")
        rows = np.take_along_axis(rows, best, axis=1)
        similarity = np.take_along_axis(similarity, best, axis=1)
    return rows[:, :k], similarity[:, :k]


def _number_of_candidates(gallery: Gallery, k: int, own: int, request: Asked) -> int | None:
    """How many are looked for by cosine, with one more for the own row; None where another order goes through all."""
    order, candidates = request.order, request.candidates
    if order not in get_args(Order):
        raise ValueError(f"order is {order!r}: {', '.join(map(repr, get_args(Order)))} are there")
    if order == "cosine":
        if candidates is not None:
            raise ValueError(
                'candidates is for other orders: with order="cosine" the k nearest are the answer'
            )
        return k + own
    if candidates == "all" or (candidates is None and order == "expected distance" and gallery.exact):
        return None
    if candidates is None:
        candidates = max(FEWEST_CANDIDATES, CANDIDATES_PER_ANSWER * k)
    elif not isinstance(candidates, (int, np.integer)) or candidates < k:
        raise ValueError(f'candidates is {candidates!r}: at least k = {k} are needed, or "all"')
    return min(int(candidates) + own, len(gallery))


def _value(
    gallery: Gallery, queries: Items, rows: Numbers, similarity: NDArray[np.float32], order: Order
) -> NDArray[Any]:
    """What is the greater the earlier an item comes, (Q, n)."""
    if order == "expected distance":
        return gallery.length[rows] * similarity
    return _likelihood(gallery, queries, rows, similarity)


def _likelihood(
    gallery: Gallery, queries: Items, rows: Numbers, similarity: NDArray[np.float32]
) -> NDArray[np.float64]:
    """The log expected likelihood of queries with some rows each, (Q, n)."""
    from laplacian_metric.retrieval.likelihood import log_expected_likelihood

    values = np.empty(rows.shape, dtype=np.float64)
    for some in exact.slices(len(rows), exact.queries_at_once(rows.shape[1])):
        kappa = gallery.kappa_at(rows[some])
        values[some] = log_expected_likelihood(
            similarity[some], queries.kappa[some, None], kappa, gallery.dim
        )
    return values


def _without(
    rows: Numbers, similarity: NDArray[np.float32], own_rows: Numbers
) -> tuple[Numbers, NDArray[np.float32]]:
    """One column less: the own row of each, or the last where it is not among them."""
    own = rows == own_rows[:, None]
    own[:, -1] |= ~own.any(axis=1)
    shape = (len(rows), rows.shape[1] - 1)
    return rows[~own].reshape(shape), similarity[~own].reshape(shape)


def _check_k(k: int, most: int, others: bool) -> None:
    if not isinstance(k, (int, np.integer)) or isinstance(k, bool) or k < 1:
        raise ValueError(f"k is {k!r}: a whole number of at least 1 is needed")
    if k > most:
        raise ValueError(f"k is {k}, and the index has only {most} {'other ' if others else ''}items")
