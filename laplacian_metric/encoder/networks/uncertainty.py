"""A head that tells how unsure an encoder is: log sigma^2 of every dimension from the features."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from hessians.checks import Choice
from laplacian_metric.core.arguments import at_least
from laplacian_metric.encoder.networks.small import seeded

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
