"""How usual a vector is by the second moment of known vectors: its Mahalanobis distance from 0, in numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laplacian_metric.core.check import Floats

BLOCK_ROWS = 8192
RANK = 300
ENERGY = 0.97
MOST_EXACT = 2048  # up to so many dimensions the whole matrix is taken apart
PASSES = 3
SPARE = 20
TINY = 1e-12


@dataclass(frozen=True, eq=False)
class SecondMoment:
    """The uncentred second moment E[h h^T] as its largest directions and the mean of the rest.

    Attributes:
        directions: (r, H), orthonormal, the largest first.
        moments: (r,), E[(v . h)^2].
        rest: the mean of the other H - r eigenvalues.
        main: how many of the directions hold 97 % of the energy; r where all of them hold less.
    """

    directions: Floats
    moments: Floats
    rest: float
    main: int

    @staticmethod
    def of(rows: NDArray[Any], rank: int = RANK) -> SecondMoment:
        """Return that of rows (N, H); at most as many directions as half of the rows.

        Above 2,048 dimensions the directions come from three seeded subspace iterations.

        Example:
            >>> moment = SecondMoment.of(np.array([[2.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.0, 1.0]]))
            >>> moment.moments.tolist(), moment.rest, moment.main
            ([2.0, 0.5], 0.0, 2)
        """
        num, width = rows.shape
        rank = max(1, min(rank, width, num // 2))
        if width <= MOST_EXACT:
            matrix = np.zeros((width, width))
            for block in _blocks(rows):
                matrix += block.T @ block
            matrix /= num
            total = float(np.trace(matrix))
            values, vectors = np.linalg.eigh(matrix)
            moments, directions = values[::-1][:rank], vectors.T[::-1][:rank]
        else:
            start = np.random.default_rng(0).standard_normal((width, rank + SPARE))
            basis, _ = np.linalg.qr(start)
            for _ in range(PASSES):
                basis, _ = np.linalg.qr(sum(block.T @ (block @ basis) for block in _blocks(rows)))
            inner = sum((block @ basis).T @ (block @ basis) for block in _blocks(rows)) / num
            total = sum(float(np.einsum("nd,nd->", block, block)) for block in _blocks(rows)) / num
            values, vectors = np.linalg.eigh(inner)
            moments, directions = values[::-1][:rank], (basis @ vectors).T[::-1][:rank]
        moments = np.maximum(moments, 0)
        rest = max(total - float(moments.sum()), 0.0) / (width - rank) if width > rank else 0.0
        main = int(np.searchsorted(np.cumsum(moments), ENERGY * total)) + 1
        return SecondMoment(np.ascontiguousarray(directions), moments, rest, min(main, rank))

    def distances(self, rows: NDArray[Any]) -> tuple[Floats, Floats]:
        """Return h^T E[h h^T]^-1 h and the share of |h|^2 outside the main directions, each (N,)."""
        floor = TINY + 1e-6 * float(self.moments[0])
        scaled, outside = np.empty(len(rows)), np.empty(len(rows))
        for start in range(0, len(rows), BLOCK_ROWS):
            block = np.asarray(rows[start : start + BLOCK_ROWS], dtype=np.float64)
            some = slice(start, start + len(block))
            squares = np.square(block @ self.directions.T)
            total = np.einsum("nd,nd->n", block, block)
            beyond = np.maximum(total - squares.sum(axis=1), 0)
            scaled[some] = (squares / np.maximum(self.moments, floor)).sum(axis=1) + beyond / max(
                self.rest, floor
            )
            outside[some] = 1 - squares[:, : self.main].sum(axis=1) / np.maximum(total, TINY)
        return scaled, np.clip(outside, 0, 1)


def _blocks(rows: NDArray[Any]) -> Any:
    for start in range(0, len(rows), BLOCK_ROWS):
        yield np.asarray(rows[start : start + BLOCK_ROWS], dtype=np.float64)
