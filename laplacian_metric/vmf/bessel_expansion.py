"""Uniform asymptotic expansion of the von Mises-Fisher normaliser, in arithmetic that torch and numpy share.

The density on the unit sphere of R^D is C_D(k) exp(k mean . x). With nu = D/2 - 1,

    log C(k) = nu log k - (D/2) log(2 pi) - log I_nu(k),     A(k) = -d log C/dk = I_{nu+1}(k)/I_nu(k).

Everything comes from one expansion of I_mu for large mu that is uniform in k, and from recurrences down to nu;
docs/von_mises_fisher.md derives the forms used here, in which nothing cancels and nothing overflows. A query of a saved
index evaluates it without importing torch, hence a module of its own outside of `laplacian_metric.vmf`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, Generic, TypeVar

Array = TypeVar("Array")

SMALLEST_ORDER = 16
TERMS = 10
Polynomial = list[Fraction]


@dataclass(frozen=True)
class Expansion(Generic[Array]):
    """What is known about a concentration, all of its shape.

    ``relative`` g = log C(k) - log C(0), ``scaled`` g + k, ``length`` A, ``gap`` 1 - A, ``slope`` dA/dk,
    ``entropy`` the entropy less that of the uniform distribution.
    """

    relative: Array
    scaled: Array
    length: Array
    gap: Array
    slope: Array
    entropy: Array


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


def _horner(xp: Any, coefficients: Sequence[float], p: Any) -> Any:
    result = xp.full_like(p, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        result *= p
        result += coefficient
    return result


def expand(xp: Any, kappa: Array, dim: int) -> Expansion[Array]:
    """Everything at once for ``kappa`` of any shape; no checks, no gradients.

    Args:
        xp: numpy or torch, whichever kappa is of.
        kappa: concentrations.
        dim: D.

    Example:
        >>> import numpy as np
        >>> expand(np, np.array([0.0, 10.0]), 3).length  # coth(kappa) - 1/kappa
        array([0. , 0.9])
    """
    k: Any = kappa
    shifts = max(0, math.ceil(SMALLEST_ORDER - (dim / 2 - 1)))
    twice_order = dim - 2 + 2 * shifts
    mu = twice_order / 2
    value, first, second, quotient, at_one = _series(twice_order)

    z = k / mu
    s = xp.hypot(xp.ones_like(z), z)
    p = 1 / s
    zp = z / s
    t = z * zp / (2 * (1 + p))
    S = _horner(xp, value, p)
    L = _horner(xp, first, p) / S
    M = _horner(xp, second, p) / S - xp.square(L)
    rest = xp.log1p(-(xp.square(zp) / (1 + p)) * _horner(xp, quotient, p) / at_one) - xp.log1p(2 * t) / 2

    g = -(mu * (2 * t - xp.log1p(t)) + rest)
    h = xp.where(z < 1, k + g, mu * (1 + xp.log1p(t) - 1 / (s + z)) - rest)
    r = zp / (1 + p) - zp * p / (2 * mu) - zp * xp.square(p) * L / mu
    q = mu * zp * (1 + 1 / (s + z)) / (1 + p) + xp.square(zp) / 2 + xp.square(zp) * p * L  # k (1 - r)
    # d r/d z; a is d r/d k and w is k^2 times it, which stays below mu + 1 however large k is.
    c = (2 * xp.square(p) - 1) / 2 + p * (3 * xp.square(p) - 2) * L - xp.square(zp) * xp.square(p) * M
    w = xp.square(zp) * (mu / (1 + p) - c)
    a = xp.square(p) * (1 / (1 + p) - c / mu) / mu
    for _ in range(shifts):
        inverse = 1 / (2 * mu + k * r)
        ratio = xp.log1p(k * r / (2 * mu))
        g, h = g - ratio, h - ratio
        a = xp.square(inverse) * (2 * mu - w)
        w = xp.square(k * inverse) * (2 * mu - w)
        q = k * (2 * mu - q) / (2 * mu + k - q)
        r = k * inverse
        mu -= 1
    gap = xp.where(k < 1, 1 - r, q / xp.clip(k, 1, None))
    return Expansion(relative=g, scaled=h, length=r, gap=gap, slope=a, entropy=q - h)


def log_uniform_density(dim: int) -> float:
    """log C_D(0) = lgamma(D/2) - log 2 - (D/2) log pi, minus the log of the sphere's area."""
    return math.lgamma(dim / 2) - math.log(2) - dim / 2 * math.log(math.pi)
