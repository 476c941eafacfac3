"""Search responses as inputs of the match and of the novelty, query by query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laplacian_metric.core.check import Floats, Rows, check
from laplacian_metric.core.neighbours import Neighbours
from laplacian_metric.trust.inputs import (
    CLASS_INPUTS,
    GAP_INPUTS,
    LOF,
    NEAREST,
    TENTH,
    Space,
    class_inputs,
    encoded,
    gap_inputs,
    novelty_inputs,
)
from laplacian_metric.trust.view import GaussianView

ITEM, VOTE, MEAN = "item", "vote", "mean"
EACH_INPUTS = {"distance": -1, "distance beyond the nearest": -1, "gap to the next": 0, "log rank": -1}
SAME = 1e-6  # a nearest item that is closer in the features is the query itself


@dataclass(frozen=True, eq=False)
class Observed:
    """What search responses say about Q queries; NaN where a response is empty or too short.

    Attributes:
        match: the match inputs by name, each (Q,).
        novelty: the inputs of the novelty by name, each (Q,).
        nearest: (Q,), the ids of the items that are answered.
        labels: (Q,), their labels; None without labels.
        distance: (Q,), of the items that the caller put first.
        duplicate: (Q,), whether the nearest item in the features is the query itself.
        neighbours: the response in the embedding, without vectors.
    """

    match: dict[str, Floats]
    novelty: dict[str, Floats]
    nearest: NDArray[Any]
    labels: NDArray[Any] | None
    distance: Floats
    duplicate: NDArray[np.bool_]
    neighbours: Neighbours

    def __len__(self) -> int:
        return len(self.distance)

    @staticmethod
    def joined(parts: Sequence[Observed]) -> Observed:
        """Return what several batches of responses say as one; each has as many neighbours as the longest."""
        if len(parts) == 1:
            return parts[0]
        most = max(part.neighbours.k for part in parts)
        padded = [part.neighbours.padded(most) for part in parts]
        labelled = padded[0].labels is not None
        return Observed(
            {name: np.concatenate([part.match[name] for part in parts]) for name in parts[0].match},
            {name: np.concatenate([part.novelty[name] for part in parts]) for name in parts[0].novelty},
            np.concatenate([part.nearest for part in parts]),
            None if parts[0].labels is None else np.concatenate([np.asarray(part.labels) for part in parts]),
            np.concatenate([part.distance for part in parts]),
            np.concatenate([part.duplicate for part in parts]),
            Neighbours(
                np.concatenate([some.ids for some in padded]),
                np.concatenate([some.distances for some in padded]),
                np.concatenate([np.asarray(some.labels) for some in padded]) if labelled else None,
            ),
        )

    @property
    def complete(self) -> NDArray[np.bool_]:
        """Whether nothing is missing, (Q,)."""
        tables = [*self.match.values(), *self.novelty.values()]
        return np.asarray(np.isfinite(np.column_stack(tables)).all(axis=1))


def observe(
    neighbours: Neighbours,
    feature_neighbours: Neighbours | None,
    units: Floats | None,
    view: GaussianView | None,
    *,
    answer: str = ITEM,
    scores: Mapping[str, Any] | None = None,
) -> Observed:
    """Return what responses in the embedding and in the features say, with the view of the queries' unit features."""
    in_h = neighbours if feature_neighbours is None else feature_neighbours
    if len(in_h) != len(neighbours):
        raise ValueError(f"feature_neighbours has {len(in_h)} queries, neighbours has {len(neighbours)}")
    labelled = neighbours.labels is not None and in_h.labels is not None
    names, tails = _names(labelled, neighbours, in_h, view if units is not None else None)
    num = len(neighbours)
    match = {name: np.full(num, np.nan) for name in names}
    novelty = {name: np.full(num, np.nan) for name in tails}
    nearest = neighbours.ids[:, 0].copy()
    labels = neighbours.labels[:, 0].copy() if neighbours.labels is not None else None
    counts = np.stack([neighbours.counts, in_h.counts], axis=1)
    for count in np.unique(counts, axis=0):
        if (count == 0).any():
            continue
        rows = np.flatnonzero((counts == count).all(axis=1))
        found = neighbours[rows].first(count[0])
        found_h = found if feature_neighbours is None else in_h[rows].first(count[1])
        known = {} if view is None else dict(view.numbers)
        z = Space.of(found, encoded(found.labels, known) if labelled else None)
        h = (
            z
            if feature_neighbours is None
            else Space.of(found_h, encoded(found_h.labels, known) if labelled else None)
        )
        some = None if units is None else units[rows]
        if found.labels is not None and labels is not None and labelled:
            first = encoded(found.labels[:, :1], known)[:, 0]
            classes = first if answer == ITEM else _answered(answer, h, view, some, first)
            values = class_inputs(z, h, classes, view, some, z.first if answer == ITEM else None)
            if answer != ITEM:
                nearest[rows], labels[rows] = _item_of(found, encoded(found.labels, known), classes, known)
        else:
            values = gap_inputs(z)
        for table, computed in ((match, values), (novelty, novelty_inputs(h, view, some))):
            for name, column in computed.items():
                table[name][rows] = column
    for name, column in (scores or {}).items():
        match[name] = np.array(check(f"scores[{name!r}]", column, "Q", Q=num), dtype=np.float64)
    duplicate = np.where(in_h.counts > 0, in_h.distances.min(axis=1) < SAME, False)
    distance = np.where(neighbours.counts > 0, neighbours.distances[:, 0], np.nan)
    light = Neighbours(neighbours.ids, neighbours.distances, neighbours.labels)
    return Observed(match, novelty, nearest, labels, distance, duplicate, light)


def each_inputs(neighbours: Neighbours, k: int) -> Floats:
    """Return the inputs (Q, k, 4) of the first k items of each response, NaN where fewer were found.

    They are the distance, the distance less that of the nearest, the gap to the next item, and the log of the rank.
    """
    distances = np.where(np.isfinite(neighbours.distances), neighbours.distances, np.nan)
    padding = max(0, k + 1 - distances.shape[1])
    distances = np.pad(distances, ((0, 0), (0, padding)), mode="edge")[:, : k + 1]
    following = np.where(np.isnan(distances[:, 1:]), distances[:, :-1], distances[:, 1:])
    first = distances[:, :k]
    rank = np.broadcast_to(np.log(np.arange(1, k + 1)), first.shape)
    return np.stack([first, first - distances[:, :1], following - first, rank], axis=2)


def _names(
    labelled: bool, neighbours: Neighbours, in_h: Neighbours, view: GaussianView | None
) -> tuple[list[str], list[str]]:
    """Return the names of the match inputs and of the novelty's that these responses can have."""
    match = list(CLASS_INPUTS if labelled else GAP_INPUTS)
    tails = [NEAREST, TENTH]
    if in_h.vectors is not None and in_h.k >= 3:
        tails.append(LOF)
    if view is None:
        match = [name for name in match if "posterior" not in name]
    else:
        tails += list(view.outside(view.mean[None]))
    if view is None or in_h.vectors is None:
        match = [name for name in match if "whitened" not in name]
    return match, tails


def _answered(answer: str, h: Space, view: GaussianView | None, units: Floats | None, first: Rows) -> Rows:
    """Return the class (Q,) with the greatest share among the neighbours, or with the nearest mean in the view."""
    if answer == MEAN:
        if view is None or units is None:
            raise ValueError("answer is 'mean', which needs a view of the gallery and the queries' features")
        nearest: Rows = view.posterior(view.project(units)).argmax(axis=1)
        return nearest
    assert h.codes is not None
    weights = h.weights()
    votes = (weights[:, :, None] * (h.codes[:, :, None] == h.codes[:, None, :])).sum(axis=1)
    best: Rows = h.codes[np.arange(len(first)), votes.argmax(axis=1)]
    return best


def _item_of(
    neighbours: Neighbours, codes: Rows, classes: Rows, known: dict[Any, int]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the id of the first neighbour of each answered class, or of the first of all, and the classes' labels."""
    assert neighbours.labels is not None
    place = (codes == classes[:, None]).argmax(axis=1)
    names = {number: label for label, number in known.items()}
    labels = np.empty(len(classes), dtype=object)
    labels[:] = [names[number] for number in classes.tolist()]
    return neighbours.ids[np.arange(len(classes)), place], labels.astype(neighbours.labels.dtype)
