"""A head that tells how unsure an encoder is: log sigma^2 of every dimension from the features."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hessians.checks import Choice
from laplacian_metric.core.arguments import at_least
from laplacian_metric.encoder import Encoder
from laplacian_metric.encoder.layers import GeM, seeded

FLOOR = 1e-6
# exp(40) = 2e17: far beyond any embedding, and its square still fits into float32.
LARGEST_LOG_VARIANCE = 40.0


class LastNorm(Choice):
    """What follows the last standardisation of an `UncertaintyHead`."""

    SHARED = "shared"
    """One learned scale and one learned shift for all dimensions."""
    SEPARATE = "separate"
    """A learned scale and a learned shift for each dimension."""
    FIXED = "fixed"
    """Scale 1 and shift 0, so that log sigma^2 has mean 0 and variance 1 over the training images."""


class UncertaintyHead(nn.Module):
    """features h (N, H) -> log sigma^2 (N, D): linear, batch norm, ReLU, linear, batch norm.

    Variances are kept above 1e-6, softly.

    Args:
        num_features: H.
        dim: D, how many variances there are for an image.
        hidden: the width between both linear layers.
        last_norm: see `LastNorm`.
        scale: the initial scale after the last standardisation. A small one makes variances start out nearly constant.
        shift: the initial log sigma^2; -log(2 D) by default, which makes the variances of a unit vector's D components
            together 1/2. (The -7 of the original, for 512 dimensions, is that.) It is a buffer, ``origin``, that the
            learned shift is added to. Like the scale it is not used with a fixed last norm.
        seed: where the initial weights come from; the global generator without it.

    Example:
        >>> head = UncertaintyHead(8, 3, hidden=4, seed=0).eval()
        >>> head(torch.rand(5, 8)).shape, head.origin
        (torch.Size([5, 3]), tensor(-1.7918))
    """

    scale: Tensor
    shift: Tensor
    origin: Tensor

    def __init__(
        self,
        num_features: int,
        dim: int,
        *,
        hidden: int = 512,
        last_norm: str | LastNorm = LastNorm.SHARED,
        scale: float = 1.0,
        shift: float | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        at_least(1, num_features=num_features, dim=dim, hidden=hidden)
        last_norm = LastNorm.parse(last_norm, "last_norm")
        with seeded(seed):
            # Without biases: the batch norms subtract them again.
            self.first = nn.Linear(num_features, hidden, bias=False)
            self.second = nn.Linear(hidden, dim, bias=False)
        self.first_norm = nn.BatchNorm1d(hidden)
        self.last_norm = nn.BatchNorm1d(dim, affine=False)
        if last_norm is LastNorm.FIXED:
            self.register_buffer("scale", torch.ones(()))
            self.register_buffer("shift", torch.zeros(()))
            origin = 0.0
        else:
            shape = () if last_norm is LastNorm.SHARED else (dim,)
            self.scale = nn.Parameter(torch.full(shape, float(scale)))
            self.shift = nn.Parameter(torch.zeros(shape))
            origin = -math.log(2 * dim) if shift is None else float(shift)
        self.register_buffer("origin", torch.tensor(origin))

    def forward(self, features: Tensor) -> Tensor:
        if self.training and len(features) < 2:
            raise ValueError(
                f"a batch of {len(features)} image cannot be standardised: give the training batches of at least 2 "
                "images, for instance with drop_last=True"
            )
        hidden = self.first_norm(self.first(features)).relu()
        return bounded(self.scale * self.last_norm(self.second(hidden)) + self.shift + self.origin)


class LinearUncertaintyHead(nn.Module):
    """features h (N, H) -> log sigma^2 (N, D) by one linear layer, bounded as those of `UncertaintyHead`.

    Args:
        num_features: H.
        dim: D.
        variance: the initial sigma^2, the same for all images.

    Example:
        >>> LinearUncertaintyHead(8, 3, variance=1.0)(torch.rand(1, 8)).detach().abs().max() < 1e-5
        tensor(True)
    """

    def __init__(self, num_features: int, dim: int, *, variance: float) -> None:
        super().__init__()
        check_variance(variance)
        self.linear = nn.Linear(num_features, dim)
        with torch.no_grad():
            self.linear.weight.zero_()
            self.linear.bias.fill_(math.log(variance - FLOOR))

    def forward(self, features: Tensor) -> Tensor:
        return bounded(self.linear(features))


def check_variance(variance: float | None, largest: float = math.exp(LARGEST_LOG_VARIANCE)) -> None:
    """Refuse an initial variance that no head can begin with; None is not checked."""
    if variance is not None and not FLOOR < variance <= largest:
        raise ValueError(
            f"variance is {variance}, a number above {FLOOR:g}, the least there is, and up to {largest:.1e} is needed"
        )


def bounded(log_variance: Tensor) -> Tensor:
    """log(1e-6 + exp(log_variance)), and no more than what float32 can square.

    Example:
        >>> bounded(torch.tensor([-100.0, 1.0, 100.0]))
        tensor([-13.8155,   1.0000,  40.0000])
    """
    least = log_variance.new_tensor(math.log(FLOOR))
    return torch.logaddexp(log_variance, least).clamp(max=LARGEST_LOG_VARIANCE)


# Squares of what is above do not fit into float32 once they are multiplied with a few thousand dimensions.
LARGEST = 1e12


class VarianceHead(nn.Module):
    """features (N, H) -> sigma^2 (N,): linear, ReLU, linear, softplus, and 1e-6.

    Args:
        num_features: H.
        hidden: the width between both linear layers.
        variance: about what sigma^2 is at first.
        seed: where the initial weights come from; torch's global generator without it.

    Example:
        >>> head = VarianceHead(8, hidden=4, variance=0.25, seed=0)
        >>> head(torch.zeros(2, 8)).detach()
        tensor([0.2500, 0.2500])
    """

    def __init__(self, num_features: int, *, hidden: int, variance: float, seed: int | None = None) -> None:
        super().__init__()
        at_least(1, num_features=num_features, hidden=hidden)
        check_variance(variance, LARGEST)
        with seeded(seed):
            self.first = nn.Linear(num_features, hidden)
            self.second = nn.Linear(hidden, 1)
        with torch.no_grad():
            self.first.bias.zero_()
            # The inverse of softplus.
            wanted = variance - FLOOR
            self.second.bias.fill_(wanted + math.log(-math.expm1(-wanted)))

    def forward(self, features: Tensor) -> Tensor:
        raw_variance = self.second(self.first(features).relu()).squeeze(1)
        return FLOOR + F.softplus(raw_variance).clamp(max=LARGEST)


class MeanAndVariance(nn.Module):
    """inputs -> the encoder's raw embeddings u (N, Z) and sigma^2 (N,).

    Where the backbone ends in a generalised mean over positions, the variance has one of its own, with an exponent of
    its own, over the same positions.

    Args:
        encoder: of the means.
        variance: features (N, H) -> (N,), or (N, 1) of logarithms, see ``is_log``.
        is_log: whether it is log sigma^2 that the head gives.

    Example:
        >>> encoder = Encoder(nn.Sequential(GeM()), nn.Linear(8, 3))
        >>> network = MeanAndVariance(encoder, VarianceHead(8, hidden=4, variance=0.1))
        >>> [tuple(x.shape) for x in network(torch.rand(2, 8, 5, 5))], network.pool is not None
        ([(2, 3), (2,)], True)
    """

    def __init__(self, encoder: Encoder, variance: nn.Module, *, is_log: bool = False) -> None:
        super().__init__()
        self.encoder = encoder
        last = encoder.backbone[-1] if isinstance(encoder.backbone, nn.Sequential) else encoder.backbone
        self.pool = copy.deepcopy(last) if isinstance(last, GeM) else None
        self.variance = variance.to(encoder.head.weight)
        self.is_log = is_log

    def forward(self, inputs: Any) -> tuple[Tensor, Tensor]:
        features, other = self._features(inputs)
        u = self.encoder.head(features)
        with torch.autocast(u.device.type, enabled=False):
            predicted = self.variance(other.to(self.encoder.head.weight.dtype))
            if self.is_log:
                predicted = predicted.squeeze(1).exp()
            return u.to(predicted.dtype), predicted

    def _features(self, inputs: Any) -> tuple[Tensor, Tensor]:
        """What goes into the head of the mean and into that of the variance, (N, H) each."""
        if self.pool is None:
            h = self.encoder.features(inputs)
            return h, h
        backbone = self.encoder.backbone
        last = backbone[-1] if isinstance(backbone, nn.Sequential) else backbone
        positions: list[Tensor] = []
        hook = last.register_forward_pre_hook(lambda _, arguments: positions.append(arguments[0]))
        try:
            h = self.encoder.features(inputs)
        finally:
            hook.remove()
        with torch.autocast(h.device.type, enabled=False):
            return h, self.pool(positions[0].to(self.encoder.head.weight.dtype))
