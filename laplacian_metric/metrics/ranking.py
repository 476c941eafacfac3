"""One search, and what it says about each query; recall and mean average precision are means over its queries.

The functions take unit embeddings (Q, Z) with labels (Q,) and search among them, a query's own copy left out; with
``database`` (M, Z) and ``database_labels`` (M,) they search there. In place of the labels, `Positives` may say what is
right.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from hessians.checks import check_finite, check_matrix
from laplacian_metric.core.search import (
    DEFAULT_MEMORY,
    SCORED_ROWS,
    Scores,
    best_by_score,
    checked_scores,
    search_blocks,
)
from laplacian_metric.metrics.positives import Labels, Positives, as_labels, as_positives, check_length
from laplacian_metric.metrics.statistics import auroc


def check_uncertainty(
    name: str, uncertainty: Tensor, number: int | None = None, what: str = "embeddings"
) -> Tensor:
    """An uncertainty (N,) in float64; infinity is allowed (1/kappa of kappa = 0), NaN is not.

    Example:
        >>> check_uncertainty("uncertainty", torch.tensor([0.1, 0.2, 0.3]), 4)
        Traceback (most recent call last):
        ...
        ValueError: uncertainty has 3 entries for 4 embeddings: one for each is needed
    """
    values = torch.as_tensor(uncertainty).detach()
    if values.ndim != 1:
        raise ValueError(
            f"{name} has shape {tuple(values.shape)}, one number for each image is needed, shape (N,)"
        )
    if number is not None and len(values) != number:
        raise ValueError(f"{name} has {len(values)} entries for {number} {what}: one for each is needed")
    if len(values) == 0:
        raise ValueError(f"{name} is empty: at least one number is needed")
    bad = values.isnan().nonzero().flatten()
    if len(bad):
        raise ValueError(
            f"{name} has NaN in {len(bad)} of {len(values)} entries, the first is entry {int(bad[0])}"
        )
    # Rankings of float64 must not be decided in float32; whole numbers are exact in it, up to 2^53.
    return values.double()


Normalisation = Literal["min", "positives", "hits"]


@dataclass(frozen=True)
class Ranking:
    """What a search found for each of Q queries; metrics are means over the ``answerable`` ones.

    ``hits`` (Q, k) says whether the i-th neighbour is a positive, ``positives`` (Q,) how many there are in
    the gallery, ``nearest`` and ``distance`` (Q,) which gallery member is nearest and how far, ``ties`` (Q,)
    how often the index decided among equal distances. ``hits_at_r`` and ``precision_at_r`` (Q,) hold the
    share of positives and the average precision among the first R neighbours, R the number of positives,
    where that was asked for. A query without a positive in the gallery cannot be answered: it is left out of
    every metric.

    Example:
        >>> z = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
        >>> ranking = rank(z, [0, 0, 1])
        >>> ranking.hits.flatten().tolist(), ranking.num_unanswerable
        ([True, False, False], 1)
    """

    hits: Tensor
    positives: Tensor
    nearest: Tensor
    distance: Tensor
    ties: Tensor
    gallery_size: int
    hits_at_r: Tensor | None = None
    precision_at_r: Tensor | None = None

    @property
    def answerable(self) -> Tensor:
        """Which queries have a positive in the gallery, bool (Q,)."""
        return self.positives > 0

    @property
    def num_unanswerable(self) -> int:
        """How many queries have none."""
        return int((~self.answerable).sum())

    @property
    def k(self) -> int:
        """How deep the ranking is."""
        return self.hits.shape[1]

    def first_is_right(self) -> Tensor:
        """Whether the nearest neighbour of each answerable query is a positive, float64 (A,)."""
        return self.recall(1)

    def recall(self, k: int) -> Tensor:
        """For each answerable query 1 if a positive is among its first k, else 0: float64 (A,)."""
        _check_depth(k, self.k)
        return self.hits[self.answerable, :k].any(1).double()

    def average_precision(self, k: int, normalisation: Normalisation = "min") -> Tensor:
        """For each answerable query the sum of the precision at its hits in the first k over min(positives,
        k): (A,).

        Other ``normalisation``: "positives" divides by all positives, "hits" by the hits found (0 if there is
        none).
        """
        _check_depth(k, self.k)
        hits, positives = self.hits[self.answerable, :k], self.positives[self.answerable]
        if normalisation == "min":
            divisor = positives.clamp_max(k)
        elif normalisation == "positives":
            divisor = positives
        elif normalisation == "hits":
            divisor = hits.sum(1).clamp_min(1)
        else:
            raise ValueError(f'normalisation is {normalisation!r}, it can be "min", "positives" or "hits"')
        return precision_sum(hits) / divisor

    def of_answerable(self, uncertainty: Tensor) -> Tensor:
        """The checked uncertainty (Q,) of the answerable queries, float64 (A,)."""
        values = check_uncertainty("uncertainty", uncertainty, len(self.hits))
        return values.to(self.hits.device)[self.answerable]


def rank(
    embeddings: Tensor,
    labels: Labels | Positives,
    k: int = 1,
    *,
    database: Tensor | None = None,
    database_labels: Labels | None = None,
    at_r: bool = False,
    memory: int = DEFAULT_MEMORY,
) -> Ranking:
    """Search the k nearest of each query once, for all metrics that follow.

    Embeddings (Q, Z) are unit vectors, tensors or arrays. Without ``database`` (M, Z) each query searches the
    others. ``labels`` (Q,) are classes, or `Positives` where something else decides. With ``at_r`` the search goes as
    deep as each query has positives; nothing of that depth is kept. At least one query must have a positive.
    """
    embeddings = torch.as_tensor(embeddings)
    database = None if database is None else torch.as_tensor(database)
    positives = as_positives(
        labels,
        database_labels,
        queries=len(embeddings),
        database=None if database is None else len(database),
    )
    counts = _counts(positives, embeddings.device)
    depth: int | Tensor = counts.clamp_min(k) if at_r else k
    kept: dict[str, list[Tensor]] = {}
    for rows, nearest in search_blocks(embeddings, depth, database=database, memory=memory):
        queries = torch.arange(rows.start, rows.stop, device=embeddings.device)
        # Labels may be on the CPU while embeddings are not.
        home = positives.counts.device
        hits = positives.hits(queries.to(home), nearest.indices.to(home)).to(embeddings.device)
        part = {
            "hits": hits[:, :k],
            "nearest": nearest.indices[:, 0],
            "distance": nearest.distances[:, 0],
            "ties": nearest.ties,
        }
        _collect(kept, part | (_at_r(hits, counts[rows]) if at_r else {}))
    return Ranking(positives=counts, gallery_size=nearest.gallery_size, **_gathered(kept))


def rank_by(
    scores: Scores, labels: Labels | Positives, k: int = 1, *, own: bool = True, rows: int = SCORED_ROWS
) -> Ranking:
    """Return every image's neighbours among the others, the one with the greatest score first.

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
    number, size, counts = positives.num_queries, positives.num_database, _counts(positives)
    most = size - 1 if own else size
    _check_depth(k, most)
    kept: dict[str, list[Tensor]] = {}
    for chosen in torch.arange(number).split(rows):
        scored = checked_scores(scores(chosen), len(chosen), size).cpu().double()
        if own:
            scored[torch.arange(len(chosen)), chosen] = -torch.inf
        ordered, members = scored.sort(dim=1, descending=True, stable=True)
        if own:
            # Its own place is last, or among others at minus infinity: it is cut out by its index.
            others = members != chosen[:, None]
            members = members[others].view(len(chosen), most)
            ordered = ordered[others].view(len(chosen), most)
        hits = positives.hits(chosen, members)
        following = ordered[:, 1 : k + 1]
        part = {
            "hits": hits[:, :k],
            "nearest": members[:, 0],
            "distance": -ordered[:, 0],
            "ties": (following == ordered[:, : following.shape[1]]).sum(1),
        }
        _collect(kept, part | _at_r(hits, counts[chosen]))
    return Ranking(positives=counts, gallery_size=size, **_gathered(kept))


def rank_by_distance(points: Tensor, labels: Labels, k: int = 1) -> Ranking:
    """Return every point's nearest among the others, by Euclidean distance; equal ones in the order of the index.

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
    _check_depth(k, len(points) - 1)

    def score(rows: Tensor) -> Tensor:
        # By differences: a product would lose the digits of points that are close.
        return -torch.cdist(points[rows], points, compute_mode="donot_use_mm_for_euclid_dist")

    members, scores = best_by_score(score, len(points), len(points), k + 1, own=torch.arange(len(points)))
    _, numbers, sizes = torch.unique(classes, return_inverse=True, return_counts=True)
    return Ranking(
        hits=classes[members[:, :k]] == classes[:, None],
        positives=sizes[numbers] - 1,
        nearest=members[:, 0],
        distance=-scores[:, 0],
        ties=(scores[:, 1:] == scores[:, :-1]).sum(1),
        gallery_size=len(points) - 1,
    )


def _counts(positives: Positives, device: torch.device | None = None) -> Tensor:
    """Return how many positives each query has; refuse queries none of which has any."""
    if not bool((positives.counts > 0).any()):
        raise ValueError(
            f"none of the {positives.num_queries} queries has a positive in the gallery: no metric is defined. Check "
            "that labels and database_labels number the classes alike"
        )
    return positives.counts.to(device)


def _check_depth(k: int, most: int) -> None:
    if not 1 <= k <= most:
        raise ValueError(f"k is {k}: use a k from 1 to {most}, the depth of the ranking")


def _at_r(hits: Tensor, counts: Tensor) -> dict[str, Tensor]:
    """Return R-precision and average precision at R of hits that go as deep as each query has positives (Q,)."""
    within = hits & (torch.arange(hits.shape[1], device=hits.device) < counts[:, None])
    most = counts.clamp_min(1)
    return {"hits_at_r": within.sum(1) / most.double(), "precision_at_r": precision_sum(within) / most}


def _collect(kept: dict[str, list[Tensor]], part: dict[str, Tensor]) -> None:
    for name, tensor in part.items():
        kept.setdefault(name, []).append(tensor)


def _gathered(kept: dict[str, list[Tensor]]) -> dict[str, Tensor]:
    return {name: torch.cat(parts) for name, parts in kept.items()}


def precision_sum(hits: Tensor) -> Tensor:
    """Return the precision at each hit, summed over the hits: (Q,) from bool (Q, k)."""
    places = torch.arange(1, hits.shape[1] + 1, dtype=torch.float64, device=hits.device)
    return (hits.cumsum(1) / places * hits).sum(1)


def error_auroc(ranking: Ranking, uncertainty: Tensor) -> float:
    """R-AUROC of a ranking by an uncertainty (Q,)."""
    wrong = 1 - ranking.first_is_right()
    return float(auroc(ranking.of_answerable(uncertainty), wrong, torch.ones_like(wrong)))


def recall_at_k(
    embeddings: Tensor,
    labels: Labels | Positives,
    k: int = 1,
    *,
    database: Tensor | None = None,
    database_labels: Labels | None = None,
) -> float:
    """The share of queries that have a positive among their k nearest neighbours.

    Example:
        >>> import torch
        >>> z = torch.tensor([[1.0, 0.0], [0.96, 0.28], [0.28, 0.96], [0.0, 1.0]])
        >>> recall_at_k(z, [0, 0, 1, 1]), recall_at_k(z, [0, 1, 0, 1]), recall_at_k(z, [0, 1, 0, 1], k=2)
        (1.0, 0.0, 0.5)
    """
    ranking = rank(embeddings, labels, k, database=database, database_labels=database_labels)
    return float(ranking.recall(k).mean())


def map_at_k(
    embeddings: Tensor,
    labels: Labels | Positives,
    k: int = 5,
    *,
    database: Tensor | None = None,
    database_labels: Labels | None = None,
    normalisation: Normalisation = "min",
) -> float:
    """Mean average precision of the first k: the sum of the precision at each hit, divided by min(positives, k).

    With R positives in the gallery and one hit, at rank 1, of the first k = 10, libraries report 0.01 (R =
    100 as the divisor), 0.1 (min(R, k), what is done here) or 1 (the hits found): ``normalisation``
    "positives", "min" and "hits".

    Example:
        >>> import torch
        >>> z = torch.tensor([[1.0, 0.0], [0.96, 0.28], [0.28, 0.96], [0.0, 1.0]])
        >>> map_at_k(z, [0, 1, 0, 1], k=2), map_at_k(z, [0, 1, 0, 1], k=2, normalisation="hits")
        (0.25, 0.25)
    """
    ranking = rank(embeddings, labels, k, database=database, database_labels=database_labels)
    return float(ranking.average_precision(k, normalisation).mean())


def map_at_r(
    embeddings: Tensor,
    labels: Labels | Positives,
    *,
    database: Tensor | None = None,
    database_labels: Labels | None = None,
) -> float:
    """Mean average precision of the first R, where R is the number of the query's positives.

    Example:
        >>> import torch
        >>> z = torch.tensor([[1.0, 0.0], [0.96, 0.28], [0.28, 0.96], [0.0, 1.0]])
        >>> round(map_at_r(z, [0, 0, 1, 0]), 4)  # the mean of 1/2, 1/2 and 1/4
        0.4167
    """
    ranking = rank(embeddings, labels, database=database, database_labels=database_labels, at_r=True)
    return float(at_r(ranking)[1].mean())


def r_precision(
    embeddings: Tensor,
    labels: Labels | Positives,
    *,
    database: Tensor | None = None,
    database_labels: Labels | None = None,
) -> float:
    """The share of positives among the first R, where R is the number of the query's positives.

    Example:
        >>> import torch
        >>> z = torch.tensor([[1.0, 0.0], [0.96, 0.28], [0.28, 0.96], [0.0, 1.0]])
        >>> r_precision(z, [0, 0, 1, 1])
        1.0
    """
    ranking = rank(embeddings, labels, database=database, database_labels=database_labels, at_r=True)
    return float(at_r(ranking)[0].mean())


def at_r(ranking: Ranking) -> tuple[Tensor, Tensor]:
    """R-precision and average precision at R of each answerable query, (A,) each."""
    if ranking.hits_at_r is None or ranking.precision_at_r is None:
        raise ValueError("this ranking goes k deep for every query: make it with rank(..., at_r=True)")
    return ranking.hits_at_r[ranking.answerable], ranking.precision_at_r[ranking.answerable]
