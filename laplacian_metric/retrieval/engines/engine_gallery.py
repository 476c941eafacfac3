"""What `Trust` asks of a gallery, answered by an engine: neighbours, margins and the items' local scales.

An item's local scale, the distance to its 10th nearest item, is kept beside its vectors, with that to the 11th for
queries that are items themselves. It is computed when an item is first among the ten nearest of a query, and forgotten
when a change comes nearer to the item than its 11th nearest.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from laplacian_metric.core.labelled_gallery import as_labels
from laplacian_metric.core.neighbours import LOCAL, VOTERS, Neighbours, Place, Surroundings
from laplacian_metric.core.progress import track
from laplacian_metric.core.vector_search import FARTHEST, Vectors
from laplacian_metric.retrieval.engines.engine import (
    EMBEDDING,
    FEATURES,
    UNKNOWN,
    ChangedCollectionError,
    Engine,
    EngineNeighbours,
    Floats,
    NoItemError,
    Where,
    check_label_kind,
)

LOGGER = logging.getLogger(__name__)

ITEMS_AT_ONCE = 256
FIRST_REACHED, MOST_REACHED = 64, 4096  # items that are looked at around a change
NEARLY = 1e-6  # of a distance in float32


@dataclass(frozen=True, eq=False)
class EngineGallery:
    """The items of an engine, as `Trust` searches them.

    Attributes:
        engine: what searches.
        labelled: whether the items have labels.
        where: which items are searched. Local scales are those among all items.
        largest: by space, no less than the greatest scale that is kept.
        changing: held while items or their scales change.

    Example:
        >>> from laplacian_metric.retrieval.engines import ArrayEngine, Records
        >>> z = np.eye(3, dtype=np.float32)
        >>> payload = {"label": np.array(["a", "a", "b"]), "trace_z": np.zeros(3)}
        >>> payload |= {name: np.full(3, UNKNOWN) for name in ("z_10", "z_11")}
        >>> gallery = EngineGallery(ArrayEngine(Records(np.arange(3), {"z": z}, payload)), labelled=True)
        >>> gallery.surroundings(Vectors.of("z", z[:1]), Vectors.of("z", z[:1])).z.other.tolist()
        [1.0]
    """

    engine: Engine
    labelled: bool
    where: Where = field(default_factory=Where)
    largest: dict[str, float] = field(default_factory=dict)
    changing: Any = field(default_factory=threading.RLock)

    def __len__(self) -> int:
        return len(self.engine)

    @property
    def width(self) -> int:
        """The number of features of each item."""
        return self.engine.dims[FEATURES if FEATURES in self.engine.dims else EMBEDDING]

    def filtered(self, where: Any) -> EngineGallery:
        """Return the same items, of which those that match a filter are searched."""
        return self if where is None else replace(self, where=Where.of(where))

    def surroundings(
        self,
        features: Vectors,
        embeddings: Vectors,
        *,
        own: NDArray[Any] | None = None,
        neighbours: Neighbours | None = None,
        feature_neighbours: Neighbours | None = None,
    ) -> Surroundings:
        """Return what surrounds queries.

        Args:
            features: of the queries.
            embeddings: of the same queries.
            own: (Q,), the ids of queries that are items, each of which is left out of its own surroundings.
            neighbours, feature_neighbours: None, since the engine searches.
        """
        if neighbours is not None or feature_neighbours is not None:
            raise ValueError("neighbours are given, but this gallery searches by its engine: leave them out")
        directions = directions_of(embeddings)
        in_z = self._nearest(EMBEDDING, directions, VOTERS, own)
        classes = in_z.labels[:, 0] if self.labelled and in_z.labels is not None else None
        z = self._place(EMBEDDING, directions, in_z, classes, own)
        h = z
        if FEATURES in self.engine.dims:
            directions = directions_of(features)
            h = self._place(
                FEATURES, directions, self._nearest(FEATURES, directions, VOTERS, own), classes, own
            )
        return Surroundings(features, in_z.ids[:, 0], classes, z, h)

    def around_items(self, rows: NDArray[Any]) -> Surroundings:
        """Return what surrounds some items, by id, each left out of its own surroundings."""
        spaces = tuple(self.engine.dims)
        records = self.engine.read(rows, spaces)
        if len(records) < len(rows):
            raise ChangedCollectionError(
                f"{len(rows) - len(records)} of {len(rows)} items are not in the collection any more"
            )
        vectors = {space: Vectors.of(space, records.vectors[space]) for space in spaces}
        return self.surroundings(vectors[spaces[-1]], vectors[EMBEDDING], own=records.ids)

    def reference(self, most: int | None = None) -> NDArray[Any]:
        """Return the ids of at most so many items, evenly spaced; None for all of them. Reads the ids of all."""
        ids = np.concatenate([records.ids for records in self.engine.scroll()])
        number = len(ids) if most is None else min(most, len(ids))
        chosen: NDArray[Any] = ids[np.unique(np.linspace(0, len(ids) - 1, number).round().astype(np.int64))]
        return chosen

    def classes_at(self, rows: NDArray[Any]) -> NDArray[Any] | None:
        """Return the labels of some items; None without labels."""
        return self.engine.read(rows).payload["label"] if self.labelled else None

    def classes_of(self, labels: Any, num: int) -> tuple[NDArray[Any], int]:
        """Return queries' labels (Q,), and how many of them no item has."""
        array = check_label_kind(np.array(as_labels("query_labels", labels, num)))
        names, counts = np.unique(array, return_counts=True)
        missing = [self.engine.count(self.where.of_label(name)) == 0 for name in names]
        return array, int(counts[missing].sum())

    def labels_of(self, classes: NDArray[Any]) -> list[Hashable]:
        """Return labels as plain values."""
        return list(classes.tolist())

    def updated(self, h: Any, labels: Any, remove: Any, head: Any) -> NoReturn:
        """Refuse to change items; a collection does that."""
        raise ValueError("the items are in an engine: change them by Collection.add and Collection.remove")

    # --- local scales ---

    def store_scales(self, *, progress: bool | None = None) -> None:
        """Compute the scales of all items that have none: one search for every item; run it again to resume."""
        for space in self.engine.dims:
            unknown = [
                records.ids[~(records.payload[f"{space}_10"] >= 0)] for records in self.engine.scroll()
            ]
            ids = np.concatenate(unknown)
            portions = np.array_split(ids, -(-len(ids) // ITEMS_AT_ONCE)) if len(ids) else []
            for some in track(portions, f"scales in {space}", show=progress):
                self._compute_scales(space, some)

    def forget_scales(self, changed: Mapping[str, Floats]) -> int:
        """Forget the scales that items near a change had.

        Around every changed item as many items are looked at as may have it within their scale, and at most 4096.

        Args:
            changed: unit vectors (n, D) of items that came or went, by space.

        Returns:
            around how many of them 4096 were not enough, so that scales farther away may be out of date.
        """
        unsettled = 0
        for space, vectors in changed.items():
            for start in range(0, len(vectors), ITEMS_AT_ONCE):
                unsettled += self._forget(space, vectors[start : start + ITEMS_AT_ONCE])
        return unsettled

    def _forget(self, space: str, directions: Floats) -> int:
        limit, most, number = self.largest.get(space, UNKNOWN), FIRST_REACHED, len(self)
        while len(directions) and limit >= 0:
            neighbours = self.engine.search(space, directions, min(most, number))
            scales = neighbours.payload[f"{space}_11"]
            stale = np.unique(neighbours.ids[(scales >= 0) & (neighbours.distances <= scales + NEARLY)])
            if len(stale):
                gone = np.full(len(stale), UNKNOWN)
                self.engine.update(stale, {f"{space}_10": gone, f"{space}_11": gone})
            if most >= number:
                return 0
            directions = directions[neighbours.distances[:, -1] <= limit + NEARLY]
            if most >= MOST_REACHED:
                return len(directions)
            most *= 4
        return 0

    def _scales(self, space: str, near: EngineNeighbours) -> NDArray[np.float64]:
        """Return the scales (Q, n, 2) of neighbours (Q, n); those that are not known are computed and kept."""
        scales = np.stack([near.payload[f"{space}_{k}"] for k in (LOCAL, LOCAL + 1)], axis=-1)
        unknown = np.unique(near.ids[~(scales[..., 0] >= 0)])
        for start in range(0, len(unknown), ITEMS_AT_ONCE):
            ids, values = self._compute_scales(space, unknown[start : start + ITEMS_AT_ONCE])
            order = np.argsort(ids)
            place = np.searchsorted(ids, near.ids, sorter=order).clip(max=len(ids) - 1)
            same = ids[order[place]] == near.ids
            scales[same] = values[order[place]][same]
        return scales

    def _compute_scales(self, space: str, ids: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.float64]]:
        with self.changing:
            records = self.engine.read(ids, (space,))
            if len(records) == 0:
                return ids[:0], np.empty((0, 2))
            if len(self) == 1:
                values = np.full((1, 2), FARTHEST)
            else:
                neighbours = self.engine.search(space, records.vectors[space], LOCAL + 2)
                others = without(neighbours, records.ids).distances
                values = others[:, np.minimum((LOCAL - 1, LOCAL), others.shape[1] - 1)]
            columns = {f"{space}_{LOCAL + i}": values[:, i] for i in (0, 1)}
            # Before they are written: a change that comes meanwhile looks as far.
            self.largest[space] = max(self.largest.get(space, UNKNOWN), float(values.max()))
            self.engine.update(records.ids, columns)
        return records.ids, values

    # --- neighbours ---

    def _nearest(self, space: str, directions: Floats, k: int, own: NDArray[Any] | None) -> EngineNeighbours:
        neighbours = self.engine.search(space, directions, k + (own is not None), self.where)
        unknown = np.isnan(neighbours.payload.get(f"trace_{space}", np.array(np.nan)))
        if unknown.any() or (self.labelled and neighbours.labels is None):
            names = neighbours.ids[np.broadcast_to(unknown, neighbours.ids.shape)]
            which = f", such as {names[0]!s}" if len(names) else ""
            raise ChangedCollectionError(
                f"items{which} were written by something else than Collection.add, so that nothing is known about "
                "them: take them out, and add them by Collection.add"
            )
        return neighbours if own is None else without(neighbours, own)

    def _place(
        self,
        space: str,
        directions: Floats,
        near: EngineNeighbours,
        classes: NDArray[Any] | None,
        own: NDArray[Any] | None,
    ) -> Place:
        scales = self._scales(space, near.cut(LOCAL))
        tenth = scales[..., 0]
        if own is not None:
            # The query is an item itself, and must not be among the neighbours of its neighbours either.
            tenth = np.where(near.distances[:, :LOCAL] <= tenth + NEARLY, scales[..., 1], tenth)
        if classes is None:
            far = np.full(len(near), FARTHEST)
            return Place(near, tenth, far, far)
        same, other = (
            self._nearest_of(space, directions, near, classes, own, other) for other in (False, True)
        )
        return Place(near, tenth, same, other)

    def _nearest_of(
        self,
        space: str,
        directions: Floats,
        near: EngineNeighbours,
        classes: NDArray[Any],
        own: NDArray[Any] | None,
        other: bool,
    ) -> NDArray[np.float64]:
        """Return the distance to the nearest item of the class, or of another.

        Where no neighbour is, the engine looks for one.
        """
        distances, short = _first_of(near, classes, other)
        if len(short):
            few = None if own is None else own[short]
            distances[short] = self.engine.nearest_of_label(
                space, directions[short], classes[short], self.where, other=other, own=few
            )
        return distances


def _first_of(
    near: EngineNeighbours, classes: NDArray[Any], other: bool
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the distance (Q,) to the first item of the class, or of another, and the queries that have none."""
    assert near.labels is not None
    agrees = (near.labels == classes[:, None]) != other
    distances = near.distances[np.arange(len(near)), agrees.argmax(axis=1)].copy()
    return distances, np.flatnonzero(~agrees.any(axis=1))


def directions_of(vectors: Vectors) -> Floats:
    """Return unit vectors (Q, D) in float32, as engines take them."""
    directions: Floats = np.ascontiguousarray(vectors.unit(slice(None)), dtype=np.float32)
    return directions


def without(neighbours: EngineNeighbours, own: NDArray[Any]) -> EngineNeighbours:
    """Return neighbours (Q, k - 1): each query without itself; of those that did not find themselves without the last.

    Example:
        >>> without(EngineNeighbours([[7, 9], [7, 9]], [[0, 0.1], [0.1, 0.2]]), np.array([7, 5])).ids.tolist()
        [[9], [7]]
    """
    drop = np.array(neighbours.ids == own[:, None])
    drop[~drop.any(axis=1), -1] = True
    shape = (len(neighbours), neighbours.k - 1)
    if shape[1] == 0:
        raise NoItemError("the query is the only item that matches: at least two are needed")
    labels = None if neighbours.labels is None else neighbours.labels[~drop].reshape(shape)
    payload = {name: values[~drop].reshape(shape) for name, values in neighbours.payload.items()}
    return EngineNeighbours(
        neighbours.ids[~drop].reshape(shape), neighbours.distances[~drop].reshape(shape), labels, payload
    )
