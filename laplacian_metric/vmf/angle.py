"""The angle between a sample and the mean: its density, its tails, and how it moves with the concentration.

The angle phi has the density p(phi) = C_D(k) |S^{D-2}| exp(psi(phi)), psi(phi) = k cos phi + (D - 2) log sin phi. Its
tails are integrated relative to the density at their inner end, from there to where the density has died away, so
that neither tiny probabilities nor large concentrations lose digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from laplacian_metric.vmf.bessel import expand

NODES = 64
BLOCK = 1 << 16  # entries handled at a time: as many nodes at once as make this
NEGLIGIBLE = 40.0  # nats by which the density has to fall before a tail is cut off


@lru_cache(maxsize=8)
def gauss_legendre(count: int) -> tuple[list[float], list[float]]:
    """Nodes and weights on (0, 1)."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    return ((nodes + 1) / 2).tolist(), (weights / 2).tolist()


def log_density_of_angle(angle: Tensor, kappa: Tensor, dim: int) -> Tensor:
    """log p(phi), elementwise; minus infinity at the poles if D > 2."""
    constant = math.lgamma(dim / 2) - math.lgamma((dim - 1) / 2) - math.log(math.pi) / 2
    height = 2 * kappa * (angle / 2).sin().square()  # k (1 - cos phi)
    return constant + expand(kappa, dim).scaled - height + (dim - 2) * angle.sin().log()


def middle_angle(kappa: Tensor, dim: int) -> Tensor:
    """The angle whose cosine is A_D(kappa): where one tail is given up for the other."""
    return 2 * (expand(kappa, dim).gap / 2).sqrt().asin()


def _log_ratio(angle: Tensor, step: Tensor, kappa: Tensor, dim: int) -> Tensor:
    """psi(phi + step) - psi(phi) by differences."""
    change = -2 * kappa * (angle + step / 2).sin() * (step / 2).sin()
    if dim == 2:
        return change
    ratio = step.cos() + step.sin() / angle.tan()
    return change + (dim - 2) * ratio.clamp(min=0).log()


def tail_integral(
    angle: Tensor, kappa: Tensor, dim: int, upper: Tensor, factor: Callable[[Tensor], Tensor] | None = None
) -> Tensor:
    """int factor(t) exp(psi(t) - psi(phi)) dt over the tail beyond phi, to pi where ``upper``, else to 0."""
    extent = torch.where(upper, math.pi - angle, -angle)
    for _ in range(400):
        shorter = _log_ratio(angle, extent / 2, kappa, dim) < -NEGLIGIBLE
        if not bool(shorter.any()):
            break
        extent = torch.where(shorter, extent / 2, extent)
    nodes, weights = (angle.new_tensor(x).view(-1, *[1] * angle.ndim) for x in gauss_legendre(NODES))
    total = torch.zeros_like(angle)
    size = max(1, BLOCK // max(1, angle.numel()))
    for node, weight in zip(nodes.split(size), weights.split(size), strict=True):
        step = extent * node
        value = _log_ratio(angle, step, kappa, dim).exp()
        total += (weight * (value if factor is None else value * factor(angle + step))).sum(0)
    return total * extent.abs()


def angle_derivative(angle: Tensor, kappa: Tensor, dim: int) -> Tensor:
    """d phi/d kappa at a fixed probability: minus int_0^phi (cos t - A) p(t) dt / p(phi).

    The integral over all angles vanishes, so that either tail serves; the one that does not contain the middle has
    an integrand of one sign.
    """
    middle, gap = middle_angle(kappa, dim), expand(kappa, dim).gap
    upper = angle > middle
    integral = tail_integral(angle, kappa, dim, upper, lambda t: gap - 2 * (t / 2).sin().square())
    moved = torch.where(upper, integral, -integral)
    return torch.where((angle > 0) & (angle < math.pi), moved, 0)


class ImplicitAngle(torch.autograd.Function):
    """An angle drawn for kappa, or solved for it, as a function of kappa: its probability stays what it is."""

    @staticmethod
    def forward(ctx: Any, kappa: Tensor, angle: Tensor, dim: int) -> Tensor:
        ctx.save_for_backward(kappa, angle)
        ctx.dim = dim
        return angle.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, None]:
        kappa, angle = ctx.saved_tensors
        (gradient,) = grad_outputs
        moved = gradient * angle_derivative(angle, kappa.expand_as(angle), ctx.dim)
        return moved.sum_to_size(kappa.shape), gradient, None
