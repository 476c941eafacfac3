"""Labelled items in two spaces, features and embeddings, and the search in both: numpy only."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laplacian_metric.core.neighbours import LOCAL, VOTERS, Neighbours, Place, Surroundings
from laplacian_metric.core.vector_search import (
    BLOCK_ROWS,
    FARTHEST,
    Classes,
    Floats,
    Nearest,
    Rows,
    Vectors,
    as_rows,
    distance_to,
    norms_of,
    refined,
    search,
)

# The scales of an item that are kept: the distances to its 10th and 11th nearest item.
KEPT = (LOCAL - 1, LOCAL)
ITEMS_AT_ONCE = 2048


@dataclass(frozen=True, eq=False)
class Head:
    """A linear head u = W h + b of an encoder, as arrays: weight (Z, H), bias (Z,) or None."""

    weight: NDArray[Any]
    bias: NDArray[Any] | None = None

    @staticmethod
    def of(encoder: Any) -> Head | None:
        """Return the head of an `Encoder`, of a `LAM` or of a linear layer; None for None."""
        if encoder is None or isinstance(encoder, Head):
            return encoder
        layer = getattr(encoder, "encoder", encoder)
        layer = getattr(layer, "head", layer)
        if getattr(getattr(layer, "weight", None), "ndim", None) != 2:
            raise TypeError(
                f"encoder is a {type(encoder).__name__} without a linear head: pass an Encoder, a LAM, a linear layer, "
                "or None where the rows are the embeddings"
            )
        bias = getattr(layer, "bias", None)
        weight = np.array(as_rows("the head's weight", layer.weight))
        return Head(weight, None if bias is None else np.array(as_rows("the head's bias", bias[None])[0]))

    def embed(self, rows: NDArray[Any]) -> Vectors:
        """Return the embeddings of rows of features; float32, of any length."""
        weight = self.weight.astype(np.float32)
        if rows.shape[1] != weight.shape[1]:
            raise ValueError(
                f"h has {rows.shape[1]} columns, the encoder's head takes {weight.shape[1]} features"
            )
        embeddings = np.empty((len(rows), len(weight)), dtype=np.float32)
        for start in range(0, len(rows), BLOCK_ROWS):
            some = slice(start, start + BLOCK_ROWS)
            embeddings[some] = np.asarray(rows[some], dtype=np.float32) @ weight.T
            if self.bias is not None:
                embeddings[some] += self.bias.astype(np.float32)
        return Vectors.of("the embeddings of h", embeddings)


@dataclass(eq=False)
class LabelledGallery:
    """Items with features h (N, H), embeddings z (N, Z) and classes (N,), and the local scales of those it reached.

    Attributes:
        features: as they were given; neither copied nor normalised, so that a mapped file stays one.
        embeddings: what the head makes of them; the features themselves without a head.
        names: the classes' names, in the order of their numbers; None without labels.
        codes: (N,), the number of each item's class.
        scales: by space, (N, 2): distances to the item's 10th and 11th nearest item; NaN until they are needed.
    """

    features: Vectors
    embeddings: Vectors
    names: list[Hashable] | None
    codes: Rows | None
    scales: dict[str, Floats] = field(default_factory=dict)

    @staticmethod
    def of(
        h: Any, labels: Any = None, head: Head | None = None, *, name: str = "gallery_h"
    ) -> LabelledGallery:
        """Return a gallery of features with labels of any hashable kind.

        Example:
            >>> gallery = LabelledGallery.of([[1.0, 0.0], [0.0, 1.0]], ["cat", "dog"])
            >>> len(gallery), gallery.names, gallery.codes.tolist()
            (2, ['cat', 'dog'], [0, 1])
        """
        features = Vectors.of(name, h)
        embeddings = features if head is None else head.embed(features.rows)
        names, codes = (None, None) if labels is None else encoded("gallery_labels", labels, len(features))
        return LabelledGallery(features, embeddings, names, codes)

    def __post_init__(self) -> None:
        for space in ("h", "z"):
            if space not in self.scales:
                self.scales[space] = np.full((len(self), len(KEPT)), np.nan)
        if self.embeddings is self.features:
            self.scales["z"] = self.scales["h"]

    @cached_property
    def classes(self) -> Classes | None:
        """The numbers of the items' classes, as a search takes them."""
        return None if self.codes is None else Classes(self.codes)

    def __len__(self) -> int:
        return len(self.features)

    @property
    def width(self) -> int:
        """The number H of features of each item."""
        return int(self.features.rows.shape[1])

    @property
    def labelled(self) -> bool:
        """Whether the items have labels."""
        return self.names is not None

    def classes_of(self, labels: Any, num: int) -> tuple[Rows, int]:
        """Return the numbers (Q,) of queries' labels, -1 for those that no item has, and how many these are."""
        assert self.names is not None
        numbers = {name: number for number, name in enumerate(self.names)}
        codes = np.array(
            [numbers.get(label, -1) for label in as_labels("query_labels", labels, num)], dtype=np.int64
        )
        return codes, int((codes < 0).sum())

    def labels_of(self, classes: Rows) -> list[Hashable]:
        """Return the labels of classes by number."""
        assert self.names is not None
        return [self.names[code] for code in classes]

    def classes_at(self, rows: Rows) -> Rows | None:
        """Return the numbers of the classes of some items; None without labels."""
        return None if self.codes is None else self.codes[rows]

    def reference(self, most: int | None = None) -> Rows:
        """Return the rows of at most so many items, evenly spaced; None for all of them."""
        number = len(self) if most is None else min(most, len(self))
        return np.unique(np.linspace(0, len(self) - 1, number).round().astype(np.int64))

    def store_scales(self) -> None:
        """Compute the scales of all items that are not known yet: one search for every item."""
        for space in ("h", "z"):
            self.reached_scales(space, np.arange(len(self)))

    def surroundings(
        self,
        features: Vectors,
        embeddings: Vectors,
        *,
        own: Rows | None = None,
        neighbours: Neighbours | None = None,
        feature_neighbours: Neighbours | None = None,
    ) -> Surroundings:
        """Return what surrounds queries.

        Args:
            features: of the queries.
            embeddings: of the same queries.
            own: (Q,), the rows of queries that are items, each of which is left out of its own surroundings.
            neighbours: in z, where an engine has found them; ids are rows of the gallery, and at least 50 are needed.
            feature_neighbours: in h, likewise; at least 10.
        """
        in_z = self._nearest("z", embeddings, VOTERS, own, None, neighbours)
        classes = None if self.codes is None else self.codes[in_z.rows[:, 0]]
        if self.embeddings is self.features and feature_neighbours is None:
            in_h = in_z
        else:
            in_h = self._nearest("h", features, LOCAL, own, classes, feature_neighbours)
        return Surroundings(
            features, in_z.rows[:, 0], classes, self._place("z", in_z, own), self._place("h", in_h, own)
        )

    def around_items(self, rows: Rows) -> Surroundings:
        """Return what surrounds some of the items, each left out of its own surroundings."""
        features, embeddings = (
            Vectors(np.asarray(vectors.rows[rows]), vectors.norms[rows])
            for vectors in (self.features, self.embeddings)
        )
        return self.surroundings(features, embeddings, own=rows)

    def reached_scales(self, space: str, rows: Rows) -> Floats:
        """Return the scales (..., 2) of some items; those that are not known yet are computed."""
        missing = np.unique(rows[np.isnan(self.scales[space][rows, 0])])
        vectors = self.features if space == "h" else self.embeddings
        for start in range(0, len(missing), ITEMS_AT_ONCE):
            items = missing[start : start + ITEMS_AT_ONCE]
            queries = Vectors(np.asarray(vectors.rows[items]), vectors.norms[items])
            distances = search(vectors, queries, LOCAL + 1, own=items).distances
            if distances.shape[1] == 0:
                distances = np.full((len(items), 1), FARTHEST)
            self.scales[space][items] = distances[:, np.minimum(KEPT, distances.shape[1] - 1)]
        return self.scales[space][rows]

    def updated(
        self, h: Any = None, labels: Any = None, remove: Any = None, head: Head | None = None
    ) -> LabelledGallery:
        """Return a gallery without some rows and with further items at its end; scales that changed are forgotten."""
        keep = np.ones(len(self), dtype=bool)
        gone = np.unique(np.asarray([] if remove is None else remove, dtype=np.int64))
        if len(gone) and (gone[0] < 0 or gone[-1] >= len(self)):
            raise IndexError(
                f"remove names row {gone[-1] if gone[0] >= 0 else gone[0]} of a gallery of {len(self)}"
            )
        keep[gone] = False
        if h is None and not keep.any():
            raise ValueError(f"remove names all {len(self)} items: a gallery needs at least one")
        new = None if h is None else LabelledGallery.of(h, labels, head, name="add")
        if new is not None and (new.names is None) != (self.names is None):
            raise ValueError("add needs labels where the gallery has them, and none where it has none")
        if new is not None and new.features.rows.shape[1] != self.features.rows.shape[1]:
            raise ValueError(
                f"add has {new.features.rows.shape[1]} columns, the gallery has {self.features.rows.shape[1]}"
            )
        scales = {}
        for space in ("h", "z"):
            vectors = self.features if space == "h" else self.embeddings
            changed = [Vectors(np.asarray(vectors.rows[gone]), vectors.norms[gone])]
            if new is not None:
                changed.append(new.features if space == "h" else new.embeddings)
            kept_scales = self.scales[space].copy()
            for others in changed:
                kept_scales[_within_scale(vectors, others, kept_scales[:, -1])] = np.nan
            fresh = np.full((0 if new is None else len(new), len(KEPT)), np.nan)
            scales[space] = np.concatenate([kept_scales[keep], fresh])
        features = _joined(self.features, keep, None if new is None else new.features)
        same_space = self.embeddings is self.features
        embeddings = (
            features
            if same_space
            else _joined(self.embeddings, keep, None if new is None else new.embeddings)
        )
        names, codes = self.names, self.codes
        if codes is not None and names is not None:
            kept: list[Hashable] = [names[code] for code in codes[keep]]
            if new is not None and new.names is not None and new.codes is not None:
                kept += [new.names[code] for code in new.codes]
            names, codes = encoded("gallery_labels", kept, len(kept))
        return LabelledGallery(features, embeddings, names, codes, scales)

    def _nearest(
        self,
        space: str,
        queries: Vectors,
        k: int,
        own: Rows | None,
        classes: Rows | None,
        neighbours: Neighbours | None,
    ) -> Nearest:
        vectors = self.features if space == "h" else self.embeddings
        k = min(k, len(self) - (own is not None))
        if k < 1:
            raise ValueError("the gallery has one item, which is the query: at least two items are needed")
        if neighbours is None:
            return search(vectors, queries, k, own=own, codes=self.classes, classes=classes)
        return self._completed(vectors, queries, k, classes, neighbours)

    def _completed(
        self, vectors: Vectors, queries: Vectors, k: int, classes: Rows | None, neighbours: Neighbours
    ) -> Nearest:
        """Take an engine's neighbours; search for the nearest of a class only where none of them has it."""
        if len(neighbours) != len(queries) or neighbours.k < k:
            raise ValueError(
                f"neighbours has shape ({len(neighbours)}, {neighbours.k}): the {k} nearest of {len(queries)} queries "
                "are needed"
            )
        ids = np.asarray(neighbours.ids)
        if ids.dtype.kind not in "iu" or ids.min() < 0 or ids.max() >= len(self):
            raise ValueError(f"the neighbours' ids have to be rows of the gallery, from 0 to {len(self) - 1}")
        rows, distances = refined(vectors, queries, ids.astype(np.int64))
        none = np.full(len(queries), -1)
        if self.codes is None:
            far = np.full(len(queries), FARTHEST)
            return Nearest(rows[:, :k], distances[:, :k], none, far, none, far)
        wanted = self.codes[rows[:, 0]] if classes is None else classes
        same_row, other_row = (
            np.where(kind.any(axis=1), rows[np.arange(len(rows)), kind.argmax(axis=1)], -1)
            for kind in (self.codes[rows] == wanted[:, None], self.codes[rows] != wanted[:, None])
        )
        short = np.flatnonzero((same_row < 0) | (other_row < 0))
        if len(short):
            few = Vectors(np.asarray(queries.rows[short]), queries.norms[short])
            exact = search(vectors, few, 1, codes=self.classes, classes=wanted[short])
            same_row[short], other_row[short] = exact.same_row, exact.other_row
        same, other = (distance_to(vectors, queries, row) for row in (same_row, other_row))
        return Nearest(rows[:, :k], distances[:, :k], same_row, same, other_row, other)

    def _place(self, space: str, nearest: Nearest, own: Rows | None) -> Place:
        local = nearest.rows[:, :LOCAL]
        scales = self.reached_scales(space, local)
        distances = nearest.distances[:, :LOCAL]
        tenth = scales[..., 0]
        if own is not None:
            # The query is an item itself, and must not be among the neighbours of its neighbours either.
            tenth = np.where(distances <= tenth, scales[..., 1], tenth)
        labels = None if self.codes is None else self.codes[nearest.rows]
        neighbours = Neighbours(nearest.rows, nearest.distances, labels)
        return Place(neighbours, tenth, nearest.same, nearest.other)


def as_labels(name: str, labels: Any, num: int) -> list[Hashable]:
    """Return labels of any hashable kind as a list; numbers of numpy and torch become Python's own.

    Example:
        >>> as_labels("labels", np.array([2, 1]), 2), as_labels("labels", ["a", ("b", 1)], 2)
        ([2, 1], ['a', ('b', 1)])
    """
    values: Iterable[Any] = labels.tolist() if hasattr(labels, "tolist") else labels
    listed = [value.item() if isinstance(value, np.generic) else value for value in values]
    if len(listed) != num:
        raise ValueError(f"{name} has {len(listed)} entries for {num} rows: one label for each is needed")
    for row, label in enumerate(listed):
        if not isinstance(label, Hashable):
            raise TypeError(f"{name} has a {type(label).__name__} in row {row}: labels have to be hashable")
        if label != label:
            raise ValueError(f"{name} has NaN in row {row}: leave the row out, or give it a class")
    return listed


def encoded(name: str, labels: Any, num: int) -> tuple[list[Hashable], Rows]:
    """Return the names of the classes, in the order of their first item, and the number of each item's class.

    Example:
        >>> encoded("labels", ["b", "a", "b"], 3)[0], encoded("labels", ["b", "a", "b"], 3)[1].tolist()
        (['b', 'a'], [0, 1, 0])
    """
    numbers: dict[Hashable, int] = {}
    codes = [numbers.setdefault(label, len(numbers)) for label in as_labels(name, labels, num)]
    return list(numbers), np.array(codes, dtype=np.int64)


def _within_scale(vectors: Vectors, others: Vectors, scales: Floats) -> NDArray[np.bool_]:
    """Return which vectors (N,) have one of the others at most at their scale (N,), or nearly."""
    inside = np.zeros(len(vectors), dtype=bool)
    measured = ~np.isnan(scales)
    if len(others) == 0 or not measured.any():
        return inside
    directions = others.unit(slice(None)).astype(np.float32)
    for start, block, inverse in vectors.blocks(BLOCK_ROWS):
        some = slice(start, start + len(block))
        nearest = 1 - (block @ directions.T).max(axis=1) * inverse
        inside[some] = measured[some] & (nearest <= scales[some] + 1e-5)
    return inside


def _joined(vectors: Vectors, keep: NDArray[np.bool_], new: Vectors | None) -> Vectors:
    if new is None:
        return Vectors(vectors.rows[keep], vectors.norms[keep])
    rows = np.concatenate([vectors.rows[keep], new.rows.astype(vectors.rows.dtype)])
    # Rows may have been rounded to the gallery's own precision.
    return Vectors(rows, np.concatenate([vectors.norms[keep], norms_of("add", rows[keep.sum() :])]))
