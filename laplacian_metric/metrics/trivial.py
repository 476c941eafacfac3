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
from laplacian_metric.core.array_gallery import ArrayGallery
from laplacian_metric.core.check import as_column, check, norms_of, unit_rows
from laplacian_metric.core.check import as_labels as list_of_labels
from laplacian_metric.core.search import search
from laplacian_metric.trust.head import Head
from laplacian_metric.trust.inputs import LOCAL, RESPONSE, Space, encoded
from laplacian_metric.trust.view import GaussianView


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
    """Return what costs nothing beside the search for the nearest items, for each query: float64 (Q,).

    Args:
        gallery: features h (N, H) and labels (N,), or None in place of these; numpy or torch. Without labels there are
            neither margins nor votes nor classes.
        queries: features (Q, H); None takes the items of the gallery, each searched for among the others.
        encoder: whose linear head makes embeddings z of features; None where the features are the embeddings.
        training_h: features for the Mahalanobis distance where the gallery has no labels; by default its own.

    Returns:
        by name: "gallery distance", "margin" (in z), "feature distance", "kNN feature distance" (to the 10th in h),
        "LOF" (in h), "Mahalanobis" (to the nearest class), "relative Mahalanobis", "class mean" (1 - cosine to the
        mean of the answered class), "vote" (among the 10 nearest in h), "kernel vote" (among the 50 nearest in z),
        "feature norm" and "embedding norm".

    Example:
        >>> scores = trivial_scores((torch.eye(3), ["a", "a", "b"]), torch.tensor([[2.0, 1.0, 0.0]]))
        >>> scores["gallery distance"].round(decimals=4).tolist(), scores["vote"].round(decimals=4).tolist()
        ([0.1056], [0.3333])
    """
    head = Head.of(encoder)
    h, labels = gallery
    items = ArrayGallery(h, labels, name="gallery_h")
    rows = items.items.vectors if queries is None else check("queries", queries, "Q H", H=items.dim)
    raw = np.asarray(rows, dtype=np.float64)
    embeddings = raw if head is None else raw @ head.weight.T + head.bias
    searched = items if head is None else ArrayGallery(head.embed(items.items.vectors), labels)
    own = items.items.ids if queries is None else None
    z, h_space = _space(searched, embeddings, own), _space(items, raw, own)
    units = unit_rows("queries", raw)
    view = GaussianView.of(h if labels is not None or training_h is None else training_h, labels)
    outside = view.outside(view.project(units))
    scores = {
        "gallery distance": z.first,
        "feature distance": h_space.first,
        "kNN feature distance": h_space.tenth,
        "LOF": h_space.outlier_factor(),
        "Mahalanobis": outside["distance to the nearest class"],
        "relative Mahalanobis": outside.get("distance to the nearest class, relative to all items"),
        "feature norm": norms_of("queries", raw),
        "embedding norm": 1 / norms_of("the embeddings of queries", embeddings),
    }
    if z.codes is not None and h_space.codes is not None:
        classes = z.codes[:, 0]
        scores["margin"] = -z.margin(classes)
        scores["vote"] = 1 - (h_space.codes[:, :LOCAL] == classes[:, None]).mean(axis=1)
        scores["kernel vote"] = 1 - z.share(classes)
        scores["class mean"] = _distance_to_mean(
            units, unit_rows("gallery_h", items.items.vectors), labels, classes
        )
    return {name: torch.from_numpy(np.array(values)) for name, values in scores.items() if values is not None}


def _space(gallery: ArrayGallery, queries: Any, own: Any) -> Space:
    """Return the 50 nearest items of queries; of items without themselves."""
    neighbours = gallery.search(queries, RESPONSE + (own is not None))
    neighbours = neighbours if own is None else neighbours.without(own)
    known: dict[Any, int] = {}
    if gallery.items.labels is not None:
        encoded(gallery.items.labels, known)
    return Space.of(neighbours, None if neighbours.labels is None else encoded(neighbours.labels, known))


def _distance_to_mean(units: Any, items: Any, labels: Any, classes: Any) -> Any:
    """Return 1 - cosine (Q,) of queries to the mean of the class that is answered."""
    known: dict[Any, int] = {}
    codes = encoded(as_column(list_of_labels("gallery_labels", labels, len(items))), known)
    means = np.zeros((len(known), items.shape[1]))
    np.add.at(means, codes, items)
    means /= np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-300)
    return 1 - np.einsum("qh,qh->q", units, means[classes])


def _norm(name: str, vectors: Tensor) -> Tensor:
    check_matrix(name, vectors)
    if 0 in vectors.shape:
        raise ValueError(f"{name} is empty, its shape is {tuple(vectors.shape)}")
    check_finite(name, vectors)
    norm: Tensor = torch.linalg.vector_norm(vectors.detach(), dim=1)
    return norm
