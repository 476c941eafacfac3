"""The angle between a sample and the mean: its density, its tails, how it moves with the concentration, and the caps
around the mean that hold a share of the samples.

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
from laplacian_metric.vmf.checks import (
    check_broadcast,
    check_dim,
    check_entries,
    check_kappa,
    precise,
    result_dtype,
)

STEPS = 200  # at most, of Newton or bisection; five to ten are needed
ENOUGH = 1e-11  # relative change after which the next Newton step is below rounding
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


def cap_probability(kappa: Tensor, dim: int, angle: Tensor | float) -> Tensor:
    """The probability that a sample lies within ``angle`` of the mean direction.

    Args:
        kappa: concentrations of any shape.
        dim: D, the dimension of the space around the sphere.
        angle: radians from 0 to pi, a number or a tensor that broadcasts against kappa.

    Returns:
        Probabilities of their common shape, differentiable in both.

    Example:
        >>> cap_probability(torch.tensor([0.0, 10.0]), 3, math.pi / 3)
        tensor([0.2500, 0.9933])
    """
    kappa, angle, dtype = _inputs(kappa, dim, "angle", angle, math.pi, "angles are in radians, from 0 to pi")
    return _CapProbability.apply(kappa, angle, dim).to(dtype)  # type: ignore[no-any-return]


def cap_quantile(kappa: Tensor, dim: int, probability: Tensor | float) -> Tensor:
    """The angle of the cap around the mean direction that holds this probability: a credible set.

    Solved to float64's precision for D up to thousands and any kappa; Newton steps on the logarithm of the smaller of
    the two tails, inside a bracket.

    Args:
        kappa: concentrations of any shape.
        dim: D, the dimension of the space around the sphere.
        probability: from 0 to 1, a number or a tensor that broadcasts against kappa.

    Returns:
        Angles in radians, of their common shape, differentiable in both. In two dimensions the cap is the arc to
        both sides of the mean.

    Example:
        >>> cap_quantile(torch.tensor([0.0, 10.0]), 3, 0.95)
        tensor([2.6906, 0.7948])
    """
    kappa, probability, dtype = _inputs(
        kappa, dim, "probability", probability, 1.0, "probabilities are from 0 to 1"
    )
    wanted = probability.detach()
    angle = _solve(kappa.detach(), dim, wanted)
    inside = (angle > 0) & (angle < math.pi)
    result = ImplicitAngle.apply(kappa, angle, dim)
    if probability.requires_grad:
        density = log_density_of_angle(angle, kappa.detach(), dim).exp()
        result = result + (probability - wanted) * torch.where(inside, 1 / density, 0)
    return result.to(dtype)  # type: ignore[no-any-return]


def _inputs(
    kappa: Tensor, dim: int, name: str, other: Tensor | float, high: float, remedy: str
) -> tuple[Tensor, Tensor, torch.dtype]:
    check_kappa("kappa", kappa)
    check_dim(dim)
    dtype = result_dtype(kappa)
    if not isinstance(other, Tensor):
        other = torch.tensor(other, dtype=torch.float64, device="cpu")
    elif other.is_floating_point():
        dtype = result_dtype(kappa, other)
    # float32's pi is larger than pi.
    slack = 1e-7 if other.dtype != torch.float64 else 0.0
    check_entries(name, other, 0.0, high + slack, remedy)
    check_broadcast(**{"kappa": kappa.shape, name: other.shape})
    other = precise(other.to(kappa.device)).clamp(max=high)
    return (*torch.broadcast_tensors(precise(kappa), other), dtype)


def _tails(angle: Tensor, kappa: Tensor, dim: int, upper: Tensor) -> tuple[Tensor, Tensor]:
    """log of the probability beyond the angle (on the side that ``upper`` says), and log p at the angle."""
    density = log_density_of_angle(angle, kappa, dim)
    return density + tail_integral(angle, kappa, dim, upper).log(), density


def probability_within(angle: Tensor, kappa: Tensor, dim: int) -> Tensor:
    """P(phi <= angle), elementwise."""
    inside = (angle > 0) & (angle < math.pi)
    middle = middle_angle(kappa, dim)
    safe = torch.where(inside, angle, middle)
    upper = safe > middle
    tail = _tails(safe, kappa, dim, upper)[0].exp()
    return torch.where(inside, torch.where(upper, 1 - tail, tail), (angle > 0).to(tail.dtype)).clamp(0, 1)


class _CapProbability(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kappa: Tensor, angle: Tensor, dim: int) -> Tensor:
        ctx.save_for_backward(kappa, angle)
        ctx.dim = dim
        return probability_within(angle, kappa, dim)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, None]:
        kappa, angle = ctx.saved_tensors
        weighted = grad_outputs[0] * log_density_of_angle(angle, kappa, ctx.dim).exp()
        return -weighted * angle_derivative(angle, kappa, ctx.dim), weighted, None


def _solve(kappa: Tensor, dim: int, probability: Tensor) -> Tensor:
    middle = middle_angle(kappa, dim)
    # The ends are known, and have no logarithm.
    between = torch.where((probability > 0) & (probability < 1), probability, 0.5)
    upper = between > probability_within(middle, kappa, dim)
    target = torch.where(upper, torch.log1p(-between), between.log())
    low = torch.where(upper, middle, 0)
    high = torch.where(upper, math.pi, middle)
    angle = middle.clone()
    for _ in range(STEPS):
        tail, density = _tails(angle, kappa, dim, upper)
        too_far = torch.where(upper, tail < target, tail > target)
        low, high = torch.where(too_far, low, angle), torch.where(too_far, angle, high)
        # A Newton step on log(tail) as a function of the logarithm of the distance to the tail's pole, in which it is
        # nearly linear for small distances; for small steps it is one in the angle, and loses no digits of it.
        pole = torch.where(upper, math.pi - angle, angle)
        step = pole * torch.expm1((target - tail) * (tail - density).exp() / pole)
        following = angle + torch.where(upper, -step, step)
        done = step.abs() <= ENOUGH * angle  # whatever the bracket says: one of its ends may be the solution
        inside = (following > low) & (following < high)
        angle = torch.where(done | inside, following, (low + high) / 2)
        if bool(done.all()):
            break
    angle = torch.where(probability <= 0, 0, angle)
    return torch.where(probability >= 1, math.pi, angle)
