"""The quadratic form by which the per-image gradients of the columns become a diagonal."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hessians.output_hessian import Columns


@dataclass(frozen=True)
class Quadratic:
    r"""A group of columns without its cotangents: what weighs their per-image gradients j_cn.

        form(j) = sum_c [ sum_n nodes_nc j_cn^2 + sum_{n,m} edges_nm j_cn j_cm ]

    N images, C columns; ``nodes`` is (N, C) and ``edges`` (N, N) symmetric, each absent where it is None.
    """

    nodes: Tensor | None
    edges: Tensor | None

    @classmethod
    def of(cls, columns: Columns) -> Quadratic:
        """The form of a group of columns."""
        nodes, edges = columns.nodes, columns.edges
        if nodes is None or edges is None:
            return cls(None if nodes is None else nodes.T, edges)
        if bool((nodes == nodes[:1]).all()):
            # Nodes that all columns share are a diagonal of the edges: one product does for both.
            return cls(None, edges + torch.diag(nodes[0]))
        return cls(nodes.T, edges)

    def select(self, start: int, stop: int) -> Quadratic:
        """The form of the columns start..stop-1."""
        return Quadratic(None if self.nodes is None else self.nodes[:, start:stop], self.edges)

    def to(self, dtype: torch.dtype) -> Quadratic:
        """The form in another precision."""
        return Quadratic(
            None if self.nodes is None else self.nodes.to(dtype),
            None if self.edges is None else self.edges.to(dtype),
        )

    def __call__(self, gradients: Tensor, column_axis: int = 1) -> Tensor:
        """The form of per-image gradients j (N, ...) that have their columns at ``column_axis``.

        The image and the column axis are summed out, the others stay.
        """
        weighted = torch.zeros_like(gradients) if self.edges is None else self._couple(gradients)
        if self.nodes is not None:
            shape = [1] * gradients.ndim
            shape[0], shape[column_axis] = self.nodes.shape
            weighted = weighted.addcmul_(gradients, self.nodes.reshape(shape))
        return weighted.mul_(gradients).sum((0, column_axis))

    def _couple(self, gradients: Tensor) -> Tensor:
        """sum_m edges_nm j_m: one matrix product, as the images come first."""
        assert self.edges is not None
        return (self.edges @ gradients.reshape(len(gradients), -1)).view(gradients.shape)
