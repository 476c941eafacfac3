"""Embeddings of methods that know points only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from laplacian_metric.embedding import StochasticEmbedding, unit_rows
from laplacian_metric.encoder import Encoder
from laplacian_metric.method import Embedder


class PointEmbedder(Embedder):
    """The encoder's points, without any spread: every joint sample is the same."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__(encoder)
        self.encoder = encoder

    def embed_batch(self, inputs: Any) -> StochasticEmbedding:
        z = unit_rows(self.encoder.raw(inputs))
        certain = z.new_full((len(z),), torch.inf)
        return StochasticEmbedding(point=z, mean=z, kappa=certain, uncertainty=certain.reciprocal())

    def sample_embeddings(
        self, inputs: Any, samples: int, *, generator: torch.Generator | None = None
    ) -> Iterator[Tensor]:
        z = self.embed(inputs).point
        for _ in range(samples):
            yield z
