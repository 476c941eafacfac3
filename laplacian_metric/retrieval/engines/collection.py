"""A collection: items in an engine, and what was calibrated on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from laplacian_metric.core.labelled_gallery import Head
from laplacian_metric.core.vector_search import Vectors
from laplacian_metric.retrieval.answers import Answers, CredibleSets
from laplacian_metric.retrieval.calibrating import calibrations_of
from laplacian_metric.retrieval.calibrations import Calibrations, NotCalibratedError
from laplacian_metric.retrieval.engines.engine import (
    EMBEDDING,
    FEATURES,
    LABEL,
    RESERVED,
    UNKNOWN,
    ChangedCollectionError,
    Engine,
    EngineNeighbours,
    Floats,
    Records,
    Where,
    check_label_kind,
)
from laplacian_metric.retrieval.engines.engine_gallery import EngineGallery, directions_of, without
from laplacian_metric.retrieval.engines.fingerprint import Fingerprint, traces_of
from laplacian_metric.retrieval.items import GivenIds, Items, as_ids, check_alike, check_unique, nobody
from laplacian_metric.retrieval.retriever import CANDIDATES_PER_ANSWER, FEWEST_CANDIDATES, Order

if TYPE_CHECKING:
    from laplacian_metric.retrieval.abstention import Threshold
    from laplacian_metric.trust.trust import Trust

GREATEST = float(np.finfo(np.float32).max)  # databases take no infinity
FIRST_CAP = 64  # items that are looked for in a credible cap at first


class Collection:
    """Items in an engine that answer queries as those of an `Index` do.

    Queries may run in several threads. What was calibrated holds for the items that it was calibrated on: to change
    them withdraws threshold, caps and match probabilities, and leaves the weights of `Trust`.

    Attributes:
        engine: what keeps and searches the items.
        source: what made the items; queries need the same.
        labelled: whether the items have labels.
        trust: says how far the nearest item can be trusted; None until `fit_trust`.
        calibrations: the threshold and the like; nothing until `calibrate`.
        fingerprint: of all items.

    Example:
        >>> from laplacian_metric.retrieval.engines import create
        >>> items = Items(np.eye(3), kappa=[10, 20, 30], uncertainty=[0.1, 0.05, 0.03], variance=None, source="a4f0")
        >>> collection = create("exact:", items, ["ant", "bee", "cat"], labels=["insect", "insect", "mammal"])
        >>> collection.query(items[1:2], k=1).ids.tolist(), collection.nearest(items[1:2], k=1).labels.tolist()
        ([['bee']], [['insect']])
    """

    def __init__(
        self,
        engine: Engine,
        source: str,
        labelled: bool,
        fingerprint: Fingerprint,
        *,
        trust: Trust | None = None,
        calibrations: Calibrations | None = None,
        largest: dict[str, float] | None = None,
    ) -> None:
        self.engine = engine
        self.source = source
        self.labelled = labelled
        self.fingerprint = fingerprint
        self.calibrations = Calibrations() if calibrations is None else calibrations
        self.gallery = EngineGallery(engine, labelled, largest={} if largest is None else largest)
        self.trust = trust

    def __len__(self) -> int:
        return len(self.engine)

    def __repr__(self) -> str:
        return f"Collection({len(self)} items in {self.engine.address}, source {self.source[:12]!r})"

    @property
    def dim(self) -> int:
        """The number of dimensions of the embeddings."""
        return self.engine.dims[EMBEDDING]

    @property
    def threshold(self) -> Threshold | None:
        """Which queries are answered."""
        return self.calibrations.threshold

    # --- queries ---

    def nearest(
        self, queries: Items, k: int = 10, *, space: str = EMBEDDING, where: Any = None
    ) -> EngineNeighbours:
        """Return the k nearest items with their labels, kappa and uncertainty.

        Args:
            queries: made by the same posterior as the items.
            k: how many.
            space: "z"; for features see `fit_trust`.
            where: which items are searched: values by column, or a filter of the engine's own.
        """
        check_alike(self, queries, "the collection", "what was given")
        return self.engine.search(space, queries.mean, k, where)

    def query(
        self,
        queries: Items,
        k: int = 10,
        *,
        order: Order = "cosine",
        abstain: bool = False,
        features: Any = None,
        where: Any = None,
    ) -> Answers:
        """Return the k first items for each query.

        Args:
            queries: made by the same posterior as the items.
            k: how many; fewer are returned where fewer match.
            order: as `Index.query` takes it; orders other than by cosine are among 10 k candidates, and at least 100.
            abstain: refuse queries that are more uncertain than the threshold: they get no items.
            features: (Q, H) of the queries, which a collection with `Trust` needs.
            where: which items are searched: values by column, or a filter of the engine's own. Local scales are those
                among all items, and the calibration is the one that was made, with or without a filter.
        """
        trusted = None
        if features is not None:
            if self.trust is None:
                raise NotCalibratedError(
                    "features are given, but this collection has no Trust: see fit_trust"
                )
            trusted = self._filtered(self.trust, where)(features)
            queries = replace(queries, uncertainty=1 - trusted.probability)
        elif self.trust is not None and self.threshold is not None:
            raise ValueError(
                "features are missing: the threshold of this collection is about the probability of Trust"
            )
        neighbours = self.nearest(queries, _candidates(k, order), where=where)
        return replace(self._answers(queries, neighbours, k, order, abstain), trust=trusted)

    def query_ids(
        self, ids: GivenIds, k: int = 10, *, order: Order = "cosine", abstain: bool = False, where: Any = None
    ) -> Answers:
        """Return the k first other items for items of the collection; as `query`."""
        queries, named = self.items(ids)
        trusted = None if self.trust is None else self._filtered(self.trust, where).items(named)
        if trusted is not None:
            queries = replace(queries, uncertainty=1 - trusted.probability)
        neighbours = without(self.nearest(queries, _candidates(k, order) + 1, where=where), named)
        return replace(self._answers(queries, neighbours, k, order, abstain), trust=trusted)

    def items(self, ids: GivenIds) -> tuple[Items, NDArray[Any]]:
        """Return some items, and their ids; an unknown id is refused."""
        named = as_ids(ids)
        check_unique(named)
        records = self.engine.read(named, (EMBEDDING,))
        if len(records) < len(named):
            unknown = np.setdiff1d(named, records.ids)
            raise KeyError(
                f"{len(unknown)} of {len(named)} ids are not in the collection, the first is {unknown[0]!s}"
            )
        payload = records.payload
        mean = records.vectors[EMBEDDING]
        mean = mean / np.linalg.norm(mean, axis=1, keepdims=True)
        kappa, uncertainty = payload["kappa"].astype(np.float32), payload["uncertainty"]
        return Items(mean, kappa, uncertainty, None, self.source), records.ids

    def credible_sets(self, queries: Items, *, where: Any = None) -> CredibleSets:
        """Return all items within each query's credible cap, and at least its nearest.

        Twice as many items are looked for until one is outside of the cap; an approximate engine may miss some.
        """
        check_alike(self, queries, "the collection", "what was given")
        caps = self.calibrations.need("credible")
        radius = np.minimum(np.asarray(caps.radius(queries.kappa), dtype=np.float64), np.pi)
        sets = [
            self._cap(queries.mean[row : row + 1], 1 - np.cos(radius[row]), Where.of(where))
            for row in range(len(queries))
        ]
        offsets = np.cumsum([0, *(answer_set.k for answer_set in sets)])
        ids = np.concatenate([answer_set.ids[0] for answer_set in sets])
        similarity = 1 - np.concatenate([answer_set.distances[0] for answer_set in sets])
        return CredibleSets(offsets, ids, None, similarity.astype(np.float32), radius)

    def _cap(self, direction: Floats, distance: float, where: Where) -> EngineNeighbours:
        k = FIRST_CAP
        while True:
            neighbours = self.engine.search(EMBEDDING, direction, k, where)
            if neighbours.k < k or neighbours.distances[0, -1] > distance:
                return neighbours.cut(max(1, int((neighbours.distances[0] <= distance).sum())))
            k *= 2

    @staticmethod
    def _filtered(trust: Trust, where: Any) -> Trust:
        gallery: Any = trust.gallery
        return trust if where is None else replace(trust, gallery=gallery.filtered(where))

    def _answers(
        self, queries: Items, neighbours: EngineNeighbours, k: int, order: Order, abstain: bool
    ) -> Answers:
        threshold = self.calibrations.need("threshold") if abstain else self.threshold
        matching = self.calibrations.matching
        similarity = (1 - neighbours.distances).astype(np.float32)
        likelihood: NDArray[np.float64] | None = None
        value: NDArray[Any] = similarity
        if order == "match probability" or matching is not None:
            likelihood = self._likelihood(queries, neighbours)
        if order == "match probability" and likelihood is not None:
            value = likelihood
        elif order == "expected distance":
            from laplacian_metric.retrieval.likelihood import mean_resultant_length

            value = similarity * mean_resultant_length(_kappa(neighbours), self.dim)
        best = np.argsort(-value, axis=1, kind="stable")[:, :k]
        ids, similarity = (
            np.take_along_axis(values, best, axis=1) for values in (neighbours.ids, similarity)
        )
        probability = None
        if matching is not None and likelihood is not None:
            probability = matching.probability(np.take_along_axis(likelihood, best, axis=1))
        answered = None if threshold is None else np.asarray(threshold.answers(queries.uncertainty))
        if abstain and answered is not None:
            ids[~answered], similarity[~answered] = nobody(ids, ()), np.nan
            if probability is not None:
                probability[~answered] = np.nan
        return Answers(ids, None, similarity, probability, answered)

    def _likelihood(self, queries: Items, neighbours: EngineNeighbours) -> NDArray[np.float64]:
        from laplacian_metric.retrieval.likelihood import log_expected_likelihood

        similarity = np.clip(1 - neighbours.distances, -1, 1)
        return log_expected_likelihood(similarity, queries.kappa[:, None], _kappa(neighbours), self.dim)

    # --- calibration ---

    def fit_trust(
        self,
        queries: tuple[Any, Any] | None,
        *,
        encoder: Any = None,
        alpha: float = 0.05,
        where: Any = None,
        **more: Any,
    ) -> None:
        """Calibrate `Trust` on what the engine returns, so that its misses count.

        Args:
            queries: features and labels of validation queries, as `Trust.fit` takes them.
            encoder: whose head makes embeddings of features; None where the collection has embeddings only.
            alpha: the share of known queries that may count as not quite known.
            where: a filter that queries will have, too.
            more: passed on to `Trust.fit`.
        """
        from laplacian_metric.trust.trust import Trust

        self._check_head(Head.of(encoder))
        trust = Trust.fit(self.gallery.filtered(where), queries, encoder=encoder, alpha=alpha, **more)
        self.trust = replace(trust, gallery=self.gallery)
        self.calibrations = self.calibrations.withdraw()

    def use_trust(self, trust: Trust) -> None:
        """Take over the weights of a `Trust`; what counts as known is measured anew on these items."""
        self._check_head(trust.head)
        self.trust = trust.with_gallery(self.gallery)
        self.calibrations = self.calibrations.withdraw()

    def calibrate(
        self,
        queries: Items,
        labels: ArrayLike,
        *,
        alpha: float | None = 0.05,
        delta: float = 0.1,
        level: float | None = 0.9,
        k: int = 10,
        false_alarm: float = 0.01,
        generator: np.random.Generator | None = None,
        features: Any = None,
        where: Any = None,
    ) -> None:
        """Calibrate threshold, credible caps, match probability and drift monitor; as `retrieval.calibrate`."""
        if not self.labelled:
            raise ValueError("the items have no labels: a calibration needs the class of every item")
        if self.trust is not None and features is None:
            raise ValueError("features are missing: this collection has a Trust, which answers by them")
        own, missing = self.gallery.filtered(where).classes_of(labels, len(queries))
        if missing == len(own):
            raise ValueError(
                f"none of the classes of the calibration queries (such as {own[0].item()!r}) is among those of the "
                "items: name the classes of both alike"
            )
        trusted = None if features is None else self.query(queries, 1, features=features, where=where).trust
        neighbours = self.nearest(queries, k, where=where)
        angle = None
        if level is not None:
            distance = self.engine.nearest_of_label(EMBEDDING, queries.mean, own, Where.of(where))
            angle = np.where(distance < 2, np.arccos(np.clip(1 - distance, -1, 1)), np.inf)
        assert neighbours.labels is not None
        self.calibrations = calibrations_of(
            queries,
            neighbours.labels == own[:, None],
            self._likelihood(queries, neighbours),
            angle,
            trusted,
            alpha=alpha,
            delta=delta,
            level=level,
            false_alarm=false_alarm,
            generator=generator,
        )

    # --- changes ---

    def add(
        self,
        items: Items,
        ids: GivenIds,
        *,
        features: Any = None,
        labels: Any = None,
        columns: Mapping[str, ArrayLike] | None = None,
    ) -> None:
        """Add items; scales that they change are forgotten.

        Args:
            items: of the same source.
            ids: of none that is there.
            features: (n, H), where the collection has them.
            labels: (n,), where the collection has them.
            columns: further values (n,) by name, for filters.
        """
        check_alike(self, items, "the collection", "what was given")
        if len(items) == 0:
            return
        records = records_of(items, self.engine.check_new(as_ids(ids)), features, labels, columns)
        if set(records.vectors) != set(self.engine.dims) or (LABEL in records.payload) != self.labelled:
            raise ValueError(
                f"the collection has {', '.join(self.engine.dims)} and {'labels' if self.labelled else 'no labels'}: "
                "add items with the same"
            )
        for space, vectors in records.vectors.items():
            if vectors.shape[1] != self.engine.dims[space]:
                raise ValueError(
                    f"{space} has {vectors.shape[1]} columns, the collection {self.engine.dims[space]}"
                )
        with self.gallery.changing:
            self.engine.put(records)
            self.fingerprint = self.fingerprint.plus(records)
            self._changed(records)

    def remove(self, ids: GivenIds) -> None:
        """Take items out; scales that they were part of are forgotten."""
        named = as_ids(ids)
        check_unique(named)
        if not len(named):
            return
        with self.gallery.changing:
            records = self.engine.read(named, tuple(self.engine.dims))
            if len(records) < len(named):
                unknown = np.setdiff1d(named, records.ids)
                raise KeyError(
                    f"{len(unknown)} of {len(named)} ids are not in the collection, the first is {unknown[0]!s}"
                )
            if len(records) >= len(self):
                raise ValueError("this would take out all items: a collection needs at least one")
            self.engine.delete(named)
            self.fingerprint = self.fingerprint.minus(records)
            self._changed(records)

    def _changed(self, records: Records) -> None:
        self.unsettled = self.gallery.forget_scales(records.vectors)
        self.calibrations = self.calibrations.withdraw()

    unsettled = 0
    """Around how many of the last change's items scales may be out of date; see `EngineGallery.forget_scales`."""

    def check(self, *, vectors: bool = False) -> None:
        """Refuse a collection that something else has changed.

        Args:
            vectors: read all vectors too, and compare them with what was written beside them.

        Raises:
            ChangedCollectionError: items came, went or were overwritten.
        """
        now = Fingerprint.of_engine(self.engine, vectors=vectors)
        if now != self.fingerprint:
            raise ChangedCollectionError(
                f"the collection in {self.engine.address} has changed: {now.count} items with the fingerprint "
                f"{now.text}, and {self.fingerprint.count} with {self.fingerprint.text} were calibrated on. Calibrate "
                'again, or open it with changed="withdraw"'
            )

    def adopt(self) -> None:
        """Take the items as they are: withdraw what was calibrated, forget all scales, keep the weights of `Trust`."""
        with self.gallery.changing:
            for records in self.engine.scroll():
                gone = np.full(len(records), UNKNOWN)
                self.engine.update(
                    records.ids, {f"{space}_{k}": gone for space in self.engine.dims for k in (10, 11)}
                )
            self.fingerprint = Fingerprint.of_engine(self.engine)
            self.calibrations = self.calibrations.withdraw()

    def close(self) -> None:
        """Let go of files and connections."""
        self.engine.close()

    def _check_head(self, head: Head | None) -> None:
        if (head is not None) != (FEATURES in self.engine.dims):
            has, remedy = (
                ("features", "pass encoder=") if head is None else ("no features", "leave encoder out")
            )
            raise ValueError(f"the collection has {has}: {remedy}")


def _kappa(neighbours: EngineNeighbours) -> NDArray[np.float64]:
    kappa: NDArray[np.float64] = neighbours.payload["kappa"]
    return np.where(kappa >= GREATEST, np.inf, kappa)


def _candidates(k: int, order: Order) -> int:
    if order not in get_args(Order):
        raise ValueError(f"order is {order!r}: {', '.join(map(repr, get_args(Order)))} are known")
    return k if order == "cosine" else max(FEWEST_CANDIDATES, CANDIDATES_PER_ANSWER * k)


def records_of(
    items: Items,
    ids: NDArray[Any],
    features: Any,
    labels: Any,
    columns: Mapping[str, ArrayLike] | None,
) -> Records:
    """Return items as an engine keeps them; their scales are not known yet."""
    num = len(items)
    if len(ids) != num:
        raise ValueError(f"ids has {len(ids)} entries for {num} items")
    vectors: dict[str, Floats] = {EMBEDDING: items.mean}
    if features is not None:
        vectors[FEATURES] = directions_of(Vectors.of("features", features))
    payload: dict[str, NDArray[Any]] = {
        "kappa": np.minimum(items.kappa, GREATEST).astype(np.float64),
        "uncertainty": np.clip(items.uncertainty, -GREATEST, GREATEST),
    }
    if labels is not None:
        payload[LABEL] = check_label_kind(labels)
    for name, values in (columns or {}).items():
        if name in RESERVED or not name.isidentifier():
            raise ValueError(
                f"the column {name!r} cannot be kept: name it by letters, digits and underscores, and not "
                f"{', '.join(sorted(RESERVED))}"
            )
        payload[name] = np.asarray(values)
    for space, rows in vectors.items():
        payload[f"trace_{space}"] = traces_of(rows)
        payload |= {f"{space}_{k}": np.full(num, UNKNOWN) for k in (10, 11)}
    for name, values in {**payload, **vectors}.items():
        if len(values) != num:
            raise ValueError(f"{name} has {len(values)} entries for {num} items: one for each is needed")
    return Records(ids, vectors, payload)
