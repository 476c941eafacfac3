"""Exact samples for any dimension and concentration, reparametrised in the mean and in the concentration."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from laplacian_metric.vmf.angle import ImplicitAngle
from laplacian_metric.vmf.checks import check_distribution, precise, result_dtype


def sample(mean: Tensor, kappa: Tensor, k: int, *, generator: torch.Generator | None = None) -> Tensor:
    """``k`` independent samples of each distribution.

    The angle to the mean comes from Wood's rejection scheme, whose envelope is drawn with two uniform numbers; only
    what was rejected is drawn again. The direction of the deviation is a Gaussian vector without its part along the
    mean. Gradients flow to the mean through this construction and to kappa by implicit reparametrisation: the
    angle moves such that its probability stays the same.

    Args:
        mean: (N, D), unit vectors.
        kappa: (N,), concentrations; 0 is uniform.
        k: how many samples.
        generator: the source of random numbers, on the device of the mean.

    Returns:
        (k, N, D), unit vectors.

    Example:
        >>> mean = torch.nn.functional.normalize(torch.ones(2, 16), dim=1)
        >>> samples = sample(mean, torch.tensor([0.0, 1e4]), 100, generator=torch.Generator().manual_seed(0))
        >>> samples.shape, bool((samples[:, 1] @ mean[1] > 0.99).all())
        (torch.Size([100, 2, 16]), True)
    """
    if not isinstance(k, int) or isinstance(k, bool) or k < 0:
        raise ValueError(f"k is {k!r}, the number of samples is needed: an integer, at least 0")
    check_distribution(mean, kappa)
    if mean.ndim != 2 or kappa.shape != mean.shape[:1]:
        raise ValueError(
            f"mean has shape {tuple(mean.shape)} and kappa {tuple(kappa.shape)}: (N, D) and (N,) are needed"
        )
    dtype, dim = result_dtype(mean, kappa), mean.shape[1]
    exact = precise(kappa)
    angle = draw_angles(exact.detach().expand(k, -1), dim, generator)
    angle = ImplicitAngle.apply(exact, angle, dim)[..., None]
    mean = mean.to(dtype)
    noise = torch.randn((k, *mean.shape), dtype=dtype, device=mean.device, generator=generator)
    # In few dimensions the mean can take away most of the noise; the second pass removes what rounding left of it.
    for _ in range(2 if dim < 8 else 1):
        noise = torch.nn.functional.normalize(noise - (noise * mean).sum(-1, keepdim=True) * mean, dim=-1)
    points = angle.cos().to(dtype) * mean + angle.sin().to(dtype) * noise
    return torch.nn.functional.normalize(points, dim=-1)


def draw_angles(kappa: Tensor, dim: int, generator: torch.Generator | None) -> Tensor:
    """One angle to the mean for each kappa, of the same shape; no gradients."""
    shape = kappa.shape
    kappa = kappa.reshape(-1)
    b = (dim - 1) / (2 * kappa + torch.hypot(2 * kappa, torch.full_like(kappa, dim - 1)))
    angles = torch.empty_like(kappa)
    pending = torch.arange(len(kappa), device=kappa.device)
    while len(pending):
        proposed, accepted = _propose(kappa[pending], b[pending], dim, generator)
        angles[pending[accepted]] = proposed[accepted]
        pending = pending[~accepted]
    return angles.view(shape)


def _propose(kappa: Tensor, b: Tensor, dim: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """An angle from the envelope for each kappa, and whether it is accepted.

    The cosine is w = (1 - (1 + b) e)/(1 - (1 - b) e) with e from a Beta((D-1)/2, (D-1)/2); everything is written in
    1 - w, which stays exact when w is next to 1.
    """
    uniform = torch.rand((3, len(kappa)), dtype=kappa.dtype, device=kappa.device, generator=generator)
    turn, chance = math.pi * uniform[0], uniform[2]
    # e = (1 - r cos 2 turn)/2, where 1 - r^2 is a power of a uniform number; in two dimensions r = 1.
    power = (uniform[1].log() * (2 / (dim - 2))).exp() if dim > 2 else torch.zeros_like(b)
    r = (1 - power).clamp(min=0).sqrt()
    short = power / (1 + r) / 2
    e, rest = short + r * turn.sin().square(), short + r * turn.cos().square()
    ratio = 2 * e / (rest + b * e)  # (1 - w)/b
    angle = 2 * torch.atan2((b * e).sqrt(), rest.sqrt())
    log_accept = kappa * b * (2 / (1 + b) - ratio) + (dim - 1) * ((2 + (1 - b) * ratio) * (1 + b) / 4).log()
    return angle, log_accept >= chance.log()
