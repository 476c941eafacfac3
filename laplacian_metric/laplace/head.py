"""A linear head with a Gaussian over its weights: what turns features into embeddings with a concentration."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hessians.checks import check_finite, check_matrix, compute_dtype, exact_device, without_autocast
from laplacian_metric.core.embedding import StochasticEmbedding, unit_rows
from laplacian_metric.laplace.layer import LayerPosterior
from laplacian_metric.laplace.layer.full import FullPosterior
from laplacian_metric.laplace.layer.low_rank import LowRankPosterior

FEATURE_MEMORY = 64 << 20
SAMPLE_MEMORY = 256 << 20
CHECKED_ROWS = 1 << 16


class HeadPosterior:
    """u = W h + b with [W | b] ~ N(theta*, P^-1).

    Args:
        head: its weights are theta*.
        posterior: of the deviations from theta*.
        bias_is_random: whether the bias has a share in the posterior.

    Example:
        >>> from laplacian_metric.laplace.layer import DiagonalCurvature
        >>> posterior = DiagonalCurvature(torch.ones(3, 5)).posterior(scale=10.0, prior=1.0)
        >>> head = HeadPosterior(nn.Linear(4, 3), posterior, bias_is_random=True)
        >>> head.embed(torch.ones(2, 4)).variance[0]
        tensor([0.4545, 0.4545, 0.4545])
    """

    def __init__(self, head: nn.Linear, posterior: LayerPosterior, bias_is_random: bool) -> None:
        dtype, device = compute_dtype(head.weight), exact_device(head.weight.device)
        self.weight = head.weight.detach().to(device, dtype)
        self.bias: Tensor | None = None if head.bias is None else head.bias.detach().to(device, dtype)
        self.num_features = self.weight.shape[1]
        self.posterior = posterior
        self.bias_is_random = bias_is_random
        self.theta = self.weight  # theta*, the random part of [W | b], (Z, H')
        if self.bias is not None and bias_is_random:
            self.theta = torch.cat([self.weight, self.bias[:, None]], dim=1)

    def prior_variance(self, h: Tensor) -> Tensor:
        """The variance of every component of u by the prior alone, |x|^2/prior, for features h (N, H); (N,)."""
        return (h.square().sum(1) + int(self.bias_is_random)) / self.posterior.prior

    @without_autocast
    def sample_weights(
        self, k: int, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """k draws of the weights (k, Z, H) and biases (k, Z); None without a bias.

        They are drawn one by one: those of a seed are the same however many are asked for, and at a time.
        """
        _check_count(k)
        weight = self.weight.repeat(k, 1, 1)
        bias = None if self.bias is None else self.bias.repeat(k, 1)
        for s in range(k):
            deviation = self.posterior.sample(1, generator)[0]
            weight[s] += deviation[:, : self.num_features]
            if bias is not None and self.bias_is_random:
                bias[s] += deviation[:, -1]
        return weight, bias

    @without_autocast
    def embed(self, features: Tensor, name: str = "features") -> StochasticEmbedding:
        """Embed features (N, H), which may be mapped from a file, in blocks; ``name`` is for errors."""
        self.check(features, name)
        predictive = self.posterior.predictive_with_bias if self.bias_is_random else self.posterior.predictive
        parts = [
            StochasticEmbedding.from_gaussians(predictive(h, F.linear(h, self.weight, self.bias)))
            for h in self.blocks(features)
        ]
        return parts[0] if len(parts) == 1 else StochasticEmbedding.cat(parts)

    @without_autocast
    def embed_with(self, features: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Unit embeddings (S, N, Z) of features (N, H) by S draws of the weights."""
        u = torch.cat([apply_draws(h, weight, bias) for h in self.blocks(features)], dim=1)
        return unit_rows(u.flatten(0, 1)).view_as(u)

    def draws(
        self, features: Tensor, samples: int, generator: torch.Generator | None = None
    ) -> Iterator[Tensor]:
        """Raw embeddings (N, Z) of all images by one draw of the weights after the other; few are in memory."""
        self.check(features)
        _check_count(samples)
        return self._draws(features, samples, generator)

    def _draws(self, features: Tensor, samples: int, generator: torch.Generator | None) -> Iterator[Tensor]:
        dim = len(self.weight)
        size = (self.weight.numel() + len(features) * dim) * self.weight.element_size()
        at_once = max(1, min(samples, SAMPLE_MEMORY // max(1, size)))
        for start in range(0, samples, at_once):
            weight, bias = self.sample_weights(min(at_once, samples - start), generator)
            u = torch.cat([apply_draws(h, weight, bias) for h in self.blocks(features)], dim=1)
            yield from u

    def sampled(
        self, features: Tensor, samples: int, generator: torch.Generator | None = None
    ) -> Iterator[Tensor]:
        """Joint samples: as `draws`, on the unit sphere."""
        return map(unit_rows, self.draws(features, samples, generator))

    def blocks(self, features: Tensor) -> Iterator[Tensor]:
        """Rows of features on the head's device and in its dtype; an empty set is one empty block."""
        row = 4 * self.num_features
        if isinstance(self.posterior, FullPosterior):
            row += len(self.weight) * self.posterior.num_parameters
        elif isinstance(self.posterior, LowRankPosterior):
            row += len(self.weight) * (len(self.posterior.kept) + 4 * len(self.weight))
        rows = max(1, FEATURE_MEMORY // (row * self.weight.element_size()))
        for start in range(0, max(1, len(features)), rows):
            yield features[start : start + rows].detach().to(self.weight.device, self.weight.dtype)

    def check(self, features: Tensor, name: str = "features") -> None:
        """Refuse features of another backbone, NaN and infinity."""
        check_matrix(name, features)
        if features.shape[1] != self.num_features:
            raise ValueError(
                f"{name} has {features.shape[1]} columns, the head takes {self.num_features}: they are of another "
                "backbone"
            )
        for start in range(0, len(features), CHECKED_ROWS):
            check_finite(name, features[start : start + CHECKED_ROWS], first_row=start)


def _check_count(samples: int) -> None:
    if samples < 1 or samples != int(samples):
        raise ValueError(f"samples is {samples!r}: a whole number from 1 on is needed, or 0 for none")


@without_autocast
def apply_draws(h: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Raw embeddings (S, N, Z) of features h (N, H) by S draws of the weights (S, Z, H) and biases (S, Z)."""
    u = F.linear(h, weight.flatten(0, 1), None if bias is None else bias.flatten())
    return u.view(len(h), *weight.shape[:2]).transpose(0, 1)
