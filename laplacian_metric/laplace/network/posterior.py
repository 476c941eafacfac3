"""A diagonal curvature over the parameters of several layers, and the Gaussian that it gives with a prior for each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from laplacian_metric.laplace.encoder_posterior import FittedData
from laplacian_metric.laplace.layer import DiagonalCurvature
from laplacian_metric.laplace.layer.base import LayerPosterior
from laplacian_metric.laplace.network.layers import Groups
from laplacian_metric.laplace.prior import NoOptimumError, optimal_prior

Prior = float | Mapping[str, float]


@dataclass(frozen=True, eq=False, kw_only=True)
class NetworkFitted(FittedData):
    """What a fit leaves behind.

    Attributes:
        groups: the parameters of each layer, in the order in which the layers run.
        curvature: of the loss's average, unscaled and clamped, for each layer (1, P), its parameters one after another.
        gradient: of the loss as it is trained at theta*, for each parameter.
    """

    groups: Groups
    curvature: dict[str, DiagonalCurvature]
    gradient: dict[str, Tensor]

    @property
    def clamped(self) -> float:
        """The share of the curvature's entries that were negative and set to 0."""
        entries = sum(one.clamped * one.num_parameters for one in self.curvature.values())
        return entries / sum(one.num_parameters for one in self.curvature.values())

    @property
    def trace(self) -> float:
        """The sum of the curvature's entries."""
        return sum(one.trace() for one in self.curvature.values())

    def whole(self) -> DiagonalCurvature:
        """All layers as one, (1, P)."""
        diagonal = torch.cat([one.diagonal() for one in self.curvature.values()], dim=1)
        return DiagonalCurvature(diagonal, self.clamped)


class NetworkPosterior:
    """Independent Gaussians over the deviations of every parameter from theta*.

    Args:
        fitted: the curvature.
        theta: theta* by name.
        scale: n_effective / temperature.
        prior: one precision, or one for each layer.

    Example:
        >>> fitted = NetworkFitted(
        ...     groups={"head": ["head.weight"]}, curvature={"head": DiagonalCurvature(torch.tensor([[2.0, 0.0]]))},
        ...     gradient={"head.weight": torch.zeros(2, 1)}, loss_value=0.0, num_images=2, num_positives=1,
        ...     num_negatives=0, num_batches=1, fingerprint="",
        ... )
        >>> posterior = NetworkPosterior(fitted, {"head.weight": torch.ones(2, 1)}, scale=2.0, prior=1.0)
        >>> posterior.variance()
        {'head.weight': tensor([[0.2000], [1.0000]])}
    """

    def __init__(self, fitted: NetworkFitted, theta: dict[str, Tensor], scale: float, prior: Prior) -> None:
        self.groups = fitted.groups
        self.theta = theta
        self.prior = prior_of_layers(prior, fitted.groups)
        self.layers: dict[str, LayerPosterior] = {
            layer: curvature.posterior(scale, self.prior[layer])
            for layer, curvature in fitted.curvature.items()
        }

    @property
    def num_parameters(self) -> int:
        """How many parameters are random."""
        return sum(one.num_parameters for one in self.layers.values())

    def variance(self) -> dict[str, Tensor]:
        """Of every parameter, in its shape."""
        return self._by_name({layer: one.marginal_variance()[0] for layer, one in self.layers.items()})

    def draw(self, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """One draw of the deviations from theta*, by name."""
        return self._by_name({layer: one.sample(1, generator)[0, 0] for layer, one in self.layers.items()})

    def effective_parameters(self) -> float:
        """How many parameters the data determine rather than the prior."""
        return sum(one.effective_parameters() for one in self.layers.values())

    def occam(self) -> float:
        """log det P - log det prior, the width of the prior over that of the posterior."""
        return sum(
            one.log_determinant() - one.num_parameters * math.log(self.prior[layer])
            for layer, one in self.layers.items()
        )

    def squares(self) -> dict[str, float]:
        """|theta*|^2 of each layer."""
        return {
            layer: sum(float(self.theta[name].double().square().sum()) for name in names)
            for layer, names in self.groups.items()
        }

    def steps_to_mode(self, gradient: dict[str, Tensor], scale: float) -> float:
        """sqrt(g^T P^-1 g), g the gradient of the log-posterior at theta*."""
        total = 0.0
        for layer, names in self.groups.items():
            slope = torch.cat(
                [(scale * gradient[name] + self.prior[layer] * self.theta[name]).flatten() for name in names]
            )
            total += float((slope * self.layers[layer].solve(slope[None])).double().sum())
        return math.sqrt(max(0.0, total))

    def _by_name(self, flat: dict[str, Tensor]) -> dict[str, Tensor]:
        """Vectors (P,) of the layers as tensors of the parameters' shapes."""
        by_name = {}
        for layer, name, start, stop in slices(self.groups, self.theta):
            by_name[name] = flat[layer][start:stop].view(self.theta[name].shape)
        return by_name


def slices(groups: Groups, theta: Mapping[str, Tensor]) -> Iterator[tuple[str, str, int, int]]:
    """Where each parameter is in its layer's vector: layer, name, start, stop."""
    for layer, names in groups.items():
        start = 0
        for name in names:
            stop = start + theta[name].numel()
            yield layer, name, start, stop
            start = stop


def prior_of_layers(prior: Prior, groups: Groups) -> dict[str, float]:
    """A precision for each layer."""
    if not isinstance(prior, Mapping):
        return {layer: float(prior) for layer in groups}
    missing = [layer for layer in groups if layer not in prior]
    unknown = [layer for layer in prior if layer not in groups]
    if missing or unknown:
        wrong = f"lacks {', '.join(missing)}" if missing else f"has {', '.join(unknown)}"
        raise ValueError(
            f"prior_precision {wrong}: one number for each of the layers {', '.join(groups)} is needed"
        )
    return {layer: float(prior[layer]) for layer in groups}


def optimal_priors(
    fitted: NetworkFitted, posterior: NetworkPosterior, scale: float, per_layer: bool
) -> float | dict[str, float]:
    """The prior precision at which the marginal likelihood is greatest, or one for each layer.

    The likelihood is a sum over layers, so that each layer has a fixed point gamma/|theta*|^2 of its own.
    """
    squares = posterior.squares()
    if not per_layer:
        start = sum(posterior.prior.values()) / len(posterior.prior)
        return optimal_prior(fitted.whole(), scale, sum(squares.values()), start)
    priors = {}
    for layer, curvature in fitted.curvature.items():
        try:
            priors[layer] = optimal_prior(curvature, scale, squares[layer], posterior.prior[layer])
        except NoOptimumError as error:
            raise NoOptimumError(
                f"layer {layer}: {error}. Choose one prior for all layers (per_layer=False), or leave this layer out"
            ) from error
    return priors
