"""The numbers that `Trust` reads off a query's surroundings: the match inputs and the novelty inputs."""

from __future__ import annotations

import numpy as np

from laplacian_metric.core.second_moment import SecondMoment
from laplacian_metric.core.surroundings import Place, Surroundings, log_distance
from laplacian_metric.core.vector_search import Floats

# Each with the sign that its weight may have.
MATCH_INPUTS = {
    "distance in the embedding": -1,
    "distance in the features": -1,
    "LOF in the embedding": -1,
    "LOF in the features": -1,
    "margin in the embedding": 1,
    "margin in the features": 1,
    "kernel vote": 1,
    "feature vote": 1,
}
UNLABELLED_INPUTS = 4  # the first of them need no labels
UNUSUAL_INPUTS = (
    "distance",
    "distance to the 10th",
    "local scaling",
    "LOF",
    "Mahalanobis",
    "Mahalanobis over the norm",
    "share outside",
)
NOVELTY_INPUTS = ("unusual features", "distance in the features", "LOF in the features")
SHARE_LIMIT = 0.001
TINY = 1e-12


def logit(p: Floats) -> Floats:
    """Return log(p/(1 - p)).

    Example:
        >>> logit(np.array([0.5])).tolist()
        [0.0]
    """
    return np.log(p) - np.log1p(-p)


def match_inputs(around: Surroundings) -> Floats:
    """Return the eight match inputs (Q, 8) of section 3, or without labels the first four.

    Example:
        >>> from laplacian_metric.core.labelled_gallery import LabelledGallery
        >>> gallery = LabelledGallery.of(np.eye(3), ["a", "a", "b"])
        >>> match_inputs(gallery.surroundings(gallery.features, gallery.embeddings)).shape
        (3, 8)
    """
    z, h = around.z, around.h
    columns = [log_distance(z.nearest), log_distance(h.nearest), z.outlier_factor, h.outlier_factor]
    if around.classes is not None:
        share = np.clip(z.share(around.classes), SHARE_LIMIT, 1 - SHARE_LIMIT)
        columns += [z.margin, h.margin, logit(share), h.vote(around.classes)]
    return np.stack(columns, axis=1)


def unusual_inputs(h: Place, moment: tuple[Floats, Floats], norms: Floats) -> Floats:
    """Return the inputs (Q, 7) of the logistic that recognises shuffled features.

    Args:
        h: what surrounds the queries among the features.
        moment: of the queries, as `SecondMoment.distances` returns it.
        norms: |h|, (Q,).
    """
    mahalanobis, outside = (np.log(values + TINY) for values in moment)
    columns = [log_distance(h.nearest), log_distance(h.tenth), h.local_scaling, h.outlier_factor]
    columns += [mahalanobis, mahalanobis - 2 * np.log(norms), outside]
    return np.stack(columns, axis=1)


def held_out_distances(rows: Floats, folds: int = 10) -> tuple[Floats, Floats]:
    """Return `SecondMoment.distances` of rows by the moment of the other nine tenths."""
    fold = np.arange(len(rows)) % min(folds, len(rows))
    scaled, outside = np.empty(len(rows)), np.empty(len(rows))
    for number in range(fold.max() + 1):
        inside = fold == number
        moment = SecondMoment.of(rows[~inside]) if not inside.all() else SecondMoment.of(rows)
        scaled[inside], outside[inside] = moment.distances(rows[inside])
    return scaled, outside
