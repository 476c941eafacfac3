"""Hedged instance embeddings (Oh et al., 2019): an encoder of distributions, trained by how probably images match."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from hessians.checks import Choice
from laplacian_metric.core.arguments import Count, NotNegative, Positive, Real, Variance
from laplacian_metric.core.batch import map_batches
from laplacian_metric.core.embedding import StochasticEmbedding, unit_rows
from laplacian_metric.core.gaussian import Gaussians, symmetric
from laplacian_metric.core.method import Embedder, FitData, JointEmbedder, Learner, Method, Setup, Start, only
from laplacian_metric.encoder import Encoder
from laplacian_metric.encoder.layers import seeded
from laplacian_metric.encoder.uncertainty import (
    LastNorm,
    LinearUncertaintyHead,
    UncertaintyHead,
)
from laplacian_metric.methods.gaussian.match_probability import (
    Average,
    Balance,
    MatchProbability,
    kl_to_standard_normal,
    match_probability,
    self_mismatch,
    soft_contrastive_loss,
)


class VarianceHead(Choice):
    """What makes log sigma^2 out of the features."""

    MODULE = "module"
    """Two linear layers with batch norms, as in PFE: what the LAM paper (appendix G.4) compares with."""
    LINEAR = "linear"
    """One linear layer beside the one that makes the mean, as in the method's own paper."""


@dataclass(frozen=True)
class HIB(Method):
    """Trains means and variances with the soft contrastive loss, whose a and b are learned too.

    Attributes:
        samples: K, drawn of every image in training.
        components: C, Gaussians in the mixture of an image, equally weighted; K/C samples are drawn of each.
        kl_weight: beta, of the divergence from a standard normal. A mixture counts with the mean of its components'
            divergences, an upper bound.
        normalize: whether means are put on the unit sphere, where all methods are compared. The paper's are not; with
            False the embedding's point is the direction of the mean, and the paper's own match probability is the
            embedder's `similarity`.
        head: see `VarianceHead`.
        hidden: the width of the head "module".
        last_norm: what is learned after its last standardisation, see `LastNorm`.
        balance: how pairs are averaged, see `Balance`. The paper balances by the choice of its batches.
        average: what is averaged over samples, see `Average`.
        scale, offset: the initial a and b.
        variance: the initial sigma^2; without effect where the last norm is "fixed".
        score_samples: how many samples, twice, the self-mismatch of an image is estimated with. The draws are always
            the same, so that an image's score does not depend on its batch; those of `similarity`, K twice, too.

    Example:
        >>> HIB(components=2).samples
        8
    """

    name: ClassVar[str] = "hib"
    start: ClassVar[Start] = Start.SCRATCH

    samples: Count = 8
    components: Count = 1
    kl_weight: NotNegative = 1e-4
    normalize: bool = True
    head: VarianceHead = VarianceHead.MODULE
    hidden: Count = 512
    last_norm: LastNorm = LastNorm.SHARED
    balance: Balance = Balance.TYPES
    average: Average = Average.PROBABILITY
    scale: Positive = 5.0
    offset: Real = 3.0
    variance: Variance = 0.02
    score_samples: Count = 64

    def __post_init__(self) -> None:
        for name in ("samples", "score_samples"):
            if getattr(self, name) % self.components:
                raise ValueError(
                    f"{name} is {getattr(self, name)} for {self.components} components: a multiple is needed, since "
                    "of each as many samples are drawn"
                )

    def learner(self, encoders: Sequence[Encoder], setup: Setup) -> Learner:
        return HIBLearner(self, only(encoders, self.name), setup)


class HIBNetwork(nn.Module):
    """inputs -> means and log variances (N, C, Z); and a and b of the match probability."""

    def __init__(self, method: HIB, encoder: Encoder, seed: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.normalize = method.normalize
        with seeded(seed):
            self.more_means = nn.ModuleList(
                nn.Linear(encoder.num_features, encoder.dim) for _ in range(method.components - 1)
            )
            self.log_variance = _variance_head(method, encoder)
        self.match = MatchProbability(method.scale, method.offset)
        for added in (self.more_means, self.log_variance, self.match):
            added.to(encoder.head.weight)

    def forward(self, inputs: Any) -> tuple[Tensor, Tensor]:
        features = self.encoder.features(inputs)
        means = torch.stack([head(features) for head in (self.encoder.head, *self.more_means)], dim=1)
        if self.normalize:
            means = unit_rows(means.flatten(0, 1)).view_as(means)
        return means, self.log_variance(features).view_as(means)

    def draw(self, means: Tensor, log_variances: Tensor, noise: Tensor) -> Tensor:
        """Samples (C S, N, Z) with noise (S, N or 1, C, Z): as many of every component."""
        drawn = means + (0.5 * log_variances).exp() * noise
        return drawn.movedim(2, 0).flatten(0, 1)


def _variance_head(method: HIB, encoder: Encoder) -> nn.Module:
    dim = encoder.dim * method.components
    if method.head is VarianceHead.LINEAR:
        return LinearUncertaintyHead(encoder.num_features, dim, variance=method.variance)
    return UncertaintyHead(
        encoder.num_features,
        dim,
        hidden=method.hidden,
        last_norm=method.last_norm,
        shift=math.log(method.variance),
    )


class HIBLearner(Learner):
    """Trains everything: the encoder, the variances, a and b."""

    network_kind: ClassVar[type[HIBNetwork]] = HIBNetwork

    def __init__(self, method: HIB, encoder: Encoder, setup: Setup) -> None:
        self.method = method
        self.network = self.network_kind(method, encoder, setup.seed)
        super().__init__(self.network)
        self.euclidean = not method.normalize
        self.pairs = setup.pairs
        self.seed = setup.seed
        # Replaced by `begin`.
        self.generator = torch.Generator().manual_seed(setup.seed)

    def loss(self, inputs: Any, labels: Tensor) -> Tensor:
        means, log_variances = self.network(inputs)
        matching = self.matching_loss(means, log_variances, labels)
        # Every pair counts the divergences of both its images.
        divergence = kl_to_standard_normal(means, log_variances).mean()
        return matching + 2 * self.method.kl_weight * divergence

    def matching_loss(self, means: Tensor, log_variances: Tensor, labels: Tensor) -> Tensor:
        """Return the soft contrastive loss of samples of the mixtures."""
        method, (num, components, dim) = self.method, means.shape
        noise = standard_normal((method.samples // components, num, components, dim), means, self.generator)
        return soft_contrastive_loss(
            self.network.draw(means, log_variances, noise),
            self.pairs(means.mean(1), labels),
            self.network.match,
            balance=method.balance,
            average=method.average,
        )

    def points(self, inputs: Any) -> Tensor:
        means: Tensor = self.network(inputs)[0]
        return means.mean(1)

    def embedder(self, data: FitData) -> Embedder:
        return HIBEmbedder(self.network, self.method, self.seed)


class HIBEmbedder(JointEmbedder):
    """Gaussians, or for a mixture the Gaussian with its mean and covariance; unsure by the self-mismatch."""

    def __init__(self, network: HIBNetwork, method: HIB, seed: int) -> None:
        super().__init__(network)
        self.network = network
        self.method = method
        self.seed = seed

    @property
    def match(self) -> MatchProbability:
        """The learned a and b."""
        return self.network.match

    def settings(self) -> dict[str, Any]:
        """The learned a and b."""
        return self.match.settings()

    def encode(self, inputs: Any) -> tuple[Tensor, Tensor]:
        outputs: tuple[Tensor, Tensor] = self.network(inputs)
        return outputs

    def distributions(self, encoded: tuple[Tensor, Tensor]) -> StochasticEmbedding:
        means, log_variances = encoded
        noises = self._noise(means, self.method.score_samples)
        first, second = (self.network.draw(means, log_variances, noise) for noise in noises)
        e = StochasticEmbedding.from_gaussians(matched(means, log_variances.exp()))
        return e.with_uncertainty(self_mismatch(first, second, self.network.match))

    def similarity(self, queries: StochasticEmbedding, gallery: StochasticEmbedding) -> Tensor | None:
        """The match probability, (Q, G), from K samples of each image.

        None for mixtures, whose components an embedding does not hold: see `match_probability`.
        """
        if self.method.components > 1:
            return None
        parts = []
        for e in (queries, gallery):
            if e.gaussians is None:
                raise ValueError("this embedding has no Gaussians to draw from: embed with this method")
            parts.append((e.gaussians.mean[:, None], e.gaussians.marginal_variance[:, None].log()))
        return self._matching(*parts)

    def match_probability(self, queries: Any, gallery: Any) -> Tensor:
        """The match probability (Q, G) of inputs, as `embed` takes them; for mixtures too."""
        return self._matching(self.mixtures(queries), self.mixtures(gallery))

    def mixtures(self, inputs: Any) -> tuple[Tensor, Tensor]:
        """Means and log variances of the components, (N, C, Z) each, of inputs as `embed` takes them."""
        return _joined(map_batches(lambda batch: self.encode(batch.inputs), inputs, self.module))

    def drawn(
        self, mixtures: tuple[Tensor, Tensor], samples: int, generator: torch.Generator | None = None
    ) -> Tensor:
        """Samples (S, N, Z) of `mixtures`, as many of every component, independent between images."""
        means, log_variances = mixtures
        num, components, dim = means.shape
        if samples < 1 or samples % components:
            raise ValueError(f"samples is {samples}, a multiple of the {components} components is needed")
        noise = standard_normal((samples // components, num, components, dim), means, generator)
        return self.network.draw(means, log_variances, noise)

    def sample_encoded(
        self, encoded: list[tuple[Tensor, Tensor]], samples: int, generator: torch.Generator | None
    ) -> Iterator[Tensor]:
        if self.method.components == 1:
            e = StochasticEmbedding.cat([self.distributions(part) for part in encoded])
            yield from (e.sample(1, generator=generator)[0] for _ in range(samples))
            return
        means, log_variances = _joined(encoded)
        num, components, _ = means.shape
        device = means.device if generator is None else generator.device
        rows = torch.arange(num, device=means.device)
        for _ in range(samples):
            chosen = torch.randint(components, (num,), generator=generator, device=device).to(means.device)
            mean, deviation = means[rows, chosen], (0.5 * log_variances[rows, chosen]).exp()
            yield unit_rows(mean + deviation * standard_normal(mean.shape, mean, generator))

    def _matching(self, queries: tuple[Tensor, Tensor], gallery: tuple[Tensor, Tensor]) -> Tensor:
        first, second = self._noise(queries[0], self.method.samples)
        return match_probability(
            self.network.draw(*queries, first), self.network.draw(*gallery, second), self.network.match
        )

    def _noise(self, like: Tensor, samples: int) -> Tensor:
        """Two sets of draws (2, S/C, 1, C, Z), the same for all images of all batches.

        Each draw stands beside its opposite. Draws that all images have in common move all queries by one vector, the
        difference of both sets' means, which no average over images takes away; so it is made 0.
        """
        _, components, dim = like.shape
        each = samples // components
        shape = (2, (each + 1) // 2, 1, components, dim)
        drawn = standard_normal(shape, like, torch.Generator().manual_seed(self.seed))
        return torch.cat([drawn, -drawn], dim=1)[:, :each]


def _joined(parts: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Means and log variances of several batches."""
    means, log_variances = zip(*parts, strict=True)
    return torch.cat(means), torch.cat(log_variances)


def standard_normal(shape: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draws on the generator's device, moved to ``like``'s device and dtype."""
    device = like.device if generator is None else generator.device
    return torch.randn(tuple(shape), generator=generator, device=device).to(like)


def matched(means: Tensor, variances: Tensor) -> Gaussians:
    """The Gaussians with the mean and the covariance of mixtures with equal weights, from (N, C, Z) each.

    Example:
        >>> matched(torch.tensor([[[1.0, 0.0], [3.0, 0.0]]]), torch.full((1, 2, 2), 0.5)).covariance
        tensor([[[1.5000, 0.0000],
                 [0.0000, 0.5000]]])
    """
    if means.shape[1] == 1:
        return Gaussians(means[:, 0], variances[:, 0])
    mean = means.mean(1)
    apart = means - mean[:, None]
    between = torch.einsum("nci,ncj->nij", apart, apart) / means.shape[1]
    return Gaussians(mean, symmetric(between + torch.diag_embed(variances.mean(1))))
