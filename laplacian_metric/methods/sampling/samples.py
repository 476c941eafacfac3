"""Embedders that know an image's distribution by many draws of a network alone."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from laplacian_metric.core.embedding import StochasticEmbedding
from laplacian_metric.core.method import JointEmbedder
from laplacian_metric.vmf import StreamedFit


class DrawnEmbedder(JointEmbedder):
    """Mean direction and kappa of draws that are the same for every image and in every call.

    Args:
        module: everything that has weights.
        draws: how many there are.
    """

    def __init__(self, module: nn.Module, draws: int) -> None:
        super().__init__(module)
        self.draws = draws
        self._keep = 0  # how many joint samples ride along with every batch

    def summed_up(self, drawn: Iterable[Tensor], point: Tensor | None = None) -> StochasticEmbedding:
        """The embedding of a batch from its unit embeddings (N, Z) by each draw; its point is the mean by default."""
        streamed = StreamedFit()
        kept: list[Tensor] = []
        for z in drawn:
            streamed.add(z)
            if len(kept) < self._keep:
                kept.append(z)
        mean, kappa = streamed.fit()
        samples = torch.stack(kept) if kept else None
        return StochasticEmbedding(
            mean if point is None else point, mean, kappa, kappa.reciprocal(), samples=samples
        )

    def embed(
        self,
        inputs: Any,
        *,
        samples: int = 0,
        generator: torch.Generator | None = None,
        progress: bool | None = None,
    ) -> StochasticEmbedding:
        """As in `Embedder`. Without a generator the joint samples are the first of those that kappa comes from."""
        if generator is not None or samples > self.draws:
            return super().embed(inputs, samples=samples, generator=generator, progress=progress)
        keeping = copy.copy(self)
        keeping._keep = samples
        return super(DrawnEmbedder, keeping).embed(inputs, progress=progress)
