"""The encoder alone: what every other method is compared with in retrieval. It is never unsure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from laplacian_metric.core.method import Embedder, FitData, Learner, Method, PointEmbedder, Setup, only
from laplacian_metric.encoder import Encoder


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
        super().__init__(encoder, encoder)
        self.pair_loss = setup.loss
        self.pairs = setup.pairs

    def loss(self, inputs: Any, labels: Tensor) -> Tensor:
        u = self.encoder.raw(inputs)
        return self.pair_loss(u, self.pairs(u, labels))

    def embedder(self, data: FitData) -> Embedder:
        return PointEmbedder(self.encoder)
