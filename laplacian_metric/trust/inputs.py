"""The numbers that `Trust` reads off a query's surroundings: the match inputs and the novelty inputs."""

from __future__ import annotations

import numpy as np

from laplacian_metric.core.second_moment import SecondMoment
from laplacian_metric.core.surroundings import Place, Surroundings, log_distance
from laplacian_metric.core.vector_search import Floats, Vectors

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
RISK_INPUT = "risk of the features"  # after the others, where there is a risk head
NOVELTY_INPUTS = (
    "distance in the features",
    "distance to the 10th in the features",
    "LOF in the features",
    "Mahalanobis distance",  # only where training features were given
)
SHARE_LIMIT = 0.001
TINY = 1e-12


def logit(p: Floats) -> Floats:
    """Return log(p/(1 - p)).

    Example:
        >>> logit(np.array([0.5])).tolist()
        [0.0]
    """
    return np.log(p) - np.log1p(-p)


def match_signs(*, labelled: bool = True, risk: bool = False) -> dict[str, int]:
    """Return the names of the match inputs, each with the sign that its weight may have.

    Example:
        >>> list(match_signs(labelled=False, risk=True))[2:]
        ['LOF in the embedding', 'LOF in the features', 'risk of the features']
    """
    names = list(MATCH_INPUTS)[: None if labelled else UNLABELLED_INPUTS]
    return {**{name: MATCH_INPUTS[name] for name in names}, **({RISK_INPUT: -1} if risk else {})}


def match_inputs(around: Surroundings, *, labelled: bool = True, risk: Floats | None = None) -> Floats:
    """Return the eight match inputs (Q, 8) of section 3, or without labels the first four.

    Args:
        around: what surrounds the queries.
        labelled: whether labels count, where the gallery has them.
        risk: of the queries' features, (Q,): a further input.

    Example:
        >>> from laplacian_metric.core.labelled_gallery import LabelledGallery
        >>> gallery = LabelledGallery.of(np.eye(3), ["a", "a", "b"])
        >>> match_inputs(gallery.surroundings(gallery.features, gallery.embeddings)).shape
        (3, 8)
    """
    z, h = around.z, around.h
    columns = [log_distance(z.nearest), log_distance(h.nearest), z.outlier_factor, h.outlier_factor]
    if labelled and around.classes is not None:
        share = np.clip(z.share(around.classes), SHARE_LIMIT, 1 - SHARE_LIMIT)
        columns += [z.margin, h.margin, logit(share), h.vote(around.classes)]
    if risk is not None:
        columns.append(risk)
    return np.stack(columns, axis=1)


def novelty_inputs(h: Place, features: Vectors, moment: SecondMoment | None = None) -> Floats:
    """Return the novelty inputs (Q, 3) of queries, or (Q, 4) with the second moment of training features.

    Args:
        h: what surrounds the queries among the features.
        features: of the queries.
        moment: of training features; its Mahalanobis distance counts relative to |h|^2.
    """
    columns = [log_distance(h.nearest), log_distance(h.tenth), h.outlier_factor]
    if moment is not None:
        columns.append(np.log(moment.distances(features.rows)[0] + TINY) - 2 * np.log(features.norms))
    return np.stack(columns, axis=1)
