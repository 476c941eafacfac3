"""PFE, HIB and dropout as the code published with the LAM paper has them: the option `variant` of these methods."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Literal, TypeVar

from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn import functional as F

from hessians import Pairs
from laplacian_metric.core.arguments import Count, Positive, Probability, Real
from laplacian_metric.core.method import Learner, Method, Setup, only
from laplacian_metric.encoder import Encoder
from laplacian_metric.encoder.uncertainty import LastNorm
from laplacian_metric.methods.gaussian.hib import HIB, HIBLearner, HIBNetwork
from laplacian_metric.methods.gaussian.match_probability import Average, MatchProbability
from laplacian_metric.methods.gaussian.pfe import PFE, PFELearner
from laplacian_metric.methods.sampling.mc_dropout import MCDropout

M = TypeVar("M", bound=Method)
RATE = 0.05
SCALE, OFFSET = math.log1p(math.e), 0.0


@dataclass(frozen=True)
class PublishedPFE(PFE):
    """The method "pfe" with the variant of the published code.

    Attributes:
        hidden, last_norm: None is as many hidden units as dimensions and no learned scale for "published".
        variant: "published" has a loss that no pair's own distance enters.

    Example:
        >>> PublishedPFE(variant="published").hidden is None
        True
    """

    hidden: Count | None = None  # type: ignore[assignment]
    last_norm: LastNorm | None = None  # type: ignore[assignment]
    variant: Literal["paper", "published"] = "paper"

    def learner(self, encoders: Sequence[Encoder], setup: Setup) -> Learner:
        published = self.variant == "published"
        head = head_defaults(only(encoders, self.name), published)
        learner = with_defaults(PFE, self, **head).learner(encoders, setup)
        if published and isinstance(learner, PFELearner):
            learner.pair_loss = published_mutual_likelihood_loss
        return learner


def published_mutual_likelihood_loss(mean: Tensor, variance: Tensor, pairs: Pairs) -> Tensor:
    """Return what the published code minimises, averaged over positive pairs and dimensions.

        D / (s_il + s_jl) + log(s_il + s_jl),

    where D, the root of the summed squared distances of all positive pairs, is one number for the whole batch: no
    pair's own distance enters, and D grows with the root of the number of pairs.

    Example:
        >>> import torch
        >>> mean, variance = torch.eye(2), torch.full((2, 2), 0.5)
        >>> float(published_mutual_likelihood_loss(mean, variance, Pairs.from_labels([7, 7])))
        1.414...
    """
    listed = list(pairs.listed(positive=True))
    squared = sum(
        ((mean[i] - mean[j]).square().sum(1) * times).sum() for i, j, times in listed
    ) + mean.new_zeros(())
    distance = squared.sqrt() if bool(squared > 0) else squared
    total = variance.sum() * 0
    for i, j, times in listed:
        sums = variance[i] + variance[j]
        total = total + ((distance / sums + sums.log()).mean(1) * times).sum()
    return total / pairs.num_positives if pairs.num_positives else total


@dataclass(frozen=True)
class PublishedHIB(HIB):
    """The method "hib" with the variant of the published code.

    Attributes:
        hidden, last_norm, average, scale, offset: None is the variant's; for "published" as many hidden units as
            dimensions, no learned scale, the logarithm of every sample's probability, 1.31 and 0.
        variant: "published" has unit samples, squared distances, and in place of the divergence an expression that is
            unbounded below, summed over the images of a batch.

    Example:
        >>> PublishedHIB(variant="published", components=2).samples
        8
    """

    hidden: Count | None = None  # type: ignore[assignment]
    last_norm: LastNorm | None = None  # type: ignore[assignment]
    average: Average | None = None  # type: ignore[assignment]
    scale: Positive | None = None  # type: ignore[assignment]
    offset: Real | None = None  # type: ignore[assignment]
    variant: Literal["paper", "published"] = "paper"

    def learner(self, encoders: Sequence[Encoder], setup: Setup) -> Learner:
        encoder, published = only(encoders, self.name), self.variant == "published"
        average, scale, offset = (
            (Average.LOG, SCALE, OFFSET) if published else (HIB.average, HIB.scale, HIB.offset)
        )
        head = head_defaults(encoder, published)
        plain = with_defaults(HIB, self, average=average, scale=scale, offset=offset, **head)
        return PublishedHIBLearner(plain, encoder, setup) if published else plain.learner(encoders, setup)


class PublishedHIBNetwork(HIBNetwork):
    """Samples on the unit sphere, matched by their squared distances."""

    def __init__(self, method: HIB, encoder: Encoder, seed: int) -> None:
        super().__init__(method, encoder, seed)
        self.match = SquaredMatchProbability(method.scale, method.offset).to(encoder.head.weight)

    def draw(self, means: Tensor, log_variances: Tensor, noise: Tensor) -> Tensor:
        return F.normalize(super().draw(means, log_variances, noise), dim=2)


class SquaredMatchProbability(MatchProbability):
    """sigma(-a d^2 + b)."""

    def forward(self, distance: Tensor) -> Tensor:
        return super().forward(distance.square())


class PublishedHIBLearner(HIBLearner):
    """HIB with the published divergence."""

    network_kind = PublishedHIBNetwork

    def loss(self, inputs: Any, labels: Tensor) -> Tensor:
        means, log_variances = self.network(inputs)
        matching = self.matching_loss(means, log_variances, labels)
        return 2 * matching + self.method.kl_weight * published_kl(means, log_variances).sum()


def published_kl(mean: Tensor, log_variance: Tensor) -> Tensor:
    """Return what the published code takes for the divergence, of (..., Z): (...).

        -1/2 sum_l [log sigma_l + (1 + mean_l^2) / sigma_l^2]

    It falls without bound as a variance goes to 0, or to infinity.

    Example:
        >>> import torch
        >>> published_kl(torch.zeros(2, 1), torch.tensor([[0.0], [-10.0]]))
        tensor([-5.0000e-01, -1.1011e+04])
    """
    terms = 0.5 * log_variance + (1 + mean.square()) * (-log_variance).exp()
    return -0.5 * terms.sum(-1)


@dataclass(frozen=True)
class PublishedMCDropout(MCDropout):
    """The method "mc-dropout" with the rate of the published code, 0.05, where none is given.

    Example:
        >>> PublishedMCDropout(variant="published").rate is None
        True
    """

    rate: Probability | None = None  # type: ignore[assignment]
    variant: Literal["default", "published"] = "default"

    def learner(self, encoders: Sequence[Encoder], setup: Setup) -> Learner:
        rate = RATE if self.variant == "published" else MCDropout.rate
        return with_defaults(MCDropout, self, rate=rate).learner(encoders, setup)


def head_defaults(encoder: Encoder, published: bool) -> dict[str, Any]:
    """Return the options of a variant's head: the published one has as many hidden units as dimensions."""
    if published:
        return {"hidden": encoder.dim, "last_norm": LastNorm.FIXED}
    return {"hidden": HIB.hidden, "last_norm": HIB.last_norm}


def with_defaults(kind: type[M], method: M, **defaults: Any) -> M:
    """Return the library's own method with a variant's options, and with these defaults where they are None."""
    options = {field.name: getattr(method, field.name) for field in fields(kind)}  # type: ignore[arg-type]
    return kind(**options | {name: value for name, value in defaults.items() if options[name] is None})
