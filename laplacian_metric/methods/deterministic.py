"""The encoder alone: what every other method is compared with in retrieval. It is never unsure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from laplacian_metric.embedding import StochasticEmbedding, unit_rows
from laplacian_metric.encoder import Encoder
from laplacian_metric.method import Embedder, FitData, Learner, Method, Setup, only


@dataclass(frozen=True)
class Deterministic(Method):
    """Trains an encoder with the pair loss."""

    name: ClassVar[str] = "deterministic"
    has_uncertainty: ClassVar[bool] = False

    def learner(self, encoders: Sequence[Encoder], setup: Setup) -> Learner:
        return DeterministicLearner(only(encoders, self.name), setup)


class DeterministicLearner(Learner):
    """An encoder and its pair loss over the pairs of a batch."""

    def __init__(self, encoder: Encoder, setup: Setup) -> None:
        super().__init__(encoder)
        self.encoder = encoder
        self.pair_loss = setup.loss
        self.pairs = setup.pairs

    def loss(self, inputs: Any, labels: Tensor) -> Tensor:
        u = self.encoder.raw(inputs)
        return self.pair_loss(u, self.pairs(u, labels))

    def points(self, inputs: Any) -> Tensor:
        return self.encoder.raw(inputs)

    def embedder(self, data: FitData) -> Embedder:
        return DeterministicEmbedder(self.encoder)


class DeterministicEmbedder(Embedder):
    """Points without any spread."""

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
