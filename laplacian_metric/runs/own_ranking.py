"""A ranking by a method's own score of how well two images match, in place of the cosine of their points."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from laplacian_metric.metrics.positives import Labels, Positives
from laplacian_metric.metrics.ranking import Ranking

ROWS = 256

Scores = Callable[[Tensor], Tensor]


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
        found = _checked(scores(chosen), len(chosen), size)
        if own:
            found[torch.arange(len(chosen)), chosen] = -torch.inf
        ordered, members = found.sort(dim=1, descending=True, stable=True)
        if own:
            # Its own place is last, or among others at minus infinity: it is cut out by its index.
            others = members != chosen[:, None]
            members = members[others].view(len(chosen), most)
            ordered = ordered[others].view(len(chosen), most)
        hits = positives.hits(chosen, members)
        within = hits & (torch.arange(most) < counts[chosen, None])
        places = torch.arange(1, most + 1, dtype=torch.float64)
        precision = (within.cumsum(1) / places * within).sum(1)
        part = {
            "hits": hits[:, :k],
            "nearest": members[:, 0],
            "distance": -ordered[:, 0],
            "ties": (ordered[:, 1 : k + 1] == ordered[:, :k][:, : ordered[:, 1 : k + 1].shape[1]]).sum(1),
            "hits_at_r": within.sum(1) / counts[chosen].clamp_min(1).double(),
            "precision_at_r": precision / counts[chosen].clamp_min(1),
        }
        for name, tensor in part.items():
            kept.setdefault(name, []).append(tensor)
    gathered = {name: torch.cat(parts) for name, parts in kept.items()}
    return Ranking(positives=counts, gallery_size=size, **gathered)


def _checked(found: Tensor, rows: int, number: int) -> Tensor:
    if found.shape != (rows, number):
        raise ValueError(
            f"the scores have shape {tuple(found.shape)}, ({rows}, {number}) is needed: each image with every other"
        )
    found = found.detach().cpu().double()
    if bool(found.isnan().any()):
        raise ValueError("some scores are NaN: they order nothing")
    return found
