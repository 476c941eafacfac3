"""HET-XL: Gaussian noise on the embeddings, learned for each image, before a softmax (Collier et al., 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.methods.softmax.base import SoftmaxLearner, SoftmaxNetwork, classes_of
from experiments.methods.softmax.probabilities import Score
from laplacian_metric.core.arguments import Count, Draws
from laplacian_metric.core.method import Learner, Method, Setup, only
from laplacian_metric.encoder import Encoder
from laplacian_metric.encoder.heads import random_head

LEAST_VARIANCE = 1e-6
TEMPERATURES = (0.3, 3.0)


@dataclass(frozen=True)
class HetXL(Method):
    """Trains encoder, classifier and the covariance V(x) V(x)' + diag d(x) of noise on the raw embedding.

    V(x) = A * v(x) with a shared matrix A (Z, R), d(x) is positive, and the loss is the cross-entropy of the mean of
    softmax(W (u + noise)/tau) over draws. The temperature tau is learned, from 0.3 to 3.

    Attributes:
        score: a score of the mean probabilities, see `Softmax`, or "log-det", the covariance's log determinant.
        rank: R.
        samples: draws of the noise, in training and for embeddings.

    Example:
        >>> HetXL(score="log-det").rank
        1
    """

    name: ClassVar[str] = "het-xl"

    score: Score | Literal["log-det"] = "entropy"
    rank: Count = 1
    samples: Draws = 10

    def learner(self, encoders: Sequence[Encoder], setup: Setup) -> Learner:
        encoder, classes = only(encoders, self.name), classes_of(setup, self.name)
        network = HetXLNetwork(encoder, classes, self.rank, self.samples, setup.seed)
        # tau is learned: a second temperature would do its work again.
        return SoftmaxLearner(network, self.score, 1.0)


class HetXLNetwork(SoftmaxNetwork):
    """inputs -> raw embeddings, noise around them, and the logits of noisy embeddings."""

    def __init__(self, encoder: Encoder, num_classes: int, rank: int, samples: int, seed: int) -> None:
        super().__init__(num_classes)
        self.encoder, self.rank, self.samples, self.seed = encoder, rank, samples, seed
        dim, like = encoder.dim, encoder.head.weight
        generator = torch.Generator().manual_seed(seed)
        self.classifier = random_head(dim, num_classes, generator=generator).to(like)
        self.scale = random_head(dim, dim, generator=generator).to(like)
        self.diagonal = random_head(dim, dim, generator=generator).to(like)
        self.shared = nn.Parameter((torch.randn(dim, rank, generator=generator) * dim**-0.5).to(like))
        self.raw_temperature = nn.Parameter(like.new_tensor(0.5413))  # softplus of it is 1

    @property
    def temperature(self) -> Tensor:
        """tau."""
        return F.softplus(self.raw_temperature).clamp(*TEMPERATURES)

    def covariance(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Return V (N, Z, R) and d (N, Z) of raw embeddings (N, Z); the covariance of the noise is V V' + diag d."""
        factor: Tensor = self.shared * self.scale(u)[:, :, None]
        return factor, F.softplus(self.diagonal(u)) + LEAST_VARIANCE

    def noisy(self, u: Tensor, samples: int, generator: torch.Generator | None, *, shared: bool) -> Tensor:
        """Return draws u + d^(1/2) e1 + V e2, (S, N, Z); ``shared``: e1 and e2 are the same for all images."""
        factor, variance = self.covariance(u)
        count = 1 if shared else len(u)
        device = u.device if generator is None else generator.device
        first, second = (
            torch.randn(samples, count, size, generator=generator, device=device).to(u)
            for size in (u.shape[1], self.rank)
        )
        low_rank = torch.einsum("nzr,snr->snz", factor, second.expand(-1, len(u), -1))
        return u + variance.sqrt() * first + low_rank

    def points(self, inputs: Any) -> Tensor:
        return self.encoder.raw(inputs)

    def logits_of(self, u: Tensor, generator: torch.Generator | None, *, shared: bool) -> Tensor:
        """Return the logits (S, N, C) of noisy embeddings."""
        logits: Tensor = self.classifier(self.noisy(u, self.samples, generator, shared=shared))
        return logits / self.temperature

    def draws(self, inputs: Any, generator: torch.Generator | None) -> Tensor:
        return self.logits_of(self.encoder.raw(inputs), generator, shared=False)

    def embed(self, inputs: Any) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        u = self.encoder.raw(inputs)
        logits = self.logits_of(u, torch.Generator().manual_seed(self.seed), shared=True)
        return u, logits, {"log-det": log_determinant(*self.covariance(u))}


def log_determinant(factor: Tensor, variance: Tensor) -> Tensor:
    """Return log det(V V' + diag d), (N,), of V (N, Z, R) and d (N, Z): sum log d + log det(I + V' d^-1 V).

    Example:
        >>> log_determinant(torch.zeros(1, 2, 1), torch.tensor([[1.0, 2.0]]))
        tensor([0.6931])
    """
    factor, variance = factor.double(), variance.double()
    inner = factor.mT @ (factor / variance[:, :, None])
    inner = inner + torch.eye(inner.shape[1], dtype=inner.dtype, device=inner.device)
    value: Tensor = variance.log().sum(1) + torch.linalg.slogdet(inner)[1]
    return value.float()
