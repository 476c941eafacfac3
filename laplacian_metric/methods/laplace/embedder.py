"""A fitted LAM as the embedder of a method."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from laplacian_metric.core.embedding import StochasticEmbedding
from laplacian_metric.core.method import JointEmbedder
from laplacian_metric.laplace.frozen_features import unlabelled_features
from laplacian_metric.laplace.posthoc import LAM


class LAMEmbedder(JointEmbedder):
    """Embeds with a fitted LAM; all images share a draw of its weights.

    Args:
        lam: its encoder stays as it is from now on.

    Example:
        >>> from hessians import ContrastiveLoss
        >>> from laplacian_metric.encoder import Encoder
        >>> encoder = Encoder(torch.nn.Identity(), torch.nn.Linear(4, 3))
        >>> features, labels = torch.randn(40, 4), torch.arange(40) % 4
        >>> lam = LAM(encoder, ContrastiveLoss()).fit_features(features, labels, check_mode=False)
        >>> sorted(LAMEmbedder(lam).scores(features))
        ['1/kappa', 'own', 'variance']
    """

    def __init__(self, lam: LAM) -> None:
        super().__init__(lam.encoder)
        self.lam = lam

    def encode(self, inputs: Any) -> Tensor:
        return self.lam.encoder.features(inputs)

    def distributions(self, encoded: Tensor) -> StochasticEmbedding:
        return self.lam.embed_features(encoded)

    def sample_encoded(
        self, encoded: list[Tensor], samples: int, generator: torch.Generator | None
    ) -> Iterator[Tensor]:
        features = encoded[0] if len(encoded) == 1 else torch.cat(encoded)
        return self.lam.sample_embeddings(features, samples, generator=generator)

    def sample_embeddings(
        self, inputs: Any, samples: int, *, generator: torch.Generator | None = None
    ) -> Iterator[Tensor]:
        rows = unlabelled_features(self.lam.encoder, inputs)
        return self.sample_encoded([rows], samples, generator)

    def settings(self) -> dict[str, Any]:
        return {
            "n_effective": self.lam.n_effective,
            "temperature": self.lam.temperature,
            "prior_precision": self.lam.prior_precision,
            "diagnostics": self.lam.diagnostics().to_dict(),
        }
