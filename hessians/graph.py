"""The pair weights of a loss as a weighted graph: the symmetric matrix Y, with zero diagonal.

Stores of several kinds share one interface, so that nothing downstream asks how many images there are: a dense
matrix for a batch, a list of edges for explicit pairs, and rows made on demand where N x N would not fit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from hessians.pairs import Pairs, neighbour_sums, row_blocks

# A dense Y of 4,096 images is 64 MiB in float32; beyond that, rows are made on demand.
DENSE_IMAGES = 4096


class Edges(NamedTuple):
    """Edges of a graph, each unordered pair once: two images and their weight y. All of shape (P,)."""

    first: Tensor
    second: Tensor
    weight: Tensor


class PairGraph(ABC):
    """A symmetric N x N matrix Y of pair weights with zero diagonal."""

    num_images: int

    @abstractmethod
    def product(self, values: Tensor) -> Tensor:
        """Y @ values for values (N, C)."""

    @abstractmethod
    def edges(self) -> Iterator[Edges]:
        """The edges of non-zero weight, in chunks."""

    @abstractmethod
    def dense(self) -> Tensor:
        """Y itself, (N, N)."""


class DenseGraph(PairGraph):
    """A graph held as its matrix (N, N)."""

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix
        self.num_images = len(matrix)

    def product(self, values: Tensor) -> Tensor:
        return self.matrix @ values

    def edges(self) -> Iterator[Edges]:
        first, second = self.matrix.triu(1).nonzero(as_tuple=True)
        yield Edges(first, second, self.matrix[first, second])

    def dense(self) -> Tensor:
        return self.matrix


class EdgeGraph(PairGraph):
    """A graph held as a list of edges; several edges between the same two images add up."""

    def __init__(self, edges: Edges, num_images: int) -> None:
        self.list = edges
        self.num_images = num_images

    def product(self, values: Tensor) -> Tensor:
        return neighbour_sums(self.list.first, self.list.second, self.list.weight, values)

    def edges(self) -> Iterator[Edges]:
        yield self.list

    def dense(self) -> Tensor:
        matrix = self.list.weight.new_zeros(self.num_images, self.num_images)
        for rows, columns in ((self.list.first, self.list.second), (self.list.second, self.list.first)):
            matrix.index_put_((rows, columns), self.list.weight, accumulate=True)
        return matrix


class RowGraph(PairGraph):
    """A graph whose rows are made on demand: ``rows(start, stop)`` returns Y[start:stop], (stop - start, N)."""

    def __init__(self, rows: Callable[[int, int], Tensor], num_images: int) -> None:
        self.rows = rows
        self.num_images = num_images

    def product(self, values: Tensor) -> Tensor:
        product = torch.empty_like(values)
        for start, stop in row_blocks(self.num_images):
            product[start:stop] = self.rows(start, stop) @ values
        return product

    def edges(self) -> Iterator[Edges]:
        for start, stop in row_blocks(self.num_images):
            block = self.rows(start, stop)
            rows, columns = block.triu(start + 1).nonzero(as_tuple=True)
            yield Edges(rows + start, columns, block[rows, columns])

    def dense(self) -> Tensor:
        return self.rows(0, self.num_images)


class PositiveGraph(PairGraph):
    """The positive pairs alone, all of one weight; for labels its products cost O(N C), by sums over the classes."""

    def __init__(self, pairs: Pairs, weight: float, dtype: torch.dtype) -> None:
        self.pairs = pairs
        self.weight = weight
        self.dtype = dtype
        self.num_images = pairs.num_images

    def product(self, values: Tensor) -> Tensor:
        return self.weight * self.pairs.positive_sums(values)

    def edges(self) -> Iterator[Edges]:
        for first, second, count in self.pairs.listed(positive=True):
            yield Edges(first, second, self.weight * count.to(self.dtype))

    def dense(self) -> Tensor:
        return self.weight * self.pairs.block(0, self.num_images)[0].to(self.dtype)
