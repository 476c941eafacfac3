"""Scores that need no method at all. A method that does not beat them has shown nothing, so every table
carries them.

Each is an uncertainty: the greater, the less sure.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from hessians.checks import check_finite, check_matrix
from laplacian_metric.core.labelled_gallery import Head, LabelledGallery
from laplacian_metric.core.neighbours import Surroundings
from laplacian_metric.core.search import search
from laplacian_metric.core.second_moment import SecondMoment
from laplacian_metric.core.vector_search import Vectors
from laplacian_metric.metrics.positives import Labels, as_labels, check_length


def feature_norm(features: Tensor) -> Tensor:
    """|h| of the features (N, H) before the head: (N,). Unfamiliar images tend to have more of everything.

    Example:
        >>> feature_norm(torch.tensor([[3.0, 4.0]]))
        tensor([5.])
    """
    return _norm("features", features)


def embedding_norm(raw_embeddings: Tensor) -> Tensor:
    """1/|u| of the embeddings (N, Z) before they are normalised: (N,). A short embedding is close to all others.

    Example:
        >>> embedding_norm(torch.tensor([[3.0, 4.0]]))
        tensor([0.2000])
    """
    return _norm("raw_embeddings", raw_embeddings).reciprocal()


def nearest_distance(embeddings: Tensor, *, database: Tensor | None = None) -> Tensor:
    """Return the distance of each unit embedding (N, Z) to its nearest other, or to the nearest in the database.

    Float64 (N,). With the gallery as database this orders queries as the "gallery distance" of `trivial_scores` does;
    "nearest distance" in tables is to training images.

    Example:
        >>> nearest_distance(torch.tensor([[1.0, 0.0], [0.0, 1.0]])).round(decimals=4).tolist()
        [1.4142, 1.4142]
    """
    return search(embeddings, 1, database=database).distances[:, 0]


def trivial_scores(
    gallery: tuple[Any, Any], queries: Any = None, *, encoder: Any = None, training_h: Any = None
) -> dict[str, Tensor]:
    """Return what costs nothing beside the search for the nearest item, for each query: float64 (Q,).

    Args:
        gallery: features h (N, H) and labels (N,), or None in place of these; numpy or torch. Without labels there are
            neither margins nor votes.
        queries: features (Q, H); None takes the items of the gallery, each searched for among the others.
        encoder: whose linear head makes embeddings z of features; None where the features are the embeddings.
        training_h: features for the second moment; by default those of the gallery.

    Returns:
        by name: "gallery distance", "margin" (in z), "feature distance", "kNN feature distance" (to the 10th in h),
        "LOF" (in h), "Mahalanobis" (from 0 by the second moment, over |h|^2), "vote" (among the 10 nearest in h),
        "kernel vote" (among the 50 nearest in z), "feature norm" and "embedding norm".

    Example:
        >>> scores = trivial_scores((torch.eye(3), ["a", "a", "b"]), torch.tensor([[2.0, 1.0, 0.0]]))
        >>> scores["gallery distance"].round(decimals=4).tolist(), scores["vote"].round(decimals=4).tolist()
        ([0.1056], [0.3333])
    """
    head = Head.of(encoder)
    items = LabelledGallery.of(*gallery, head)
    if queries is None:
        embeddings = items.embeddings
        around = items.around_items(np.arange(len(items)))
    else:
        features = Vectors.of("queries", queries)
        embeddings = features if head is None else head.embed(features.rows)
        around = items.surroundings(features, embeddings)
    usual = items.features.rows if training_h is None else Vectors.of("training_h", training_h).rows
    return scores_of(around, embeddings, SecondMoment.of(usual))


def scores_of(around: Surroundings, embeddings: Vectors, moment: SecondMoment) -> dict[str, Tensor]:
    """Return the `trivial_scores` of queries whose surroundings, embeddings and usual features are known."""
    scores = {
        "gallery distance": around.z.nearest,
        "feature distance": around.h.nearest,
        "kNN feature distance": around.h.tenth,
        "LOF": around.h.outlier_factor,
        "Mahalanobis": moment.distances(around.queries.rows)[0] / around.queries.norms**2,
        "feature norm": around.queries.norms,
        "embedding norm": 1 / embeddings.norms,
    }
    if around.classes is not None:
        scores["margin"] = -around.z.margin
        scores["vote"] = 1 - around.h.vote(around.classes)
        scores["kernel vote"] = 1 - around.z.share(around.classes)
    return {name: torch.from_numpy(np.array(values)) for name, values in scores.items()}


def mahalanobis_distance(
    features: Tensor, train_features: Tensor, train_labels: Labels, *, shrinkage: float = 0.1
) -> Tensor:
    """The distance of each of the features (N, H) to the nearest class mean, in the metric of the classes'
    shared covariance.

    The covariance of the training features (M, H) around their class means (divided by M) is shrunk towards a
    multiple of the identity, (1 - s) C + s trace(C)/H I, so that it can be inverted with fewer images than
    dimensions. Float64 (N,).

    Example:
        >>> train = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 2.0], [0.0, -2.0]])
        >>> test = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
        >>> mahalanobis_distance(test, train, [0, 0, 0, 0], shrinkage=0.0).round(decimals=4).tolist()
        [1.4142, 1.4142]
    """
    for name, matrix in (("features", features), ("train_features", train_features)):
        check_matrix(name, matrix)
        if 0 in matrix.shape:
            raise ValueError(f"{name} is empty, its shape is {tuple(matrix.shape)}")
        check_finite(name, matrix)
    if features.shape[1] != train_features.shape[1]:
        raise ValueError(
            f"features has {features.shape[1]} columns and train_features {train_features.shape[1]}"
        )
    if not 0 <= shrinkage <= 1:
        raise ValueError(f"shrinkage is {shrinkage}, a share between 0 and 1 is needed")
    labels = as_labels("train_labels", train_labels).to(train_features.device)
    check_length("train_labels", len(labels), len(train_features), "train_features")
    train = train_features.detach().double()
    _, classes, sizes = torch.unique(labels, return_inverse=True, return_counts=True)
    means = torch.zeros(len(sizes), train.shape[1], dtype=train.dtype, device=train.device)
    means.index_add_(0, classes, train)
    means /= sizes[:, None]
    centred = train - means[classes]
    covariance = (1 - shrinkage) * (centred.T @ centred) / len(train)
    # trace(C)/H is the mean variance of a feature.
    covariance.diagonal().add_(shrinkage * centred.square().sum() / centred.numel())
    factor, failed = torch.linalg.cholesky_ex(covariance)
    if int(failed):
        raise ValueError(
            f"the covariance of train_features cannot be inverted with shrinkage {shrinkage}: use a greater one, or "
            "leave out features that never vary"
        )
    queries, centres = (
        torch.linalg.solve_triangular(factor, rows.T, upper=False).T
        for rows in (features.detach().double().to(train.device), means)
    )
    # By differences: where classes are tight and far from 0, a matrix product would lose the digits.
    return torch.cdist(queries, centres, compute_mode="donot_use_mm_for_euclid_dist").amin(1)


def _norm(name: str, vectors: Tensor) -> Tensor:
    check_matrix(name, vectors)
    if 0 in vectors.shape:
        raise ValueError(f"{name} is empty, its shape is {tuple(vectors.shape)}")
    check_finite(name, vectors)
    norm: Tensor = torch.linalg.vector_norm(vectors.detach(), dim=1)
    return norm
