"""UMM: a Gaussian of every image, learned without labels from sets of samples of its views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, ClassVar

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from laplacian_metric.core.arguments import Count, NotNegative, Positive
from laplacian_metric.core.embedding import StochasticEmbedding, unit_rows
from laplacian_metric.core.gaussian import Gaussians
from laplacian_metric.core.info_nce import info_nce
from laplacian_metric.core.method import Embedder, FitData, Learner, Method, Setup, only
from laplacian_metric.data.views import ImageViews
from laplacian_metric.encoder import Encoder
from laplacian_metric.encoder.layers import seeded
from laplacian_metric.encoder.uncertainty import LinearUncertaintyHead
from laplacian_metric.methods.self_supervised.instances import check_pairs
from laplacian_metric.methods.self_supervised.set_losses import (
    consistency_loss,
    limit_mean,
    ranking_loss,
    sample_directions,
    spread_loss,
)
from laplacian_metric.methods.self_supervised.two_views import TwoViewLearner
from laplacian_metric.vmf.checks import result_dtype

Schedule = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class UMM(Method):
    """Trains a mean and a diagonal covariance of every image; samples of its two views have to find each other.

    The mean is a unit vector, W h + b over its length; log sigma^2 is another linear layer of the same features, whose
    variances are all ``trace``/D at first. The loss is L_S + ``consistency`` L_N + ``ranking`` L_R, all means over
    images.

    Attributes:
        temperature: tau of L_S, the softmax of set similarities (Eq. 5 and 6), over both views.
        consistency: the weight of L_N, the divergence of both views' Gaussians (Eq. 8), divided by D. The paper's 10
            makes everything collapse where D divides it, too.
        ranking: the weight of L_R, the average precision of samples.
        samples: (first epoch, k) in order: how many samples of each view are drawn; k = 0 is their closed-form limit.
        trace: tr Sigma at first; the paper does not say what it is.
        bins: of the histograms in L_R.
        components: of a mixture of Gaussians (Eq. 3) with equal weights, each of which gets k/components samples.
        spread: the weight of ISIF's spread term, which the paper's code has and its formulas do not.
        views: how views are made.

    Example:
        >>> UMM(samples=((0, 5), (100, 3))).samples_at(120)
        3
    """

    name: ClassVar[str] = "umm"
    needs_labels: ClassVar[bool] = False

    temperature: Positive = 0.1
    consistency: NotNegative = 0.1
    ranking: NotNegative = 1.0
    samples: Schedule = ((0, 5), (100, 3), (150, 1))
    trace: Positive = 0.5
    bins: Count = 20
    components: Count = 1
    spread: NotNegative = 0.0
    views: ImageViews = field(default_factory=ImageViews)

    def __post_init__(self) -> None:
        epochs = [epoch for epoch, _ in self.samples]
        if not epochs or epochs[0] != 0 or epochs != sorted(set(epochs)):
            raise ValueError(f"samples is {self.samples}: pairs (first epoch, k), in order, from epoch 0 on")
        for _, k in self.samples:
            if k < 0 or k % self.components:
                raise ValueError(
                    f"samples has k = {k}: from 0 on, and a multiple of the {self.components} components, is needed"
                )

    def samples_at(self, epoch: int) -> int:
        """k of an epoch, counted from 0."""
        return [k for first, k in self.samples if first <= epoch][-1]

    def learner(self, encoders: Sequence[Encoder], setup: Setup) -> Learner:
        network = GaussianNetwork(only(encoders, self.name), self.trace, self.components, setup.seed)
        return TwoViewLearner(check_pairs(UMMLearner(network, self), setup), self.views, setup.seed)


class GaussianNetwork(nn.Module):
    """inputs -> unit means (N, C, D) and log variances (N, C, D) of C components.

    Args:
        encoder: its head is that of the first component's mean.
        trace: tr Sigma at first.
        components: C.
        seed: of the further heads' initial weights.
    """

    def __init__(self, encoder: Encoder, trace: float, components: int = 1, seed: int = 0) -> None:
        super().__init__()
        weight, dim = encoder.head.weight, encoder.dim
        self.encoder = encoder
        with seeded(seed):
            self.others = nn.ModuleList(
                nn.Linear(encoder.num_features, dim).to(weight) for _ in range(components - 1)
            )
            self.uncertainty = LinearUncertaintyHead(
                encoder.num_features, components * dim, variance=trace / dim
            ).to(weight)

    def forward(self, inputs: Any) -> tuple[Tensor, Tensor]:
        h = self.encoder.features(inputs)
        means = [unit_rows(head(h)) for head in (self.encoder.head, *self.others)]
        return torch.stack(means, 1), self.uncertainty(h).view(len(h), len(means), -1)


class UMMLearner(Learner):
    """The losses of UMM for the stacked views of a batch; counts epochs for the schedule of k."""

    def __init__(self, network: GaussianNetwork, method: UMM) -> None:
        super().__init__(network)
        self.network = network
        self.method = method
        self.epoch = 0

    def loss(self, inputs: Any, labels: Tensor) -> Tensor:
        mean, log_variance = self.network(inputs)
        with torch.autocast(mean.device.type, enabled=False):
            dtype = result_dtype(mean, log_variance)
            return self.gaussian_loss(mean.to(dtype), log_variance.to(dtype), labels)

    def gaussian_loss(self, mean: Tensor, log_variance: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of the Gaussians (2 N, C, D) of both views of N images, one view after the other."""
        method, k = self.method, self.method.samples_at(self.epoch)
        components = mean.shape[1]
        flat, log_flat = mean.flatten(0, 1), log_variance.flatten(0, 1)
        drawn = None
        if k or method.ranking:
            each = max(1, k // components)
            generator = getattr(self, "generator", None)
            drawn = sample_directions(flat, log_flat, each, generator).view(each, *mean.shape)
        if k and drawn is not None:
            set_mean = drawn.mean((0, 2))
        else:
            set_mean = limit_mean(flat, log_flat).view_as(mean).mean(1)
        logits = set_mean @ set_mean.T / method.temperature
        value = info_nce(logits, labels, negatives="all")
        if method.spread:
            value = value + method.spread * spread_loss(logits, labels)
        if method.consistency:
            (first, second), (log_first, log_second) = mean.chunk(2), log_variance.chunk(2)
            value = value + method.consistency * consistency_loss(first, log_first, second, log_second)
        if method.ranking and drawn is not None:
            # One query of every view; candidates are all samples of both, since with k = 1 a view has no others.
            candidates = drawn.transpose(1, 2).reshape(-1, mean.shape[2])
            ids, itself = (
                labels.repeat(len(candidates) // len(labels)),
                torch.arange(len(labels), device=labels.device),
            )
            queries = candidates[: len(labels)]
            value = value + method.ranking * ranking_loss(
                queries, labels, candidates, ids, itself, bins=method.bins
            )
        return value

    def end_epoch(self) -> None:
        self.epoch += 1

    def points(self, inputs: Any) -> Tensor:
        means: Tensor = self.network(inputs)[0]
        return means.mean(1)

    def state(self) -> dict[str, Tensor]:
        return {"epoch": torch.tensor(self.epoch)}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.epoch = int(state["epoch"])

    def embedder(self, data: FitData) -> Embedder:
        return UMMEmbedder(self.network)


class UMMEmbedder(Embedder):
    """The network's Gaussians, unsure by tr Sigma; those of a mixture have its mean and its variances."""

    def __init__(self, network: GaussianNetwork) -> None:
        super().__init__(network)
        self.network = network

    def embed_batch(self, inputs: Any) -> StochasticEmbedding:
        means, log_variances = self.network(inputs)
        mean = means.mean(1)
        variance = log_variances.exp().mean(1) + (means - mean[:, None]).square().mean(1)
        e = StochasticEmbedding.from_gaussians(Gaussians(mean, variance))
        return e.with_uncertainty(variance.sum(1))
