"""What search responses say about a query: shares, margins, gaps and local distances; numpy only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laplacian_metric.core.array_gallery import LARGEST_FLOAT32, SMALLEST_FLOAT32
from laplacian_metric.core.check import Floats, Rows, norms_of
from laplacian_metric.core.neighbours import Neighbours
from laplacian_metric.trust.fitting import logit
from laplacian_metric.trust.view import GaussianView

RESPONSE = 50  # neighbours that are asked for
LOCAL = 10  # neighbours that measure the local scale
SMALLEST = 1e-7  # is added to distances before their logarithm
SHARE_LIMIT = 0.001
GAPS = (2, 5, 10, 50)

# The sign that the weight of each input may have.
CLASS_INPUTS = {
    "posterior of the class": 1,
    "share of the class in the features": 1,
    "share of the class in the embedding": 1,
    "share of the class in the whitened features": 1,
    "margin in the embedding": 1,
    "margin in the features": 1,
    "margin in the whitened features": 1,
}
GAP_INPUTS = {"distance": -1, **{f"gap to neighbour {j}": 1 for j in GAPS}}
NEAREST, TENTH, LOF = (
    "distance in the features",
    "distance to the 10th in the features",
    "LOF in the features",
)


@dataclass(frozen=True, eq=False)
class Space:
    """The responses to Q queries in one space, the nearest first.

    Attributes:
        distances: (Q, k), ascending.
        codes: (Q, k), the numbers of the neighbours' classes; None without labels.
        units: (Q, k, D), the neighbours' vectors of unit length; None where the search did not return them.
        first: (Q,), the distance of the item that the caller put first.
    """

    distances: Floats
    codes: Rows | None
    units: NDArray[Any] | None
    first: Floats

    @staticmethod
    def of(neighbours: Neighbours, codes: Rows | None) -> Space:
        """Return the responses in the order of their distances."""
        vectors = neighbours.vectors
        units = None if vectors is None else unit_vectors(vectors)
        if (np.diff(neighbours.distances, axis=1) >= 0).all():
            return Space(neighbours.distances, codes, units, neighbours.distances[:, 0])
        order = np.argsort(neighbours.distances, axis=1, kind="stable")
        if units is not None:
            units = np.take_along_axis(units, order[:, :, None], axis=1)
        return Space(
            np.take_along_axis(neighbours.distances, order, axis=1),
            None if codes is None else np.take_along_axis(codes, order, axis=1),
            units,
            neighbours.distances[:, 0],
        )

    @property
    def tenth(self) -> Floats:
        """The distance to the 10th neighbour, or to the last of fewer, (Q,)."""
        tenth: Floats = self.distances[:, min(LOCAL, self.distances.shape[1]) - 1]
        return tenth

    def weights(self) -> Floats:
        """Return exp(-(d - d_1)/max(d_10 - d_1, 1e-12)), (Q, k)."""
        nearest = self.distances[:, :1]
        weights: Floats = np.exp(
            -(self.distances - nearest) / np.maximum(self.tenth[:, None] - nearest, 1e-12)
        )
        return weights

    def share(self, classes: Rows) -> Floats:
        """Return the share (Q,) of a class among the neighbours, weighted by a kernel."""
        assert self.codes is not None
        weights = self.weights()
        share: Floats = (weights * (self.codes == classes[:, None])).sum(axis=1) / weights.sum(axis=1)
        return share

    def margin(self, classes: Rows, same: Floats | None = None) -> Floats:
        """Return log d(other) - log d(class), (Q,); the last distance stands in where no neighbour is of either.

        Args:
            classes: (Q,).
            same: (Q,), d(class) where it is known already.
        """
        assert self.codes is not None
        of_class = self.codes == classes[:, None]
        rows, last = np.arange(len(classes)), self.distances[:, -1]
        nearest_other = np.where(
            (~of_class).any(axis=1), self.distances[rows, (~of_class).argmax(axis=1)], last
        )
        nearest_same = np.where(of_class.any(axis=1), self.distances[rows, of_class.argmax(axis=1)], last)
        margin: Floats = log_distance(nearest_other) - log_distance(nearest_same if same is None else same)
        return margin

    def outlier_factor(self) -> Floats | None:
        """Return LOF, (Q,): log d_10 less the mean log scale of the 10 nearest neighbours among the returned ones."""
        k = self.distances.shape[1]
        if self.units is None or k < 3:
            return None
        local = self.units[:, :LOCAL]
        between = np.clip(1 - np.matmul(local, self.units.transpose(0, 2, 1)).astype(np.float64), 0, 2)
        near = np.arange(local.shape[1])
        between[:, near, near] = np.inf  # a neighbour is no neighbour of itself
        place = min(LOCAL, k - 1) - 1
        scales = np.partition(between, place, axis=2)[:, :, place]
        factor: Floats = log_distance(self.tenth) - log_distance(scales).mean(axis=1)
        return factor

    def whitened(self, view: GaussianView, units: Floats) -> Space | None:
        """Return the same neighbours by their whitened distance to queries whose unit features are given (Q, H)."""
        if self.units is None:
            return None
        items, queries = view.whitened(self.units), view.whitened(units)
        distances = np.clip(1 - np.einsum("qkr,qr->qk", items, queries, dtype=np.float64), 0, 2)
        order = np.argsort(distances, axis=1, kind="stable")
        distances = np.take_along_axis(distances, order, axis=1)
        codes = None if self.codes is None else np.take_along_axis(self.codes, order, axis=1)
        return Space(distances, codes, None, distances[:, 0])


def unit_vectors(vectors: NDArray[Any]) -> NDArray[Any]:
    """Return vectors (Q, k, D) scaled to unit length; float32 stays float32, with norms in float64."""
    flat = vectors.reshape(-1, vectors.shape[2])
    norms = norms_of("vectors", flat)
    if vectors.dtype != np.float32 or norms.min() < SMALLEST_FLOAT32 or norms.max() > LARGEST_FLOAT32:
        flat = np.asarray(flat, dtype=np.float64)
    units: NDArray[Any] = (flat / norms[:, None].astype(flat.dtype)).reshape(vectors.shape)
    return units


def log_distance(distances: Floats) -> Floats:
    """Return log(d + 1e-7).

    Example:
        >>> log_distance(np.array([0.0])).round(3).tolist()
        [-16.118]
    """
    return np.log(distances + SMALLEST)


def log_share(share: Floats) -> Floats:
    """Return the logit of shares clipped to [.001, .999]."""
    return logit(np.clip(share, SHARE_LIMIT, 1 - SHARE_LIMIT))


def class_inputs(
    z: Space,
    h: Space,
    classes: Rows,
    view: GaussianView | None,
    units: Floats | None,
    same: Floats | None = None,
) -> dict[str, Floats]:
    """Return the match inputs of labelled galleries by name, each (Q,); those that need a view only with one.

    Args:
        z: the responses in the embedding.
        h: those in the features.
        classes: (Q,), the class that is answered.
        view: of the features.
        units: (Q, H), the queries' features, of unit length.
        same: (Q,), the distance in the embedding to the item that is answered; by default to the nearest of its class.
    """
    values = {
        "share of the class in the features": log_share(h.share(classes)),
        "share of the class in the embedding": log_share(z.share(classes)),
        "margin in the embedding": z.margin(classes, same),
        "margin in the features": h.margin(classes, same if h is z else None),
    }
    if view is not None and units is not None:
        values["posterior of the class"] = log_share(view.posterior_at(view.project(units), classes))
        whitened = h.whitened(view, units)
        if whitened is not None:
            values["share of the class in the whitened features"] = log_share(whitened.share(classes))
            values["margin in the whitened features"] = whitened.margin(classes)
    return {name: values[name] for name in CLASS_INPUTS if name in values}


def gap_inputs(z: Space) -> dict[str, Floats]:
    """Return the match inputs of galleries without labels by name, each (Q,): the first distance and gaps to others."""
    values = {"distance": z.first}
    for j in GAPS:
        place = min(j, z.distances.shape[1]) - 1
        values[f"gap to neighbour {j}"] = z.distances[:, place] - z.distances[:, 0]
    return values


def novelty_inputs(h: Space, view: GaussianView | None, units: Floats | None) -> dict[str, Floats]:
    """Return the inputs of the novelty by name, each (Q,)."""
    values = {NEAREST: log_distance(h.distances[:, 0]), TENTH: log_distance(h.tenth)}
    factor = h.outlier_factor()
    if factor is not None:
        values[LOF] = factor
    if view is not None and units is not None:
        values |= view.outside(view.project(units))
    return values


def encoded(labels: Any, known: dict[Any, int]) -> Rows:
    """Return the numbers of labels, of any shape; labels that are not known get further numbers, in ``known`` too."""
    table = np.asarray(labels)
    listed = table.ravel().tolist()
    codes = np.array([known.setdefault(label, len(known)) for label in listed], dtype=np.int64)
    return codes.reshape(table.shape)
