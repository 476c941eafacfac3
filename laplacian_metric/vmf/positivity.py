r"""The expected positivity of two von Mises-Fisher distributions, as a series without a single sample.

Two images have points z ~ vMF(mean1, k1) and z+ ~ vMF(mean2, k2), and z+ is a positive of z with a probability that is
proportional to the density of vMF(z, kpos). Averaged over both points, relative to two unrelated points,

    h(c) = |S| E vMF(z+; z, kpos) = sum_n N_n A_n(k1) A_n(k2) A_n(kpos) P_n(c),        c = mean1 . mean2,

because a convolution of zonal functions multiplies their coefficients. P_n is the Gegenbauer polynomial of degree n
with P_n(1) = 1, N_n the number of spherical harmonics of degree n, and A_n(k) = I_{nu+n}(k)/I_nu(k), nu = D/2 - 1:

    P_0 = 1,  P_1 = c,  (n + D - 3) P_n = (2n + D - 4) c P_{n-1} - (n - 1) P_{n-2}
    A_0 = 1,  A_{n+1} = A_n r_n,  r_n = k/(2 (nu + n + 1) + k r_{n+1}),  d log A_n/dk = n/k + r_n - r_0
    N_n = (2n + D - 2)/(n + D - 2) (n + D - 2)!/(n! (D - 2)!)

In softmax over candidates, log h is the exact posterior of which of them is the positive one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from laplacian_metric.vmf.bessel import expand, length_and_variance, relative_log_normalizer
from laplacian_metric.vmf.checks import (
    HALF_DTYPES,
    LARGEST_KAPPA,
    check_broadcast,
    check_dim,
    check_entries,
    precise,
    result_dtype,
)
from laplacian_metric.vmf.fitting import concentration

SMALLEST = 1e-9  # below it, and where rounding exceeds a thousandth of h, the moment-matched form takes over
ROUNDING = 2e-13  # of h, relative to the root of the sum of squared terms
MAX_TERMS = 20_000
ENTRIES_AT_ONCE = 1 << 17  # a block's matrices stay in the processor's cache
LARGEST_EXPONENT = 600.0


def log_positivity(
    cosine: Tensor, kappa1: Tensor, kappa2: Tensor, kappa_pos: Tensor | float, dim: int
) -> Tensor:
    """Return log h, the log expected positivity of two images relative to two unrelated ones.

    All arguments broadcast, and gradients flow to all of them; with kappa1 (N, 1), kappa2 (1, N) and a cosine (N, N)
    the Bessel ratios are computed once for each image. The terms of the series cancel at negative cosines, which in
    float64 leaves an error of about 1e-16 h(1)/h(cosine): below 1e-8 where h(cosine) > 1e-7 h(1). Where it would exceed
    1e-3, or h is below 1e-9, `log_positivity_matched` stands in for the series, so that the gradient of an unlikely
    pair does not vanish; there log h may be off by several nats.

    Args:
        cosine: mean1 . mean2, from -1 to 1.
        kappa1: concentrations, above 0.
        kappa2: concentrations, above 0.
        kappa_pos: how concentrated positives are around each other, above 0.
        dim: D, the dimension of the space around the sphere.

    Example:
        >>> k = torch.tensor([4.0, 40.0])
        >>> log_positivity(torch.tensor([[1.0], [0.0]]), k, k, 20.0, 8)
        tensor([[ 1.0566,  5.4378],
                [-0.0783, -5.2344]])
    """
    cosine, k1, k2, kp, dtype = _checked(cosine, kappa1, kappa2, kappa_pos, dim)
    log, is_resolved = _Series.apply(cosine, k1, k2, kp, dim)
    if not bool(is_resolved.all()):
        log = torch.where(is_resolved, log, _matched(cosine, k1, k2, kp, dim))
    result: Tensor = log.to(dtype)
    return result


def log_positivity_matched(
    cosine: Tensor, kappa1: Tensor, kappa2: Tensor, kappa_pos: Tensor | float, dim: int
) -> Tensor:
    """Return an approximation of `log_positivity` in closed form, at the cost of an expected likelihood.

    One vMF distribution with A(k') = A(kappa1) A(kappa_pos) stands in for the convolution of two, as a point drawn
    around a point drawn around the mean: log h = log int vMF(mean1, k') vMF(mean2, kappa2) + log |S|. For positive
    cosines and kappa_pos = 20 it is off by 0.16 nats at most at D = 10 and concentrations from 16 to 32, by 0.5 nats
    at concentrations from 64 to 128.

    Args:
        cosine: as for `log_positivity`, and so are the others.

    Example:
        >>> k = torch.tensor([4.0, 40.0])
        >>> log_positivity_matched(torch.tensor([[1.0], [0.0]]), k, k, 20.0, 8)
        tensor([[ 1.0699,  5.4946],
                [-0.0811, -4.9503]])
    """
    cosine, k1, k2, kp, dtype = _checked(cosine, kappa1, kappa2, kappa_pos, dim)
    return _matched(cosine, k1, k2, kp, dim).to(dtype)


def _matched(cosine: Tensor, k1: Tensor, k2: Tensor, kp: Tensor, dim: int) -> Tensor:
    (A1, V1), (Ap, Vp) = length_and_variance(k1, dim), length_and_variance(kp, dim)
    k = concentration(A1 * Ap, dim, variance=V1 + Vp - V1 * Vp)
    combined = ((k - k2).square() + 2 * k * k2 * (1 + cosine)).clamp(min=1e-200).sqrt()
    g, g2, g12 = (relative_log_normalizer(x, dim) for x in (k, k2, combined))
    return g + g2 - g12


def _checked(
    cosine: Tensor, kappa1: Tensor, kappa2: Tensor, kappa_pos: Tensor | float, dim: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, torch.dtype]:
    check_dim(dim)
    if not isinstance(kappa_pos, Tensor):
        kappa_pos = torch.tensor(kappa_pos, dtype=torch.float64, device=cosine.device)
        dtype = result_dtype(cosine, kappa1, kappa2)
    else:
        dtype = result_dtype(cosine, kappa1, kappa2, kappa_pos)
    for name, kappa in (("kappa1", kappa1), ("kappa2", kappa2), ("kappa_pos", kappa_pos)):
        remedy = f"concentrations above 0 and up to {LARGEST_KAPPA:g} are needed (at 0 log h is 0)"
        check_entries(name, kappa, 1e-30, LARGEST_KAPPA, remedy)
    # Unit vectors of few digits have cosines a little above 1.
    slack = 2e-2 if cosine.dtype in HALF_DTYPES else 1e-5 if cosine.dtype == torch.float32 else 1e-10
    check_entries(
        "cosine", cosine, -1 - slack, 1 + slack, "the cosine of unit vectors is from -1 to 1: normalise them"
    )
    check_broadcast(cosine=cosine.shape, kappa1=kappa1.shape, kappa2=kappa2.shape, kappa_pos=kappa_pos.shape)
    exact = precise(cosine)
    return (
        exact + (exact.detach().clamp(-1, 1) - exact.detach()),
        precise(kappa1),
        precise(kappa2),
        precise(kappa_pos),
        dtype,
    )


def multiplicity_ratios(count: int, dim: int) -> Tensor:
    """Return N_n/N_{n-1} for n = 1 ... count - 1, of the numbers of spherical harmonics, in float64.

    Example:
        >>> multiplicity_ratios(4, 3).cumprod(0).round()
        tensor([3., 5., 7.], dtype=torch.float64)
    """
    n = torch.arange(2, count, dtype=torch.float64)
    later = (2 * n + dim - 2) / (2 * n + dim - 4) * (n + dim - 3) / n
    return torch.cat([torch.tensor([dim], dtype=torch.float64), later])


def bessel_ratios(kappa: Tensor, dim: int, count: int) -> Tensor:
    """Return r_n = A_{n+1}/A_n = I_{nu+n+1}/I_{nu+n} for n = 0 ... count - 1, of shape (count, *kappa.shape).

    Example:
        >>> bessel_ratios(torch.tensor([10.0]), 3, 2).flatten()  # the first is coth(10) - 1/10
        tensor([0.9000, 0.8111])
    """
    nu = dim / 2 - 1
    ratios = [expand(kappa, dim + 2 * (count - 1)).length]
    for n in range(count - 2, -1, -1):
        ratios.append(kappa / (2 * (nu + n + 1) + kappa * ratios[-1]))
    return torch.stack(ratios[::-1])


def number_of_terms(largest: list[float], dim: int) -> int:
    """Return how many terms of the series exceed 1e-18, at the largest concentrations (k1, k2, kpos)."""
    enough = int(math.sqrt(80 * min(largest))) + 16
    while True:
        count = min(enough, MAX_TERMS)
        ratios = bessel_ratios(torch.tensor(largest, dtype=torch.float64), dim, count)[:-1].prod(1)
        logs = (ratios * multiplicity_ratios(count, dim)).log().cumsum(0)
        counted = 1 + int((logs > math.log(1e-18)).sum())
        if counted < count:
            return max(counted, 2)
        if count == MAX_TERMS:
            raise ValueError(
                f"the smallest of kappa1, kappa2 and kappa_pos is up to {min(largest):g}, for which the series needs "
                f"more than {MAX_TERMS} terms: use log_positivity_matched, which is exact in that limit"
            )
        enough *= 2


class _Series(torch.autograd.Function):
    """log h and whether it is resolved; elsewhere it is 0. The derivatives are summed along with the series."""

    @staticmethod
    def forward(
        ctx: Any, cosine: Tensor, k1: Tensor, k2: Tensor, kp: Tensor, dim: int
    ) -> tuple[Tensor, Tensor]:
        inputs = (cosine, k1, k2, kp)
        ctx.shapes = [x.shape for x in inputs]
        shape = torch.broadcast_shapes(*ctx.shapes)
        if 0 in shape:
            ctx.save_for_backward(*[cosine.new_empty(shape)] * 4)
            return cosine.new_empty(shape), cosine.new_empty(shape, dtype=torch.bool)
        count = number_of_terms([float(k.max()) for k in (k1, k2, kp)], dim)
        aligned = [x.reshape((1,) * (max(len(shape), 1) - x.ndim) + x.shape) for x in inputs]
        num = shape[0] if shape else 1
        rows = max(1, ENTRIES_AT_ONCE * num // math.prod(shape))
        blocks = []
        for start in range(0, num, rows):
            c, *kappas = (x if len(x) == 1 else x[start : start + rows] for x in aligned)
            blocks.append(_sum_block(c, (kappas[0], kappas[1], kappas[2]), dim, count, ctx.needs_input_grad))
        log, is_resolved, *slopes = (torch.cat(parts).view(shape) for parts in zip(*blocks, strict=True))
        ctx.save_for_backward(*slopes)
        ctx.mark_non_differentiable(is_resolved)
        return log, is_resolved

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        slopes, shapes, needed = ctx.saved_tensors, ctx.shapes, ctx.needs_input_grad[:4]
        return (
            *(
                (grad_outputs[0] * slope).sum_to_size(shape) if is_needed else None
                for slope, shape, is_needed in zip(slopes, shapes, needed, strict=True)
            ),
            None,
        )


def _sum_block(
    cosine: Tensor, kappas: tuple[Tensor, Tensor, Tensor], dim: int, count: int, needed: Sequence[bool]
) -> list[Tensor]:
    """Return log h, whether it is resolved, and d log h/d(cosine, k1, k2, kp), zeros where not needed."""
    full = torch.broadcast_shapes(cosine.shape, *(k.shape for k in kappas))
    weights, scale, changes = _weights(*kappas, dim, count)
    h, size, *slopes = (torch.zeros(full, dtype=cosine.dtype, device=cosine.device) for _ in range(6))
    inner = _polynomials(cosine, dim + 2) if needed[0] else None
    for n, (P, weight) in enumerate(zip(_polynomials(cosine, dim), weights, strict=False)):
        term = weight * P
        h += term
        size += term.abs_() if not any(needed[1:4]) else term.abs()
        if inner is not None and n:  # dP_n/dc is a polynomial of two more dimensions
            slopes[0].addcmul_(weight, next(inner), value=n * (n + dim - 2) / (dim - 1))
        for slope, change, is_needed in zip(slopes[1:], changes, needed[1:4], strict=True):
            if is_needed:
                slope.addcmul_(term, change[n])
    smallest = (math.log(SMALLEST) - scale).exp() if isinstance(scale, Tensor) else SMALLEST
    is_resolved = (h > smallest) & (h > ROUNDING * size)
    safe = torch.where(is_resolved, h, 1)
    inverse = torch.where(is_resolved, 1 / safe, 0)
    divided = [
        slopes[0] * inverse,
        *(slope * inverse / k for slope, k in zip(slopes[1:], kappas, strict=True)),
    ]
    return [torch.where(is_resolved, safe.log() + scale, 0), is_resolved, *divided]


def _weights(
    k1: Tensor, k2: Tensor, kp: Tensor, dim: int, count: int
) -> tuple[Iterator[Tensor], Tensor | float, list[Tensor]]:
    """Return N_n A_n(k1) A_n(k2) A_n(kpos) exp(-scale) for every n, the scale, and d log A_n/d log k of each."""
    ratios = [bessel_ratios(k, dim, count) for k in (k1, k2, kp)]
    n = torch.arange(count, dtype=k1.dtype, device=k1.device).view(-1, *[1] * k1.ndim)
    changes = [n + k * (r - r[0]) for k, r in zip((k1, k2, kp), ratios, strict=True)]
    steps = multiplicity_ratios(count, dim).to(k1).view(-1, *[1] * k1.ndim)
    left, right = ratios[0][:-1] * ratios[2][:-1] * steps, ratios[1][:-1]
    top_left, top_right = (x.flatten(1).amax(1).view_as(steps) for x in (left, right))
    if float((top_left * top_right).log().cumsum(0).max()) < LARGEST_EXPONENT:
        balance = (top_left / top_right).sqrt()  # keeps both factors within range
        products = ((left / balance).cumprod(0), (right * balance).cumprod(0))
        factors = (torch.cat([torch.ones_like(x[:1]), x]) for x in products)
        return (a * b for a, b in zip(*factors, strict=True)), 0.0, changes
    scale = _matched(torch.ones_like(k1), k1, k2, kp, dim)
    logs = (torch.cat([torch.zeros_like(x[:1]), x.log().cumsum(0)]) for x in (left, right))
    return ((a + b - scale).exp() for a, b in zip(*logs, strict=True)), scale, changes


def _polynomials(cosine: Tensor, dim: int) -> Iterator[Tensor]:
    """Yield P_0, P_1, ... at the cosines; each is overwritten when the next but one is asked for."""
    before, last = torch.ones_like(cosine), cosine.clone()
    yield before
    for n in itertools.count(2):
        yield last
        before.mul_(-(n - 1) / (n + dim - 3)).addcmul_(cosine, last, value=(2 * n + dim - 4) / (n + dim - 3))
        before, last = last, before
