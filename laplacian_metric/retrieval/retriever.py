"""From queries to answers, for an index and for several as one: neighbours, orders, probabilities and refusals."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from laplacian_metric.retrieval import exact
from laplacian_metric.retrieval.answers import Answers, CredibleSets
from laplacian_metric.retrieval.calibrations import Calibrations, NotCalibratedError
from laplacian_metric.retrieval.gallery import Gallery, Numbers
from laplacian_metric.retrieval.items import GivenIds, Ids, Items, as_ids, check_alike, nobody

if TYPE_CHECKING:
    from laplacian_metric.retrieval.abstention import Threshold
    from laplacian_metric.retrieval.credible import CredibleCaps
    from laplacian_metric.retrieval.drift import DriftMonitor
    from laplacian_metric.retrieval.matching import MatchProbability
    from laplacian_metric.trust.trust import Trust

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
    if not isinstance(k, (int, np.integer)) or isinstance(k, bool) or k < 1:
        raise ValueError(f"k is {k!r}: a whole number of at least 1 is needed")
    most, others = (len(gallery), "") if own_rows is None else (len(gallery) - 1, "other ")
    if k > most:
        raise ValueError(f"k is {k}, and the index has only {most} {others}items")
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


@dataclass(frozen=True, eq=False)
class State:
    """Items and what was calibrated on them: always replaced together."""

    gallery: Gallery
    calibrations: Calibrations
    trust: Trust | None = None


class Retriever:
    """Answers queries from a gallery of items.

    Queries may run in several threads, also while the items change: each sees them as before or as after.
    """

    def __init__(self, gallery: Gallery, calibrations: Calibrations | None = None) -> None:
        self._state = State(gallery, Calibrations() if calibrations is None else calibrations)

    def __len__(self) -> int:
        return len(self._state.gallery)

    @property
    def state(self) -> State:
        """The items with what was calibrated on them, as they are now."""
        return self._state

    @property
    def dim(self) -> int:
        """The number of dimensions."""
        return self._state.gallery.dim

    @property
    def source(self) -> str:
        """What made the items; queries need the same."""
        return self._state.gallery.source

    @property
    def ids(self) -> Ids:
        """The id of every row, (N,)."""
        return self._state.gallery.ids

    def rows(self, ids: GivenIds) -> Numbers:
        """The rows of some ids; an unknown one is refused."""
        return self._state.gallery.row_of.find(as_ids(ids))

    # --- calibrations ---

    @property
    def calibrations(self) -> Calibrations:
        """What was calibrated on these items."""
        return self._state.calibrations

    @calibrations.setter
    def calibrations(self, calibrations: Calibrations) -> None:
        if not isinstance(calibrations, Calibrations):
            raise TypeError(
                f"calibrations is a {type(calibrations).__name__}, Calibrations(threshold=...) is needed"
            )
        caps = calibrations.credible
        if caps is not None and caps.dim != self.dim:
            raise ValueError(
                f"the credible caps are of {caps.dim} dimensions and the index has {self.dim}: calibrate them here"
            )
        self._state = replace(self._state, calibrations=calibrations)

    @property
    def trust(self) -> Trust | None:
        """What says how far the nearest item of a query can be trusted, and why not."""
        return self._state.trust

    @property
    def threshold(self) -> Threshold | None:
        """Which queries are answered."""
        return self.calibrations.threshold

    @property
    def credible(self) -> CredibleCaps | None:
        """How far from a query its right answer is."""
        return self.calibrations.credible

    @property
    def matching(self) -> MatchProbability | None:
        """How probable it is that a query and an item are of one class."""
        return self.calibrations.matching

    @property
    def drift(self) -> DriftMonitor | None:
        """What notices that queries have become others."""
        return self.calibrations.drift

    # --- queries ---

    def query(
        self,
        queries: Items,
        k: int = 10,
        *,
        order: Order = "cosine",
        candidates: Candidates = None,
        abstain: bool = False,
        features: Any = None,
    ) -> Answers:
        """The k first items for each query.

        Args:
            queries: made by the same posterior as the items.
            k: how many, at most as many as there are.
            order: by the cosine of the mean directions; by the expected distance of two points drawn from query and
                item; or by the match probability, that is by the expected likelihood that both are one point (the same
                order, whether a match probability is calibrated or not).
            candidates: how many items, the nearest by cosine, are put into that order; "all" for all. By default all
                for the expected distance in a flat index, otherwise 10 k and at least 100.
            abstain: refuse queries that are more uncertain than the threshold: they get no items. Otherwise
                ``answered`` only tells which these are, where there is a threshold.
            features: (Q, H) of the queries, which an index with `Trust` needs: their uncertainty is then 1 - the
                probability that the nearest item is right.
        """
        state = self._state
        self._check_queries(state, queries)
        if features is None and state.trust is not None and state.calibrations.threshold is not None:
            raise ValueError(
                "features are missing: the threshold of this index is about the probability of Trust, which is "
                "computed from the queries' features; pass features="
            )
        trusted = None
        if features is not None:
            if state.trust is None:
                raise NotCalibratedError(
                    "features are given, but this index has no Trust: see Index.with_trust"
                )
            trusted = state.trust(features)
            queries = replace(queries, uncertainty=1 - trusted.probability)
        answers = answer(state.gallery, state.calibrations, queries, k, Asked(order, candidates, abstain))
        return replace(answers, trust=trusted)

    def query_ids(
        self,
        ids: GivenIds,
        k: int = 10,
        *,
        order: Order = "cosine",
        candidates: Candidates = None,
        abstain: bool = False,
    ) -> Answers:
        """The k first other items for items of the index itself; as `query`."""
        state = self._state
        rows = state.gallery.row_of.find(as_ids(ids))
        queries = state.gallery.items_at(rows)
        trusted = None if state.trust is None else state.trust.items(rows)
        if trusted is not None:
            queries = replace(queries, uncertainty=1 - trusted.probability)
        request = Asked(order, candidates, abstain)
        return replace(answer(state.gallery, state.calibrations, queries, k, request, rows), trust=trusted)

    def credible_sets(self, queries: Items) -> CredibleSets:
        """All items within each query's credible cap, and at least its nearest.

        Every item is looked at, whatever the kind of the index: a set that misses some would break its promise. A
        query that knows nothing has all items in its set, so ask few such queries at a time.
        """
        state = self._state
        self._check_queries(state, queries)
        radius = np.asarray(state.calibrations.need("credible").radius(queries.kappa), dtype=np.float64)
        query, rows, similarity = exact.within(state.gallery, queries.mean, radius)
        empty = np.setdiff1d(np.arange(len(queries)), query)
        if len(empty):
            nearest, cosine = exact.nearest(state.gallery, queries.mean[empty])
            query = np.concatenate([query, empty])
            order = np.argsort(query, kind="stable")
            query = query[order]
            rows = np.concatenate([rows, nearest])[order]
            similarity = np.concatenate([similarity, cosine])[order]
        offsets = np.searchsorted(query, np.arange(len(queries) + 1))
        return CredibleSets(offsets, state.gallery.ids[rows], rows, similarity, radius)

    def angle_to_right(
        self, queries: Items, labels: ArrayLike, item_labels: ArrayLike
    ) -> NDArray[np.float64]:
        """The angle from each query to the nearest item of its class, (Q,); infinity where there is none.

        What credible caps are calibrated on, computed as `credible_sets` computes it.

        Args:
            queries: made by the same posterior as the items.
            labels: the class of each query.
            item_labels: the class of each row of the index.
        """
        state = self._state
        self._check_queries(state, queries)
        return exact.nearest_of_own(state.gallery, queries.mean, labels, item_labels)[1]

    @staticmethod
    def _check_queries(state: State, queries: Items) -> None:
        if not isinstance(queries, Items):
            raise TypeError(f"queries is a {type(queries).__name__}: make Items of it, by Items.of say")
        check_alike(state.gallery, queries, "the index", "what was given")
