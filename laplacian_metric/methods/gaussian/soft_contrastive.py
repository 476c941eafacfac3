"""Points trained with the soft contrastive loss: what Oh et al. (2019) compare hedged instance embeddings with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from laplacian_metric.core.arguments import Positive, Real
from laplacian_metric.core.batch import map_batches
from laplacian_metric.core.embedding import StochasticEmbedding, unit_rows
from laplacian_metric.core.gaussian import Gaussians
from laplacian_metric.core.method import (
    CertainEmbedder,
    Embedder,
    FitData,
    Learner,
    Method,
    Setup,
    only,
    without_spread,
)
from laplacian_metric.encoder import Encoder
from laplacian_metric.methods.gaussian.match_probability import (
    Balance,
    MatchProbability,
    match_probability,
    soft_contrastive_loss,
)


@dataclass(frozen=True)
class SoftContrastive(Method):
    """Trains an encoder by how probably images match, sigma(-a |u1 - u2| + b), whose a and b are learned too.

    It is what `HIB` comes to without variances.

    Attributes:
        normalize: whether points are put on the unit sphere, where all methods are compared. The paper's are not; with
            False the embedding's point is the direction of u, and u itself the mean of its `gaussians`.
        balance: how pairs are averaged, see `Balance`.
        scale, offset: the initial a and b.

    Example:
        >>> SoftContrastive(normalize=False).scale
        5.0
    """

    name: ClassVar[str] = "soft-contrastive"
    has_uncertainty: ClassVar[bool] = False

    normalize: bool = True
    balance: Balance = Balance.TYPES
    scale: Positive = 5.0
    offset: Real = 3.0

    def learner(self, encoders: Sequence[Encoder], setup: Setup) -> Learner:
        return SoftContrastiveLearner(self, only(encoders, self.name), setup)


class MatchingNetwork(nn.Module):
    """inputs -> points (N, Z); and a and b of the match probability."""

    def __init__(self, method: SoftContrastive, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.normalize = method.normalize
        self.match = MatchProbability(method.scale, method.offset).to(encoder.head.weight)

    def forward(self, inputs: Any) -> Tensor:
        u: Tensor = self.encoder.raw(inputs)
        return unit_rows(u) if self.normalize else u


class SoftContrastiveLearner(Learner):
    """Trains the encoder, a and b."""

    def __init__(self, method: SoftContrastive, encoder: Encoder, setup: Setup) -> None:
        self.network = MatchingNetwork(method, encoder)
        super().__init__(self.network)
        self.euclidean = not method.normalize
        self.balance = method.balance
        self.pairs = setup.pairs

    def loss(self, inputs: Any, labels: Tensor) -> Tensor:
        points = self.network(inputs)
        # One sample of each image: the image itself.
        return soft_contrastive_loss(
            points[None], self.pairs(points, labels), self.network.match, balance=self.balance
        )

    def points(self, inputs: Any) -> Tensor:
        points: Tensor = self.network(inputs)
        return points

    def embedder(self, data: FitData) -> Embedder:
        return SoftContrastiveEmbedder(self.network)


class SoftContrastiveEmbedder(CertainEmbedder):
    """Points without any spread, compared by their match probability."""

    def __init__(self, network: MatchingNetwork) -> None:
        super().__init__(network)
        self.network = network

    @property
    def match(self) -> MatchProbability:
        """The learned a and b."""
        return self.network.match

    def settings(self) -> dict[str, Any]:
        """The learned a and b."""
        return self.match.settings()

    def embed_batch(self, inputs: Any) -> StochasticEmbedding:
        u = self.network(inputs)
        return without_spread(u, Gaussians(u, torch.zeros_like(u)))

    def similarity(self, queries: StochasticEmbedding, gallery: StochasticEmbedding) -> Tensor | None:
        """The match probability, (Q, G)."""
        points = []
        for e in (queries, gallery):
            if e.gaussians is None:
                raise ValueError("this embedding does not say where its points are: embed with this method")
            points.append(e.gaussians.mean[None])
        return match_probability(points[0], points[1], self.match)

    def mixtures(self, inputs: Any) -> tuple[Tensor, Tensor]:
        """Means and log variances, (N, 1, Z) each, as those of `HIBEmbedder`; the latter are minus infinity."""
        parts = map_batches(lambda batch: self.network(batch.inputs), inputs, self.module)
        means = torch.cat(parts)[:, None]
        return means, torch.full_like(means, -torch.inf)

    def drawn(
        self, mixtures: tuple[Tensor, Tensor], samples: int, generator: torch.Generator | None = None
    ) -> Tensor:
        """The points (1, N, Z): all samples would be the same."""
        return mixtures[0].movedim(1, 0)
