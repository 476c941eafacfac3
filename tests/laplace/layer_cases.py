"""One list of the structures of a layer's curvature, each with its dense matrix, for all tests of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from laplacian_metric.laplace.layer import (
    DiagonalCurvature,
    FullCurvature,
    KroneckerCurvature,
    LayerCurvature,
    LowRankCurvature,
    Structure,
)

float64 = torch.float64


def gaussian(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=float64)


@dataclass(frozen=True)
class Problem:
    """Random shapes; a ``kind`` is "positive", "negative" (partly) or "zero". ``rank`` may exceed what fits."""

    outputs: int
    inputs: int
    rank: int
    kind: str
    seed: int

    def diagonal(self) -> Tensor:
        values = gaussian(self.outputs, self.inputs, seed=self.seed)
        return {"positive": values.square(), "negative": values, "zero": 0 * values}[self.kind]

    def matrix(self, size: int, rank: int, seed: int) -> Tensor:
        """Of this rank and positive semi-definite, unless negative: then of full rank and any sign."""
        root = gaussian(size, rank, seed=self.seed + seed)
        square = gaussian(size, size, seed=self.seed + seed)
        return {"positive": root @ root.T, "negative": square + square.T, "zero": 0 * square}[self.kind]


Made = tuple[LayerCurvature, Tensor, float]  # the curvature, its dense matrix, the share that was negative


def _positive_part(matrix: Tensor) -> tuple[Tensor, float]:
    values, vectors = torch.linalg.eigh(matrix)
    negative = values < -1e-10 * values.abs().amax()
    return vectors @ torch.diag(values.clamp(min=0)) @ vectors.T, float(negative.double().mean())


def diagonal(problem: Problem) -> Made:
    values = problem.diagonal()
    share = float((values < 0).double().mean())
    return DiagonalCurvature(values), torch.diag(values.clamp(min=0).flatten()), share


def kronecker(problem: Problem) -> Made:
    factors = (
        problem.matrix(problem.outputs, problem.rank, 1),
        problem.matrix(problem.inputs, 1 + problem.rank, 2),
    )
    return KroneckerCurvature.from_factors(*factors), *_positive_part(torch.kron(*factors))


def low_rank(problem: Problem) -> Made:
    rest, zero = problem.diagonal(), problem.kind == "zero"
    factor = gaussian(problem.rank, *rest.shape, seed=problem.seed + 1) * (0 if zero else 1)
    dense = torch.diag(rest.clamp(min=0).flatten()) + factor.flatten(1).T @ factor.flatten(1)
    return LowRankCurvature(rest, factor), dense, float((rest < 0).double().mean())


def full(problem: Problem) -> Made:
    matrix = problem.matrix(problem.outputs * problem.inputs, problem.rank, 1)
    return FullCurvature.from_matrix(matrix, problem.outputs), *_positive_part(matrix)


CASES: dict[Structure, Callable[[Problem], Made]] = {
    Structure.DIAGONAL: diagonal,
    Structure.KRONECKER: kronecker,
    Structure.LOW_RANK: low_rank,
    Structure.FULL: full,
}

Make = Callable[[Problem], Made]

every_structure = pytest.mark.parametrize("make", CASES.values(), ids=[case.value for case in CASES])
a_problem = st.builds(
    Problem,
    outputs=st.integers(1, 4),
    inputs=st.integers(1, 6),
    rank=st.integers(0, 30),
    kind=st.sampled_from(["positive", "negative", "zero"]),
    seed=st.integers(0, 2**31),
)
a_prior = st.floats(-8, 8).map(lambda exponent: 10.0**exponent)
a_ratio = st.one_of(st.just(0.0), st.floats(-4, 5).map(lambda exponent: 10.0**exponent))  # scale / prior
SMALL = Problem(outputs=3, inputs=4, rank=5, kind="positive", seed=7)


def dense_precision(dense: Tensor, scale: float, prior: float) -> Tensor:
    return scale * dense + prior * torch.eye(len(dense), dtype=float64)


def jacobian(inputs: Tensor, outputs: int) -> Tensor:
    """Of W h + b with respect to [W | b], (N, Z, Z H')."""
    eye = torch.eye(outputs, dtype=float64)
    return torch.einsum("nh,kl->nklh", inputs.double(), eye).flatten(2)
