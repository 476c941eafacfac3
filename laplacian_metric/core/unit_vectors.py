"""Checked unit vectors: the form in which embeddings are compared."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hessians.checks import check_finite, check_matrix

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
        """Check the vectors; errors call them by ``name``."""
        norm = check_unit(name, vectors)
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


def check_unit(name: str, vectors: Tensor) -> Tensor:
    """Refuse an empty set, NaN and vectors that are not of unit length; return the norms (N,) in float64.

    Example:
        >>> check_unit("embeddings", torch.tensor([[3.0, 4.0]]))
        Traceback (most recent call last):
        ...
        ValueError: embeddings is not normalised: row 0 has norm 5, 1 of 1 rows are off by more than 0.0001. Use
        torch.nn.functional.normalize(embeddings, dim=1)
    """
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
        first = int(wrong[0])
        raise ValueError(
            f"{name} is not normalised: row {first} has norm {float(norm[first]):.6g}, {len(wrong)} of {len(norm)} "
            f"rows are off by more than {tolerance:.3g}. Use torch.nn.functional.normalize({name}, dim=1)"
        )
    return norm
