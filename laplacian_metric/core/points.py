"""Embeddings of methods that know points only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from laplacian_metric.core.embedding import StochasticEmbedding, unit_rows
from laplacian_metric.core.gaussian import Gaussians
from laplacian_metric.core.method import Embedder

if TYPE_CHECKING:
    from laplacian_metric.encoder import Encoder


class CertainEmbedder(Embedder):
    """One whose embeddings have no spread: every joint sample is the same."""

    def sample_encoded(
        self, encoded: list[Any], samples: int, generator: torch.Generator | None
    ) -> Iterator[Tensor]:
        z = StochasticEmbedding.cat([self.distributions(part) for part in encoded]).point
        for _ in range(samples):
            yield z


class PointEmbedder(CertainEmbedder):
    """The encoder's points."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__(encoder)
        self.encoder = encoder

    def embed_batch(self, inputs: Any) -> StochasticEmbedding:
        return without_spread(self.encoder.raw(inputs))


def without_spread(u: Tensor, gaussians: Gaussians | None = None) -> StochasticEmbedding:
    """The directions of (N, Z), each of which is certain."""
    z = unit_rows(u)
    certain = z.new_full((len(z),), torch.inf)
    return StochasticEmbedding(z, z, certain, certain.reciprocal(), gaussians)
