"""A von Mises-Fisher distribution of every image, whose concentration is learned beside its direction."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional as F

from laplacian_metric.core.arguments import Count, Positive
from laplacian_metric.core.embedding import StochasticEmbedding, unit_rows
from laplacian_metric.core.info_nce import Negatives
from laplacian_metric.core.method import Embedder, FitData, Learner, Method, Setup, all_pairs, only
from laplacian_metric.encoder import Encoder
from laplacian_metric.methods.spherical.vmf_contrast import (
    contrastive_hib,
    elk_info_nce,
    log_kernel,
    mc_info_nce,
    positivity_info_nce,
)
from laplacian_metric.vmf.checks import check_dim

Loss = Literal["positivity", "mc-infonce", "elk", "hib"]
# exp(13) is 4e5: a spread of a thousandth of a radian, beyond which nothing is told apart.
LARGEST_LOG = 13.0
HIB_START = math.log(16.0), -8.0  # log a and b: an even chance at a cosine of 1/2


@dataclass(frozen=True)
class VMFHead(Method):
    """Trains an encoder with a small network beside its head, which says how concentrated the direction is.

    Attributes:
        loss: "positivity" is the cross-entropy of the exact posterior of the positive image among those of the batch;
            "mc-infonce" estimates it from points drawn from the distributions; "elk" contrasts the distributions by
            their expected likelihood kernel, which is then the similarity of images too; "hib" learns the probability
            that drawn points match. On validation images of two data sets "positivity" and "elk" were best, and
            hardly apart; of these only "positivity" learns true concentrations.
        kappa_pos: how concentrated images of a class are taken to be around each other, for "positivity" and
            "mc-infonce"; with "elk" the factor of the kernel's logarithm. None is 16, and 1 for "elk".
        negatives: the images that a positive one is contrasted with: "others", those of other classes, or "all".
        samples: how many points of each image a step draws, for "mc-infonce" and "hib".
        hidden: the width of the two hidden layers of the concentration's network.
        initial_kappa: the concentration to start from, about the same for all images.
        stop_gradient: whether the concentration's network leaves the features alone.

    Example:
        >>> VMFHead(loss="elk").scale
        1.0
    """

    name: ClassVar[str] = "vmf"

    loss: Loss = "positivity"
    kappa_pos: Positive | None = None
    negatives: Negatives = "others"
    samples: Count = 16
    hidden: Count = 128
    # What starts with nearly no spread learns none.
    initial_kappa: Annotated[float, Field(gt=1, le=1000)] = 16.0
    stop_gradient: bool = False

    @property
    def scale(self) -> float:
        """kappa_pos, or its default."""
        if self.kappa_pos is not None:
            return self.kappa_pos
        return 1.0 if self.loss == "elk" else 16.0

    def learner(self, encoders: Sequence[Encoder], setup: Setup) -> Learner:
        encoder = only(encoders, self.name)
        check_dim(encoder.dim)
        if setup.pairs is not all_pairs:
            raise ValueError(
                "vmf contrasts every positive pair with all negatives of its image, but a choice of pairs is given: "
                "leave the pairs at all of the batch"
            )
        return VMFLearner(VMFNetwork(encoder, self, setup.seed), self)


class VMFNetwork(nn.Module):
    """An encoder, and a concentration 1 + exp(MLP(h/|h|)) from the same features h.

    Args:
        encoder: of the directions.
        method: the options.
        seed: of the concentration's initial weights.
    """

    def __init__(self, encoder: Encoder, method: VMFHead, seed: int) -> None:
        super().__init__()
        weight, width = encoder.head.weight, method.hidden
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            first = nn.Linear(encoder.num_features, width)
            # What it is given has length 1, see `forward`.
            nn.init.normal_(first.weight)
            last = nn.Linear(width, 1)
            nn.init.constant_(last.bias, math.log(method.initial_kappa - 1))
            concentration = nn.Sequential(
                first, nn.LeakyReLU(), nn.Linear(width, width), nn.LeakyReLU(), last
            )
        self.concentration = concentration.to(weight.device, weight.dtype)
        self.matching = (
            nn.Parameter(torch.tensor(HIB_START, device=weight.device)) if method.loss == "hib" else None
        )
        self.stop_gradient = method.stop_gradient
        self.encoder = encoder

    def forward(self, inputs: Any) -> tuple[Tensor, Tensor]:
        """Mean directions (N, Z), unit rows, and concentrations (N,), at least in float32."""
        h = self.encoder.features(inputs)
        u = self.encoder.head(h)
        # Of length 1: an optimizer that moves every weight alike, such as RMSprop, would otherwise move the sum over
        # thousands of features so far in its first steps that all concentrations end at their bound, and then learn
        # first of all how long the features are.
        scaled = F.normalize(h.detach() if self.stop_gradient else h)
        log = self.concentration(scaled).squeeze(1)
        with torch.autocast(u.device.type, enabled=False):
            if u.dtype in (torch.float16, torch.bfloat16):
                u = u.float()
            bounded = LARGEST_LOG * torch.tanh(log.to(u.dtype) / LARGEST_LOG)
            return unit_rows(u), 1 + bounded.exp()


class VMFLearner(Learner):
    """Means and concentrations, contrasted within a batch."""

    def __init__(self, network: VMFNetwork, method: VMFHead) -> None:
        super().__init__(network, network.encoder)
        self.network = network
        self.method = method

    def loss(self, inputs: Any, labels: Tensor) -> Tensor:
        mean, kappa = self.network(inputs)
        method, generator = self.method, getattr(self, "generator", None)
        if len(torch.unique(labels)) < 2:  # there is nothing to contrast with in a batch of one class
            nothing: Tensor = 0 * (mean.sum() + kappa.sum())
            return nothing
        contrast: Callable[..., Tensor]
        if method.loss == "elk":
            contrast = partial(elk_info_nce, scale=method.scale)
        elif method.loss == "positivity":
            contrast = partial(positivity_info_nce, kappa_pos=method.scale)
        elif method.loss == "mc-infonce":
            contrast = partial(
                mc_info_nce, kappa_pos=method.scale, samples=method.samples, generator=generator
            )
        else:
            if self.network.matching is None:
                raise ValueError('the network has no scale and offset of matches: make it with loss="hib"')
            log_scale, offset = self.network.matching
            contrast = partial(
                contrastive_hib,
                log_scale=log_scale,
                offset=offset,
                samples=method.samples,
                generator=generator,
            )
        with torch.autocast(mean.device.type, enabled=False):
            return contrast(mean, kappa, labels, negatives=method.negatives)

    def embedder(self, data: FitData) -> Embedder:
        return VMFEmbedder(self.network, self.method.loss == "elk")


class VMFEmbedder(Embedder):
    """The network's distributions as they are.

    Args:
        network: trained; it returns directions and concentrations.
        by_kernel: whether images are compared by the expected likelihood kernel rather than by their means.
    """

    def __init__(self, network: nn.Module, by_kernel: bool) -> None:
        super().__init__(network)
        self.network = network
        self.by_kernel = by_kernel

    def embed_batch(self, inputs: Any) -> StochasticEmbedding:
        mean, kappa = self.network(inputs)
        return StochasticEmbedding(point=mean, mean=mean, kappa=kappa, uncertainty=kappa.reciprocal())

    def similarity(self, queries: StochasticEmbedding, gallery: StochasticEmbedding) -> Tensor | None:
        if not self.by_kernel:
            return None
        return log_kernel(queries.mean, queries.kappa, gallery.mean, gallery.kappa)
