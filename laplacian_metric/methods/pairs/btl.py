"""The Bayesian triplet loss (Warburg et al., 2021): distributions, trained by how probably triplets are in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from hessians.checks import Choice
from laplacian_metric.core.arguments import Count, NotNegative, Positive, Variance
from laplacian_metric.core.embedding import StochasticEmbedding, unit_rows
from laplacian_metric.core.gaussian import Gaussians
from laplacian_metric.core.method import Embedder, FitData, Learner, Setup
from laplacian_metric.encoder import Encoder
from laplacian_metric.encoder.uncertainty import MeanAndVariance, VarianceHead
from laplacian_metric.methods.pairs.triplet import NeighbourEmbedder, TripletLearner, TripletMethod
from laplacian_metric.methods.pairs.triplet_likelihood import (
    Directed,
    Distances,
    Spreads,
    directed_moments,
    gaussian_moments,
    kl_to_gaussian_prior,
    kl_to_uniform,
    log_probability,
)
from laplacian_metric.methods.pairs.triplet_loss import (
    expected_distances,
    mean_and_spread,
    squared_distances,
)
from laplacian_metric.methods.pairs.triplet_mining import Triplets, pairwise


class Prior(Choice):
    """What embeddings are before anything is known of an image, and with it the family of their distributions."""

    GAUSSIAN = "gaussian"
    """N(0, I/D), and isotropic Gaussians, whose means are anywhere: scaled by one learned number, not normalised."""
    SPHERE = "sphere"
    """Uniform on the unit sphere, and von Mises-Fisher distributions with kappa = 1/sigma^2."""


class Likelihood(Choice):
    """Of which distributions the moments of a triplet are taken, with the prior "sphere"."""

    EXACT = "exact"
    """Those of the von Mises-Fisher distributions."""
    GAUSSIAN = "gaussian"
    """N(mean direction, sigma^2 I), as if the embeddings could leave the sphere."""


class Distance(Choice):
    """What images are retrieved by."""

    EUCLIDEAN = "euclidean"
    """The distance of the means."""
    EXPECTED = "expected"
    """The expected squared distance, which is larger for unsure images."""


@dataclass(frozen=True)
class BTL(TripletMethod):
    """Trains means and one variance an image with -log P(tau < -margin) over hard triplets, and KL divergences.

    The margin is one between squared distances, in the likelihood and in the choice of triplets, for which see
    `TripletMethod`. Hard triplets alone make all variances grow: whatever is more probably in the wrong order gains by
    more noise.

    Attributes:
        prior: see `Prior`.
        kl_weight: of the three divergences of a triplet.
        likelihood: see `Likelihood`.
        distance: see `Distance`; training and mining always go by the means.
        hidden: the width of the variance's head.
        variance: the initial sigma^2; None is the prior's, 1/D.
        scale: what means are multiplied with at first, for the prior "gaussian".

    Example:
        >>> BTL(prior="sphere").prior
        <Prior.SPHERE: 'sphere'>
    """

    name: ClassVar[str] = "btl"

    prior: Prior = Prior.GAUSSIAN
    kl_weight: NotNegative = 1e-6
    likelihood: Likelihood = Likelihood.EXACT
    distance: Distance = Distance.EUCLIDEAN
    hidden: Count = 512
    variance: Variance | None = None
    scale: Positive = 1.0

    def learner(self, encoders: Sequence[Encoder], setup: Setup) -> Learner:
        encoder = self.encoder(encoders, setup)
        head = VarianceHead(
            encoder.num_features,
            hidden=self.hidden,
            variance=self.variance or 1 / encoder.dim,
            seed=setup.seed,
        )
        return BTLLearner(BTLNetwork(encoder, head, self), self)


class BTLNetwork(nn.Module):
    """inputs -> means (N, Z), scaled or of length 1, and sigma^2 (N,)."""

    def __init__(self, encoder: Encoder, head: VarianceHead, method: BTL) -> None:
        super().__init__()
        self.heads = MeanAndVariance(encoder, head)
        self.log_scale: nn.Parameter | None = None
        if method.prior is Prior.GAUSSIAN:
            weight = encoder.head.weight
            self.log_scale = nn.Parameter(weight.new_tensor(method.scale).log())

    def forward(self, inputs: Any) -> tuple[Tensor, Tensor]:
        u, variance = self.heads(inputs)
        return self._placed(u), variance

    def means(self, inputs: Any) -> Tensor:
        """The means alone."""
        return self._placed(self.heads.encoder.raw(inputs))

    def _placed(self, u: Tensor) -> Tensor:
        return unit_rows(u) if self.log_scale is None else self.log_scale.exp() * u


class BTLLearner(TripletLearner):
    """The negative lower bound: minus the log probability of the order, and the weighted divergences."""

    def __init__(self, network: BTLNetwork, method: BTL) -> None:
        super().__init__(network, method)
        self.network = network
        self.method = method
        self.euclidean = method.prior is Prior.GAUSSIAN

    def loss(self, inputs: Any, labels: Tensor) -> Tensor:
        mean, variance = self.network(inputs)
        with torch.autocast(mean.device.type, enabled=False):
            squared = pairwise(mean)
            return negative_bound(mean, variance, squared, self.triplets(squared, labels), self.method)

    def mined_points(self, inputs: Any) -> Tensor:
        return self.network.means(inputs)

    def points(self, inputs: Any) -> Tensor:
        return self.network.means(inputs)

    def embedder(self, data: FitData) -> Embedder:
        return BTLEmbedder(self.network, self.method, data)


def negative_bound(
    mean: Tensor, variance: Tensor, squared: Tensor, triplets: Triplets, method: BTL
) -> Tensor:
    """The mean over triplets of -log P(tau < -margin) + w (KL_a + KL_p + KL_n).

    Without a triplet it is 0, with gradients that are 0.

    Args:
        mean: (N, Z), unit rows for the prior "sphere".
        variance: sigma^2, (N,).
        squared: distances of the means, (N, N).
        triplets: positions among the N.
        method: the options.

    Example:
        >>> mean = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
        >>> triplets = Triplets(*torch.tensor([[0], [1], [2]]))
        >>> sure, unsure = torch.full((3,), 0.01), torch.ones(3)
        >>> options = (pairwise(mean), triplets, BTL())
        >>> bool(negative_bound(mean, sure, *options) < negative_bound(mean, unsure, *options))
        True
    """
    a, p, n = triplets
    if not len(a):
        return (mean.sum() + variance.sum()) * 0
    dim, on_sphere = mean.shape[1], method.prior is Prior.SPHERE
    distances = Distances(squared[a, p], squared[a, n], squared[p, n])
    if on_sphere and method.likelihood is Likelihood.EXACT:
        directed = Directed.of(variance.reciprocal(), dim)
        moments = directed_moments(distances, directed.at(a), directed.at(p), directed.at(n))
    else:
        moments = gaussian_moments(distances, Spreads(variance[a], variance[p], variance[n]), dim)
    divergence = (
        kl_to_uniform(variance.reciprocal(), dim) if on_sphere else kl_to_gaussian_prior(mean, variance)
    )
    bound = method.kl_weight * (divergence[a] + divergence[p] + divergence[n])
    return (bound - log_probability(moments, method.margin)).mean().to(mean.dtype)


class BTLEmbedder(NeighbourEmbedder):
    """The network's distributions, unsure by sigma^2."""

    def __init__(self, network: BTLNetwork, method: BTL, data: FitData) -> None:
        super().__init__(network, data, expected=method.distance is Distance.EXPECTED)
        self.network = network
        self.method = method

    def embed_batch(self, inputs: Any) -> StochasticEmbedding:
        mean, variance = self.network(inputs)
        if self.method.prior is Prior.SPHERE:
            return StochasticEmbedding(
                point=mean, mean=mean, kappa=variance.reciprocal(), uncertainty=variance
            )
        gaussians = Gaussians(mean, variance[:, None].expand_as(mean))
        return StochasticEmbedding.from_gaussians(gaussians).with_uncertainty(variance)

    def similarity(self, queries: StochasticEmbedding, gallery: StochasticEmbedding) -> Tensor | None:
        """Minus the squared distance, or the expected one, (Q, G); None where that is the cosine."""
        on_sphere = self.method.prior is Prior.SPHERE
        if not self.expected:
            if on_sphere:
                return None
            return -squared_distances(mean_and_spread(queries)[0], mean_and_spread(gallery)[0])
        return -expected_distances(*mean_and_spread(queries), *mean_and_spread(gallery))

    def other_similarities(
        self, queries: StochasticEmbedding, gallery: StochasticEmbedding
    ) -> dict[str, Tensor]:
        """Minus the expected squared distance, where images are not retrieved by it anyway."""
        if self.expected:
            return {}
        expected = expected_distances(*mean_and_spread(queries), *mean_and_spread(gallery))
        return {Distance.EXPECTED.value: -expected}

    def settings(self) -> dict[str, Any]:
        """The scale of the means, where there is one."""
        scale = self.network.log_scale
        return {} if scale is None else {"scale": float(scale.detach().exp())}
