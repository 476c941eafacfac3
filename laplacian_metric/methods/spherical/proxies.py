"""A proxy for each class: images are classified by how near they are to distributions that represent the classes.

The loss is cross-entropy(-d(image, proxy)/t). An image is a direction mu with the concentration s|u|; a proxy is a
direction with one concentration, or with one for each axis (Kirchhof et al., 2022).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional as F

from laplacian_metric import vmf
from laplacian_metric.core.arguments import Count, NotNegative, Positive
from laplacian_metric.core.batch import map_batches
from laplacian_metric.core.embedding import unit_rows
from laplacian_metric.core.method import Embedder, FitData, Learner, Method, Setup, all_pairs, only
from laplacian_metric.encoder import Encoder
from laplacian_metric.methods.spherical.vmf_contrast import log_kernel
from laplacian_metric.methods.spherical.vmf_head import LARGEST_LOG, VMFEmbedder
from laplacian_metric.vmf.checks import check_dim

if TYPE_CHECKING:
    from laplacian_metric.core.dataset import Dataset

Metric = Literal["cosine", "l2", "nivmf", "el-vmf", "b-vmf", "kl-vmf", "el-nivmf"]
SMALLEST_KAPPA = 1e-6
ONCE_AN_EPOCH = 1 << 40


@dataclass(frozen=True)
class Proxies(Method):
    """Trains an encoder and a proxy for each class. Proxies start at the means of their classes.

    Attributes:
        metric: what d is. "cosine": -mu.p (ProxyNCA++); "l2": the squared distance of the vectors of length kappa;
            "nivmf": minus the log density of mu under the proxy's non-isotropic vMF distribution, exactly normalised;
            "el-vmf": minus the log expected likelihood kernel; "b-vmf": the Bhattacharyya distance; "kl-vmf": the
            divergence KL(image | proxy); "el-nivmf": minus the log of the density's mean over draws of the image. That
            mean's logarithm is too small, by nats in many dimensions (8 at D = 128 with 5 draws, 5 with 20).
        isotropic: whether "nivmf" and "el-nivmf" have one concentration for each class rather than one for each axis.
        temperature: t. None is 1/9 for "cosine", 2 initial_kappa for "l2" and 1 for what is in nats.
        initial_kappa: the concentration that proxies, and images on average, start from.
        proxy_rate: how many times faster than the encoder proxies are trained, with Adam.
        samples: draws of each image, for "el-nivmf".
        anchor_weight: the weight of pytorch-metric-learning's ProxyAnchorLoss of the same proxies, added to the loss.

    Example:
        >>> Proxies(metric="nivmf").scale, Proxies(metric="l2", initial_kappa=10.0).scale
        (1.0, 20.0)
    """

    name: ClassVar[str] = "proxies"

    metric: Metric = "cosine"
    isotropic: bool = False
    temperature: Positive | None = None
    initial_kappa: Annotated[float, Field(gt=0, le=1e5)] = 50.0
    proxy_rate: Positive = 10.0
    samples: Count = 16
    anchor_weight: NotNegative = 0.0

    def __post_init__(self) -> None:
        if self.isotropic and self.metric not in ("nivmf", "el-nivmf"):
            raise ValueError(
                f"isotropic is for the metrics 'nivmf' and 'el-nivmf': {self.metric!r} always is"
            )

    @property
    def scale(self) -> float:
        """The temperature, or its default."""
        if self.temperature is not None:
            return self.temperature
        return {"cosine": 1 / 9, "l2": 2 * self.initial_kappa}.get(self.metric, 1.0)

    def learner(self, encoders: Sequence[Encoder], setup: Setup) -> Learner:
        encoder = only(encoders, self.name)
        check_dim(encoder.dim)
        if setup.num_classes is None:
            raise ValueError("proxies need the number of classes: give Setup num_classes")
        if setup.num_classes < 2:
            raise ValueError(f"num_classes is {setup.num_classes}, proxies need at least 2 classes")
        if setup.pairs is not all_pairs:
            raise ValueError("proxies train on no pairs, but a choice of pairs is given: leave it out")
        return ProxyLearner(ProxyNetwork(encoder, self, setup.num_classes, setup.seed), self)


class ProxyNetwork(nn.Module):
    """inputs -> directions (N, Z) and concentrations s|u| (N,); and the proxies.

    Args:
        encoder: of the raw embeddings u.
        method: the options.
        num_classes: C; labels are from 0 to C - 1.
        seed: of the proxies, until they are put at the means of their classes.
    """

    is_warm: Tensor
    has_images: Tensor
    image_scale: Tensor

    def __init__(self, encoder: Encoder, method: Proxies, num_classes: int, seed: int) -> None:
        super().__init__()
        weight = encoder.head.weight
        self.encoder = encoder
        self.rate = method.proxy_rate
        self.start = LARGEST_LOG * math.atanh(math.log(method.initial_kappa) / LARGEST_LOG)
        self.initial_kappa = method.initial_kappa
        dim = weight.shape[0]
        drawn = torch.randn(num_classes, dim, generator=torch.Generator().manual_seed(seed))
        # Divided by the rate, so that Adam, whose steps are equally long for all, moves them so much faster.
        self.proxies = nn.Parameter(F.normalize(drawn, dim=1).to(weight) / self.rate)
        self.level = nn.Parameter(weight.new_zeros(num_classes))
        axes = method.metric in ("nivmf", "el-nivmf") and not method.isotropic
        self.offsets = nn.Parameter(weight.new_zeros(num_classes, dim)) if axes else None
        self.register_buffer("image_scale", weight.new_tensor(method.initial_kappa))
        self.register_buffer("is_warm", torch.tensor(False, device=weight.device))
        self.register_buffer("has_images", torch.ones(num_classes, dtype=torch.bool, device=weight.device))
        self.anchor: nn.Module | None = None
        if method.anchor_weight:
            from pytorch_metric_learning.losses import ProxyAnchorLoss

            self.anchor = ProxyAnchorLoss(num_classes, dim)
            self.anchor.proxies = self.proxies  # it normalises them, so that the rate does not matter

    @property
    def directions(self) -> Tensor:
        """The proxies' directions (C, Z)."""
        return F.normalize(self.proxies, dim=1)

    @property
    def log_scale(self) -> Tensor:
        """log K of the proxies, (C, Z), or (C, 1) where they are isotropic; axes differ by a factor of e^2 at most."""
        level = LARGEST_LOG * torch.tanh((self.start + self.rate * self.level[:, None]) / LARGEST_LOG)
        return level if self.offsets is None else level + torch.tanh(self.rate * self.offsets)

    def forward(self, inputs: Any) -> tuple[Tensor, Tensor]:
        u = self.encoder.raw(inputs)
        with torch.autocast(u.device.type, enabled=False):
            u = u.float() if u.dtype in (torch.float16, torch.bfloat16) else u
            kappa = self.image_scale * torch.linalg.vector_norm(u, dim=1)
            return unit_rows(u), kappa.clamp(min=SMALLEST_KAPPA)

    @torch.no_grad()
    def warm_up(self, mean: Tensor, kappa: Tensor, labels: Tensor) -> None:
        """Put each proxy at the mean direction of its images; scale concentrations to ``initial_kappa`` on average.

        Classes without any image are left out of the loss from then on, so that labels may have gaps.

        Args:
            mean: (N, Z), unit rows, of all training images.
            kappa: (N,).
            labels: (N,).
        """
        self.is_warm.fill_(False)
        self.check_labels(labels)
        sums = torch.zeros_like(self.proxies).index_add_(0, labels, mean.to(self.proxies))
        self.has_images.copy_(torch.bincount(labels, minlength=len(self.proxies)) > 0)
        self.proxies[self.has_images] = unit_rows(sums[self.has_images]) / self.rate
        self.image_scale.mul_(self.initial_kappa / kappa.mean().to(self.image_scale))
        self.is_warm.fill_(True)

    def check_labels(self, labels: Tensor) -> None:
        """Refuse labels of classes without a proxy."""
        known = (labels >= 0) & (labels < len(self.proxies))
        if bool(self.is_warm):
            known = known & self.has_images[labels.clamp(0, len(self.proxies) - 1)]
        bad = (~known).nonzero().flatten()
        if len(bad):
            raise ValueError(
                f"labels has class {int(labels[bad[0]])} at position {int(bad[0])}, which has no proxy: there are "
                f"{len(self.proxies)}, of classes counted from 0 that have training images. Give Setup the "
                "num_classes of the training labels"
            )


def log_similarity(
    metric: Metric,
    image: tuple[Tensor, Tensor],
    proxy: tuple[Tensor, Tensor],
    *,
    samples: int = 16,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return -d of every image and proxy, (N, C).

    Args:
        metric: see `Proxies`.
        image: directions (N, Z) and concentrations (N,).
        proxy: directions (C, Z) and log concentrations, (C, 1) or, for "nivmf" and "el-nivmf", (C, Z).
        samples: for "el-nivmf".
        generator: of its draws.

    Example:
        >>> image, proxy = (torch.eye(2), torch.ones(2)), (torch.eye(2), torch.zeros(2, 1))
        >>> log_similarity("cosine", image, proxy)
        tensor([[1., 0.],
                [0., 1.]])
    """
    (mean, kappa), (direction, log_scale) = image, proxy
    if metric == "cosine":
        return mean @ direction.T
    if metric == "nivmf":
        return vmf.nivmf.log_density(mean, direction, log_scale.expand_as(direction))
    if metric == "el-nivmf":
        z = vmf.sample(mean, kappa, samples, generator=generator)
        log = vmf.nivmf.log_density(z.flatten(0, 1), direction, log_scale.expand_as(direction))
        return log.view(samples, len(mean), -1).logsumexp(0) - math.log(samples)
    proxy_kappa = log_scale[:, 0].exp()
    if metric == "l2":
        return -torch.cdist(kappa[:, None] * mean, proxy_kappa[:, None] * direction).square()
    if metric == "el-vmf":
        return log_kernel(mean, kappa, direction, proxy_kappa)
    distance = vmf.bhattacharyya if metric == "b-vmf" else vmf.kl
    return -distance(mean[:, None], kappa[:, None], direction, proxy_kappa)


class ProxyLearner(Learner):
    """Trains encoder and proxies; at the first epoch's beginning proxies are put at the means of their classes."""

    refresh = ONCE_AN_EPOCH

    def __init__(self, network: ProxyNetwork, method: Proxies) -> None:
        super().__init__(network, network.encoder)
        self.network = network
        self.method = method

    def choose(self, images: Dataset, rows: Sequence[Tensor]) -> list[Tensor]:
        if not bool(self.network.is_warm):
            parts = map_batches(lambda batch: self.network(batch.inputs), images, self.module, progress=False)
            mean, kappa = (torch.cat(part) for part in zip(*parts, strict=True))
            self.network.warm_up(mean, kappa, images.labels.to(mean.device))
        return list(rows)

    def loss(self, inputs: Any, labels: Tensor) -> Tensor:
        network, method = self.network, self.method
        network.check_labels(labels)
        mean, kappa = network(inputs)
        with torch.autocast(mean.device.type, enabled=False):
            similarity = self.log_similarity(mean, kappa)
            loss = F.cross_entropy(
                similarity.masked_fill(~network.has_images, -torch.inf) / method.scale, labels
            )
            if network.anchor is not None:
                loss = loss + method.anchor_weight * network.anchor(mean, labels)
        return loss

    def log_similarity(self, mean: Tensor, kappa: Tensor) -> Tensor:
        """Return -d of images and proxies, (N, C), from directions (N, Z) and concentrations (N,)."""
        network, method = self.network, self.method
        return log_similarity(
            method.metric,
            (mean, kappa),
            (network.directions.to(mean.dtype), network.log_scale.to(mean.dtype)),
            samples=method.samples,
            generator=getattr(self, "generator", None),
        )

    def embedder(self, data: FitData) -> Embedder:
        return VMFEmbedder(self.network, by_kernel=False)
