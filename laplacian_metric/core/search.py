"""Exact nearest neighbours of tensors on any device, block by block: by cosine, or by a score that is given.

Cosine similarity and Euclidean distance order unit vectors alike. A matrix product finds every candidate that
could be among the nearest, given the rounding error that such a product can have; the order among candidates
that this error leaves open is then settled in float64, by differences. The result depends neither on the size of
the blocks nor on the precision of the product, and equal distances are recognised as equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hessians.checks import check_finite, check_matrix, check_same_device

ROWS_TO_ROUND = 4096
NORM_TOLERANCE = 1e-4


@dataclass(frozen=True)
class UnitVectors:
    """Checked vectors (N, Z) as given, and their norms (N,): of unit length but for rounding, which is undone here.

    Example:
        >>> vectors = UnitVectors.of("embeddings", torch.tensor([[0.6, 0.8]]))
        >>> len(vectors), vectors.dim, vectors.exact(slice(0, 1)).dtype
        (1, 2, torch.float64)
    """

    source: Tensor
    norm: Tensor

    @staticmethod
    def of(name: str, vectors: Tensor) -> UnitVectors:
        """Refuse an empty set, NaN and vectors that are not of unit length; errors call them by ``name``."""
        check_matrix(name, vectors)
        if 0 in vectors.shape:
            raise ValueError(
                f"{name} is empty, its shape is {tuple(vectors.shape)}: at least one row and column are needed"
            )
        check_finite(name, vectors)
        norm: Tensor = torch.linalg.vector_norm(vectors.detach(), dim=1, dtype=torch.float64)
        # A unit vector that was rounded to few digits has not quite unit length.
        tolerance = max(NORM_TOLERANCE, 4 * torch.finfo(vectors.dtype).eps)
        wrong = ((norm - 1).abs() > tolerance).nonzero().flatten()
        if len(wrong):
            raise ValueError(
                f"{name} is not normalised: {len(wrong)} of {len(norm)} rows, the first is row {int(wrong[0])} of norm "
                f"{float(norm[wrong[0]]):.6g}. Use torch.nn.functional.normalize({name}, dim=1)"
            )
        return UnitVectors(vectors.detach(), norm)

    def __len__(self) -> int:
        return len(self.source)

    @property
    def dim(self) -> int:
        """The number of dimensions Z."""
        return self.source.shape[1]

    def exact(self, rows: Tensor | slice) -> Tensor:
        """Some of the unit vectors, in float64."""
        return self.source[rows].double() / self.norm[rows, None]

    def rounded(self, dtype: torch.dtype) -> Tensor:
        """All unit vectors, in the precision of a matrix product."""
        copy = torch.empty(self.source.shape, dtype=dtype, device=self.source.device)
        for start in range(0, len(copy), ROWS_TO_ROUND):
            rows = slice(start, start + ROWS_TO_ROUND)
            copy[rows] = self.exact(rows)
        return copy


DEFAULT_MEMORY = 1 << 30
# What one similarity costs if every gallery member is as near as the nearest, measured: the product and the mask, and
# then its row, column, key and place, several times over. Where embeddings have not collapsed it is a thirtieth.
BYTES_PER_SIMILARITY = 320
MAX_ROWS = 512  # more rows make the product no faster and leave the cache
GROUP = 64  # columns that are first compared by their maximum alone
# So many neighbours are all compared by differences. Deeper ones are too many for that: the product itself is
# then in float64, which leaves next to no order open.
EXACT_COLUMNS = 64
PAIR_ENTRIES = 1 << 17  # of the pairs that are compared in float64 at a time: what stays in the cache


class Nearest(NamedTuple):
    """The nearest gallery members of each query, the nearest first; equal distances in the order of the index.

    ``indices`` (Q, k) are rows of the gallery. ``distances`` (Q, k) are Euclidean distances between the unit
    vectors in float64. ``ties`` (Q,) counts, among a query's first k + 1 members, the places whose distance
    equals that of the place before, so that the index decided.

    Example:
        >>> z = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
        >>> nearest = search(z, k=2)
        >>> nearest.indices.tolist()
        [[2, 1], [2, 0], [1, 0]]
        >>> [round(x, 4) for x in nearest.similarities[2].tolist()]
        [0.8, 0.6]
    """

    indices: Tensor
    distances: Tensor
    ties: Tensor
    gallery_size: int

    @property
    def similarities(self) -> Tensor:
        """Cosine similarities (Q, k)."""
        return 1 - self.distances.square() / 2


def search(
    embeddings: Tensor,
    k: int,
    *,
    database: Tensor | None = None,
    own: Tensor | None = None,
    memory: int = DEFAULT_MEMORY,
) -> Nearest:
    """Return the k nearest neighbours of each of the unit ``embeddings`` (Q, Z).

    Without ``database`` each query looks among the other embeddings: its own copy is left out by its index,
    so that a duplicate of it stays. With ``database`` (M, Z) it looks there; ``own`` (Q,) then names the row
    that is the query itself, -1 where there is none (the default). ``memory`` bytes are the limit beyond input
    and output, which only collapsed embeddings come near: what is usual is a thirtieth.

    Example:
        >>> z = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
        >>> nearest = search(z, k=1)
        >>> nearest.indices.flatten().tolist(), nearest.ties.tolist()
        ([1, 0, 0], [1, 1, 1])
    """
    blocks = list(search_blocks(embeddings, k, database=database, own=own, memory=memory))
    return Nearest(
        indices=torch.cat([block.indices for _, block in blocks]),
        distances=torch.cat([block.distances for _, block in blocks]),
        ties=torch.cat([block.ties for _, block in blocks]),
        gallery_size=blocks[0][1].gallery_size,
    )


def search_blocks(
    embeddings: Tensor,
    k: int | Tensor,
    *,
    database: Tensor | None = None,
    own: Tensor | None = None,
    memory: int = DEFAULT_MEMORY,
) -> Iterator[tuple[slice, Nearest]]:
    """Yield what `search` returns, one block of queries after the other, for what is too deep to be kept.

    ``k`` may be a tensor (Q,): each block then is as deep as the deepest of its queries, and ties are counted in
    each query's own depth.

    Example:
        >>> z = torch.eye(3)
        >>> [(rows, nearest.indices.shape) for rows, nearest in search_blocks(z, torch.tensor([1, 2, 1]))]
        [(slice(0, 3, None), torch.Size([3, 2]))]
    """
    queries = UnitVectors.of("embeddings", embeddings)
    gallery = queries if database is None else UnitVectors.of("database", database)
    check_same_device(embeddings=embeddings, database=database)
    if queries.dim != gallery.dim:
        raise ValueError(
            f"embeddings has {queries.dim} dimensions and database {gallery.dim}: both come from one space"
        )
    own = _own_rows(own, len(queries), len(gallery), one_set=database is None, device=embeddings.device)
    depth = torch.as_tensor(k, device=embeddings.device).expand(len(queries))
    if depth.is_floating_point() or depth.dtype == torch.bool:
        raise TypeError(f"k has dtype {depth.dtype}, whole numbers are needed")
    available, low, high = len(gallery) - int((own >= 0).any()), int(depth.min()), int(depth.max())
    if low < 1 or high > available:
        raise ValueError(
            f"k is {low if low < 1 else high}, but a query has {available} gallery members to choose from, its own "
            f"copy left out: use a k from 1 to {available}"
        )
    return _blocks(queries, gallery, own, depth, memory)


def _own_rows(
    own: Tensor | None, queries: int, gallery: int, *, one_set: bool, device: torch.device
) -> Tensor:
    if one_set:
        if own is not None:
            raise ValueError("own is for a database: within one set each query is left out by its own index")
        return torch.arange(queries, device=device)
    if own is None:
        return torch.full((queries,), -1, device=device)
    if own.shape != (queries,):
        raise ValueError(f"own has shape {tuple(own.shape)}, ({queries},) is needed: one row for each query")
    if own.dtype != torch.int64 or int(own.min()) < -1 or int(own.max()) >= gallery:
        raise ValueError(
            f"own needs int64 rows of the database, -1 to {gallery - 1}, but has {own.dtype} up to "
            f"{int(own.max())}"
        )
    return own.to(device)


def _blocks(
    queries: UnitVectors, gallery: UnitVectors, own: Tensor, depth: Tensor, memory: int
) -> Iterator[tuple[slice, Nearest]]:
    padded = -(-len(gallery) // GROUP) * GROUP
    size = max(1, min(MAX_ROWS, len(queries), memory // (BYTES_PER_SIMILARITY * padded)))
    # The columns that fill the last group are never written again, so that they never are candidates.
    dtype = torch.float32 if int(depth.max()) <= EXACT_COLUMNS else torch.float64
    buffer = torch.full((size, padded), -torch.inf, dtype=dtype, device=queries.source.device)
    # How far below another a similarity may be computed although it is the greater one in truth. A product of two unit
    # vectors has an error of at most dim + 2 half units in the last place, the rounding of the vectors included; two
    # such errors count, and two further units for the comparison itself.
    slack = (gallery.dim + 4) * torch.finfo(dtype).eps
    # Where the user lets products run in fewer digits (8 bits in bfloat16), both factors are rounded to these first.
    if dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest":
        slack += 2.0**-6
    members = gallery.rounded(dtype)
    rounded_queries = members if queries is gallery else queries.rounded(dtype)
    for start in range(0, len(queries), size):
        rows = slice(start, min(start + size, len(queries)))
        similarities = buffer[: rows.stop - start]
        torch.mm(rounded_queries[rows], members.T, out=similarities[:, : len(gallery)])
        self_rows = (own[rows] >= 0).nonzero().flatten()
        similarities[self_rows, own[rows][self_rows]] = -torch.inf
        yield rows, _nearest(similarities, slack, queries, start, gallery, depth[rows])


def _nearest(
    similarities: Tensor, slack: float, queries: UnitVectors, start: int, gallery: UnitVectors, depth: Tensor
) -> Nearest:
    """The nearest for one block of similarities (B, N padded), whose first row is query ``start``.

    As many for each as the deepest of them needs; ties are counted in each one's own depth (B,).
    """
    k = int(depth.max())
    rows, columns = _candidates(similarities, k, slack)
    counts = torch.bincount(rows, minlength=len(similarities))
    place = torch.arange(len(rows), device=rows.device) - (counts.cumsum(0) - counts)[rows]
    shape = (len(similarities), int(counts.max()))
    # What fills the shorter rows is infinitely far away.
    member = torch.full(shape, -1, device=rows.device)
    member[rows, place] = columns
    squared = torch.full(shape, torch.inf, dtype=torch.float64, device=rows.device)
    squared[rows, place] = 2 - 2 * similarities[rows, columns].double()
    block = queries.exact(slice(start, start + len(similarities)))
    if shape[1] <= EXACT_COLUMNS:
        _compare(squared, member, member >= 0, block, gallery)
        squared, member = _sorted(squared, member)
    else:
        squared, member = _sorted(squared, member)
        close = squared.diff(dim=1) <= 2 * slack
        doubtful = torch.nn.functional.pad(close, (1, 0)) | torch.nn.functional.pad(close, (0, 1))
        doubtful[:, :EXACT_COLUMNS] = True
        _compare(squared, member, doubtful & (member >= 0), block, gallery)
        again = close.any(1).nonzero().flatten()
        by_member = member[again].argsort(dim=1)
        squared[again], member[again] = _sorted(
            squared[again].gather(1, by_member), member[again].gather(1, by_member)
        )
    following = squared[:, 1 : k + 1]
    equal = (following == squared[:, : following.shape[1]]) & following.isfinite()
    equal &= torch.arange(following.shape[1], device=depth.device) < depth[:, None]
    distances = squared[:, :k].clamp_min(0).sqrt()
    return Nearest(member[:, :k], distances, ties=equal.sum(1), gallery_size=len(gallery))


def _candidates(similarities: Tensor, k: int, slack: float) -> tuple[Tensor, Tensor]:
    """Rows and columns of all similarities that may be among their row's k greatest, in that order."""
    if k > 1:
        if similarities.device.type == "cpu":
            # numpy's selection makes use of a processor's wide vectors, torch's does not.
            at = similarities.shape[1] - k
            least = torch.from_numpy(np.partition(similarities.numpy(), at, axis=1)[:, at])
        else:
            least = similarities.topk(k, dim=1, sorted=False).values.amin(1)
        floor = least[:, None] - slack
        rows, columns = (similarities >= floor).nonzero(as_tuple=True)
        return rows, columns
    # For the nearest alone, one pass over groups of columns is all that touches every similarity.
    grouped = similarities.view(len(similarities), -1, GROUP)
    highest = grouped.amax(2)
    floor = highest.amax(1) - slack
    rows, groups = (highest >= floor[:, None]).nonzero(as_tuple=True)
    pair, column = (grouped[rows, groups] >= floor[rows, None]).nonzero(as_tuple=True)
    return rows[pair], groups[pair] * GROUP + column


def _compare(squared: Tensor, member: Tensor, where: Tensor, block: Tensor, gallery: UnitVectors) -> None:
    """Put squared distances by differences, in float64, in those places of ``squared`` (B, C)."""
    rows, places = where.nonzero(as_tuple=True)
    columns = member[rows, places]
    chunk = max(1, PAIR_ENTRIES // gallery.dim)
    for r, p, c in zip(rows.split(chunk), places.split(chunk), columns.split(chunk), strict=True):
        squared[r, p] = (block[r] - gallery.exact(c)).square_().sum(1)


def _sorted(squared: Tensor, member: Tensor) -> tuple[Tensor, Tensor]:
    """Both (B, C) in the order of the squared distances; equal ones stay in the order that they had."""
    squared, order = squared.sort(dim=1, stable=True)
    return squared, member.gather(1, order)


SCORED_ROWS = 256

Scores = Callable[[Tensor], Tensor]


def best_by_score(
    score: Scores, queries: int, gallery: int, k: int, own: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the k members of a gallery with the greatest scores, and these: (Q, k) each, the greatest first.

    Equal scores are in the order of the index. Rows are shorter where the gallery has no k others.

    Args:
        score: gives those of some queries, by their positions (B,), with the whole gallery: (B, M).
        queries, gallery: how many there are.
        k: how many are wanted.
        own: (Q,), for each query the member that is itself, or its twin, and is passed over.

    Example:
        >>> z = torch.tensor([0.0, 1.0, 3.0])
        >>> best_by_score(lambda rows: -(z[rows, None] - z).abs(), 3, 3, 1, own=torch.arange(3))[0].flatten().tolist()
        [1, 0, 1]
    """
    k = min(k, gallery - (own is not None))
    if k < 1:
        raise ValueError(f"a gallery of {gallery} has no neighbour for a query that is in it itself")
    parts = []
    for rows in torch.arange(queries).split(SCORED_ROWS):
        scores = checked_scores(score(rows), len(rows), gallery)
        if own is not None:
            scores[torch.arange(len(rows)), own[rows]] = -torch.inf
        least = scores.topk(k, dim=1).values[:, -1:]
        # Which of those that are equal to the least a selection takes is not said: the first are taken.
        above = scores > least
        level = scores == least
        chosen = above | (level & (level.cumsum(1) <= k - above.sum(1, keepdim=True)))
        place = chosen.nonzero()[:, 1].view(len(scores), k)
        best, order = scores.gather(1, place).sort(dim=1, descending=True, stable=True)
        parts.append((place.gather(1, order), best))
    members, scores_of_members = zip(*parts, strict=True)
    return torch.cat(members), torch.cat(scores_of_members)


def checked_scores(scores: Tensor, queries: int, gallery: int) -> Tensor:
    """Return a copy of the scores (Q, M); refuse another shape and NaN."""
    if scores.shape != (queries, gallery):
        raise ValueError(
            f"the scores have shape {tuple(scores.shape)}, ({queries}, {gallery}) is needed: each query with every "
            "member"
        )
    if bool(scores.isnan().any()):
        raise ValueError("some scores are NaN: they order nothing")
    return scores.detach().clone()
