"""Uniform asymptotic expansion of the von Mises-Fisher normaliser, differentiable in torch.

The density on the unit sphere of R^D is C_D(k) exp(k mean . x). With nu = D/2 - 1,

    log C(k) = nu log k - (D/2) log(2 pi) - log I_nu(k),     A(k) = -d log C/dk = I_{nu+1}(k)/I_nu(k).

Everything comes from one expansion of I_mu for large mu that is uniform in k, and from recurrences down to nu;
docs/von_mises_fisher.md derives the forms used here, in which nothing cancels and nothing overflows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from laplacian_metric.vmf.checks import LARGEST_KAPPA, check_dim, check_kappa, precise, result_dtype

SMALLEST_ORDER = 16
TERMS = 10
Polynomial = list[Fraction]


@dataclass(frozen=True)
class Expansion:
    """What is known about a concentration, all of its shape.

    ``relative`` g = log C(k) - log C(0), ``scaled`` g + k, ``length`` A, ``gap`` 1 - A, ``slope`` dA/dk,
    ``entropy`` the entropy less that of the uniform distribution.
    """

    relative: Tensor
    scaled: Tensor
    length: Tensor
    gap: Tensor
    slope: Tensor
    entropy: Tensor


def _debye_polynomials(count: int) -> list[Polynomial]:
    """U_0 ... U_{count-1} of DLMF 10.41.9, coefficients from the constant upwards."""
    polynomials: list[Polynomial] = [[Fraction(1)]]
    while len(polynomials) < count:
        last = polynomials[-1]
        following = [Fraction(0)] * (len(last) + 3)
        for power, coefficient in enumerate(last):
            following[power + 1] += coefficient * (Fraction(power, 2) + Fraction(1, 8 * (power + 1)))
            following[power + 3] -= coefficient * (Fraction(power, 2) + Fraction(5, 8 * (power + 3)))
        polynomials.append(following)
    return polynomials


@lru_cache(maxsize=64)
def _series(twice_order: int) -> tuple[list[float], list[float], list[float], list[float], float]:
    """For S(p) = sum_j U_j(p)/mu^j: S, S', S'' and (S(p) - S(1))/(p - 1) as coefficients, and S(1)."""
    order = Fraction(twice_order, 2)
    value = [Fraction(0)] * (3 * TERMS + 1)
    for j, polynomial in enumerate(_debye_polynomials(TERMS + 1)):
        for power, coefficient in enumerate(polynomial):
            value[power] += coefficient / order**j
    first = [power * c for power, c in enumerate(value)][1:]
    second = [power * c for power, c in enumerate(first)][1:]
    # Division by p - 1: each coefficient of the quotient is the sum of those above it.
    quotient = [sum(value[power + 1 :], Fraction(0)) for power in range(len(value) - 1)]
    floats = [[float(c) for c in polynomial] for polynomial in (value, first, second, quotient)]
    return floats[0], floats[1], floats[2], floats[3], float(sum(value))


def _horner(coefficients: Sequence[float], p: Tensor) -> Tensor:
    result = torch.full_like(p, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        result *= p
        result += coefficient
    return result


def expand(kappa: Tensor, dim: int) -> Expansion:
    """Everything at once for ``kappa`` of any shape; no checks, no gradients.

    Args:
        kappa: concentrations.
        dim: D.

    Example:
        >>> expand(torch.tensor([0.0, 10.0]), 3).length  # coth(kappa) - 1/kappa
        tensor([0.0000, 0.9000])
    """
    k = kappa
    shifts = max(0, math.ceil(SMALLEST_ORDER - (dim / 2 - 1)))
    twice_order = dim - 2 + 2 * shifts
    mu = twice_order / 2
    value, first, second, quotient, at_one = _series(twice_order)

    z = k / mu
    s = torch.hypot(torch.ones_like(z), z)
    p = 1 / s
    zp = z / s
    t = z * zp / (2 * (1 + p))
    S = _horner(value, p)
    L = _horner(first, p) / S
    M = _horner(second, p) / S - torch.square(L)
    rest = torch.log1p(-(torch.square(zp) / (1 + p)) * _horner(quotient, p) / at_one) - torch.log1p(2 * t) / 2

    g = -(mu * (2 * t - torch.log1p(t)) + rest)
    h = torch.where(z < 1, k + g, mu * (1 + torch.log1p(t) - 1 / (s + z)) - rest)
    r = zp / (1 + p) - zp * p / (2 * mu) - zp * torch.square(p) * L / mu
    q = mu * zp * (1 + 1 / (s + z)) / (1 + p) + torch.square(zp) / 2 + torch.square(zp) * p * L  # k (1 - r)
    # d r/d z; a is d r/d k and w is k^2 times it, which stays below mu + 1 however large k is.
    c = (
        (2 * torch.square(p) - 1) / 2
        + p * (3 * torch.square(p) - 2) * L
        - torch.square(zp) * torch.square(p) * M
    )
    w = torch.square(zp) * (mu / (1 + p) - c)
    a = torch.square(p) * (1 / (1 + p) - c / mu) / mu
    for _ in range(shifts):
        inverse = 1 / (2 * mu + k * r)
        ratio = torch.log1p(k * r / (2 * mu))
        g, h = g - ratio, h - ratio
        a = torch.square(inverse) * (2 * mu - w)
        w = torch.square(k * inverse) * (2 * mu - w)
        q = k * (2 * mu - q) / (2 * mu + k - q)
        r = k * inverse
        mu -= 1
    gap = torch.where(k < 1, 1 - r, q / torch.clip(k, 1, None))
    return Expansion(relative=g, scaled=h, length=r, gap=gap, slope=a, entropy=q - h)


def log_uniform_density(dim: int) -> float:
    """log C_D(0) = lgamma(D/2) - log 2 - (D/2) log pi, minus the log of the sphere's area."""
    return math.lgamma(dim / 2) - math.log(2) - dim / 2 * math.log(math.pi)


class _Differentiable(torch.autograd.Function):
    """One field of ``Expansion``, whose derivative is made of another one."""

    generate_vmap_rule = True

    @staticmethod
    def forward(kappa: Tensor, dim: int, field: str) -> Tensor:
        return getattr(expand(kappa, dim), field)  # type: ignore[no-any-return]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int, str], output: Tensor) -> None:
        kappa, ctx.dim, ctx.field = inputs
        ctx.save_for_backward(kappa)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        (kappa,) = ctx.saved_tensors
        (gradient,) = grad_outputs
        if ctx.field == "relative":
            derivative = -evaluate(kappa, ctx.dim, "length")
        elif ctx.field == "scaled":
            derivative = evaluate(kappa, ctx.dim, "gap")
        elif ctx.field == "length":
            derivative = evaluate(kappa, ctx.dim, "slope")
        elif ctx.field == "gap":
            derivative = -evaluate(kappa, ctx.dim, "slope")
        elif ctx.field == "entropy":
            derivative = -kappa * evaluate(kappa, ctx.dim, "slope")
        else:
            raise NotImplementedError(
                "the second derivative of the mean resultant length (the third of the log normaliser) is not available"
            )
        return gradient * derivative, None, None


def evaluate(kappa: Tensor, dim: int, field: str) -> Tensor:
    """A field of ``Expansion`` as a differentiable function of kappa; no checks, the dtype of kappa."""
    return _Differentiable.apply(kappa, dim, field)  # type: ignore[no-any-return]


def _checked(kappa: Tensor, dim: int, field: str) -> Tensor:
    check_kappa("kappa", kappa)
    check_dim(dim)
    return evaluate(precise(kappa), dim, field)


def log_normalizer(kappa: Tensor, dim: int) -> Tensor:
    """log C_D(kappa), the logarithm of what the density exp(kappa mean . x) is multiplied with.

    In many dimensions most of its digits are those of log C_D(0): use ``relative_log_normalizer`` for differences.

    Args:
        kappa: concentrations of any shape, at least 0.
        dim: D, the dimension of the space around the sphere.

    Example:
        >>> log_normalizer(torch.tensor([0.0, 10.0]), 3)
        tensor([-2.5310, -9.5353])
    """
    return (_checked(kappa, dim, "relative") + log_uniform_density(dim)).to(result_dtype(kappa))


def relative_log_normalizer(kappa: Tensor, dim: int) -> Tensor:
    """g = log C_D(kappa) - log C_D(0), of the shape of kappa; dg/dkappa = -A, and twice differentiable.

    Example:
        >>> relative_log_normalizer(torch.tensor([1.0, 10.0]), 3)
        tensor([-0.1614, -7.0043])
    """
    return _checked(kappa, dim, "relative").to(result_dtype(kappa))


def length_and_variance(kappa: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """A_D(kappa) = |E x|, and the trace of the covariance 1 - A^2 without a subtraction from 1; in float64.

    The latter keeps all its digits where the length rounds to 1. What knows everything may have kappa infinite.

    Example:
        >>> length_and_variance(torch.tensor([10.0, 1e20, torch.inf]), 3)[1]
        tensor([ 1.9000e-01,  2.0000e-20, 2.0000e-100], dtype=torch.float64)
    """
    kappa = precise(kappa).clamp(max=LARGEST_KAPPA)
    check_kappa("kappa", kappa)
    check_dim(dim)
    expansion = expand(kappa, dim)
    return expansion.length, expansion.gap * (1 + expansion.length)


def mean_resultant_length(kappa: Tensor, dim: int) -> Tensor:
    """A_D(kappa) = |E x|, from 0 for the uniform distribution to 1 for a point; of the shape of kappa.

    Differentiable once: a second derivative is refused.

    Example:
        >>> mean_resultant_length(torch.tensor([0.0, 10.0]), 3)  # coth(kappa) - 1/kappa
        tensor([0.0000, 0.9000])
    """
    return _checked(kappa, dim, "length").to(result_dtype(kappa))
