"""Probabilistic face embeddings (Shi and Jain, 2019): a frozen encoder, and a head that learns how far to trust it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from hessians import Pairs
from laplacian_metric.core.arguments import Count, Real
from laplacian_metric.core.embedding import StochasticEmbedding, unit_rows
from laplacian_metric.core.gaussian import Gaussians
from laplacian_metric.core.method import Embedder, FitData, Keep, Learner, Method, Setup, Start, only
from laplacian_metric.encoder import Encoder
from laplacian_metric.encoder.uncertainty import LastNorm, UncertaintyHead
from laplacian_metric.methods.gaussian.mutual_likelihood import (
    equal_variance,
    mutual_likelihood_loss,
    mutual_likelihood_score,
)
from laplacian_metric.vmf.checks import result_dtype


@dataclass(frozen=True)
class PFE(Method):
    """Learns sigma^2 of every dimension of a frozen encoder's unit embeddings, by the likelihood of positive pairs.

    Attributes:
        hidden: the width of the head.
        last_norm: what is learned after its last standardisation, see `LastNorm`.
        scale: the initial scale there. (1e-4 in the original; 1 gets to a greater likelihood of validation images in as
            many steps.)
        shift: the initial log sigma^2; by default the most likely one if all variances were equal, log of half
            the mean squared difference in the positive pairs of the first batch. (The original's -7 is near that for
            512 dimensions and far from it for 3, and an optimizer's steps are too small to come from there.)

    Example:
        >>> PFE(last_norm="separate").last_norm
        <LastNorm.SEPARATE: 'separate'>
    """

    name: ClassVar[str] = "pfe"
    start: ClassVar[Start] = Start.FROZEN

    hidden: Count = 512
    last_norm: LastNorm = LastNorm.SHARED
    scale: Real = 1.0
    shift: Real | None = None

    def learner(self, encoders: Sequence[Encoder], setup: Setup) -> Learner:
        encoder = only(encoders, self.name)
        head = UncertaintyHead(
            encoder.num_features,
            encoder.dim,
            hidden=self.hidden,
            last_norm=self.last_norm,
            scale=self.scale,
            shift=self.shift,
            seed=setup.seed,
        )
        return PFELearner(encoder, head.to(encoder.head.weight), setup, self)


class PFENetwork(nn.Module):
    """The frozen encoder and the head beside it: inputs -> unit z (N, Z) and sigma^2 (N, Z)."""

    is_started: Tensor

    def __init__(self, encoder: Encoder, uncertainty: UncertaintyHead, is_started: bool) -> None:
        super().__init__()
        self.encoder = encoder.requires_grad_(False)
        self.uncertainty = uncertainty
        # In the checkpoints, so that a resumed training does not start its shift again.
        self.register_buffer("is_started", torch.tensor(is_started, device=encoder.head.weight.device))

    def train(self, mode: bool = True) -> PFENetwork:
        """The head's mode; the encoder is always in evaluation mode."""
        super().train(mode)
        self.encoder.eval()
        return self

    def forward(self, inputs: Any) -> tuple[Tensor, Tensor]:
        features, z = self.frozen(inputs)
        return z, self.variances(features, z)

    def variances(self, features: Tensor, z: Tensor) -> Tensor:
        """Return sigma^2 (N, Z) in the dtype of z."""
        variances: Tensor = self.uncertainty(features).to(z.dtype).exp()
        return variances

    @torch.no_grad()
    def frozen(self, inputs: Any) -> tuple[Tensor, Tensor]:
        """Features (N, H) and unit z (N, Z)."""
        features = self.encoder.features(inputs)
        u = self.encoder.head(features)
        return features, unit_rows(u.to(result_dtype(u)))

    def start(self, z: Tensor, pairs: Pairs) -> None:
        """Start where equal variances are the most likely; waits for a batch that can tell."""
        variance = equal_variance(z, pairs)
        if variance > 0:
            # Buffers: in several processes the first one's count.
            self.uncertainty.origin.fill_(math.log(variance))
            self.is_started.fill_(True)


class PFELearner(Learner):
    """Trains the head only; the gradients of a batch without positive pairs are 0."""

    keep: ClassVar[Keep] = Keep.LOSS

    def __init__(self, encoder: Encoder, head: UncertaintyHead, setup: Setup, method: PFE) -> None:
        is_learned = isinstance(head.shift, nn.Parameter)
        self.network = PFENetwork(encoder, head, is_started=method.shift is not None or not is_learned)
        super().__init__(self.network, encoder)
        self.pairs = setup.pairs
        self.pair_loss: Callable[[Tensor, Tensor, Pairs], Tensor] = mutual_likelihood_loss

    def loss(self, inputs: Any, labels: Tensor) -> Tensor:
        features, z = self.network.frozen(inputs)
        pairs = self.pairs(z, labels)
        if not self.network.is_started:
            self.network.start(z, pairs)
        return self.pair_loss(z, self.network.variances(features, z), pairs)

    def embedder(self, data: FitData) -> Embedder:
        return PFEEmbedder(self.network)


class PFEEmbedder(Embedder):
    """Gaussians around the frozen encoder's points, unsure by the harmonic mean of their variances."""

    def __init__(self, network: PFENetwork) -> None:
        super().__init__(network)
        self.network = network

    def embed_batch(self, inputs: Any) -> StochasticEmbedding:
        gaussians = Gaussians(*self.network(inputs))
        return StochasticEmbedding.from_gaussians(gaussians).with_uncertainty(
            harmonic_mean(gaussians.variance)
        )

    def similarity(self, queries: StochasticEmbedding, gallery: StochasticEmbedding) -> Tensor:
        """The mutual likelihood score, (Q, G)."""
        q, g = _gaussians(queries), _gaussians(gallery)
        return mutual_likelihood_score(q.mean, q.marginal_variance, g.mean, g.marginal_variance)


def _gaussians(e: StochasticEmbedding) -> Gaussians:
    if e.gaussians is None:
        raise ValueError("this embedding has no Gaussians, so it has no likelihood: embed with this method")
    return e.gaussians


def harmonic_mean(variance: Tensor) -> Tensor:
    """The harmonic mean over the dimensions of (N, Z), (N,).

    Example:
        >>> harmonic_mean(torch.tensor([[1.0, 0.25]]))
        tensor([0.4000])
    """
    return variance.shape[1] / variance.reciprocal().sum(1)
