"""Nearest neighbours in a plane, or by any score of how well two images match: their ranking, and what class they say.

The metrics of directions search unit vectors; here points are compared as they are.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hessians.checks import check_finite, check_matrix
from laplacian_metric.metrics.positives import Labels, Positives, as_labels, check_length
from laplacian_metric.metrics.ranking import Ranking, precision_sum

ROWS = 256

Scores = Callable[[Tensor], Tensor]


def rank_by_distance(points: Tensor, labels: Labels, k: int = 1) -> Ranking:
    """Every point's nearest among the others, by Euclidean distance; equal ones in the order of the index.

    Args:
        points: (N, Z), of any length.
        labels: (N,).
        k: how deep the ranking is.

    Example:
        >>> points = torch.tensor([[1.0, 0.0], [4.0, 0.0], [0.0, 1.5]])
        >>> rank_by_distance(points, [0, 1, 0]).nearest.tolist()
        [2, 0, 0]
    """
    check_matrix("points", points)
    check_finite("points", points)
    classes = as_labels("labels", labels).to(points.device)
    check_length("labels", len(classes), len(points), "points")

    if not 1 <= k < len(points):
        raise ValueError(f"k is {k}, but a point has {len(points) - 1} others: use a k from 1 to these")

    def score(rows: Tensor) -> Tensor:
        return -distances(points[rows], points)

    members, scores = nearest(score, len(points), len(points), k + 1, own=torch.arange(len(points)))
    positives = torch.unique(classes, return_inverse=True, return_counts=True)
    return Ranking(
        hits=classes[members[:, :k]] == classes[:, None],
        positives=positives[2][positives[1]] - 1,
        nearest=members[:, 0],
        distance=-scores[:, 0],
        ties=(scores[:, 1:] == scores[:, :-1]).sum(1),
        gallery_size=len(points) - 1,
    )


def distances(first: Tensor, second: Tensor) -> Tensor:
    """Euclidean distances (N, M), by differences: a product would lose the digits of points that are close."""
    return torch.cdist(first, second, compute_mode="donot_use_mm_for_euclid_dist")


def nearest(
    score: Scores, queries: int, gallery: int, k: int, own: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The k members of a gallery with the greatest scores, and these: (Q, k) each, the greatest first.

    Equal scores are in the order of the index. Rows are shorter where the gallery has no k others.

    Args:
        score: gives those of some queries, by their positions (B,), with the whole gallery: (B, M).
        queries, gallery: how many there are.
        k: how many are wanted.
        own: (Q,), for each query the member that is itself, or its twin, and is passed over.

    Example:
        >>> z = torch.tensor([0.0, 1.0, 3.0])
        >>> nearest(lambda rows: -(z[rows, None] - z).abs(), 3, 3, 1, own=torch.arange(3))[0].flatten().tolist()
        [1, 0, 1]
    """
    k = min(k, gallery - (own is not None))
    if k < 1:
        raise ValueError(f"a gallery of {gallery} has no neighbour for a query that is in it itself")
    members, scores = [], []
    for rows in torch.arange(queries).split(ROWS):
        scored = _checked(score(rows), len(rows), gallery)
        if own is not None:
            scored[torch.arange(len(rows)), own[rows]] = -torch.inf
        best, place = _best(scored, k)
        members.append(place)
        scores.append(best)
    return torch.cat(members), torch.cat(scores)


def _best(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k greatest of every row and their places, equal ones in the order of their places."""
    least = scores.topk(k, dim=1).values[:, -1:]
    # Which of those that are equal to the least a selection takes is not said: the first are taken.
    above = scores > least
    level = scores == least
    chosen = above | (level & (level.cumsum(1) <= k - above.sum(1, keepdim=True)))
    place = chosen.nonzero()[:, 1].view(len(scores), k)
    best, order = scores.gather(1, place).sort(dim=1, descending=True, stable=True)
    return best, place.gather(1, order)


def vote(labels: Tensor) -> Tensor:
    """The class (Q,) that most of the neighbours' labels (Q, k), the nearest first, say.

    Of classes with as many votes the one is taken whose nearest member is nearest.

    Example:
        >>> vote(torch.tensor([[1, 2, 2, 3, 1], [5, 6, 6, 7, 8]])).tolist()
        [1, 6]
    """
    if labels.ndim != 2 or labels.shape[1] < 1:
        raise ValueError(f"labels has shape {tuple(labels.shape)}, (Q, k) with k of at least 1 is needed")
    votes = (labels[:, :, None] == labels[:, None, :]).sum(2)
    # argmax takes the first of the greatest, which is the nearest.
    return labels.gather(1, votes.argmax(1, keepdim=True))[:, 0]


def rank_by(
    scores: Scores, labels: Labels | Positives, k: int = 1, *, own: bool = True, rows: int = ROWS
) -> Ranking:
    """Every image's neighbours among the others, the one with the greatest score first.

    Equal scores are in the order of the index, and are counted. ``distance`` is the score with the sign turned.

    Args:
        scores: gives those of some images, by their positions (B,), with all images of the database: (B, M).
        labels: (N,), or what else says which are positives.
        k: how deep the ranking is; mean average precision at R goes as deep as it has to.
        own: whether the database is the images themselves, each of which is left out of its own ranking.
        rows: how many images are looked at together.

    Example:
        >>> z = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
        >>> ranking = rank_by(lambda rows: z[rows] @ z.T, [0, 0, 1])
        >>> ranking.nearest.tolist(), ranking.hits.flatten().tolist()
        ([1, 2, 1], [True, False, False])
    """
    positives = labels if isinstance(labels, Positives) else Positives.from_labels(labels)
    number, size, counts = positives.num_queries, positives.num_database, positives.counts
    most = size - 1 if own else size
    if not 1 <= k <= most:
        raise ValueError(f"k is {k}, but an image has {most} others: use a k from 1 to {most}")
    if not bool((counts > 0).any()):
        raise ValueError(f"none of the {number} images has another of its class: no metric is defined")
    kept: dict[str, list[Tensor]] = {}
    for chosen in torch.arange(number).split(rows):
        scored = _checked(scores(chosen), len(chosen), size).cpu().double()
        if own:
            scored[torch.arange(len(chosen)), chosen] = -torch.inf
        ordered, members = scored.sort(dim=1, descending=True, stable=True)
        if own:
            # Its own place is last, or among others at minus infinity: it is cut out by its index.
            others = members != chosen[:, None]
            members = members[others].view(len(chosen), most)
            ordered = ordered[others].view(len(chosen), most)
        hits = positives.hits(chosen, members)
        within = hits & (torch.arange(most) < counts[chosen, None])
        part = {
            "hits": hits[:, :k],
            "nearest": members[:, 0],
            "distance": -ordered[:, 0],
            "ties": (ordered[:, 1 : k + 1] == ordered[:, :k][:, : ordered[:, 1 : k + 1].shape[1]]).sum(1),
            "hits_at_r": within.sum(1) / counts[chosen].clamp_min(1).double(),
            "precision_at_r": precision_sum(within) / counts[chosen].clamp_min(1),
        }
        for name, tensor in part.items():
            kept.setdefault(name, []).append(tensor)
    gathered = {name: torch.cat(parts) for name, parts in kept.items()}
    return Ranking(positives=counts, gallery_size=size, **gathered)


def _checked(scores: Tensor, queries: int, gallery: int) -> Tensor:
    """The scores (Q, M), to be written into."""
    if scores.shape != (queries, gallery):
        raise ValueError(
            f"the scores have shape {tuple(scores.shape)}, ({queries}, {gallery}) is needed: each query with every "
            "member"
        )
    if bool(scores.isnan().any()):
        raise ValueError("some scores are NaN: they order nothing")
    return scores.detach().clone()
